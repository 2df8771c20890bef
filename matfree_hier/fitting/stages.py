"""The stages of a fit, in order: linear part, candidates, readout, refinement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.fitting.moments import FoldedMoments, fit_ridge
from matfree_hier.fitting.prepare import split
from matfree_hier.fitting.readout import Readout, calibrated, is_curved, latent_chunks, predicts_better
from matfree_hier.fitting.refine import Refined, refine
from matfree_hier.fitting.spectral import Candidates
from matfree_hier.links import FittedLink
from matfree_hier.status import Status

if TYPE_CHECKING:
    from matfree_hier.fitting.fitfile import FitFile
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

STEPS = 40  # of a refinement, at most
_START = 16  # candidates that a refinement starts from at least
_NEGLIGIBLE = 0.005  # share of the error left
_LITTLE = 0.8  # of the error left after a refinement: worth another one with slopes


@dataclass(frozen=True, eq=False)
class LinearPart:
    """y = x @ coef + intercept, fitted to raw columns.

    Attributes
    ----------
    coef : ndarray of float64, shape (d,)
    intercept : float
    r2 : float
        Cross-validated.
    """

    coef: Array
    intercept: float
    r2: float

    def residuals(self, X: NDArray[Any], y: Array) -> Array:
        """Return what is left of labels, shape (m,)."""
        return np.asarray(y - self.intercept - np.asarray(X, dtype=np.float64) @ self.coef)


def fit_linear(source: SampleSource, *, wanted: bool, forced: bool, seed: int) -> LinearPart:
    """Fit ridge regression on the raw columns if wanted, and if it helps or is forced; else the mean.

    O(n d^2 + d^3) time and O(d^2) memory.
    """
    moments = FoldedMoments(source.n_inputs * wanted + 1, source.n_samples, seed)
    for chunk in source.chunks():
        y = np.asarray(chunk.y)[:, np.newaxis]
        moments.add(chunk.start, np.hstack([chunk.X, y]) if wanted else y)
    if wanted:
        fit = fit_ridge(moments)
        if fit.helps or forced:
            return LinearPart(fit.coefficients, fit.intercept, fit.r2)
    return LinearPart(np.zeros(source.n_inputs), float(moments.total().mean[-1]), 0.0)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a readout.

    Attributes
    ----------
    readout : Readout
        The better one.
    n_passes : float
    n_steps : int
        Of the refinement that was chosen, 0 if none was.
    """

    readout: Readout
    n_passes: float = 0.0
    n_steps: int = 0


def refine_readout(
    train: SampleSource,
    held_out: SampleSource,
    candidates: Candidates,
    readout: Readout,
    *,
    degree: int,
    link: Any,
    n_features: int | None,
    max_passes: float,
    dtype: Any,
    seed: int,
    progress: bool | None = None,
    file: FitFile | None = None,
) -> Outcome:
    """Refine the candidates if some are outside the bulk; keep the outcome if it is better on other samples.

    Half of the held-out samples guide the refinement and are fitted in the end; the other half has no part in
    it: on those its scale, or its fitted link, is corrected where that helps, and it is judged against the
    readout. With ``link="auto"`` the link is fitted where the readout fitted one, and else once more where
    the outcome is curved. Where that gains little over a readout with terms in h_k, which the model of
    `refine` does not have, these terms are taken off the labels and join the result as slopes. Every
    refinement starts from the candidates, which have not seen the held-out samples.

    Parameters
    ----------
    train, held_out : SampleSource
        Labels less the linear part.
    candidates, readout
        The spectral stage, and what it reads out.
    degree, link, n_features, dtype, seed, progress
        As in `refine`.
    max_passes : float
        Passes that may be spent on all refinements.
    file : FitFile, optional
        Where refinements keep themselves, to be resumed.
    """
    search, judge = split(held_out, 0.5, seed)
    few = min(part.n_samples for part in (train, search, judge)) < 2
    if not candidates.outside.any() or few or _steps(max_passes) < 1:
        return Outcome(readout)
    attempt = _Attempts((train, search, judge), candidates, readout, max_passes, file)
    options = {
        "degree": degree,
        "n_features": n_features,
        "dtype": dtype,
        "seed": seed,
        "progress": progress,
    }
    plain = np.zeros(candidates.features.shape[1])
    if link != "auto" or isinstance(readout.link, FittedLink):
        attempt(link, plain, options)
    else:
        attempt("identity", plain, options)
        if is_curved(attempt.best, judge, degree, seed):
            attempt("auto", plain, options)
    # Terms in h_k take a feature of their own: not where the number of features is given.
    straight = readout.link.name == attempt.best.link.name == "identity"
    if n_features is None and straight and readout.slopes.any():
        left, before = 1.0 - attempt.best.r2, 1.0 - readout.r2
        if left > _LITTLE * before:
            attempt("identity", readout.slopes @ readout.features, options)
    if predicts_better(attempt.best, readout, judge, degree, seed):
        return Outcome(attempt.best, attempt.n_passes, attempt.n_steps)
    return Outcome(readout, attempt.n_passes)


