"""Closed forms for n/D above some 30: thresholds, eigenvalues, overlaps."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matfree_hier.checks import positive

Array: TypeAlias = NDArray[np.float64]


def recovery_threshold(theta: ArrayLike, n_packed: int, second_moment: float = 1.0) -> Array:
    """Return n_k = D E[t^2]/(2 theta_k^2), the number of samples above which feature k is found.

    Parameters
    ----------
    theta : array_like of float, shape (k,)
        Strengths theta_k of either sign; 0 gives infinity.
    n_packed : int
        D.
    second_moment : float
        E[t^2], 1 for t = y = h2.

    Returns
    -------
    ndarray of float64, shape (k,)

    References
    ----------
    Paper (arXiv 2605.14567) Theorem 3.1 up to its constant.
    """
    theta = np.asarray(theta, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(n_packed * positive("second_moment", second_moment) / (2.0 * theta**2))


def bulk_edge(n: ArrayLike, n_packed: int, second_moment: float = 1.0) -> Array:
    """Return 2 sigma, the bulk's half-width, sigma^2 = D E[t^2]/(2 n); good for n/D above some 30.

    Below that, and whenever t is skewed, `predict_spectrum` gives both edges.
    """
    return 2.0 * np.sqrt(noise_variance(n, n_packed, second_moment))


def outlier_eigenvalue(theta: ArrayLike, n: ArrayLike, n_packed: int, second_moment: float = 1.0) -> Array:
    """Return theta_k + sigma^2/theta_k where |theta_k| > sigma, NaN where feature k is not found.

    Parameters
    ----------
    theta, n : array_like of float
        Strengths and numbers of samples, broadcast against each other.
    n_packed : int
        D.
    second_moment : float
        E[t^2].
    """
    theta = np.asarray(theta, dtype=np.float64)
    variance = noise_variance(n, n_packed, second_moment)
    found = theta**2 > variance
    return np.where(found, theta + variance / np.where(found, theta, 1.0), np.nan)


def overlap(
    theta: ArrayLike,
    n: ArrayLike,
    n_packed: int,
    second_moment: float = 1.0,
    weighted_moment: ArrayLike | None = None,
) -> Array:
    """Return the squared projection of feature k on the one found, 1 - n_k/n above threshold, else 0.

    With the moment E[t^2 h_k^2] given, (1 - n_k/n)/(1 - n_k/n + n'_k/n) with n'_k that moment in place of
    E[t^2]: the same where t and h_k are nearly independent, and 1 - n'_k/n far above threshold.

    Parameters
    ----------
    theta, n : array_like of float
        Strengths and numbers of samples, broadcast against each other.
    n_packed : int
        D.
    second_moment : float
        E[t^2].
    weighted_moment : array_like of float, optional
        E[t^2 h_k^2], of the shape of ``theta``; 1 + 4 lambda_k^2 for t = y and the identity link.

    Returns
    -------
    ndarray of float64
        In [0, 1].
    """
    theta = np.asarray(theta, dtype=np.float64)
    signal = np.maximum(theta**2 - noise_variance(n, n_packed, second_moment), 0.0)
    weighted = second_moment if weighted_moment is None else np.asarray(weighted_moment, dtype=np.float64)
    noise = np.asarray(weighted) * n_packed / (2.0 * np.asarray(n, dtype=np.float64))
    return np.asarray(signal / (signal + noise))


def expected_count(theta: ArrayLike, n: float, n_packed: int, second_moment: float = 1.0) -> int:
    """Return the number of features above threshold at n samples."""
    return int(np.sum(recovery_threshold(theta, n_packed, second_moment) < n))


def noise_variance(n: ArrayLike, n_packed: int, second_moment: float) -> Array:
    """Return sigma^2 = D E[t^2]/(2 n)."""
    n = np.asarray(n, dtype=np.float64)
    if not np.all(n > 0.0):
        msg = f"`n` must be above 0, got {n.min()}."
        raise ValueError(msg)
    return np.asarray(n_packed * positive("second_moment", second_moment) / (2.0 * n))
