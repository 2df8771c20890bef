"""Which features stand above the bulk, and which count on samples they were not fitted to."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]


def outliers(
    eigenvalues: ArrayLike, edge_left: float, edge_right: float, n_packed: int, *, quantile: float = 2.02
) -> NDArray[np.bool_]:
    """Say which eigenvalues stand outside the bulk.

    An eigenvalue counts when it is past its edge by ``quantile`` fluctuations of the outermost eigenvalue
    of a bulk, half the bulk's half-width times D^(-2/3): the Tracy-Widom law. The edges are those of
    `theory.predict_spectrum` for the labels used, and with the features' norms, which widen the bulk at
    finite d. They do not hold the bulk of spurious population eigenvalues at finite d
    (`theory.finite_size`), which shows where n/D is large: what is outside is then more than the features,
    for `significance` to judge.

    Parameters
    ----------
    eigenvalues : array_like of float, shape (k,)
        Of the trace-centred operator, in any order.
    edge_left, edge_right : float
        The bulk's ends, left <= right.
    n_packed : int
        D.
    quantile : float
        Of the Tracy-Widom law of real symmetric matrices: 2.02 is 99 %, 0.98 is 95 %.

    Returns
    -------
    ndarray of bool, shape (k,)

    Raises
    ------
    ValueError
        If the edges are reversed or an argument is not finite.
    """
    w = np.asarray(eigenvalues, dtype=np.float64)
    if not np.isfinite(w).all():
        msg = f"`eigenvalues` must be finite, got {w[~np.isfinite(w)][0]}."
        raise ValueError(msg)
    if not edge_left <= edge_right:
        msg = f"`edge_left` must be at most `edge_right`, got {edge_left} and {edge_right}."
        raise ValueError(msg)
    if n_packed < 1:
        msg = f"`n_packed` must be at least 1, got {n_packed}."
        raise ValueError(msg)
    margin = quantile * 0.25 * (edge_right - edge_left) * n_packed ** (-2.0 / 3.0)
    return np.asarray((w > edge_right + margin) | (w < edge_left - margin))


def count_features(
    eigenvalues: ArrayLike, edge_left: float, edge_right: float, n_packed: int, *, quantile: float = 2.02
) -> int:
    """Count the eigenvalues that stand outside the bulk: those of `outliers`, with its arguments."""
    return int(outliers(eigenvalues, edge_left, edge_right, n_packed, quantile=quantile).sum())


def significance(latents: ArrayLike, y: ArrayLike) -> Array:
    """Return, for each candidate feature, how many standard errors its part of the target is away from 0.

    Least squares of y on all h_k^2 - 1 at once, on samples that the features were not fitted to. An
    eigenvector of the spurious population bulk has E[y (h^2 - 1)] well away from 0, but explains nothing
    that the true features do not: its coefficient in the joint fit is near 0, while that of a true feature
    is near lambda_k times its overlap. Standard errors are robust to unequal variances (HC1), since labels
    have heavy tails. Above 3, a feature is one that prediction gains by. Cost O(n K^2) time, O(n K) memory.

    Parameters
    ----------
    latents : array_like of float, shape (n, K)
        h_k of held-out samples.
    y : array_like of float, shape (n,)
        Their labels, not transformed.

    Returns
    -------
    ndarray of float64, shape (K,)
        |coefficient|/standard error; 0 for a constant or repeated column.

    Raises
    ------
    ValueError
        If shapes disagree, a value is not finite, or n is not above K + 1.
    """
    h, y = np.asarray(latents, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if h.ndim != 2 or y.shape != h.shape[:1]:
        msg = f"`latents` must be a matrix of one row a label of `y`, got shapes {h.shape} and {y.shape}."
        raise ValueError(msg)
    n, k = h.shape
    if n <= k + 1:
        msg = f"`y` must hold more than {k + 1} labels to judge {k} features, got {n}."
        raise ValueError(msg)
    if not (np.isfinite(h).all() and np.isfinite(y).all()):
        msg = "`latents` and `y` must be finite."
        raise ValueError(msg)
    return t_statistics(h**2, y)


def t_statistics(columns: Array, y: Array) -> Array:
    """Return |coefficient|/standard error of `joint_coefficients`, with its arguments."""
    coefficients, errors = joint_coefficients(columns, y)
    return np.divide(np.abs(coefficients), errors, out=np.zeros(len(errors)), where=errors > 0.0)


def joint_coefficients(columns: Array, y: Array) -> tuple[Array, Array]:
    """Return coefficients and standard errors (HC1) in the least squares of y on all columns, (n, p) -> (p,).

    The columns are written to. Constant and repeated ones do no harm: theirs are 0, or shared out; n must be
    above p + 1.
    """
    Q, (n, k) = columns, columns.shape
    Q -= Q.mean(axis=0)
    spread = np.sqrt(np.mean(Q**2, axis=0))
    spread = np.where(spread > 0.0, spread, 1.0)
    Q /= spread
    # The pseudo-inverse shares a repeated column's part out instead of blowing up.
    inverse = np.linalg.pinv(Q.T @ Q, rcond=1e-10, hermitian=True)
    centred = y - y.mean()
    coefficients = inverse @ (Q.T @ centred)
    residuals = centred - Q @ coefficients
    meat = (Q * (residuals**2)[:, None]).T @ Q * (n / (n - k - 1))
    variance = np.diag(inverse @ meat @ inverse)
    noise = np.sqrt(np.maximum(variance, 0.0))
    # Labels that are met exactly have no error left but rounding.
    noise = np.maximum(noise, np.finfo(np.float64).eps * np.linalg.norm(centred) / np.sqrt(n))
    return np.asarray(coefficients / spread), np.asarray(noise / spread)
