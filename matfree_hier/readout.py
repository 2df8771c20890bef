"""Layer 2: from the latents of found features to predictions, on samples the features did not see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from matfree_hier.links import AnyLink, fit_link
from matfree_hier.links import link as named_link
from matfree_hier.moments import N_FOLDS, FoldedMoments, choose_columns, is_better, shuffled_ranks
from matfree_hier.operator import project
from matfree_hier.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

LINK_ROWS = 200_000  # samples that decide a fitted link: it has some 12 degrees of freedom
_LINK_ENTRIES = 10_000_000  # of the design matrix of a given link: 80 MB
_CHOICES = 33  # numbers of features compared at most


@dataclass(frozen=True, eq=False)
class Readout:
    """prediction = intercept + link(sum_k weights_k (h_k^2 - 1)/sqrt 2 + slopes_k h_k), h = <features, F>.

    Attributes
    ----------
    features : ndarray of float64, shape (K, D)
        Orthonormal rows.
    weights, slopes : ndarray of float64, shape (K,)
    intercept : float
    link : Link or FittedLink
    r2 : float
        1 - error / error of the mean, cross-validated on the samples of the readout.
    """

    features: Array
    weights: Array
    slopes: Array
    intercept: float
    link: AnyLink
    r2: float

    def combine(self, H: Array) -> Array:
        """Return the estimate of h2 from latents, (m, K) -> (m,)."""
        return squares(H) @ self.weights + H @ self.slopes

    def __call__(self, H: Array) -> Array:
        """Predict from latents, (m, K) -> (m,)."""
        return self.intercept + self.link(self.combine(H))


@dataclass(frozen=True, eq=False)
class FitReport:
    """What a fit did; prints as a table.

    Attributes
    ----------
    status : Status
        How it ended.
    estimator : str
    degree, n_samples, n_inputs, n_packed : int
        q, n, d and D.
    n_passes : float
        Passes over the samples of the features.
    n_features : int
        Features kept.
    eigenvalues : ndarray of float64, shape (K,)
        Of the operator, one a feature; for "paper" those of the span, since its features are turned.
    weights, slopes : ndarray of float64, shape (K,)
        As in the estimator.
    linear_r2, feature_r2 : float
        Cross-validated R^2 of the linear part, and of the features on what it leaves.
    """

    status: Status
    estimator: str
    degree: int
    n_samples: int
    n_inputs: int
    n_packed: int
    n_passes: float
    n_features: int
    eigenvalues: Array
    weights: Array
    slopes: Array
    linear_r2: float
    feature_r2: float

    def summary(self) -> str:
        """Return the lines above the table."""
        return (
            f"{self.n_features} features by the {self.estimator} estimator in {self.n_passes:.3g} passes."
            f"\n{self.status.value}"
            f"\ndegree {self.degree}, {self.n_inputs} inputs, D = {self.n_packed}, n = {self.n_samples}"
            f"\ncross-validated R^2: {self.linear_r2:.4f} of the linear part, {self.feature_r2:.4f} of the"
            " features on what it leaves"
        )

    def __str__(self) -> str:
        lines = [self.summary()]
        if self.n_features:
            lines.append(f"{'feature':>7} {'eigenvalue':>11} {'weight':>11} {'slope':>11}")
            rows = zip(self.eigenvalues, self.weights, self.slopes, strict=True)
            lines += [f"{k:>7} {w:>11.4g} {a:>11.4g} {b:>11.4g}" for k, (w, a, b) in enumerate(rows)]
        return "\n".join(lines)


def squares(H: Array) -> Array:
    """(h^2 - 1)/sqrt 2, elementwise: the second orthonormal Hermite polynomial of the latents."""
    return np.asarray((H * H - 1.0) / sqrt(2.0))


def latent_chunks(
    source: SampleSource, features: Array, degree: int, *, step: int = 1
) -> Iterator[tuple[int, Array, Any]]:
    """Yield (start, latents (m, K) in float64, labels (m,)) of every `step`-th sample; O(n D K / step)."""
    for chunk in source.chunks():
        rows = slice(-chunk.start % step, None, step)
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
    second = np.zeros((k, k))
    for _, H, y in latent_chunks(source, features, degree):
        second += (H * y[:, np.newaxis]).T @ H - y.sum() * np.eye(k)
    weights, turn = np.linalg.eigh(second / (source.n_samples * sqrt(2.0)))
    order = np.argsort(-np.abs(weights), kind="stable")
    weights, turn = weights[order], turn[:, order]
    fit = Readout(turn.T @ features, weights, np.zeros(k), 0.0, named_link("identity"), 0.0)
    h2, y = _combined(fit, source, degree)
    if link == "auto" and k:
        fit = replace(fit, link=fit_link(h2, y))
    elif link != "auto":
        fit = replace(fit, link=named_link(link))
    return replace(fit, r2=_r2(fit.intercept + fit.link(h2), y))


def read_squares(source: SampleSource, features: Array, degree: int, link: Any, seed: int) -> Readout:
    """Least squares of the labels on h_k^2, and on h_k where that helps, the number of features chosen.

    Cross-validation compares the first 0, 1, ..., K features, with and without the terms in h_k (which the
    model does not have, and real data do); none is kept unless some beat the mean by more than two standard
    errors. Weights of features left out are 0. Then the link: "auto" keeps the identity unless a fitted one
    has the smaller cross-validated error.

    Parameters
    ----------
    source : SampleSource
        Samples independent of the features, labels less the linear part.
    features : ndarray of float64, shape (K, D)
        Orthonormal rows, the most important first.
    degree : int
        Of the features.
    link : str or callable
        "auto", the name of a link or a callable.
    seed : int
        Of the folds.
    """
    k = len(features)
    moments = FoldedMoments(2 * k + 1, source.n_samples, seed)
    for start, H, y in latent_chunks(source, features, degree):
        moments.add(start, np.column_stack([squares(H), H, y]))
    counts = np.unique(np.round(np.geomspace(1, k, _CHOICES)).astype(int)) if k else np.empty(0, int)
    choices = [np.arange(0)]
    choices += [np.arange(count) for count in counts]
    choices += [np.concatenate([np.arange(count), k + np.arange(count)]) for count in counts]
    choice, linear = choose_columns(moments, choices)
    weights, slopes = linear.coefficients[:k], linear.coefficients[k:]
    r2 = 1.0 - linear.error / linear.error_of_mean if linear.error_of_mean > 0.0 else 0.0
    fit = Readout(features, weights, slopes, linear.intercept, named_link("identity"), r2)
    if choice == 0 or link == "identity":
        return fit
    if link == "auto":
        fitted = _with_fitted_link(fit, *_combined(fit, source, degree), seed)
        return fit if fitted is None else fitted
    return _with_given_link(fit, source, degree, link, choices[choice])


def _combined(fit: Readout, source: SampleSource, degree: int) -> tuple[Array, Array]:
    """Return h2 and the labels of at most `LINK_ROWS` samples, evenly spread."""
    step = -(-source.n_samples // LINK_ROWS)
    parts = [(fit.combine(H), y) for _, H, y in latent_chunks(source, fit.features, degree, step=step)]
    h2, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return h2, labels


def _r2(prediction: Array, y: Array) -> float:
    spread = float(np.mean((y - y.mean()) ** 2))
    return 1.0 - float(np.mean((y - prediction) ** 2)) / spread if spread > 0.0 else 0.0


def _with_fitted_link(fit: Readout, h2: Array, y: Array, seed: int) -> Readout | None:
    """Return the readout through a fitted link if that has the smaller cross-validated error."""
    fold = shuffled_ranks(0, len(y), len(y), seed)[0] % N_FOLDS
    errors = np.empty((2, N_FOLDS))
    prediction = np.empty(len(y))
    for i in range(N_FOLDS):
        held_out = fold == i
        if held_out.all() or not held_out.any():
            return None
        prediction[held_out] = fit_link(h2[~held_out], y[~held_out])(h2[held_out])
        rest = y - h2
        errors[0, i] = np.mean((rest[held_out] - rest[~held_out].mean()) ** 2)
        errors[1, i] = np.mean((y - prediction)[held_out] ** 2)
    if not is_better(errors[1], errors[0]):
        return None
    return replace(fit, link=fit_link(h2, y), intercept=0.0, r2=_r2(prediction, y))


def _with_given_link(
    fit: Readout, source: SampleSource, degree: int, link: Any, columns: NDArray[np.int64]
) -> Readout:
    """Fit y = intercept + link(sum of the chosen columns) by least squares, from the fit without a link."""
    g = named_link(link)
    k = len(fit.features)
    step = -(-source.n_samples * len(columns) // _LINK_ENTRIES)
    parts = [
        (np.hstack([squares(H), H])[:, columns], y)
        for _, H, y in latent_chunks(source, fit.features, degree, step=step)
    ]
    Z, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    spread = float(np.std(y)) or 1.0  # of the labels: the solver's tolerances are relative to 1

    def residuals(p: Array) -> Array:
        return np.asarray((p[-1] * spread + g(Z @ p[:-1]) - y) / spread)

    def jacobian(p: Array) -> Array:
        slope = g.derivative(Z @ p[:-1])[:, np.newaxis] / spread
        return np.hstack([slope * Z, np.ones((len(y), 1))])

    start = np.concatenate([fit.weights, fit.slopes])[columns]
    best = least_squares(residuals, np.append(start, fit.intercept / spread), jac=jacobian, x_scale="jac")
    coefficients = np.zeros(2 * k)
    coefficients[columns] = best.x[:-1]
    intercept = float(best.x[-1] * spread)
    prediction = intercept + g(Z @ best.x[:-1])
    return replace(
        fit,
        weights=coefficients[:k],
        slopes=coefficients[k:],
        intercept=intercept,
        link=g,
        r2=_r2(prediction, y),
    )
