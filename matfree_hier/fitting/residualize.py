"""Labels less their low even chaoses: what makes the spurious bulk at finite d, and no feature.

The target of the model is even in x, so it has Hermite components of degree 2, 4, ..., 2q alone. The features
are found through those of degree 2q; the lower ones add noise to the moment operator, and at finite d a bulk
of spurious eigenvalues that does not vanish with n. Their coefficients b_r = E y F_r are cheap to estimate,
and what they predict is subtracted from the labels of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier import kernels
from matfree_hier.fitting.moments import is_better, shuffled_ranks
from matfree_hier.operands import MAX_DEGREE
from matfree_hier.packing import check_memory, check_size
from matfree_hier.shares import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

FOLDS = 8  # a full vector of the kernels
_ROWS = 16_384  # samples a kernel call
_INPUTS = 2**24  # entries of X a kernel call


@dataclass(frozen=True, eq=False)
class Residuals:
    """Labels less their low even chaoses, and what there was of those.

    Attributes
    ----------
    labels : ndarray of float64, shape (n,)
        y - sum_r scales_r <b_r, F_r(x)>; y itself if `helps` is False.
    degrees : tuple of int
        r.
    scales : ndarray of float64, shape (m,)
        Factors 0..1 for the m degrees: how much of b_r is not noise.
    gain : float
        The share of the variance that predictions from the other samples take away.
    helps : bool
        Whether the gain is above its standard error over the folds.
    n_passes : float
        Passes over the samples, one forward and one backward product of the features of degree q = 1 pass:
        those of lower degrees count by their share of features.
    """

    labels: Array
    degrees: tuple[int, ...]
    scales: Array
    gain: float
    helps: bool
    n_passes: float


def low_even_degrees(degree: int) -> tuple[int, ...]:
    """Return the even degrees r <= q: none for q = 1, 2 for q = 2 and 3, 2 and 4 for q = 4."""
    return tuple(range(2, degree + 1, 2))


def residualize(source: SampleSource, degree: int, *, dtype: Any = None, seed: int = 3) -> Residuals:
    """Subtract from each label what the other samples say of its low even chaoses.

    Samples are divided into folds at random; the part <b_r, F_r(x)> of a sample is predicted with b_r of the
    other folds, (1/n) sum y F_r over them, so that no label is pulled towards itself, and the variance
    that this takes away is measured without bias. The predictions are scaled by least squares (they are
    noise where n is not large beside the number of features of degree r). One backward and one forward
    product of each lower degree, with a column a fold: 32 n D_r operations, memory O(D_r + n).

    Parameters
    ----------
    source : SampleSource
        Samples with labels.
    degree : int
        q, of the features that are looked for, 1..8.
    dtype : {None, "float32", "float64"}
        Of the products; None: that of the source.
    seed : int
        Of the folds.

    Returns
    -------
    Residuals

    Raises
    ------
    ValueError
        If `degree` is out of its bounds.
    MemoryError
        If coefficients or predictions do not fit in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from matfree_hier.sources import open_source
    >>> X = np.random.default_rng(5).standard_normal((2000, 4))
    >>> result = residualize(open_source((X, X[:, 0] * X[:, 1])), degree=2)
    >>> bool(result.labels.var() < 0.1), result.helps
    (True, True)
    """
    if not 1 <= degree <= MAX_DEGREE:
        msg = f"`degree` must be in 1..{MAX_DEGREE}, got {degree}."
        raise ValueError(msg)
    y = source.labels()
    degrees = low_even_degrees(degree)
    if not degrees or source.n_samples < FOLDS:
        return Residuals(y, degrees, np.zeros(len(degrees)), 0.0, False, 0.0)
    kind = np.dtype(source.dtype if dtype is None else dtype)
    fold = shuffled_ranks(0, source.n_samples, source.n_samples, seed)[0] % FOLDS
    centre = float(y.mean())
    unit = float(y.std()) or 1.0
    z = (y - centre) / unit
    P = np.column_stack([_predicted(source, z, fold, r, kind) for r in degrees])
    scales = _scales(P, z)
    left = z - P @ scales
    errors, baseline = _by_fold(left, fold), _by_fold(z, fold)
    helps = is_better(errors, baseline)
    gain = 1.0 - float(np.mean(errors)) / (float(np.mean(baseline)) or 1.0)
    sizes = [check_size(source.n_inputs, r) for r in (degree, *degrees)]
    n_passes = sum(sizes[1:]) / sizes[0]
    return Residuals(centre + unit * left if helps else y, degrees, scales, gain, helps, n_passes)


def _predicted(
    source: SampleSource, z: Array, fold: NDArray[np.int64], degree: int, dtype: np.dtype[Any]
) -> Array:
    """Return <b, F(x)> of each sample for the features of one degree, b from the other folds; shape (n,)."""
    size = check_size(source.n_inputs, degree)
    check_memory(3 * 8 * size * FOLDS, f"Sums of {size} features")
    sums = source.shares.sum(_fold_sums, size, degree, dtype, by_row=[z, fold])
    counts = len(z) - np.bincount(fold, minlength=FOLDS)
    b = ((sums.sum(axis=1, keepdims=True) - sums) / counts).astype(dtype)
    return joined(source.shares.each(_fold_predictions, degree, b, by_row=[fold]))


def _fold_sums(
    source: SampleSource, size: int, degree: int, dtype: np.dtype[Any], z: Array, fold: NDArray[np.int64]
) -> Array:
    """Return Phi^T z of each fold, (D, folds)."""
    sums = np.zeros((size, FOLDS))
    for rows, X in _inputs(source, dtype):
        masked = np.where(fold[rows, np.newaxis] == np.arange(FOLDS), z[rows, np.newaxis], 0.0)
        kernels.backward(X, masked.astype(dtype), degree, sums)
    return sums


def _fold_predictions(source: SampleSource, degree: int, b: NDArray[Any], fold: NDArray[np.int64]) -> Array:
    """Return <b, F> of each sample, b that of its fold, (n,)."""
    predicted = np.empty(len(fold))
    for rows, X in _inputs(source, b.dtype):
        U = np.empty((len(X), FOLDS), b.dtype)
        kernels.forward(X, b, degree, U)
        predicted[rows] = U[np.arange(len(X)), fold[rows]]
    return predicted


def _inputs(source: SampleSource, dtype: np.dtype[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    rows = max(1, min(_ROWS, _INPUTS // source.n_inputs))
    for start, X, _ in source.chunks(rows=rows, labels=False, dtype=dtype):
        yield slice(start, start + len(X)), X


def _scales(P: Array, z: Array) -> Array:
    """Least squares of z on each column, 0..1: the degrees are uncorrelated but for noise."""
    squares = np.sum(P**2, axis=0)
    scales = np.divide(P.T @ z, squares, out=np.zeros(P.shape[1]), where=squares > 0.0)
    return np.asarray(np.clip(scales, 0.0, 1.0))


def _by_fold(values: Array, fold: NDArray[np.int64]) -> Array:
    """Return the mean squares by fold."""
    counts = np.bincount(fold, minlength=FOLDS)
    return np.asarray(np.bincount(fold, values**2, minlength=FOLDS) / counts)
