"""The same products, features and eigenpairs by other means."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from matfree_hier.bench import reference


@pytest.mark.parametrize("restarted", [False, True])
def test_the_authors_power_iteration_is_their_fifteen_products(restarted):
    products = []
    rng = np.random.default_rng(41)
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    w = np.concatenate([[-10.0, 5.0, -2.0], np.full(27, 0.1)])

    class Operator:
        def __matmul__(self, V):
            products.append(V.shape[1])
            return Q @ (w[:, None] * (Q.T @ V))

    tol = 1e-12 if restarted else None
    start = rng.standard_normal((30, 5))
    found = reference.block_power(Operator(), start, 3, tol=tol, max_passes=60)
    assert products == [5] * found.n_passes
    assert found.n_passes in ({30, 45, 60} if restarted else {15})
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(3), atol=1e-13)
    np.testing.assert_allclose(found.values, w[:3], rtol=1e-13 if restarted else 1e-6)
    error = np.abs(np.abs(Q[:, :3].T @ found.vectors) - np.eye(3)).max()
    assert error < (1e-12 if restarted else 1e-2)
    assert error > (0.0 if restarted else 1e-9)


def test_the_power_iteration_does_not_exceed_its_passes():
    found = reference.block_power(
        np.diag([2.0, 1.99, 1.98]), np.eye(3)[:, ::-1] + 0.1, 2, tol=1e-15, max_passes=44
    )
    assert found.n_passes == 30


def test_the_numpy_moment_matrix_is_the_definition_with_its_trace_centred():
    rng = np.random.default_rng(43)
    X, t = rng.standard_normal((50, 4)), rng.standard_normal(50)
    expected = oracle.moment_matrix(X, t, 3)
    expected -= np.trace(expected) / 20 * np.eye(20)
    np.testing.assert_allclose(reference.moment_matrix(X, t, 3, rows=16), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("d", "q"), [(1, 1), (4, 1), (5, 2), (4, 3), (3, 5), (1, 4)])
def test_the_numpy_peers_make_the_features_of_the_definition(d, q):
    X = np.random.default_rng(31).standard_normal((7, d))
    expected = oracle.features(X, q).T
    np.testing.assert_allclose(reference.hermite_features(X, q), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(reference.gathered_features(X, q), expected, rtol=1e-12, atol=1e-13)


def test_the_numpy_peer_applies_the_operator_of_the_definition():
    rng = np.random.default_rng(33)
    X, t, V = rng.standard_normal((50, 4)), rng.standard_normal(50), rng.standard_normal((20, 3))
    expected = oracle.moment_matrix(X, t, 3) @ V
    np.testing.assert_allclose(reference.apply_in_chunks(X, t, V, 3, 16), expected, rtol=1e-11, atol=1e-12)
    scale = oracle.moment_scale(oracle.features(X, 3), t, V).max()
    assert reference.error_scale(X, t, V, 3) == pytest.approx(scale)