def _steps(n_passes: float) -> int:
    """Return how many steps of a refinement so many passes allow; latents computed anew are passes too."""
    return min(STEPS, int((n_passes - 3.0) / 1.05))


class _Attempts:
    """Refinements of one start; the best so far is kept."""

    def __init__(
        self,
        parts: tuple[SampleSource, SampleSource, SampleSource],
        candidates: Candidates,
        readout: Readout,
        max_passes: float,
        file: FitFile | None,
    ) -> None:
        *self.parts, self.judge = parts
        start = candidates.outside.copy()
        start[:_START] = True  # weak and wrong ones do no harm, and are more than the random ones added
        self.rows = candidates.features[start]
        self.weights = candidates.spectrum.eigenvalues[start]
        # A link that was given leaves no freedom for a constant outside it but what the readout found.
        free = isinstance(readout.link, FittedLink) or readout.link.name == "identity"
        self.constant = 0.0 if free else readout.intercept
        self.file, self.number, self.max_passes = file, 0, max_passes
        self.n_passes, self.n_steps = 0.0, 0
        self.best: Readout

    def __call__(self, link: Any, direction: Array, options: dict[str, Any]) -> None:
        """Refine against the labels less <direction, F>, or take what the file has of that."""
        number, steps = self.number, _steps(self.max_passes - self.n_passes)
        if steps < 1:
            return
        self.number += 1
        options = options | {"max_steps": steps}
        done = None if self.file is None else self.file.outcome(number, steps)
        if done is None:
            done = self._refined(link, direction, options)
            if self.file is not None:
                self.file.save_outcome(number, steps, done)
        readout, n_passes, n_steps = done
        self.n_passes += n_passes
        if number == 0 or readout.r2 > self.best.r2:
            self.best, self.n_steps = readout, n_steps

    def _refined(self, link: Any, direction: Array, options: dict[str, Any]) -> tuple[Readout, float, int]:
        """Return the refined readout, passes and steps."""
        parts = [_without(part, direction, self.constant, options["degree"]) for part in self.parts]
        number, steps, file = self.number - 1, options["max_steps"], self.file
        keeping: dict[str, Any] = {}
        if file is not None:
            keeping["state"] = file.state(number, steps)
            keeping["callback"] = lambda state: file.save_state(number, steps, state)
        found = refine(parts[0], self.rows, self.weights, held_out=parts[1], link=link, **options, **keeping)
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if options["n_features"] is None:
            variance = float(np.var(np.concatenate([part.labels() for part in parts]))) or 1.0
            found = _without_negligible(found, found.held_out_error * variance)
        joined = _joined(found, direction, self.constant)
        readout = calibrated(joined, self.judge, options["degree"], options["seed"])
        return readout, found.n_passes, found.n_steps


def _without(source: SampleSource, direction: Array, constant: float, degree: int) -> SampleSource:
    """Return the samples with labels less <direction, F> and a constant."""
    if not direction.any():
        return source if constant == 0.0 else source.with_labels(source.labels() - constant)
    parts = [y - H[:, 0] - constant for _, H, y in latent_chunks(source, direction[np.newaxis], degree)]
    return source.with_labels(np.concatenate(parts))


def _without_negligible(refined: Refined, error: float) -> Refined:
    """Drop the weakest features which together make less than a small share of the error that is left."""
    weakest_first = np.argsort(np.abs(refined.weights), kind="stable")
    explained = np.cumsum(refined.weights[weakest_first] ** 2)
    kept = np.sort(weakest_first[explained > _NEGLIGIBLE * error])
    if refined.link.name != "identity" or len(kept) == len(refined.weights):
        return refined
    return replace(refined, features=refined.features[kept], weights=refined.weights[kept])


def _joined(refined: Refined, direction: Array, constant: float) -> Readout:
    """Return the refined model plus <direction, F> as a readout of orthonormal features."""
    features, weights, link = refined.features, refined.weights, refined.link
    slopes = features @ direction
    rest = direction - slopes @ features
    rest -= (features @ rest) @ features
    length = float(np.linalg.norm(rest))
    if length > 1e-9 * float(np.linalg.norm(direction)):
        features = np.vstack([features, rest / length])
        weights, slopes = np.append(weights, 0.0), np.append(slopes, length)
    offset, intercept = refined.offset, constant
    if link.name == "identity":
        offset, intercept = 0.0, constant + refined.offset
    return Readout(features, weights, slopes, intercept, link, 0.0, offset)
