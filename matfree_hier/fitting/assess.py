"""What the data alone say of the features of a fit: put together from its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.fitting.readout import sampled_latents, squares
from matfree_hier.fitting.spectral import sampled_labels
from matfree_hier.labels import input_sizes
from matfree_hier.recovery.forecast import fit_power_law, forecast_refined, forecast_spectral
from matfree_hier.recovery.quality import HeldOut, assess_refined, assess_spectral
from matfree_hier.recovery.summary import Recovery
from matfree_hier.shares import joined
from matfree_hier.theory import BulkEnd

if TYPE_CHECKING:
    from matfree_hier.fitting.readout import Readout
    from matfree_hier.fitting.spectral import Candidates
    from matfree_hier.labels import LabelTransform
    from matfree_hier.operator import MomentOperator
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

_ENTRIES = 10_000_000  # of the latents held at once


@dataclass(frozen=True, eq=False)
class OperatorLabels:
    """The labels of an operator, of evenly spread samples.

    Attributes
    ----------
    transform : LabelTransform
        That made them, of labels.
    t, norms : ndarray of float64, shape (m,)
        Labels as the operator weighs them, and |F|^2/D.
    shift : float
        What is to be added to the operator's eigenvalues for those of (1/n) sum t F F^T/sqrt 2.
    n_samples, n_packed : int
        n and D of the operator.
    """

    transform: LabelTransform
    t: Array
    norms: Array
    shift: float
    n_samples: int
    n_packed: int

    @classmethod
    def of(cls, operator: MomentOperator, transform: LabelTransform) -> OperatorLabels:
        """Read them off an operator."""
        t, norms = sampled_labels(operator)
        centred = norms if operator.center_trace else np.ones(len(norms))
        shift = float(np.mean(t * centred)) / np.sqrt(2.0)
        return cls(transform, t, norms, shift, operator.n_samples, operator.shape[0])

    @property
    def variance(self) -> float:
        """sigma^2 = D E[t^2 |F|^2/D]/(2 n)."""
        return self.n_packed * float(np.mean(self.t**2 * self.norms)) / (2.0 * self.n_samples)

    def ends(self) -> tuple[BulkEnd, BulkEnd]:
        """Return the right and left end of the bulk."""
        tau, delta = self.t / np.sqrt(2.0), self.n_packed / self.n_samples
        return BulkEnd(tau, self.norms, delta), BulkEnd(-tau, self.norms, delta)


def assess_refinement(
    readout: Readout,
    held_out: SampleSource,
    *,
    n_samples: int,
    degree: int,
    settled: bool,
) -> Recovery:
    """Assess refined features: no pass over the samples.

    Parameters
    ----------
    readout : Readout
        Its r2 is that of held-out samples.
    held_out : SampleSource
        Those, for the variance of their labels.
    n_samples : int
        That the features were fitted to.
    degree : int
    settled : bool
        Whether the refinement ended by itself.
    """
    variance = float(np.var(held_out.labels()))
    error = max(1.0 - readout.r2, 0.0) * variance
    size = readout.features.shape[1]
    # Weights are in units of h2, errors in those of the labels.
    explained, gain = max(readout.r2, 0.0) * variance, float(np.sum(readout.weights**2))
    scale = 1.0 if readout.link.name == "identity" or gain == 0.0 else np.sqrt(explained / gain)
    quality = assess_refined(
        scale * readout.weights,
        error,
        n_samples=n_samples,
        n_judged=held_out.n_samples,
        n_inputs=held_out.n_inputs,
        degree=degree,
        n_packed=size,
        settled=settled,
    )
    known = quality.taken(quality.resolved)
    law = fit_power_law(known.weights, known.weight_errors)
    forecast = forecast_refined(
        known.weights, law, error=error, variance=variance or 1.0, n_samples=n_samples, n_packed=size
    )
    return Recovery(quality, law, forecast)


def assess_candidates(
    candidates: Candidates,
    readout: Readout,
    held_out: SampleSource,
    labels: OperatorLabels,
    *,
    degree: int,
    turned: bool = False,
) -> Recovery:
    """Assess spectral features: a forward product over the held-out samples.

    Parameters
    ----------
    candidates : Candidates
        Those outside the bulk are assessed.
    readout : Readout
        Of all candidates, or of those outside the bulk.
    held_out : SampleSource
        Samples that neither have been fitted to.
    labels : OperatorLabels
    degree : int
    turned : bool
        Whether the readout's features are the candidates outside the bulk, turned within their span.
    """
    outside = np.arange(len(readout.features)) if turned else np.flatnonzero(candidates.outside)
    features = readout.features[outside]
    eigenvalues = candidates.spectrum.eigenvalues[candidates.outside]
    plain = turned or candidates.smoothness > 0.0  # eigenvalues are not those of the features
    y, t, norms, H = _measured(held_out, features, labels, degree)
    signs = np.sign(readout.weights if turned else eigenvalues)
    known = assess_spectral(
        HeldOut(squares(H), y, signs),
        t,
        norms,
        variance=labels.variance,
        degree=degree,
        n_packed=labels.n_packed,
        eigenvalues=None if plain else eigenvalues + labels.shift,
        ends=None if plain else labels.ends(),
    )
    quality = known.placed(outside, len(readout.features))
    best = known.taken(known.resolved)
    law = fit_power_law(best.weights, best.weight_errors)
    variance = float(np.var(y)) or 1.0
    forecast = forecast_spectral(
        best.weights,
        best.overlaps,
        law,
        error=max(1.0 - readout.r2, 0.0) * variance,
        variance=variance,
        n_samples=labels.n_samples,
    )
    return Recovery(quality, law, forecast)


def _measured(
    source: SampleSource, features: Array, labels: OperatorLabels, degree: int
) -> tuple[Array, Array, Array, Array]:
    """Return labels, transformed labels, |F|^2/D and latents of evenly spread samples."""
    step = max(1, -(-source.n_samples * max(1, len(features)) // _ENTRIES))
    H, y = sampled_latents(source, features, degree, step)
    parts = source.shares.each(_transformed, labels.transform, degree, step, placed=True)
    t, norms = (joined(list(part)) for part in zip(*parts, strict=True))
    return y, t, norms, H


def _transformed(
    source: SampleSource, offset: int, transform: LabelTransform, degree: int, step: int
) -> tuple[Array, Array]:
    """Return transformed labels and |F(x)|^2/D of every `step`-th sample of all shares."""
    t, norms = [np.empty(0)], [np.empty(0)]
    for chunk in source.chunks():
        rows = slice(-(offset + chunk.start) % step, None, step)
        sizes = input_sizes(chunk.X[rows], degree)
        t.append(transform(np.asarray(chunk.y, dtype=np.float64)[rows], sizes))
        norms.append(sizes.norms)
    return np.concatenate(t), np.concatenate(norms)
