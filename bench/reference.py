"""The same product and the same eigenpairs by other means: what others write, done well."""

from __future__ import annotations

from functools import cache
from itertools import combinations_with_replacement
from math import comb, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    MakeFeatures = Callable[[Array, int], Array]


def hermite_features(X: Array, degree: int) -> Array:
    """Return the packed Hermite features of each sample, one feature a row.

    Features of smallest index i, occurring m times, are h_m(x_i) times all features of degree q - m in the
    later inputs: whole rows times whole blocks, as fast as NumPy makes them.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d)
    degree : int

    Returns
    -------
    ndarray of the dtype of X, shape (D, n)
    """
    n, d = X.shape
    hermite = _hermite(np.ascontiguousarray(X.T), degree)
    panels = {0: np.ones((1, n), X.dtype)}
    for r in range(1, degree + 1):
        panels[r] = np.empty((comb(d + r - 1, r), n), X.dtype)
        row = 0
        for i in range(d):
            for m in range(r, 0, -1):
                width = comb(d - i - 1 + r - m - 1, r - m) if m < r else 1
                if width:
                    np.multiply(panels[r - m][-width:], hermite[m][i], out=panels[r][row : row + width])
                row += width
    return panels[degree]


def gathered_features(X: Array, degree: int) -> Array:
    """Return the same features by index arrays: a product of q columns, each picked by a multi-index.

    This is what one writes first in NumPy. Slot j of feature i_1 <= ... <= i_q holds h_m of an input where a
    run of m equal indices begins, and 1 where it goes on.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d)
    degree : int

    Returns
    -------
    ndarray of the dtype of X, shape (D, n)
    """
    table = np.concatenate(_hermite(X, degree), axis=1)  # column m d + i is h_m(x_i)
    columns = feature_columns(X.shape[1], degree)
    features = table[:, columns[0]]
    for column in columns[1:]:
        features *= table[:, column]
    return features.T


@cache
def feature_columns(d: int, degree: int) -> Array:
    """Return which column of the table each slot of each feature takes, shape (q, D)."""
    rows = np.array(list(combinations_with_replacement(range(d), degree)), dtype=np.int64).T
    order = np.zeros_like(rows)
    for slot in range(degree):
        begins = np.ones(rows.shape[1], bool) if slot == 0 else rows[slot] != rows[slot - 1]
        length = sum((rows[later] == rows[slot]).astype(np.int64) for later in range(slot, degree))
        order[slot] = np.where(begins, length, 0)
    columns: Array = order * d + rows
    return columns


def _hermite(X: Array, degree: int) -> list[Array]:
    """Return h_0(X), ..., h_q(X)."""
    number = X.dtype.type
    values = [np.ones_like(X), X]
    for m in range(1, degree):
        values.append((X * values[m] - number(sqrt(m)) * values[m - 1]) / number(sqrt(m + 1)))
    return values


def apply_with_features(features: Array, t: Array, V: Array) -> Array:
    """Return sum_i t_i F_i (F_i^T V) for features of shape (D, n) already formed."""
    product: Array = features @ (t[:, None] * (features.T @ V))
    return product


def apply_in_chunks(
    X: Array,
    t: Array,
    V: Array,
    degree: int,
    rows: int,
    make_features: MakeFeatures = hermite_features,
) -> Array:
    """Return (1/n) sum_i t_i (F_i F_i^T - I) V / sqrt 2, the features made ``rows`` samples at a time.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d)
    t : ndarray of the dtype of X, shape (n,)
    V : ndarray of the dtype of X, shape (D, k)
    degree, rows : int
    make_features : callable
        Maps (rows, d) samples and the degree to (D, rows) features.

    Returns
    -------
    ndarray of float64, shape (D, k)
    """
    W = np.zeros(V.shape)
    for start in range(0, len(X), rows):
        chunk = slice(start, start + rows)
        W += apply_with_features(make_features(X[chunk], degree), t[chunk], V)
    W /= len(X) * sqrt(2)
    W -= t.mean(dtype=np.float64) / sqrt(2) * V
    return W


