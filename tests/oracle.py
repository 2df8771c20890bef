"""Naive dense twins, written from the formulas for reading: the truth the fast code is held against.

Nothing here shares code with the package: orders come from itertools, polynomials from numpy.polynomial.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from math import factorial, prod, sqrt
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss, hermeval
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def multi_indices(d: int, q: int) -> list[tuple[int, ...]]:
    """Multisets of q of d indices in lexicographic order."""
    return list(combinations_with_replacement(range(d), q))


def hermite(m: int, x: Floats) -> Floats:
    """Orthonormal h_m = He_m / sqrt(m!)."""
    return np.asarray(hermeval(x, [0.0] * m + [1.0])) / sqrt(factorial(m))


def features(X: NDArray[Any], q: int) -> Floats:
    """Phi, shape (n, D): row i is F(x_i), F_alpha(x) = prod_j h_{alpha_j}(x_j)."""
    X = np.asarray(X, dtype=np.float64)
    h = [hermite(m, X) for m in range(q + 1)]
    columns = [
        np.prod([h[index.count(j)][:, j] for j in set(index)], axis=0)
        for index in multi_indices(X.shape[1], q)
    ]
    return np.stack(columns, axis=1).reshape(len(X), -1)


def moment_product(phi: Floats, t: NDArray[Any], V: NDArray[Any]) -> Floats:
    """C V for C = (1/n) sum_i t_i (F_i F_i^T - I) / sqrt 2, from the features phi, shape (n, D)."""
    t, V = np.asarray(t, dtype=np.float64), np.asarray(V, dtype=np.float64)
    return phi.T @ (t[:, None] * (phi @ V)) / (len(t) * sqrt(2)) - t.mean() / sqrt(2) * V


def moment_scale(phi: Floats, t: NDArray[Any], V: NDArray[Any]) -> Floats:
    """S = |Phi|^T (|t| |Phi| |V|) / (n sqrt 2) + |mean t| |V| / sqrt 2: what rounding errors scale with."""
    phi, t, V = np.abs(phi), np.asarray(t, dtype=np.float64), np.abs(np.asarray(V, dtype=np.float64))
    return phi.T @ (np.abs(t)[:, None] * (phi @ V)) / (len(t) * sqrt(2)) + abs(t.mean()) / sqrt(2) * V


def moment_matrix(X: NDArray[Any], t: NDArray[Any], q: int, *, centre: bool = False) -> Floats:
    """C as a dense matrix, less its trace over D on the diagonal if asked."""
    phi = features(X, q)
    C = moment_product(phi, t, np.eye(phi.shape[1]))
    return C - np.trace(C) / len(C) * np.eye(len(C)) if centre else C


def alpha_factorial(index: tuple[int, ...]) -> int:
    """alpha! = prod_j alpha_j!, alpha_j = how often j occurs in the multi-index."""
    return prod(factorial(index.count(j)) for j in set(index))


def unpacking_matrix(d: int, q: int) -> Floats:
    """The isometry from packed to tensor coordinates as a dense matrix, shape (d**q, D)."""
    where = {index: column for column, index in enumerate(multi_indices(d, q))}
    matrix = np.zeros((d**q, len(where)))
    for row, index in enumerate(product(range(d), repeat=q)):
        ordered = tuple(sorted(index))
        matrix[row, where[ordered]] = sqrt(alpha_factorial(ordered) / factorial(q))
    return matrix


def tensor_moment_matrix(X: NDArray[Any], t: NDArray[Any], q: int, *, centre: bool = False) -> Floats:
    """C on the d**q tensor coordinates, from the Hermite tensor of each sample written out entry by entry."""
    X = np.asarray(X, dtype=np.float64)
    d = X.shape[1]
    rows = []
    for index in product(range(d), repeat=q):
        counts = [index.count(j) for j in range(d)]
        weight = sqrt(alpha_factorial(index) / factorial(q))
        rows.append(weight * np.prod([hermite(m, X[:, j]) for j, m in enumerate(counts)], axis=0))
    H = np.stack(rows, axis=1)
    symmetric = unpacking_matrix(d, q) @ unpacking_matrix(d, q).T
    C = np.einsum("i,ia,ib->ab", t, H, H) / len(X) / sqrt(2) - np.mean(t) / sqrt(2) * symmetric
    return C - np.trace(C) / np.trace(symmetric) * symmetric if centre else C


def gaussian_quadrature(d: int, points: int) -> tuple[Floats, Floats]:
    """Nodes (points**d, d) and weights of N(0, I_d), exact below degree 2 points in each variable."""
    nodes, weights = hermegauss(points)
    X = np.array(list(product(nodes, repeat=d)))
    w = np.array([prod(each) for each in product(weights / weights.sum(), repeat=d)])
    return X, w
