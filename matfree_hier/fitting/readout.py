"""Layer 2: from the latents of found features to predictions, on samples the features did not see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from matfree_hier.fitting.moments import (
    EVIDENCE,
    N_FOLDS,
    FoldedMoments,
    Moments,
    choose_columns,
    is_better,
    merged,
    refit,
    shuffled_ranks,
)
from matfree_hier.linkfit import fit_link
from matfree_hier.links import AnyLink, FittedLink, ScaledLink
from matfree_hier.links import link as named_link
from matfree_hier.operator import project
from matfree_hier.recovery import t_statistics
from matfree_hier.shares import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

LINK_ROWS = 200_000  # samples that decide a fitted link: it has some 12 degrees of freedom
SIGNIFICANT = 3.0  # standard errors from which a feature counts
_CLEARLY = 3.0  # standard errors
_ENTRIES = 10_000_000  # of a matrix of samples that is held at once: 80 MB


@dataclass(frozen=True, eq=False)
class Readout:
    """y = intercept + link(offset + sum_k weights_k (h_k^2 - 1)/sqrt 2 + slopes_k h_k), h = <features, F>.

    Attributes
    ----------
    features : ndarray of float64, shape (K, D)
        Orthonormal rows.
    weights, slopes : ndarray of float64, shape (K,)
    intercept : float
    link : Link, FittedLink or ScaledLink
    r2 : float
        1 - error / error of the mean, cross-validated on the samples of the readout.
    offset : float
    """

    features: Array
    weights: Array
    slopes: Array
    intercept: float
    link: AnyLink
    r2: float
    offset: float = 0.0

    def combine(self, H: Array) -> Array:
        """Return the estimate of h2 from latents, (m, K) -> (m,)."""
        return self.offset + squares(H) @ self.weights + H @ self.slopes

    def __call__(self, H: Array) -> Array:
        """Predict from latents, (m, K) -> (m,)."""
        return self.intercept + self.link(self.combine(H))


def squares(H: Array) -> Array:
    """(h^2 - 1)/sqrt 2, elementwise: the second orthonormal Hermite polynomial of the latents."""
    return np.asarray((H * H - 1.0) / sqrt(2.0))


def sampled_latents(source: SampleSource, features: Array, degree: int, step: int = 1) -> tuple[Array, Array]:
    """Return latents, (m, K) in float64, and labels, (m,), of every `step`-th sample; O(n D K / step)."""
    H, y = zip(*source.shares.each(_latents, features, degree, step, placed=True), strict=True)
    return joined(list(H)), joined(list(y))


def _latents(
    source: SampleSource, offset: int, features: Array, degree: int, step: int
) -> tuple[Array, Array]:
    parts = [(np.empty((0, len(features))), np.empty(0))]
    parts += [(H, y) for _, H, y in latent_chunks(source, features, degree, step=step, offset=offset)]
    H, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return H, y


def latent_chunks(
    source: SampleSource, features: Array, degree: int, *, step: int = 1, offset: int = 0
) -> Iterator[tuple[int, Array, Any]]:
    """Yield (start, latents (m, K) in float64, labels (m,)) of every `step`-th sample; O(n D K / step).

    Samples are counted from `offset`, that of the first.
    """
    for chunk in source.chunks():
        rows = slice(-(offset + chunk.start) % step, None, step)
        X, y = chunk.X[rows], chunk.y if chunk.y is None else chunk.y[rows]
        H = np.zeros((len(X), len(features)))
        if H.size:
            H = project(X, features.T, degree, np.float64)
        yield chunk.start, H, y


def read_paper(source: SampleSource, features: Array, degree: int, link: Any) -> Readout:
    """Read out as the paper does: h2 = <A2, (h h^T - I)/sqrt 2>, A2 = mean y (h h^T - I)/sqrt 2, ridge on h2.

    A2 is diagonalised and the features turned with it, which changes neither their span nor h2.

    Parameters
    ----------
    source : SampleSource
        Samples independent of the features, labels less their mean.
    features : ndarray of float64, shape (K, D)
        Orthonormal rows.
    degree : int
        Of the features.
    link : str or callable
        "auto" fits one; otherwise the prediction is link(h2).

    References
    ----------
    Equations (2.12) to (2.14) of arXiv:2605.14567.
    """
    k = len(features)
    second = source.shares.sum(_second_moments, features, degree)
    weights, turn = np.linalg.eigh(second / (source.n_samples * sqrt(2.0)))
    order = np.argsort(-np.abs(weights), kind="stable")
    weights, turn = weights[order], turn[:, order]
    fit = Readout(turn.T @ features, weights, np.zeros(k), 0.0, named_link("identity"), 0.0)
    h2, y = _combined(fit, source, degree)
    if link == "auto" and k:
        fit = replace(fit, link=fit_link(h2, y))
    elif link != "auto":
        fit = replace(fit, link=named_link(link))
    return replace(fit, r2=r2(fit.intercept + fit.link(h2), y))


def _second_moments(source: SampleSource, features: Array, degree: int) -> Array:
    """Return the sum of y (h h^T - I), (K, K)."""
    k = len(features)
    second = np.zeros((k, k))
    for _, H, y in latent_chunks(source, features, degree):
        second += (H * y[:, np.newaxis]).T @ H - y.sum() * np.eye(k)
    return second


def read_squares(
    source: SampleSource,
    features: Array,
    degree: int,
    link: Any,
    seed: int,
    *,
    outside: NDArray[np.bool_] | None = None,
    train: SampleSource | None = None,
) -> Readout:
    """Ridge regression of the labels on h_k^2 and h_k, of the features that matter.

    A feature is significant where its part of the target is more than three standard errors from 0 in the
    joint fit to samples that the features have not seen (`recovery.significance`). Cross-validation chooses
    between no feature, the significant ones outside the bulk, all of those, and all features, without and
    with terms in h_k (which the model does not have, and real data do), each with its own ridge: none unless
    the best beats the mean by more than 2.5 standard errors, and the fewest columns within one of the best.
    Weights of features left out are 0. Then the link: "auto" keeps the identity unless a fitted one has the
    smaller cross-validated error.

    Parameters
    ----------
    source : SampleSource
        Samples independent of the features, labels less the linear part.
    features : ndarray of float64, shape (K, D)
        Orthonormal rows, the most important first.
    degree : int
        Of the features.
    link : str or callable
        "auto", the name of a link or a callable; the labels' scale and offset are fitted with it.
    seed : int
        Of the folds.
    outside : ndarray of bool, shape (K,), optional
        Which features stand outside the bulk; all by default.
    train : SampleSource, optional
        The samples that the features come from: they decide the coefficients too where these then predict
        `source` better, which is where n/D is large.
    """
    k = len(features)
    step = max(1, -(-source.n_samples * 2 * k // _ENTRIES))
    parts = source.shares.each(_square_rows, features, degree, source.n_samples, seed, step, placed=True)
    moments: FoldedMoments = merged(folded for folded, _ in parts)
    choices = _choices(
        joined([rows for _, rows in parts]), np.ones(k, dtype=bool) if outside is None else outside
    )
    choice, ridge = choose_columns(moments, choices)
    if choice and train is not None:
        more: Moments = merged(train.shares.each(_square_moments, features, degree))
        ridge = refit(moments, more, choices[choice], ridge)
    weights, slopes = ridge.coefficients[:k], ridge.coefficients[k:]
    fit = Readout(features, weights, slopes, ridge.intercept, named_link("identity"), ridge.r2)
    if choice == 0 or link == "identity":
        return fit
    if link == "auto":
        h2, y = _combined(fit, source, degree)
        g = _fitted_link(h2, y, seed)
        return fit if g is None else replace(fit, link=g, intercept=0.0, r2=_r2_with(g(h2), fit, h2, y))
    return _with_given_link(fit, source, degree, link, choices[choice])


def _square_rows(
    source: SampleSource, offset: int, features: Array, degree: int, n_rows: int, seed: int, step: int
) -> tuple[FoldedMoments, Array]:
    """Return the moments of rows [squares, latents, y] by fold, and every `step`-th of all shares' rows."""
    moments = FoldedMoments(2 * len(features) + 1, n_rows, seed)
    kept = [np.empty((0, 2 * len(features) + 1))]
    for start, H, y in latent_chunks(source, features, degree):
        rows = np.column_stack([squares(H), H, y])
        moments.add(offset + start, rows)
        kept.append(rows[-(offset + start) % step :: step])
    return moments, np.concatenate(kept)


