"""Layer 1 of a fit: the top eigenvectors of the moment operator, and which of them stand outside the bulk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.eigen import top_eigenpairs
from matfree_hier.fitting.residualize import residualize
from matfree_hier.labels import LabelTransform, fit_label_transform, keep_sizes, sized
from matfree_hier.recovery import outliers
from matfree_hier.shares import joined
from matfree_hier.smooth import bulk_edge, features_of
from matfree_hier.status import NotConverged, Status
from matfree_hier.theory import predict_spectrum

if TYPE_CHECKING:
    from matfree_hier.metric import Metric
    from matfree_hier.operator import MomentOperator
    from matfree_hier.result import EigenResult
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

FEWEST_PAIRS, MOST_PAIRS = 32, 128  # eigenpairs among which "auto" looks for features
_SAMPLES_A_PAIR = 8  # n/D that a pair beyond the fewest needs
_CHEAP = 2**38  # n D k up to which a pass is cheap enough to look further
_SMOOTH_TOL = 1e-2  # of solutions in a metric: the weakest lie at the edge of the bulk, close together
_CLEARLY = 1.2  # times the edge of the bulk in a metric, whose few directions make it fluctuate
_BULK_ROWS = 20_000  # samples from which the bulk's edges are predicted


def with_operator_labels(
    source: SampleSource, degree: int, transform: Any, *, residualise: bool, dtype: Any, seed: int
) -> tuple[SampleSource, LabelTransform, float]:
    """Return the samples with the labels of the operator, their transform, and the passes that this took.

    Labels are transformed; then what their low even chaoses predict is subtracted, where that takes variance
    away (`residualize`); "normalised" ones are divided by |F(x)|^2/D last. In this order each finds more
    features than without; chaoses subtracted from raw labels, or after the division, can hide some.

    Parameters
    ----------
    source : SampleSource
    degree : int
        Of the features.
    transform : str, callable or None
        As in `fit_label_transform`.
    residualise : bool
        Whether to subtract the chaoses.
    dtype : str
        Of the products.
    seed : int
        Of the folds.
    """
    source.shares.each(keep_sizes, degree)
    fitted = fit_label_transform(transform, source, degree=degree)
    parts = source.shares.each(_transformed_labels, fitted, degree)
    t, divisors = (joined(list(part)) for part in zip(*parts, strict=True))
    if not residualise:
        return source.with_labels(t), fitted, 0.0
    left = residualize(source.with_labels(t * divisors), degree, dtype=dtype, seed=seed)
    return source.with_labels(left.labels / divisors if left.helps else t), fitted, left.n_passes


def _transformed_labels(source: SampleSource, fitted: LabelTransform, degree: int) -> tuple[Array, Array]:
    """Return the transformed labels and what they were divided by, each (n,)."""
    t, divisors = np.empty(source.n_samples), np.empty(source.n_samples)
    for rows, y, sizes in sized(source, degree):
        t[rows], divisors[rows] = fitted(np.asarray(y), sizes), fitted.divisors(sizes)
    return t, divisors


@dataclass(frozen=True, eq=False)
class Candidates:
    """Directions that may be features.

    Attributes
    ----------
    features : ndarray of float64, shape (K, D)
        Orthonormal rows, the largest |eigenvalue| first.
    outside : ndarray of bool, shape (K,)
        Whether the eigenvalue stands outside the bulk, or the number of features was given.
    spectrum : EigenResult
    n_passes : float
        Passes over the samples in all.
    turned : ndarray of float64, shape (K,), optional
        v^T C v of each feature, where the features are not the eigenvectors of the spectrum themselves.
    metric : Metric, optional
        That they were found in.
    """

    features: Array
    outside: NDArray[np.bool_]
    spectrum: EigenResult
    n_passes: float
    turned: Array | None = None
    metric: Metric | None = None

    @property
    def smoothness(self) -> float:
        """The tau of the metric, 0 where there is none."""
        return 0.0 if self.metric is None else self.metric.tau

    @property
    def eigenvalues(self) -> Array:
        """One a feature."""
        return self.spectrum.eigenvalues if self.turned is None else self.turned


def n_candidates(n_samples: int, n_packed: int) -> int:
    """Return how many eigenpairs to look for when the number of features is not known.

    32, and one for each 8 D samples, at most 128, where that is cheap: the more samples, the more
    directions they determine. At most D.
    """
    affordable = min(MOST_PAIRS, n_samples // (_SAMPLES_A_PAIR * n_packed), _CHEAP // (n_samples * n_packed))
    return min(n_packed, max(FEWEST_PAIRS, affordable))


def find_candidates(
    operator: MomentOperator,
    n_features: int | None,
    *,
    tol: float,
    max_passes: float,
    seed: int,
    method: Any = "auto",
    run_file: Any = None,
    progress: bool | None = None,
    metric: Metric | None = None,
) -> Candidates:
    """Return the top eigenvectors by |eigenvalue|: as many as asked for, or `n_candidates`.

    With a metric they are the solutions of C v = w B v, turned to be orthonormal (`smooth.features_of`).

    Parameters
    ----------
    operator : MomentOperator
    n_features : int or None
        How many; None where that is not known: then only those outside the bulk are sure to converge.
    tol, max_passes, seed, method, run_file, progress, metric
        As in `top_eigenpairs`.

    Raises
    ------
    KeyboardInterrupt
        If interrupted.
    NotConverged
        If the operator failed; `result` holds the pairs so far.
    """
    size = operator.shape[0]
    is_smooth = metric is not None and metric.tau > 0.0
    spectrum = top_eigenpairs(
        operator,
        n_candidates(operator.n_samples, size) if n_features is None else n_features,
        which="LM",
        method=method,
        tol=max(tol, _SMOOTH_TOL) if is_smooth and n_features is None else tol,
        stop="outliers" if n_features is None and not is_smooth else "residual",
        max_passes=max_passes,
        seed=seed,
        metric=metric if is_smooth else None,
        run_file=run_file,
        progress=progress,
    )
    if spectrum.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if spectrum.status is Status.OPERATOR_FAILED:
        raise NotConverged(f"{spectrum.status.value} {spectrum.message}".strip(), spectrum)
    outside = np.ones(len(spectrum.eigenvalues), dtype=bool)
    if metric is not None and is_smooth:
        features, values = features_of(spectrum.eigenvectors, spectrum.eigenvalues)
        if n_features is None:
            edge = bulk_edge(metric, operator.n_samples, float(np.mean(operator.labels() ** 2)))
            outside = np.arange(len(values)) < int((np.abs(spectrum.eigenvalues) > _CLEARLY * edge).sum())
        return Candidates(features, outside, spectrum, spectrum.n_passes, values, metric)
    if n_features is None:
        outside = above_bulk(operator, spectrum.eigenvalues)
    features = np.ascontiguousarray(spectrum.eigenvectors.T, dtype=np.float64)
    return Candidates(features, outside, spectrum, spectrum.n_passes)


def above_bulk(operator: MomentOperator, eigenvalues: Array) -> NDArray[np.bool_]:
    """Say which eigenvalues stand outside the bulk that labels and norms of features predict: (k,)."""
    size = operator.shape[0]
    labels, norms = sampled_labels(operator)
    bulk = predict_spectrum(labels, operator.n_samples, size, norms=norms)
    shift = 0.0 if operator.center_trace else operator.trace() / size
    return outliers(eigenvalues - shift, bulk.edge_left, bulk.edge_right, size)


def sampled_labels(operator: MomentOperator) -> tuple[Array, Array]:
    """Return labels as the operator weighs them, and |F|^2/D, of evenly spread samples, each (m,)."""
    step = -(-operator.n_samples // _BULK_ROWS)
    return operator.sampled_labels(step)