def error_scale(X: Array, t: Array, V: Array, degree: int) -> float:
    """Return the largest sum of absolute values behind an entry of the product: its rounding scales with it.

    This is max |Phi|^T (|t| |Phi| |V|) / (n sqrt 2) + |mean t| |V| / sqrt 2; memory O(n D).
    """
    features = np.abs(hermite_features(X, degree))
    sums = apply_with_features(features, np.abs(t), np.abs(V)) / (len(X) * sqrt(2))
    return float(np.max(sums + abs(t.mean()) / sqrt(2) * np.abs(V)))


def polynomial_features(X: Array, degree: int) -> Array:
    """Return scikit-learn's monomials of this degree, one a row: as many as there are Hermite features."""
    from sklearn.preprocessing import PolynomialFeatures

    return np.ascontiguousarray(PolynomialFeatures((degree, degree), include_bias=False).fit_transform(X).T)


# ---- eigenpairs


def moment_matrix(X: Array, t: Array, degree: int, rows: int = 2048) -> Array:
    """Return the trace-centred moment matrix, formed by NumPy in float64: the reference for eigenpairs.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d)
    t : ndarray of float64, shape (n,)
        Transformed labels.
    degree, rows : int
        Degree, and the samples to take at a time.

    Returns
    -------
    ndarray of float64, shape (D, D)
        (1/n) sum_i t_i F_i F_i^T / sqrt 2 less the multiple of I that makes its trace 0. Cost 2 n D^2.
    """
    size = comb(X.shape[1] + degree - 1, degree)
    A = np.zeros((size, size))
    for start in range(0, len(X), rows):
        chunk = slice(start, start + rows)
        features = hermite_features(X[chunk].astype(np.float64), degree)
        A += (features * t[chunk]) @ features.T
    A /= len(X) * sqrt(2)
    A[np.diag_indices(size)] -= np.trace(A) / size
    return A


class PowerPairs(NamedTuple):
    """What `block_power` found: values (k,), vectors (D, k), and the products it took."""

    values: Array
    vectors: Array
    n_passes: int


def block_power(
    C: Any,
    start: Array,
    k: int,
    *,
    n_passes: int = 15,
    tol: float | None = None,
    max_passes: int = 15,
) -> PowerPairs:
    """Iterate Q <- qr(C Q) as the paper's authors do: no Rayleigh-Ritz, no test of convergence.

    Columns of the orthonormal block stand for eigenvectors and their Rayleigh quotients, from the last
    product, for eigenvalues; the first k are kept. With `tol` it is restarted from its own block, columns in
    order of |Rayleigh quotient|, until the residuals of all k meet it or `max_passes` are spent.

    Parameters
    ----------
    C : symmetric operator of shape (D, D)
        Anything that takes ``C @ Q``.
    start : ndarray of float64, shape (D, b)
        b >= k.
    k : int
        Pairs wanted.
    n_passes : int
        Products before it ends or is restarted.
    tol : float, optional
        Largest residual over the largest absolute value; None for no restart.
    max_passes : int
        Products in all; whole rounds of `n_passes` are made, at least one.
    """
    Q, spent = np.linalg.qr(start)[0], 0
    while True:
        for _ in range(n_passes - 1):
            Q = np.linalg.qr(C @ Q)[0]
        W = C @ Q
        spent += n_passes
        values = np.einsum("ij,ij->j", Q, W)
        order = np.argsort(-np.abs(values), kind="stable")
        if tol is None:
            return PowerPairs(values[:k], Q[:, :k], spent)
        residuals = np.linalg.norm(W - Q * values, axis=0)[order[:k]]
        if residuals.max() <= tol * np.abs(values).max() or spent + n_passes > max_passes:
            return PowerPairs(values[order[:k]], Q[:, order[:k]], spent)
        Q = np.linalg.qr(W[:, order])[0]
