"""Arguments of the laws, checked."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]


def positive(name: str, value: float) -> float:
    """Return a number that is finite and above 0, or raise ValueError."""
    if not 0.0 < value < np.inf:
        msg = f"`{name}` must be finite and above 0, got {value}."
        raise ValueError(msg)
    return float(value)


def finite(name: str, values: ArrayLike) -> Array:
    """Return an array of finite float64, or raise ValueError."""
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        msg = f"`{name}` must be finite, got {array[~np.isfinite(array)][0]}."
        raise ValueError(msg)
    return array
