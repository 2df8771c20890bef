"""Eigenpairs with a metric: C v = w B v."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from matrices import Counted, two_sided, with_spectrum

from matfree_hier.eigen import top_eigenpairs
from matfree_hier.metric import Metric, smoothness
from matfree_hier.result import EigenResult
from matfree_hier.status import RunFileError, Status

Array = Any


@functools.cache
def metric_of_200(tau: float = 300.0) -> Metric:
    return smoothness("path", 1, tau, n_inputs=200)


def assert_generalised_pairs(
    result: EigenResult, A: Array, B: Array, k: int, which: str = "LM", tol: float = 1e-6
) -> None:
    """The right values in order, vectors orthonormal in B, honest residuals, peaks positive."""
    assert result.status is Status.CONVERGED
    values = scipy.linalg.eigh(A, B, eigvals_only=True)
    norm = np.abs(values).max()
    w, V = result.eigenvalues, result.eigenvectors
    best = {
        "LM": values[np.argsort(-np.abs(values))[:k]],
        "LA": values[::-1][:k],
        "SA": values[:k],
        "BE": np.concatenate([values[::-1][: (k + 1) // 2], values[: k // 2][::-1]]),
    }[which]
    np.testing.assert_allclose(w, best, atol=tol * norm, rtol=0)
    np.testing.assert_allclose(V.T @ B @ V, np.eye(k), atol=1e-11)
    residuals = np.linalg.norm(A @ V - (B @ V) * w, axis=0)
    assert 0.5 < result.norm / norm < 1 + 1e-12
    assert (residuals <= tol * norm * (1 + 1e-6)).all()
    np.testing.assert_allclose(result.residuals * result.norm, residuals, atol=1e-9 * norm)
    assert (V[np.abs(V).argmax(axis=0), np.arange(k)] > 0).all()


@pytest.mark.parametrize("which", ["LM", "LA", "SA", "BE"])
@pytest.mark.parametrize("method", ["krylov", "lobpcg", "dense", "auto"])
def test_generalised_pairs_are_those_of_the_dense_problem(method: Any, which: Any) -> None:
    A, metric = two_sided(), metric_of_200()
    C = Counted(A)
    result = top_eigenpairs(C, 5, which, method, max_passes=2000, metric=metric)
    assert_generalised_pairs(result, A, metric.matrix.toarray(), 5, which)
    assert result.n_passes == C.n_products


@pytest.mark.parametrize("method", ["krylov", "lobpcg"])
def test_every_preconditioner_gives_the_same_pairs_and_a_better_one_sooner(method: Any) -> None:
    A, metric = two_sided(), metric_of_200(1e3)
    passes = {}
    for kind in ("exact", "amg", "jacobi", "none"):
        if method == "lobpcg" and kind in ("jacobi", "none"):
            continue  # which it does not get anywhere with
        result = top_eigenpairs(A, 3, "LM", method, max_passes=2000, metric=metric, preconditioner=kind)
        assert_generalised_pairs(result, A, metric.matrix.toarray(), 3)
        passes[kind] = result.n_passes
    assert passes["amg"] < 2 * passes["exact"]
    assert max(passes["exact"], passes["amg"]) < passes.get("none", np.inf) / 2


@pytest.mark.parametrize("method", ["krylov", "lobpcg", "dense"])
def test_a_low_rank_or_zero_operator_has_a_generalised_spectrum_too(method: Any) -> None:
    metric = metric_of_200()
    values = np.zeros(200)
    values[:4] = [3.0, -2.0, 1.5, 1.0]
    A = with_spectrum(values)
    result = top_eigenpairs(A, 6, method=method, max_passes=500, metric=metric)
    assert_generalised_pairs(result, A, metric.matrix.toarray(), 6)
    zero = top_eigenpairs(np.zeros((200, 200)), 3, method=method, metric=metric)
    assert zero.status is Status.CONVERGED
    np.testing.assert_array_equal(zero.eigenvalues, np.zeros(3))


def test_a_metric_without_tau_gives_the_plain_answer_to_the_bit() -> None:
    plain = top_eigenpairs(two_sided(), 4, method="krylov")
    result = top_eigenpairs(two_sided(), 4, method="krylov", metric=metric_of_200(0.0), preconditioner="amg")
    np.testing.assert_array_equal(result.eigenvalues, plain.eigenvalues)
    np.testing.assert_array_equal(result.eigenvectors, plain.eigenvectors)
    # and a vanishing tau, by the generalised route, nearly so
    tiny = top_eigenpairs(two_sided(), 4, method="krylov", metric=metric_of_200(1e-13), tol=1e-9)
    np.testing.assert_allclose(tiny.eigenvalues, plain.eigenvalues, atol=1e-10)


def test_two_generalised_solves_have_the_same_bits_and_leave_the_global_generator_alone() -> None:
    before = np.random.get_state()  # noqa: NPY002
    first, second = (
        top_eigenpairs(two_sided(), 4, method="krylov", metric=metric_of_200(), preconditioner="amg", seed=17)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.eigenvectors, second.eigenvectors)
    np.testing.assert_array_equal(first.eigenvalues, second.eigenvalues)
    after = np.random.get_state()  # noqa: NPY002
    np.testing.assert_array_equal(before[1], after[1])
    assert before[2:] == after[2:]


def test_too_few_passes_for_a_generalised_problem_are_said() -> None:
    for method in ("krylov", "lobpcg"):
        result = top_eigenpairs(
            two_sided(), 5, method=method, metric=metric_of_200(1e4), preconditioner="none", max_passes=20
        )
        assert result.status is Status.MAX_PASSES
        assert result.residuals.max() > 1e-6
        assert result.n_passes <= 20


def test_a_generalised_solve_goes_on_from_its_run_file_and_refuses_another_metric(tmp_path: Any) -> None:
    A, path = two_sided(), tmp_path / "run.h5"
    whole = top_eigenpairs(A, 4, method="krylov", metric=metric_of_200())
    arguments: dict[str, Any] = {"method": "krylov", "run_file": path, "checkpoint_seconds": 0.0}
    calls = []
    cut = top_eigenpairs(
        A, 4, metric=metric_of_200(), callback=lambda r: calls.append(r) or len(calls) == 4, **arguments
    )
    assert cut.status is Status.INTERRUPTED
    resumed = top_eigenpairs(A, 4, metric=metric_of_200(), **arguments)
    np.testing.assert_array_equal(resumed.eigenvectors, whole.eigenvectors)
    assert resumed.n_passes == whole.n_passes
    for other in ({"metric": metric_of_200(5.0)}, {}, {"metric": metric_of_200(), "preconditioner": "amg"}):
        with pytest.raises(RunFileError, match="holds a solve of another configuration"):
            top_eigenpairs(A, 4, **arguments, **other)


def test_multigrid_needs_a_small_share_of_the_products_at_degree_three() -> None:
    """tau = 1e4, q = 3, d = 16: D = 816."""
    metric = smoothness("path", 3, 1e4, n_inputs=16)
    G = np.random.default_rng(23).standard_normal((metric.size, metric.size))
    A = (G + G.T) / 2
    multigrid = top_eigenpairs(A, 6, method="krylov", metric=metric, preconditioner="amg")
    assert_generalised_pairs(multigrid, A, metric.matrix.toarray(), 6)
    plain = top_eigenpairs(
        A, 6, method="krylov", metric=metric, preconditioner="none", max_passes=2 * multigrid.n_passes
    )
    assert not plain.status.ok
