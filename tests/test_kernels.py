"""Compiled contractions against features written out column by column."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from matfree_hier import kernels
from tests import oracle

TOLERANCE = {"float32": 2e-6, "float64": 1e-14}  # relative to the sums of absolute values
# Panels that fit the cache and panels that must be cut.
SIZES = [
    (1, 1),
    (1, 8),
    (9, 1),
    (1000, 1),
    (2, 8),
    (3, 8),
    (4, 7),
    (5, 6),
    (12, 5),
    (20, 4),
    (40, 3),
    (90, 2),
]
COUNTS = [1, 5, 47, 1000]
WIDTHS = [1, 2, 7, 16, 33]


def samples(n: int, d: int, dtype: str, seed: int = 21) -> NDArray[Any]:
    return np.random.default_rng([seed, n, d]).standard_normal((n, d)).astype(dtype)


def block(rows: int, k: int, dtype: str, seed: int = 22) -> NDArray[Any]:
    return np.random.default_rng([seed, rows, k]).standard_normal((rows, k)).astype(dtype)


def forward(X: NDArray[Any], V: NDArray[Any], q: int) -> NDArray[Any]:
    out = np.full((len(X), V.shape[1]), np.nan, X.dtype)
    kernels.forward(X, V, q, out)
    return out


def backward(X: NDArray[Any], G: NDArray[Any], q: int) -> NDArray[np.float64]:
    out = np.zeros((comb(X.shape[1] + q - 1, q), G.shape[1]))
    kernels.backward(X, G, q, out)
    return out


def error(found: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> float:
    """Largest error of left @ right, over the largest sum of absolute values."""
    exact = left @ right.astype(np.float64)
    assert np.isfinite(found).all()
    return float(np.abs(found - exact).max() / (np.abs(left) @ np.abs(right).astype(np.float64)).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "q"), SIZES)
def test_products_agree_with_the_features(d: int, q: int, dtype: str) -> None:
    phi = oracle.features(samples(1000, d, dtype), q)
    for n, k in zip([*COUNTS, 1000, 47, 333], [*WIDTHS, 16, 1], strict=True):
        X, V, G = samples(1000, d, dtype)[:n], block(phi.shape[1], k, dtype), block(n, k, dtype)
        assert error(forward(X, V, q), phi[:n], V) < TOLERANCE[dtype], (n, k)
        assert error(backward(X, G, q), phi[:n].T, G) < TOLERANCE[dtype], (n, k)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("q", range(1, 9))
def test_every_count_and_width_of_the_tiles_agrees(q: int, dtype: str) -> None:
    X = samples(141, 3, dtype)
    phi = oracle.features(X, q)
    for n in [*range(1, 20), 31, 32, 33, 63, 64, 65, 141]:
        k = 1 + (5 * n) % 37
        V, G = block(phi.shape[1], k, dtype), block(n, k, dtype)
        assert error(forward(X[:n], V, q), phi[:n], V) < TOLERANCE[dtype], (n, k)
        assert error(backward(X[:n], G, q), phi[:n].T, G) < TOLERANCE[dtype], (n, k)
    for k in range(1, 36):
        V, G = block(phi.shape[1], k, dtype), block(29, k, dtype)
        assert error(forward(X[:29], V, q), phi[:29], V) < TOLERANCE[dtype], k
        assert error(backward(X[:29], G, q), phi[:29].T, G) < TOLERANCE[dtype], k


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 2, 9])
@pytest.mark.parametrize("q", range(1, 9))
def test_no_samples_change_nothing(d: int, q: int, dtype: str) -> None:
    size = comb(d + q - 1, q)
    X, out = np.empty((0, d), dtype), block(size, 3, "float64")
    expected = out.copy()
    kernels.backward(X, np.empty((0, 3), dtype), q, out)
    np.testing.assert_array_equal(out, expected)
    assert forward(X, block(size, 3, dtype), q).shape == (0, 3)
    kernels.squared_norms(X, q, np.empty(0))
    kernels.features(X, q, np.empty((0, size), dtype))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(d, q, lo, hi): a range of features that is not empty."""
    q = draw(st.integers(1, 4))
    d = draw(st.integers(1, 24 if q == 2 else 9))
    lo, hi = sorted(draw(st.sets(st.integers(0, comb(d + q - 1, q)), min_size=2, max_size=2)))
    return d, q, lo, hi


@given(ranges(), st.sampled_from(["float32", "float64"]), st.integers(1, 40), st.integers(1, 130))
def test_a_range_of_features_is_that_range_of_the_products(
    sizes: tuple[int, int, int, int], dtype: str, k: int, n: int
) -> None:
    d, q, lo, hi = sizes
    X, V, G = samples(n, d, dtype), block(hi - lo, k, dtype), block(n, k, dtype)
    phi = oracle.features(X, q)[:, lo:hi]
    U, W = np.full((n, k), np.nan, dtype), np.zeros((hi - lo, k))
    kernels.forward(X, V, q, U, first=lo)
    kernels.backward(X, G, q, W, first=lo)
    assert error(U, phi, V) < TOLERANCE[dtype]
    np.testing.assert_array_equal(W, backward(X, G, q)[lo:hi])


