"""How near features are to true ones, and what their weights are, without knowing the truth.

The overlap of a feature found is the squared norm of its projection on the span of the true features
(`known.overlaps` with the true ones in the place of those found): the share of it that is real. Where
features are told apart it is also the squared projection of the true feature on what was found.

Near the truth both the spectral and the least squares estimate are off by a vector of squared length
sigma^2/lambda^2, sigma^2 = D E[r^2]/(2 n), r the labels of the operator, or what the fit leaves of the labels
on new samples. What a feature found explains of the labels is beta = lambda o. So beta = lambda o(lambda)
with o = (lambda^2 - sigma^2)/lambda^2 (`theory.overlap`) is solved for lambda, the debiased weight, and o.
Of a refined feature beta is its weight. Of a spectral one it is the coefficient of the operator's labels on
(h^2 - 1)/sqrt 2 over held-out samples, and its eigenvalue gives a second estimate of o.

Intervals are on the scale of log(o/(1 - o)). Their widths add up the error of beta, fluctuations of order
1/sqrt D, what two estimates differ by, and what estimates were off by for all features of a fit at once, over
50 simulated teachers (degree 1 with 100 to 200 inputs, degree 2 with 12 to 20).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.recovery.counting import joint_coefficients

if TYPE_CHECKING:
    from matfree_hier.theory import BulkEnd

Array: TypeAlias = NDArray[np.float64]

_CLEAR = 4.0  # standard errors of beta from which a spectral feature is resolved
LEAST = 0.2  # estimated overlap from which it is
_NORMAL = 1.645  # 95 % quantile
_RESOLVED = 2.3  # sigma, from which a weight of a refined feature is
_COUNTED = 1.5  # sigma, from which it takes degrees of freedom
_COMMON = 0.2  # standard deviation of what is common to a fit, in log(o/(1 - o)), for degree 1
_COMMON_ABOVE = 0.3  # for higher degrees, where features are not quite Gaussian
_SPREAD = 3.0  # variance of a squared residual, in squares of its mean: 2 for Gaussian ones
_UNSETTLED = 0.7  # added to it where the refinement ran out of steps: its error is then not the noise's
_DISAGREEMENT = 0.5  # of two estimates counts as a standard deviation by this share
_NOTHING = 0.01  # the least overlap that is estimated


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Samples that the features were not fitted to.

    Attributes
    ----------
    columns : ndarray of float64, shape (n, K + p)
        (h_k^2 - 1)/sqrt 2 of the K features, then any other columns that labels may depend on.
    y : ndarray of float64, shape (n,)
        Labels.
    signs : ndarray of float64, shape (K,)
        Of the weights, as the fit has them.
    """

    columns: Array
    y: Array
    signs: Array

    @property
    def enough(self) -> bool:
        """Whether there are more samples than the least squares need."""
        return len(self.signs) > 0 and len(self.y) > self.columns.shape[1] + 10

    @property
    def squares(self) -> Array:
        """h_k^2, shape (n, K)."""
        return np.asarray(sqrt(2.0) * self.columns[:, : len(self.signs)] + 1.0)

    def coefficients(self, y: Array) -> tuple[Array, Array]:
        """Return beta_k, positive where its sign is that of the weight, and standard errors, each (K,)."""
        beta, errors = joint_coefficients(self.columns.copy(), y)
        k = len(self.signs)
        return beta[:k] * self.signs, errors[:k]


