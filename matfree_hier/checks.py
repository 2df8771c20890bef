"""Checks of single arguments, with the sentence that names argument, bound and value got."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return `value` as a Python int within low..high.

    Raises
    ------
    TypeError
        If it is no integer; a float is none, whatever its value.
    ValueError
        If it is out of bounds.
    """
    bound = f"at least {low}" if high is None else f"in {low}..{high}"
    try:
        number = operator.index(value)
    except TypeError:
        msg = f"`{name}` must be an integer {bound}, got {value!r}."
        raise TypeError(msg) from None
    if number < low or (high is not None and number > high):
        msg = f"`{name}` must be {bound}, got {number}."
        raise ValueError(msg)
    return number


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