def _square_moments(source: SampleSource, features: Array, degree: int) -> Moments:
    """Return the moments of rows [squares, latents, y]."""
    moments = Moments.zero(2 * len(features) + 1)
    for _, H, y in latent_chunks(source, features, degree):
        moments.add(np.column_stack([squares(H), H, y]))
    return moments


def _choices(rows: Array, outside: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Return sets of columns of [squares, latents], none first, from rows [squares, latents, y]."""
    k = len(outside)
    choices = [np.arange(0)]
    first = np.flatnonzero(outside)
    if len(rows) > 2 * len(first) + 1:
        y = rows[:, -1]
        by_square = t_statistics(rows[:, first], y) > SIGNIFICANT
        both = t_statistics(rows[:, np.append(first, k + first)], y) > SIGNIFICANT
        by_either = first[both.reshape(2, -1).any(axis=0)]
        choices += [first[by_square], np.append(by_either, k + by_either)]
    return [*choices, first, np.append(first, k + first), np.arange(k), np.arange(2 * k)]


def _combined(fit: Readout, source: SampleSource, degree: int) -> tuple[Array, Array]:
    """Return h2 and the labels of at most `LINK_ROWS` samples, evenly spread."""
    step = -(-source.n_samples // LINK_ROWS)
    H, y = sampled_latents(source, fit.features, degree, step)
    return fit.combine(H), y


def r2(prediction: Array, y: Array) -> float:
    """Return 1 - error / error of the mean, 0 where labels do not vary."""
    spread = float(np.mean((y - y.mean()) ** 2))
    return 1.0 - float(np.mean((y - prediction) ** 2)) / spread if spread > 0.0 else 0.0


def is_curved(prediction: Array, y: Array, seed: int) -> bool:
    """Whether a link fitted to predictions of labels clearly predicts these better, in cross-validation."""
    return _fitted_link(prediction, y, seed, by=_CLEARLY) is not None


def beats_the_mean(prediction: Array, y: Array, seed: int) -> bool:
    """Whether predictions are better than the mean by as much as a readout asks of its features."""
    fold = shuffled_ranks(0, len(y), len(y), seed)[0] % N_FOLDS
    baseline = _by_fold((y - y.mean()) ** 2, fold)
    return is_better(_by_fold((y - prediction) ** 2, fold), baseline, by=EVIDENCE)


def _by_fold(values: Array, fold: NDArray[np.int64]) -> Array:
    """Return means by fold."""
    return np.asarray(np.bincount(fold, values) / np.bincount(fold))


def _fitted_link(h2: Array, y: Array, seed: int, *, by: float = 1.0) -> FittedLink | None:
    """Return a fitted link if it has a smaller cross-validated error than the identity."""
    fold = shuffled_ranks(0, len(y), len(y), seed)[0] % N_FOLDS
    if len(np.unique(fold)) < 2:
        return None
    rest = y - h2
    plain, fitted = np.empty(len(y)), np.empty(len(y))
    for i in np.unique(fold):
        held_out = fold == i
        fitted[held_out] = fit_link(h2[~held_out], y[~held_out])(h2[held_out])
        plain[held_out] = rest[held_out] - rest[~held_out].mean()
    if not is_better(_by_fold((y - fitted) ** 2, fold), _by_fold(plain**2, fold), by=by):
        return None
    return fit_link(h2, y)


def _r2_with(prediction: Array, fit: Readout, h2: Array, y: Array) -> float:
    """Return r2 of a readout with a link, as much better than the fit without as it is on the same samples.

    The samples of h2 decided the weights, so that the errors themselves are too small.
    """
    without = 1.0 - r2(fit.intercept + h2, y)
    return 1.0 - (1.0 - fit.r2) * (1.0 - r2(prediction, y)) / without if without > 0.0 else fit.r2


def _with_given_link(
    fit: Readout, source: SampleSource, degree: int, link: Any, columns: NDArray[np.int64]
) -> Readout:
    """Fit y = intercept + scale * link(sum of the chosen columns), scale > 0, from the fit without a link."""
    g = named_link(link)
    step = -(-source.n_samples * len(columns) // _ENTRIES)
    H, y = sampled_latents(source, fit.features, degree, step)
    Z = np.hstack([squares(H), H])[:, columns]
    spread = float(np.std(y)) or 1.0  # of the labels: the solver's tolerances are relative to 1

    def residuals(p: Array) -> Array:
        return np.asarray(p[-1] + p[-2] * g(Z @ p[:-2]) - y / spread)

    def jacobian(p: Array) -> Array:
        h2 = Z @ p[:-2]
        slopes = p[-2] * g.derivative(h2)[:, np.newaxis] * Z
        return np.column_stack([slopes, g(h2), np.ones(len(y))])

    start = np.concatenate([fit.weights, fit.slopes])[columns] / spread
    start = np.append(start, [1.0, fit.intercept / spread])
    lowest = np.where(np.arange(len(start)) == len(start) - 2, 0.0, -np.inf)
    best = least_squares(residuals, start, jac=jacobian, x_scale="jac", bounds=(lowest, np.inf))
    coefficients = np.zeros(2 * len(fit.features))
    coefficients[columns] = best.x[:-2]
    weights, slopes = np.split(coefficients, 2)
    h2 = Z @ np.concatenate([fit.weights, fit.slopes])[columns]
    return replace(
        fit,
        weights=weights,
        slopes=slopes,
        intercept=float(best.x[-1] * spread),
        link=ScaledLink(g, float(best.x[-2] * spread), 0.0),
        r2=_r2_with(y + spread * best.fun, fit, h2, y),
    )