@dataclass(frozen=True, eq=False)
class Quality:
    """What the data say of each feature.

    Attributes
    ----------
    overlaps : ndarray of float64, shape (K,)
        Estimated squared norm of the feature's projection on the span of the true ones; NaN if unknown.
    intervals : ndarray of float64, shape (K, 2)
        90 % intervals of these.
    resolved : ndarray of bool, shape (K,)
        Whether the feature is clearly there.
    weights, weight_errors : ndarray of float64, shape (K,)
        Debiased: of the true feature, as a coefficient of the labels, and standard errors; NaN if unknown.
    """

    overlaps: Array
    intervals: Array
    resolved: NDArray[np.bool_]
    weights: Array
    weight_errors: Array

    @classmethod
    def unknown(cls, count: int) -> Quality:
        """Return what is known of `count` features without evidence: nothing."""
        nan = np.full(count, np.nan)
        return cls(nan, np.full((count, 2), np.nan), np.zeros(count, dtype=bool), nan, nan)

    def placed(self, where: NDArray[np.int64], count: int) -> Quality:
        """Return the quality of `count` features, of which those at `where` are these and others unknown."""
        whole = Quality.unknown(count)
        for name in ("overlaps", "intervals", "resolved", "weights", "weight_errors"):
            values = getattr(whole, name).copy()
            values[where] = getattr(self, name)
            object.__setattr__(whole, name, values)
        return whole

    def taken(self, which: NDArray[np.generic]) -> Quality:
        """Return the quality of some of the features, by mask or positions."""
        return Quality(
            self.overlaps[which],
            self.intervals[which],
            self.resolved[which],
            self.weights[which],
            self.weight_errors[which],
        )


def assess_refined(
    weights: Array,
    error: float,
    *,
    n_samples: int,
    n_judged: int,
    n_inputs: int,
    degree: int,
    n_packed: int,
    settled: bool = True,
) -> Quality:
    """Assess features fitted to the labels by least squares.

    Parameters
    ----------
    weights : ndarray of float64, shape (K,)
        Of the fit.
    error : float
        Mean squared error on new samples.
    n_samples : int
        That the features were fitted to.
    n_judged : int
        New samples that the error is the mean of.
    n_inputs, degree, n_packed : int
        d, q and D.
    settled : bool
        Whether the fit ended by itself, so that its error is that of the noise.

    Notes
    -----
    For q > 1 several M give one function F^T M F. With as many components as make the set of such M larger
    than that of functions nothing is known; below, errors grow by the factor of `_ambiguity`.
    """
    beta, count = np.abs(weights), len(weights)
    variance = n_packed * max(error, 0.0) / (2.0 * n_samples)
    clear = int(np.sum(beta > _COUNTED * sqrt(variance)))
    if not np.isfinite(_ambiguity(count, n_inputs, degree, n_packed)):
        return Quality.unknown(count)
    # What an error adds inside the span of the true features does no harm.
    outside = 1.0 - min(clear, n_packed - 1) / n_packed
    inflated = variance * outside * _ambiguity(clear, n_inputs, degree, n_packed)
    strengths, overlaps = _debiased(beta, inflated, np.full(count, inflated))
    common = _common(degree) + (0.0 if settled else _UNSETTLED)
    deviations = np.full(count, sqrt(2.0 / n_packed + _SPREAD / n_judged + common**2))
    resolved = (beta > _RESOLVED * sqrt(variance)) & (overlaps > LEAST)
    errors = np.full(count, sqrt(2.0 * variance / n_packed))
    return _quality(overlaps, deviations, resolved, strengths * np.sign(weights), errors)


