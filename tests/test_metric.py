"""Graphs, the lifted Laplacian against its dense expression, inverses that leave no trace."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import matfree_hier as mh
from matfree_hier import metric
from tests import oracle
from tests.strategies import seeds

SIZES = [(1, 1), (1, 4), (5, 1), (4, 3), (3, 5), (6, 2), (2, 6)]
Array = Any


def dense_lift(A: Array, q: int) -> Array:
    """P^T (A x I x .. + I x A x .. + ..) P, P the isometry onto tensors."""
    d = len(A)
    P = oracle.unpacking_matrix(d, q)
    full = sum(np.kron(np.kron(np.eye(d**s), A), np.eye(d ** (q - 1 - s))) for s in range(q))
    return P.T @ full @ P


# --- graphs ------------------------------------------------------------------------------------------------


def test_path_cycle_and_grid_have_the_edges_they_should() -> None:
    np.testing.assert_array_equal(metric.path(3).toarray(), [[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(metric.cycle(4).toarray()[0], [0, 1, 0, 1])
    np.testing.assert_array_equal(metric.cycle(2).toarray(), metric.path(2).toarray())
    assert metric.path(1).nnz == metric.cycle(1).nnz == 0
    image = metric.grid(3, 4).toarray()
    for a in range(12):
        for b in range(12):
            steps = abs(a // 4 - b // 4) + abs(a % 4 - b % 4)
            assert image[a, b] == (steps == 1)


def test_graphs_go_by_name_shape_or_weights() -> None:
    W = np.array([[5.0, 0.5, 0.0], [0.5, 0.0, 2.0], [0.0, 2.0, 0.0]])
    for given_graph, expected in [
        ("path", metric.path(3)),
        ("cycle", metric.cycle(3)),
        ((3, 1), metric.grid(3, 1)),
        (W, sp.csr_array(W)),
        (sp.coo_matrix(W), sp.csr_array(W)),
        (W.tolist(), sp.csr_array(W)),
    ]:
        np.testing.assert_array_equal(metric.graph_weights(given_graph, 3).toarray(), expected.toarray())
    np.testing.assert_array_equal(
        metric.laplacian(sp.csr_array(W)).toarray(), [[0.5, -0.5, 0], [-0.5, 2.5, -2], [0, -2, 2]]
    )


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("ring", r'`graph` must be "path", "cycle", a shape or a matrix of weights, got \'ring\'\.'),
        ((2, 0), r"`graph` must have at least 1 row and 1 column, got \(2, 0\)\."),
        ((2, 2), r"`graph` must have shape \(3, 3\), got \(4, 4\)\."),
        (np.ones((2, 3)), r"`graph` must be a square matrix of weights, got shape \(2, 3\)\."),
        (np.eye(2), r"`graph` must have shape \(3, 3\), got \(2, 2\)\."),
        (-np.ones((3, 3)), r"`graph` must have weights of at least 0, got -1\."),
        (np.full((3, 3), np.nan), r"`graph` must have finite weights, got nan\."),
        (np.triu(np.ones((3, 3))), r"`graph` must be symmetric, got weights that differ by 1 across"),
    ],
)
def test_bad_graphs_are_refused_in_one_sentence(graph: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric.smoothness(graph, 2, 1.0, n_inputs=3)


def test_graphs_of_no_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"`graph` must be .* got dtype object\."):
        metric.graph_weights(np.array([[None]]))


@pytest.mark.parametrize("tau", [-1.0, np.nan, np.inf])
def test_tau_out_of_bounds_is_refused(tau: float) -> None:
    with pytest.raises(ValueError, match=f"`tau` must be finite and at least 0, got {tau}"):
        metric.smoothness("path", 2, tau, n_inputs=3)


# --- the lift ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "q"), SIZES)
def test_the_lift_is_that_of_the_tensor_axes(d: int, q: int) -> None:
    A = np.random.default_rng(5).standard_normal((d, d))
    A[np.abs(A) < 0.3] = 0.0
    A = A + A.T
    lifted = metric.lift(sp.csr_array(A), q)
    np.testing.assert_allclose(lifted.toarray(), dense_lift(A, q), atol=1e-13)


@given(d=st.integers(1, 5), q=st.integers(1, 4), seed=seeds)
def test_lifted_eigenvalues_are_sums_of_eigenvalues(d: int, q: int, seed: int) -> None:
    A = np.random.default_rng(seed).standard_normal((d, d))
    A = A + A.T
    sums = [sum(each) for each in combinations_with_replacement(np.linalg.eigvalsh(A), q)]
    lifted = np.linalg.eigvalsh(metric.lift(sp.csr_array(A), q).toarray())
    np.testing.assert_allclose(lifted, np.sort(sums), atol=1e-11)


def test_a_large_lift_is_sparse_and_knows_its_null_vector() -> None:
    d, q = 60, 3
    L = metric.lift(metric.laplacian(metric.path(d)), q)
    assert L.shape == (37_820, 37_820)
    assert L.nnz < 8 * 37_820
    null = 1.0 / mh.packing.unpacking_weights(d, q)
    np.testing.assert_allclose(L @ null, np.zeros(len(null)), atol=1e-12)


@pytest.mark.parametrize("graph", ["path", "cycle", (2, 3)])
def test_levels_are_the_eigenvalues(graph: Any) -> None:
    B = metric.smoothness(graph, 3, 7.0, n_inputs=6)
    expected = np.linalg.eigvalsh(B.matrix.toarray())
    np.testing.assert_allclose(np.sort(B.levels()), expected, rtol=1e-11)
    assert expected[0] == pytest.approx(1.0)


def test_without_tau_the_metric_is_the_identity() -> None:
    B = metric.smoothness("path", 2, 0.0, n_inputs=5)
    np.testing.assert_array_equal(B.matrix.toarray(), np.eye(15))
    assert repr(B) == "Metric(n_inputs=5, degree=2, tau=0)"


def test_fingerprints_tell_metrics_apart() -> None:
    arguments: list[tuple[Any, int, float]] = [
        ("path", 2, 1.0),
        ("cycle", 2, 1.0),
        ("path", 3, 1.0),
        ("path", 2, 2.0),
    ]
    prints = [metric.smoothness(*each, n_inputs=5).fingerprint() for each in [*arguments, arguments[0]]]
    assert len(set(prints)) == 4
    assert prints[0] == prints[-1]


# --- inverses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "q"), [(1, 2), (2, 1), (7, 1), (8, 2), (6, 3)])
@pytest.mark.parametrize("kind", metric.PRECONDITIONERS)
def test_preconditioners_are_symmetric_and_positive(kind: str, d: int, q: int) -> None:
    B = metric.smoothness("path", q, 50.0, n_inputs=d)
    M = metric.preconditioner(B, kind)(np.eye(B.size))
    np.testing.assert_allclose(M, M.T, atol=1e-14)
    root = np.linalg.cholesky(B.matrix.toarray())
    values = np.linalg.eigvalsh(root.T @ M @ root)
    assert values[0] > 0.0
    if kind == "amg":  # a cycle that takes off most of any error, and never overshoots
        assert values[0] > 0.5
        assert values[-1] < 1.0 + 1e-12
    if kind == "exact":
        np.testing.assert_allclose(values, 1.0, rtol=1e-11)


@pytest.mark.parametrize("graph", ["path", np.kron(np.eye(4), np.ones((5, 5)))])
def test_multigrid_cycles_converge_at_a_rate_that_hardly_depends_on_tau(graph: Any) -> None:
    for tau in (1.0, 1e3, 1e6):
        B = metric.smoothness(graph, 3, tau, n_inputs=20)
        cycle = metric.preconditioner(B, "amg")
        error = np.random.default_rng(7).standard_normal((B.size, 1))
        for _ in range(10):
            error = error - cycle(B.apply(error))
            length = np.sqrt(float((error.T @ B.apply(error))[0, 0]))
            error /= length
        assert length < 0.6


def test_the_exact_inverse_is_exact_with_and_without_a_factorisation(monkeypatch: pytest.MonkeyPatch) -> None:
    B = metric.smoothness((4, 5), 2, 1e4)
    R = np.random.default_rng(7).standard_normal((B.size, 3))
    expected = np.linalg.solve(B.matrix.toarray(), R)
    np.testing.assert_allclose(metric.preconditioner(B, "exact")(R), expected, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(metric, "FACTORED", 10)
    np.testing.assert_allclose(metric.preconditioner(B, "exact")(R), expected, rtol=1e-9, atol=1e-12)


def test_multigrid_has_the_same_bits_each_time_and_leaves_the_global_generator_alone() -> None:
    B = metric.smoothness("path", 3, 100.0, n_inputs=12)
    R = np.random.default_rng(7).standard_normal((B.size, 2))
    answers = []
    for seed in (11, 12):
        np.random.set_state(np.random.RandomState(seed).get_state())  # noqa: NPY002
        answers.append(metric.preconditioner(B, "amg")(R))
        expected = np.random.RandomState(seed).random_sample(4)
        np.testing.assert_array_equal(np.random.random_sample(4), expected)  # noqa: NPY002
    np.testing.assert_array_equal(*answers)


def test_an_unknown_preconditioner_is_refused() -> None:
    B = metric.smoothness("path", 1, 1.0, n_inputs=3)
    with pytest.raises(
        ValueError, match=r"`preconditioner` must be one of none, jacobi, amg, exact, got 'ilu'"
    ):
        metric.preconditioner(B, "ilu")
