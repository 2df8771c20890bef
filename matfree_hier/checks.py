"""Checks of single arguments, with the sentence that names argument, bound and value."""

from __future__ import annotations

import operator
from typing import Any


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
