"""What more samples would bring: the power law of weights, the next feature, the error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from matfree_hier.theory import overlap, refined_mse

Array: TypeAlias = NDArray[np.float64]

MULTIPLES = (2.0, 10.0, 100.0)  # of the samples there are
_FEWEST = 3  # features that a power law is fitted to
_LONGEST = 10_000  # features of a power law
_FURTHEST = 1e6  # multiple of the samples there are up to which the next feature is looked for
_HIDDEN = 3.0  # sigma, above which a weight does not go unnoticed
_LEAST_ERROR = 0.05  # relative, of a debiased weight


@dataclass(frozen=True)
class PowerLaw:
    """|lambda_k| = scale k^-gamma.

    Attributes
    ----------
    gamma, scale : float
        NaN with fewer than 3 features.
    interval : tuple of float
        Of gamma, 90 %.
    """

    gamma: float = np.nan
    scale: float = np.nan
    interval: tuple[float, float] = (np.nan, np.nan)


@dataclass(frozen=True, eq=False)
class Forecast:
    """What to expect of more samples.

    Attributes
    ----------
    n_samples : ndarray of float64, shape (3,)
        2, 10 and 100 times those there are.
    relative_mse : ndarray of float64, shape (3,)
        Mean squared error over the variance of labels, noise included; NaN if unknown.
    next_feature : float
        Number of samples at which the next feature is expected; infinite if none is, NaN if unknown.
    """

    n_samples: Array
    relative_mse: Array
    next_feature: float


def fit_power_law(weights: Array, errors: Array) -> PowerLaw:
    """Fit log |lambda_k| = log scale - gamma log k by weighted least squares, k the rank by size.

    Parameters
    ----------
    weights, errors : ndarray of float64, shape (K,)
        Weights of the features that are resolved, and standard errors.

    Returns
    -------
    PowerLaw
        The interval allows for errors as large as the misfit shows, and no smaller than those given.
    """
    if len(weights) < _FEWEST:
        return PowerLaw()
    order = np.argsort(-np.abs(weights), kind="stable")
    sizes = np.abs(weights[order])
    relative = np.maximum(errors[order] / sizes, _LEAST_ERROR)
    ranks = np.arange(1.0, len(sizes) + 1.0)
    design = np.column_stack([np.ones(len(sizes)), -np.log(ranks)]) / relative[:, np.newaxis]
    target = np.log(sizes) / relative
    inverse = np.linalg.inv(design.T @ design)
    intercept, gamma = inverse @ (design.T @ target)
    free = len(sizes) - 2
    misfit = float(np.sum((target - design @ np.array([intercept, gamma])) ** 2)) / free
    half = float(student.ppf(0.95, free)) * float(np.sqrt(inverse[1, 1] * max(1.0, misfit)))
    return PowerLaw(float(gamma), float(np.exp(intercept)), (float(gamma) - half, float(gamma) + half))


def forecast_refined(
    weights: Array, law: PowerLaw, *, error: float, variance: float, n_samples: int, n_packed: int
) -> Forecast:
    """Forecast the error of refinement by the equation of `theory.refined_mse`.

    Weights go on as the power law says until they explain the error there is; where features that large would
    have been found, all there is left is noise.

    Parameters
    ----------
    weights : ndarray of float64, shape (K,)
        Of the features that are resolved.
    law : PowerLaw
    error, variance : float
        Mean squared error on new samples, and variance of labels.
    n_samples, n_packed : int
        n of the fit, and D.
    """
    o = overlap(weights, float(n_samples), n_packed, max(error, 1e-300))
    hidden = _HIDDEN * float(np.sqrt(n_packed * max(error, 0.0) / (2.0 * n_samples)))
    everything, noise = _continued(weights, law, error - float(np.sum(weights**2 * (1.0 - o**2))), hidden)
    total = float(np.sum(everything**2))
    now = min(1.0, (error - noise) / total) if total > 0.0 else 0.0

    def left(n: float) -> float:
        return total * refined_mse(everything, n, n_packed, noise, start=now) if now > 0.0 else 0.0

    counts = n_samples * np.array(MULTIPLES)
    errors = np.array([min(error, left(float(n)) + noise) for n in counts])

    def appears(n: float) -> bool:
        return bool(overlap(everything[len(weights)], n, n_packed, max(left(n) + noise, 1e-300)) > 0.0)

    reached = _first(appears, n_samples) if len(everything) > len(weights) else np.inf
    return Forecast(counts, errors / variance, reached if np.isfinite(law.gamma) else np.nan)


def forecast_spectral(
    weights: Array, overlaps: Array, law: PowerLaw, *, error: float, variance: float, n_samples: int
) -> Forecast:
    """Forecast the error of the spectral estimator: o_k = 1 - n_k/n, with n_k lambda_k^2 as it is found now.

    Parameters
    ----------
    weights, overlaps : ndarray of float64, shape (K,)
        Of the features that are resolved.
    law, error, variance, n_samples
        As in `forecast_refined`.
    """
    counts = n_samples * np.array(MULTIPLES)
    if len(weights) == 0:
        return Forecast(counts, np.full(len(counts), np.nan), np.nan)
    constant = float(np.median(n_samples * (1.0 - overlaps) * weights**2))
    unexplained = error - float(np.sum(weights**2 * (1.0 - overlaps**2)))
    hidden = _HIDDEN * float(np.sqrt(constant / n_samples))
    everything, noise = _continued(weights, law, unexplained, hidden)
    thresholds = constant / everything**2
    found = np.maximum(0.0, 1.0 - thresholds / counts[:, np.newaxis])
    errors = np.minimum(error, noise + (everything**2 * (1.0 - found**2)).sum(axis=1))
    reached = np.nan
    if np.isfinite(law.gamma):
        reached = np.inf if len(everything) == len(weights) else max(thresholds[len(weights)], n_samples)
    return Forecast(counts, errors / variance, float(reached))


def _continued(weights: Array, law: PowerLaw, unexplained: float, hidden: float) -> tuple[Array, float]:
    """Add weights by the power law while their squares fit in what is unexplained; the rest is noise.

    Where the next weight is too large to be `hidden`, the features found are all there are.
    """
    unexplained = max(unexplained, 0.0)
    if not np.isfinite(law.gamma) or law.scale * (len(weights) + 1.0) ** -law.gamma > hidden:
        return weights, unexplained
    ranks = np.arange(len(weights) + 1.0, _LONGEST + 1.0)
    more = law.scale * ranks**-law.gamma
    sums = np.cumsum(more**2)
    more = more[sums <= unexplained]
    return np.append(weights, more), unexplained - float(np.sum(more**2))


def _first(appears: Callable[[float], bool], n_samples: int) -> float:
    """Return the least n, within some percent, at which a feature appears."""
    for n in np.geomspace(n_samples, _FURTHEST * n_samples, 200):
        if appears(float(n)):
            return float(n)
    return float("inf")