def assess_spectral(
    held_out: HeldOut,
    t: Array,
    norms: Array,
    *,
    variance: float,
    degree: int,
    n_packed: int,
    eigenvalues: Array | None = None,
    ends: tuple[BulkEnd, BulkEnd] | None = None,
) -> Quality:
    """Assess eigenvectors of the operator.

    Parameters
    ----------
    held_out : HeldOut
    t, norms : ndarray of float64, shape (n,)
        The operator's labels, and |F|^2/D, of the same samples.
    variance : float
        sigma^2 = D E[t^2 |F|^2/D]/(2 n) of the operator.
    degree, n_packed : int
        q and D.
    eigenvalues : ndarray of float64, shape (K,), optional
        Of the operator as it is, trace not subtracted.
    ends : tuple of BulkEnd, optional
        Right and left end of the bulk of its labels.
    """
    count = len(held_out.signs)
    if not held_out.enough or variance <= 0.0:
        return Quality.unknown(count)
    beta, errors = held_out.coefficients(t)
    weighted = variance * np.mean((t**2 * norms)[:, np.newaxis] * held_out.squares, axis=0)
    weighted /= float(np.mean(t**2 * norms)) or 1.0
    by_beta = _debiased(beta, variance, weighted)[1]
    lower = _debiased(beta - errors, variance, weighted)[1]
    spread = _logit(by_beta) - _logit(np.maximum(lower, 0.2 * by_beta))
    place, difference = _logit(by_beta), np.zeros(count)
    if eigenvalues is not None and ends is not None:
        by_eigenvalue = np.empty(count)
        for k, (value, squares) in enumerate(zip(eigenvalues, held_out.squares.T, strict=True)):
            end, sign = (ends[0], 1.0) if value > 0.0 else (ends[1], -1.0)
            by_eigenvalue[k] = end.overlap_at(sign * value, sign * t / sqrt(2.0), norms, squares)
        difference = _logit(by_eigenvalue) - place
        place, spread = place + difference / 2.0, spread / 2.0
    common = _common(degree)
    deviations = np.sqrt(spread**2 + 2.0 / n_packed + (_DISAGREEMENT * difference) ** 2 + common**2)
    overlaps = _share(place)
    raw, raw_errors = held_out.coefficients(held_out.y)
    scale = np.maximum(overlaps, _NOTHING)
    resolved = (beta > _CLEAR * errors) & (overlaps > LEAST)
    return _quality(overlaps, deviations, resolved, raw * held_out.signs / scale, raw_errors / scale)


def _common(degree: int) -> float:
    return _COMMON if degree == 1 else _COMMON_ABOVE


def _debiased(beta: Array, variance: float, weighted: Array) -> tuple[Array, Array]:
    """Solve beta = lambda o, o = (lambda^2 - s)/(lambda^2 - s + w), for lambda >= sqrt s: lambda and o, (K,).

    With a = lambda^2 - s it is sqrt(a + s) a = beta (a + w), which has one root: by bisection.
    """
    beta = np.maximum(beta, 0.0)
    high = (beta + 2.0 * np.sqrt(np.maximum(variance, weighted)) + sqrt(variance)) ** 2
    low = np.full(len(beta), 0.0)
    for _ in range(200):
        a = 0.5 * (low + high)
        above = np.sqrt(a + variance) * a >= beta * (a + weighted)
        low, high = np.where(above, low, a), np.where(above, a, high)
    strengths = np.sqrt(high + variance)
    total = high + weighted
    overlaps = np.divide(high, total, out=np.ones(len(beta)), where=total > 0.0)
    return strengths, np.where(beta > 0.0, overlaps, 0.0)


def _ambiguity(count: int, n_inputs: int, degree: int, n_packed: int) -> float:
    """Return the factor on squared errors that `count` components of degree q > 1 bring, maybe infinite.

    M has N = D(D+1)/2 entries, the functions F^T M F make a space of v dimensions (polynomials of even degree
    up to 2q), and the factors p degrees of freedom. A random subspace of p dimensions, seen through a random
    projection on v of N, has squared errors v (N - p)/(N (v - p)) times larger in the mean: 1 for q = 1.
    """
    whole = n_packed * (n_packed + 1) / 2
    seen = min(whole, sum(comb(n_inputs + 2 * j - 1, 2 * j) for j in range(1, degree + 1)))
    free = count * n_packed - count * (count - 1) / 2
    if degree > 1 and free >= seen:
        return float("inf")
    return seen * (whole - free) / (whole * (seen - free)) if seen < whole else 1.0


def _quality(
    overlaps: Array, deviations: Array, resolved: NDArray[np.bool_], weights: Array, errors: Array
) -> Quality:
    place, half = _logit(overlaps), _NORMAL * deviations
    intervals = np.column_stack([_share(place - half), _share(place + half)])
    return Quality(overlaps, intervals, resolved, weights, errors)


def _logit(overlaps: Array) -> Array:
    o = np.clip(overlaps, _NOTHING, 1.0 - 1e-12)
    return np.asarray(np.log(o / (1.0 - o)))


def _share(logits: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))
