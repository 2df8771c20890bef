"""The stages of a fit, in order: linear part, candidates, readout, refinement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.fitting.fitfile import Attempt
from matfree_hier.fitting.moments import fit_ridge
from matfree_hier.fitting.readout import Readout, beats_the_mean, is_curved, r2, sampled_latents
from matfree_hier.fitting.refine import Refined, refine
from matfree_hier.fitting.spectral import Candidates
from matfree_hier.fitting.survey import Survey, survey
from matfree_hier.links import FittedLink, ScaledLink
from matfree_hier.status import Status

if TYPE_CHECKING:
    from matfree_hier.fitting.fitfile import FitFile
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

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


def fit_linear(
    source: SampleSource, *, wanted: bool, forced: bool, seed: int, known: Survey | None = None
) -> LinearPart:
    """Fit ridge regression on the raw columns if wanted, and if it helps or is forced; else the mean.

    O(n d^2 + d^3) time and O(d^2) memory; O(d^3) where the survey of the samples is known.
    """
    moments = (known or survey(source, seed, linear=wanted, shapes=False)).rows
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
    max_steps: int,
    max_passes: float,
    dtype: Any,
    seed: int,
    progress: bool | None = None,
    file: FitFile | None = None,
) -> Outcome:
    """Refine the candidates if some are outside the bulk; keep the outcome if held-out samples say so.

    What a refinement has found without the held-out samples is judged on them, against the readout; if it is
    better, it is what was then fitted to all samples. A readout without features gives way where the evidence
    is what it would have asked of its own. With ``link="auto"`` the link is fitted where the readout fitted
    one, and else once more where the outcome is curved. Where that gains little over a readout with terms in
    h_k, which the model of `refine` does not have, these terms are taken off the labels and join the result
    as slopes. Every refinement starts from the candidates, which have not seen the held-out samples.

    Parameters
    ----------
    train, held_out : SampleSource
        Labels less the linear part.
    candidates, readout
        The spectral stage, and what it reads out.
    degree, link, n_features, dtype, seed, progress
        As in `refine`.
    max_steps : int
        Of one refinement.
    max_passes : float
        Passes that may be spent on all refinements.
    file : FitFile, optional
        Where refinements keep themselves, to be resumed.
    """
    few = min(train.n_samples, held_out.n_samples) < 2
    if not candidates.outside.any() or few or _affordable(max_passes) < 1:
        return Outcome(readout)
    attempts = _Attempts((train, held_out), candidates, (max_steps, max_passes), file)
    options = {
        "degree": degree,
        "n_features": n_features,
        "dtype": dtype,
        "seed": seed,
        "progress": progress,
        "metric": candidates.metric,
    }
    y = held_out.labels()
    plain = np.zeros(candidates.features.shape[1])
    if link != "auto" or isinstance(readout.link, FittedLink):
        attempts(link, plain, options)
    else:
        attempts("identity", plain, options)
        if is_curved(attempts.best.prediction, y, seed):
            attempts("auto", plain, options)
    # Terms in h_k take a feature of their own: not where the number of features is given.
    straight = readout.link.name == attempts.best.readout.link.name == "identity"
    if n_features is None and straight and readout.slopes.any():
        left, before = 1.0 - attempts.best.readout.r2, 1.0 - readout.r2
        if left > _LITTLE * before:
            attempts("identity", readout.slopes @ readout.features, options)
    best = attempts.best
    better = best.readout.r2 > readout.r2
    if not (readout.weights.any() or readout.slopes.any()):
        better = beats_the_mean(best.prediction, y, seed)
    if better:
        return Outcome(best.readout, attempts.n_passes, best.n_steps)
    return Outcome(readout, attempts.n_passes)


def _affordable(n_passes: float) -> int:
    """Return how many steps of a refinement so many passes allow; latents computed anew are passes too."""
    return int((n_passes - 3.0) / 1.05)


class _Attempts:
    """Refinements of one start; the best so far is kept."""

    def __init__(
        self,
        parts: tuple[SampleSource, SampleSource],
        candidates: Candidates,
        limits: tuple[int, float],
        file: FitFile | None,
    ) -> None:
        self.parts, self.file = parts, file
        self.max_steps, self.max_passes = limits
        start = candidates.outside.copy()
        start[:_START] = True  # weak and wrong ones do no harm, and are more than the random ones added
        self.rows = candidates.features[start]
        self.weights = candidates.eigenvalues[start]
        self.number, self.n_passes = 0, 0.0
        self.best: Attempt

    def __call__(self, link: Any, direction: Array, options: dict[str, Any]) -> None:
        """Refine against the labels less <direction, F>, or take what the file has of that."""
        number, steps = self.number, min(self.max_steps, _affordable(self.max_passes - self.n_passes))
        if steps < 1:
            return
        self.number += 1
        attempt = None if self.file is None else self.file.attempt(number, steps, link)
        if attempt is None:
            attempt = self._refined(link, direction, options | {"max_steps": steps})
            if self.file is not None:
                self.file.save_attempt(number, steps, attempt)
        self.n_passes += attempt.n_passes
        if number == 0 or attempt.readout.r2 > self.best.readout.r2:
            self.best = attempt

    def _refined(self, link: Any, direction: Array, options: dict[str, Any]) -> Attempt:
        train, held_out = (_without(part, direction, options["degree"]) for part in self.parts)
        number, steps, file = self.number - 1, options["max_steps"], self.file
        keeping: dict[str, Any] = {}
        if file is not None:
            keeping["state"] = file.state(number, steps)
            keeping["callback"] = lambda state: file.save_state(number, steps, state)
        found = refine(train, self.rows, self.weights, held_out=held_out, link=link, **options, **keeping)
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        y = self.parts[1].labels()
        prediction = found.held_out + (y - held_out.labels())
        if options["n_features"] is None:
            found = _without_negligible(found, float(np.mean((y - prediction) ** 2)))
        readout = replace(_joined(found, direction), r2=r2(prediction, y))
        return Attempt(readout, prediction, found.n_passes, found.n_steps)


def _without(source: SampleSource, direction: Array, degree: int) -> SampleSource:
    """Return the samples with labels less <direction, F>."""
    if not direction.any():
        return source
    H, y = sampled_latents(source, direction[np.newaxis], degree)
    return source.with_labels(y - H[:, 0])


def _without_negligible(refined: Refined, error: float) -> Refined:
    """Drop the weakest features which together make less than a small share of the error that is left."""
    weakest_first = np.argsort(np.abs(refined.weights), kind="stable")
    explained = np.cumsum(refined.weights[weakest_first] ** 2)
    kept = np.sort(weakest_first[explained > _NEGLIGIBLE * error])
    if refined.link.name != "identity" or len(kept) == len(refined.weights):
        return refined
    return replace(refined, features=refined.features[kept], weights=refined.weights[kept])


def _joined(refined: Refined, direction: Array) -> Readout:
    """Return the refined model plus <direction, F> as a readout of orthonormal features."""
    features, weights, link = refined.features, refined.weights, refined.link
    slopes = features @ direction
    rest = direction - slopes @ features
    rest -= (features @ rest) @ features
    length = float(np.linalg.norm(rest))
    if length > 1e-9 * float(np.linalg.norm(direction)):
        features = np.vstack([features, rest / length])
        weights, slopes = np.append(weights, 0.0), np.append(slopes, length)
    offset, intercept = refined.offset, 0.0
    if link.name == "identity":
        offset, intercept = 0.0, offset
    elif isinstance(link, ScaledLink):
        link, intercept = replace(link, offset=0.0), link.offset
    return Readout(features, weights, slopes, intercept, link, 0.0, offset)
