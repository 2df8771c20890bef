"""The statistical stop: outliers are resolved, the bulk is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrices import with_spectrum

from matfree_hier.eigen import top_eigenpairs
from matfree_hier.operator import MomentOperator
from matfree_hier.solvers.stopping import OutlierRule, RitzValues
from matfree_hier.status import Status

Array = Any


def spiked(size: int = 600, seed: int = 31) -> tuple[Array, Array]:
    """A semicircle on -1..1 with outliers at 1.9, -1.6, 1.4 and 1.25, which rank one terms put there."""
    rng = np.random.default_rng(seed)
    G = rng.standard_normal((size, size))
    V = np.linalg.qr(rng.standard_normal((size, 4)))[0]
    outliers = np.array([1.9, -1.6, 1.4, 1.25])
    strengths = (outliers + np.sign(outliers) * np.sqrt(outliers**2 - 1)) / 2  # theta + 1/(4 theta)
    return (G + G.T) / np.sqrt(8 * size) + (V * strengths) @ V.T, outliers


def test_outliers_are_resolved_and_the_bulk_is_left_alone() -> None:
    A, outliers = spiked()
    whole = top_eigenpairs(A, 10, method="krylov", tol=1e-6)
    result = top_eigenpairs(A, 10, method="krylov", tol=1e-6, stop="outliers")
    assert result.status is Status.OUTLIERS_RESOLVED
    assert "4 of 10 eigenvalues lie outside the bulk" in result.message
    assert result.n_passes < 0.6 * whole.n_passes
    np.testing.assert_allclose(result.eigenvalues[:4], outliers, atol=0.1)
    cosines = np.abs((result.eigenvectors[:, :4] * whole.eigenvectors[:, :4]).sum(axis=0))
    assert (np.sqrt(1 - np.minimum(cosines, 1) ** 2) < 1e-3).all()
    assert result.residuals[4:].max() > 1e-4
    assert result.require_converged() is result


@pytest.mark.parametrize("seed", range(3, 9))
def test_what_is_called_an_outlier_has_its_vector_to_a_thousandth(seed: int) -> None:
    A, _ = spiked(seed=seed)
    w, V = np.linalg.eigh(A)
    result = top_eigenpairs(A, 8, method="krylov", stop="outliers", seed=seed)
    assert result.status is Status.OUTLIERS_RESOLVED
    n_clear = int(result.message.split()[0])
    assert n_clear >= 3
    for value, v in zip(result.eigenvalues[:n_clear], result.eigenvectors.T, strict=False):
        exact = V[:, np.abs(w - value).argmin()]
        assert np.linalg.norm(v - exact * (exact @ v)) <= 1e-3


def test_eigenvalues_too_close_to_the_edge_are_named_and_bound_the_error_of_those_outside() -> None:
    rule = OutlierRule(1e-6, 1000, 16, (-1.0, 1.0))
    values = np.array([2.0, -1.5, 1.05, 0.5])

    def seen(third: float, clear: float) -> RitzValues:
        residuals = np.array([clear, clear, third, 0.1]) / 2.0
        return RitzValues(values, residuals, 2.0, 4, "LM", 100, (np.nan, np.nan))

    assert rule.message(seen(0.0, 0.0)) == (
        "2 of 4 eigenvalues lie outside the bulk, -1 to 1. At its edge, and not resolved to `tol`: 1.05."
    )
    for third, gap in ((0.0, 0.95), (0.45, 0.5), (1.0, 0.0)):  # it reaches to 1.05 + its residual
        ratio = rule.ratios(seen(third, 1e-4))[0]
        assert ratio == pytest.approx(min(1e-4 / max(gap, 1e-9) / 1e-3, 1e-4 / 2.0 / 1e-6), rel=1e-3)
    assert rule.ratios(seen(0.45, 1e-4))[1] == pytest.approx(0.2, rel=1e-3)  # the other end reaches to 1


@pytest.mark.parametrize("first", [1, 4])
def test_exact_eigenvectors_below_the_leading_ones_as_start_do_not_pass_for_them(first: int) -> None:
    A, _ = spiked()
    w, V = np.linalg.eigh(A)
    order = np.argsort(-np.abs(w))
    for seed in range(3, 15):
        start = V[:, order[first : first + 3]]
        result = top_eigenpairs(A, 3, method="krylov", start=start, seed=seed)
        assert result.status is Status.CONVERGED
        np.testing.assert_allclose(result.eigenvalues, w[order[:3]], rtol=1e-9)


def test_a_looser_tolerance_resolves_outliers_in_fewer_passes() -> None:
    A, _ = spiked()
    passes = [
        top_eigenpairs(A, 6, stop="outliers", method="krylov", tol=t).n_passes for t in (1e-8, 1e-6, 1e-3)
    ]
    assert passes[0] > passes[1] > passes[2]


def test_a_bulk_without_outliers_ends_soon() -> None:
    rng = np.random.default_rng(8)
    G = rng.standard_normal((500, 500))
    result = top_eigenpairs(G + G.T, 4, method="krylov", stop="outliers")
    assert result.status is Status.OUTLIERS_RESOLVED
    assert "0 of 4" in result.message
    assert result.n_passes <= 14


def test_what_converges_anyway_is_said_to_have_converged() -> None:
    values = np.zeros(100)
    values[:3] = 3, 2, -1
    for A in (with_spectrum(values), np.zeros((100, 100)), np.eye(100)):
        result = top_eigenpairs(A, 3, method="krylov", stop="outliers")
        assert result.status is Status.CONVERGED
    assert top_eigenpairs(spiked()[0], 3, method="dense", stop="outliers").status is Status.CONVERGED


def test_the_edges_of_a_moment_operator_are_those_of_theory() -> None:
    rng = np.random.default_rng(12)
    X = rng.standard_normal((4000, 200))
    y = np.clip(X[:, 0] ** 2 - 0.8 * X[:, 1] ** 2, -1, 1)
    for center_trace in (True, False):
        C = MomentOperator(X, y + 0.3, degree=1, center_trace=center_trace)
        result = top_eigenpairs(C, 6, method="krylov", stop="outliers")
        assert result.status is Status.OUTLIERS_RESOLVED
        assert "2 of 6 eigenvalues lie outside the bulk" in result.message
        exact = top_eigenpairs(C, 6, method="krylov", tol=1e-9)
        np.testing.assert_allclose(result.eigenvalues[:2], exact.eigenvalues[:2], rtol=1e-5)
        assert result.n_passes < exact.n_passes
