"""Smooth teachers, solutions in a metric as features, and where their noise ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import matfree_hier as mh
from matfree_hier import metric, smooth, theory
from matfree_hier.fitting.refine import refine

Array = Any


def roughness(rows: Array, graph: Any, degree: int, d: int) -> Array:
    L = metric.lift(metric.laplacian(metric.graph_weights(graph, d)), degree).toarray()
    return np.einsum("ki,ij,kj->k", rows, L, rows)


def test_a_teachers_features_are_orthonormal_and_the_smoother_the_larger_tau() -> None:
    rough = []
    for tau in (0.0, 1.0, 100.0):
        teacher = smooth.teacher(12, 2, 3, tau=tau, seed=7, weights=[0.8, -0.5, 0.3])
        np.testing.assert_allclose(teacher.features_ @ teacher.features_.T, np.eye(3), atol=1e-13)
        np.testing.assert_array_equal(teacher.weights_, [0.8, -0.5, 0.3])
        rough.append(roughness(teacher.features_, "path", 2, 12).mean())
    assert rough[0] > 1.5 * rough[1] > 1.5**2 * rough[2]


def test_a_teacher_is_made_by_its_seed_graph_and_tau() -> None:
    def features(**options: Any) -> Array:
        return smooth.teacher(6, 2, 2, **({"seed": 7} | options)).features_

    np.testing.assert_array_equal(features(), features())
    for other in ({"seed": 8}, {"graph": "cycle"}, {"graph": (2, 3)}, {"tau": 2.0}):
        assert np.abs(features() - features(**other)).max() > 1e-3
    with pytest.raises(ValueError, match="`tau` must be finite and at least 0, got -1"):
        features(tau=-1.0)


def test_solutions_in_a_metric_become_the_ritz_pairs_of_their_span() -> None:
    B = metric.smoothness("path", 2, 5.0, n_inputs=8)
    G = np.random.default_rng(7).standard_normal((B.size, B.size))
    C = (G + G.T) / 2
    values, V = scipy.linalg.eigh(C, B.matrix.toarray())
    chosen = np.argsort(-np.abs(values))[:5]
    features, theta = smooth.features_of(V[:, chosen], values[chosen])
    np.testing.assert_allclose(features @ features.T, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(features @ C @ features.T, np.diag(theta), atol=1e-9)
    assert (np.diff(np.abs(theta)) <= 0).all()
    np.testing.assert_allclose(mh.recovery.overlaps(V[:, chosen].T, features), 1.0)


def test_without_a_metric_the_edge_is_that_of_the_semicircle() -> None:
    B = metric.smoothness("path", 2, 0.0, n_inputs=30)
    expected = theory.bulk_edge(5000, B.size, 1.7)
    assert smooth.bulk_edge(B, 5000, 1.7) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("tau", [0.3, 3.0])
def test_the_edge_is_where_noise_in_a_metric_ends(tau: float) -> None:
    """Beside the largest |eigenvalue| of B^-1/2 G B^-1/2, G Gaussian of the variance that labels give."""
    B = metric.smoothness("path", 2, tau, n_inputs=30)
    n = 40 * B.size
    G = np.random.default_rng(7).standard_normal((B.size, B.size)) / np.sqrt(2 * n)
    noise = np.triu(G) + np.triu(G, 1).T
    w = scipy.linalg.eigh(noise, B.matrix.toarray(), eigvals_only=True)
    assert np.abs(w).max() == pytest.approx(smooth.bulk_edge(B, n), rel=0.08)


def test_a_metric_as_the_penalty_of_a_refinement_finds_smooth_features_better() -> None:
    teacher = smooth.teacher(24, 1, 2, tau=30.0, weights=[0.8, -0.6], seed=7)
    X, y = teacher.sample(300, 11)
    rng = np.random.default_rng(13)
    y = y + rng.standard_normal(len(y))
    start = np.linalg.qr(teacher.features_.T + 0.2 * rng.standard_normal((24, 2)))[0].T
    found = []
    for tau in (0.0, 10.0):
        B = metric.smoothness("path", 1, tau, n_inputs=24)
        refined = refine(mh.open_source((X, y)), start, teacher.weights_, degree=1, n_features=2, metric=B)
        found.append(mh.recovery.overlaps(refined.features, teacher.features_).mean())
    assert found[1] > found[0] + 0.02
    assert found[1] > 0.95


def test_the_penalty_without_tau_changes_no_step_beyond_rounding() -> None:
    teacher = smooth.teacher(8, 1, 2, tau=3.0, weights=[0.8, -0.6], seed=7)
    X, y = teacher.sample(400, 11)
    arguments: dict[str, Any] = {"degree": 1, "n_features": 2, "max_steps": 8}
    plain, zero = (
        refine(mh.open_source((X, y)), teacher.features_, teacher.weights_, metric=B, **arguments)
        for B in (None, metric.smoothness("path", 1, 0.0, n_inputs=8))
    )
    np.testing.assert_allclose(zero.features, plain.features, atol=1e-4)