@pytest.mark.parametrize(("d", "q"), [(300, 2), (60, 3), (24, 4)])
def test_ranges_of_features_whose_panels_are_cut_add_up(d: int, q: int) -> None:
    size = comb(d + q - 1, q)
    X, V, G = samples(70, d, "float64"), block(size, 5, "float64"), block(70, 5, "float64")
    whole, sums = forward(X, V, q), backward(X, G, q)
    cuts = [size * c // 7 for c in range(8)]
    parts = np.full((7, 70, 5), np.nan)
    for part, lo, hi in zip(parts, cuts[:-1], cuts[1:], strict=True):
        kernels.forward(X, V[lo:hi], q, part, first=lo)
        W = np.zeros((hi - lo, 5))
        kernels.backward(X, G, q, W, first=lo)
        np.testing.assert_array_equal(W, sums[lo:hi])
    np.testing.assert_allclose(parts.sum(axis=0), whole, atol=1e-13 * np.abs(whole).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_backward_adds_to_what_is_there(dtype: str) -> None:
    X, G = samples(100, 6, dtype), block(100, 5, dtype)
    once = backward(X, G, 3)
    out = once.copy()
    kernels.backward(X, G, 3, out)
    np.testing.assert_allclose(out, 2 * once, rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_column_has_the_same_value_in_any_block(dtype: str) -> None:
    """The path for one vector and the tiles for many agree to rounding."""
    X, V = samples(500, 12, dtype), block(364, 21, dtype)
    wide = forward(X, V, 3)
    G = block(500, 21, dtype)
    sums = backward(X, G, 3)
    for j in (0, 7, 20):
        one = np.ascontiguousarray(V[:, j : j + 1]), np.ascontiguousarray(G[:, j : j + 1])
        scale = np.abs(wide).max(), np.abs(sums).max()
        rtol = 100 * np.finfo(dtype).eps
        np.testing.assert_allclose(forward(X, one[0], 3)[:, 0], wide[:, j], atol=rtol * scale[0])
        np.testing.assert_allclose(backward(X, one[1], 3)[:, 0], sums[:, j], atol=rtol * scale[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("q", range(1, 9))
def test_features_stand_in_lexicographic_order(q: int, dtype: str) -> None:
    X = samples(60, 4, dtype)
    out = np.full((60, comb(3 + q, q)), np.nan, dtype)
    kernels.features(X, q, out)
    np.testing.assert_allclose(out, oracle.features(X, q), rtol=0, atol=200 * np.finfo(dtype).eps * 4**q)


@pytest.mark.parametrize(("d", "q"), [(1, 8), (2, 6), (3, 4), (4, 3), (5, 2), (6, 1)])
def test_features_are_orthonormal_under_the_gaussian(d: int, q: int) -> None:
    X, weights = oracle.gaussian_quadrature(d, q + 1)  # exact to degree 2 q + 1
    phi = np.empty((len(X), comb(d + q - 1, q)))
    kernels.features(X, q, phi)
    np.testing.assert_allclose(phi.T @ (weights[:, None] * phi), np.eye(phi.shape[1]), atol=1e-12)


@pytest.mark.parametrize(("d", "q"), [(1, 8), (2, 6), (3, 4), (5, 2)])
def test_products_see_orthonormal_features(d: int, q: int) -> None:
    X, weights = oracle.gaussian_quadrature(d, q + 1)
    identity = np.eye(comb(d + q - 1, q))
    U = forward(X, identity, q)
    np.testing.assert_allclose(backward(X, weights[:, None] * U, q), identity, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
@pytest.mark.parametrize("q", range(1, 9))
def test_gram_matrix_by_recurrence_is_that_of_the_features(d: int, q: int) -> None:
    X, Y = samples(37, d, "float64"), samples(23, d, "float64")
    out = np.full((37, 23), np.nan)
    kernels.gram(X, Y, q, out)
    phi, psi = oracle.features(X, q), oracle.features(Y, q)
    scale = np.linalg.norm(phi, axis=1)[:, None] * np.linalg.norm(psi, axis=1)
    assert (np.abs(out - phi @ psi.T) / np.maximum(scale, 1.0)).max() < 2e-12


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "q"), [*SIZES, (3, 2), (6, 3), (7, 4)])
def test_squared_norms_by_recurrence_are_those_of_the_features(d: int, q: int, dtype: str) -> None:
    X = samples(200, d, dtype)
    out = np.full(200, np.nan)
    kernels.squared_norms(X, q, out)
    exact = (oracle.features(X, q) ** 2).sum(axis=1)
    np.testing.assert_allclose(out, exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_read_only_samples_are_taken_as_they_are(dtype: str) -> None:
    """Memory maps are opened read-only."""
    X, V, G = samples(50, 4, dtype), block(20, 3, dtype), block(50, 3, dtype)
    expected = forward(X, V, 3), backward(X, G, 3)
    for array in (X, V, G):
        array.flags.writeable = False
    np.testing.assert_array_equal(forward(X, V, 3), expected[0])
    np.testing.assert_array_equal(backward(X, G, 3), expected[1])
    kernels.squared_norms(X, 3, np.empty(50))


def test_sums_in_single_precision_keep_their_digits_over_a_long_call() -> None:
    """Labels of one sign: a plain float32 sum of 2 million would lose three digits."""
    n = 2_000_000
    X = np.random.default_rng(31).standard_normal((n, 1), dtype=np.float32)
    out = backward(X, np.abs(X), 1)
    exact = float((np.abs(X[:, 0], dtype=np.float64) * X[:, 0].astype(np.float64)).sum())
    size = float((X.astype(np.float64) ** 2).sum())
    assert abs(out[0, 0] - exact) < 1e-6 * size
    squares = backward(X, X, 1)[0, 0]
    assert abs(squares - size) < 1e-6 * size


def test_nan_in_one_sample_stays_visible() -> None:
    X, V = samples(40, 3, "float32"), block(10, 2, "float32")
    X[17, 1] = np.nan
    U = forward(X, V, 3)
    assert np.isnan(U[17]).all()
    assert np.isfinite(np.delete(U, 17, axis=0)).all()
    assert np.isnan(backward(X, np.ones((40, 1), np.float32), 3)).any()
