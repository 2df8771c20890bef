"""How the error of prediction falls with the number of samples."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import zeta

from matfree_hier.checks import positive
from matfree_hier.theory.simple import overlap

Array: TypeAlias = NDArray[np.float64]

_MOST_ITERATIONS = 10_000
_EXACT = 1e-12  # of the variance: an error that counts as none


def relative_mse(
    weights: ArrayLike, n: float, n_packed: int, theta: ArrayLike | None = None, second_moment: float = 1.0
) -> float:
    """Return the spectral estimator's 1 - R^2 for g = identity, with the best readout of the features found.

    1 - sum_k lambda_k^2 o_k^2 / sum_k lambda_k^2, o_k the overlap: the squares of two unit normal variables
    of squared correlation o correlate by o.

    Parameters
    ----------
    weights : array_like of float, shape (k,)
        lambda_k.
    n : float
        Number of samples.
    n_packed : int
        D.
    theta : array_like of float, shape (k,), optional
        Strengths under the label transform; ``weights`` for t = y.
    second_moment : float
        E[t^2].
    """
    weights = np.asarray(weights, dtype=np.float64)
    o = overlap(weights if theta is None else theta, n, n_packed, second_moment)
    return float(1.0 - np.sum(weights**2 * o**2) / np.sum(weights**2))


def mse_exponent(gamma: float) -> float:
    """Return e = 1/(2 gamma) - 1, the paper's exponent in n for the spectral estimator.

    For gamma > 1/2 it is negative and the error falls as (n/D)^e (Theorem 3.2). For gamma < 1/2 it is
    positive: the error is of order one, and its part explained grows as (n/(d_1 D))^e. At 1/2 it is 0 and
    the law is logarithmic. It is the sum over the features not yet found: the (n/D)^(1/(2 gamma)) first
    ones are.

    Raises
    ------
    ValueError
        If ``gamma`` is not above 0.

    References
    ----------
    arXiv 2605.14567, Theorem 3.2 and Corollary 3.1.
    """
    return 0.5 / positive("gamma", gamma) - 1.0


def mse_law(n: ArrayLike, n_packed: int, gamma: float, n_features: int | None = None) -> Array:
    """Return the power law that `relative_mse` of power-law weights follows, with its constant.

    With m = (2 Z^2 n/D)^(1/(2 gamma)) the number of features above threshold, t = y and the sum over features
    replaced by an integral:

    - gamma > 1/2:  Z^2 m^(1 - 2 gamma) [2 - 1/(2 gamma + 1) + 1/(2 gamma - 1)], falling;
    - gamma < 1/2:  1 - Z^2 m^(1 - 2 gamma) [1/(1 - 2 gamma) - 2 + 1/(2 gamma + 1)].

    Good for 1 << m << n_features. What the integral leaves out above 1/2 is the part of a few first features,
    which falls faster; the constant is that of the sharp overlaps 1 - n_k/n.

    Parameters
    ----------
    n : array_like of float
        Numbers of samples.
    n_packed : int
        D.
    gamma : float
        Above 0, not 1/2, where the law is logarithmic.
    n_features : int, optional
        d_1, which sets Z; infinitely many by default, which gamma > 1/2 allows.

    Returns
    -------
    ndarray of float64, of the shape of ``n``

    Raises
    ------
    ValueError
        If an argument is out of its bounds, or ``n_features`` is not given for gamma < 1/2.

    References
    ----------
    arXiv 2605.14567, Theorem 3.2, which has the exponents.
    """
    power = 2.0 * positive("gamma", gamma)
    if power == 1.0:
        msg = "`gamma` must not be 0.5, where the law is logarithmic: `relative_mse` gives the error."
        raise ValueError(msg)
    if n_features is None and power < 1.0:
        msg = f"`n_features` must be given for `gamma` below 0.5, got gamma {gamma}."
        raise ValueError(msg)
    total = zeta(power) if n_features is None else np.sum(np.arange(1.0, n_features + 1.0) ** -power)
    ratio = np.asarray(n, dtype=np.float64) / positive("n_packed", n_packed)
    found = (2.0 * ratio / total) ** (1.0 / power)
    scale = found ** (1.0 - power) / total
    if power > 1.0:
        return np.asarray(scale * (2.0 - 1.0 / (power + 1.0) + 1.0 / (power - 1.0)))
    return np.asarray(1.0 - scale * (1.0 / (1.0 - power) - 2.0 + 1.0 / (power + 1.0)))


def refined_mse(
    weights: ArrayLike,
    n: float,
    n_packed: int,
    noise_variance: float = 0.0,
    start: float | None = None,
) -> float:
    """Return 1 - R^2 of the noise-free target after refinement, in the limit of many samples.

    To first order the least squares fit finds feature k as the spectral estimator would, were its labels what
    the other features leave: 1 - o_k = D s^2/(2 n lambda_k^2), s^2 the error on new samples, which is the
    noise and sum lambda_k^2 (1 - o_k^2). The largest solution below the start is returned: without noise
    it is 0 as soon as n passes some d_1 D.

    Parameters
    ----------
    weights : array_like of float, shape (k,)
        lambda_k.
    n : float
        Number of samples.
    n_packed : int
        D.
    noise_variance : float
        Of what the features do not explain, at least 0.
    start : float, optional
        Error that the refinement starts from, noise excluded; by default that of predicting the mean.
    """
    weights = np.asarray(weights, dtype=np.float64)
    total = float(np.sum(weights**2))
    left = total if start is None else min(total, total * positive("start", start))
    for _ in range(_MOST_ITERATIONS):
        if left + noise_variance <= _EXACT * total:
            return 0.0
        o = overlap(weights, n, n_packed, left + noise_variance)
        before, left = left, float(np.sum(weights**2 * (1.0 - o**2)))
        if abs(before - left) <= 1e-9 * left:
            break
    return left / total
