"""The arguments of products with features, checked, and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from matfree_hier.packing import coordinates
from matfree_hier.sources import SampleSource, open_source

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Samples: TypeAlias = SampleSource | str | os.PathLike[str] | ArrayLike

MAX_DEGREE = 8  # of the kernels


def open_samples(X: Samples, y: ArrayLike | None = None) -> SampleSource:
    """Return samples as a source that is not empty."""
    if isinstance(X, SampleSource):
        if y is not None:
            msg = "`y` must be None when `X` is a source, which has its own labels."
            raise ValueError(msg)
        source = X
    else:
        source = open_source(X if y is None else (X, y))
    if source.n_samples < 1:
        msg = "`X` must have at least 1 sample, got 0."
        raise ValueError(msg)
    return source


def checked_degree(degree: int) -> int:
    """Return a degree that kernels know."""
    if not isinstance(degree, (int, np.integer)) or not 1 <= degree <= MAX_DEGREE:
        msg = f"`degree` must be an integer in 1..{MAX_DEGREE}, got {degree!r}."
        raise ValueError(msg)
    return int(degree)


def product_dtype(dtype: DTypeLike | None, source: SampleSource) -> np.dtype[Any]:
    """Return the dtype of products: float32 or float64, that of the samples if None is asked for."""
    kind = source.dtype if dtype is None else np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        msg = f"`dtype` must be float32, float64 or None, got {kind}."
        raise ValueError(msg)
    return np.dtype(kind)


def checked_block(V: ArrayLike, name: str, size: int) -> NDArray[Any]:
    """Return finite `V` of shape (size,) or (size, k) as float32 if it is that, as float64 otherwise."""
    array = coordinates(V, name, size)
    finite = np.isfinite(array)
    if not finite.all():
        bad = tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), array.shape))
        msg = f"`{name}` must be finite, got {array[bad]} at row {bad[0]}."
        raise ValueError(msg)
    return array


def exponents_of(V: NDArray[Any]) -> NDArray[np.intp]:
    """Return e with |V| < 2**e in each column, shape (k,): exact scales, which change no digit."""
    largest = np.maximum(V.max(axis=0, initial=0.0), -V.min(axis=0, initial=0.0))
    exponents: NDArray[np.intp] = np.frexp(largest)[1].astype(np.intp)
    return exponents


def scaled_columns(V: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return V with its columns' entries brought into (-1, 1), C-contiguous in `dtype`, and exponents."""
    exponents = exponents_of(V)
    return np.ldexp(V, -exponents).astype(dtype, order="C", copy=False), exponents


def require_finite(result: NDArray[Any], source: SampleSource) -> NDArray[Any]:
    """Refuse NaN and infinity: they come of such samples (no sum loses them) or of overflow."""
    if not np.isfinite(result).all():
        source.validate()  # raises, and names the row
        msg = (
            f"Sums of features overflow {result.dtype}: scale the columns of `X` to unit variance, or the"
            " labels or vectors down, or use dtype='float64'."
        )
        raise FloatingPointError(msg)
    return result
