"""Which arrays of a file with several are the inputs and the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from matfree_hier.status import InputError

Layout = tuple[tuple[int, ...], np.dtype[Any]]


def find_arrays(
    arrays: Mapping[str, Layout], where: str, inputs_name: str | None, target: str | bool | None
) -> tuple[str, str | None]:
    """Names of the array of inputs and of that of labels (None if ``target`` is False).

    A name that is given must be there. Otherwise it is ``X``, and the only real matrix of the file where
    there is no ``X``; ``y``, and the only other real array of shape (n,) or (n, 1) where there is no ``y``.
    """
    matrices = [name for name, (shape, dtype) in arrays.items() if len(shape) == 2 and dtype.kind in "biuf"]
    X_name = _choose(arrays, matrices, where, inputs_name, "X", "the inputs, a matrix")
    if target is False:
        return X_name, None
    n = arrays[X_name][0][:1]
    vectors = [
        name
        for name, (shape, dtype) in arrays.items()
        if name != X_name and shape in (n, (*n, 1)) and dtype.kind in "biuf"
    ]
    y_name = _choose(
        arrays, vectors, where, None if target is None else str(target), "y", "the target, a vector"
    )
    return X_name, y_name


def _choose(
    arrays: Mapping[str, Layout], fitting: list[str], where: str, given: str | None, usual: str, what: str
) -> str:
    name = usual if given is None else given
    if name in arrays:
        return name
    if given is None and len(fitting) == 1:
        return fitting[0]
    holds = ", ".join(f"`{known}` {shape}" for known, (shape, _) in list(arrays.items())[:20]) or "no array"
    msg = f"{where} has no array `{name}` ({what}); it holds {holds}."
    raise InputError(msg)
