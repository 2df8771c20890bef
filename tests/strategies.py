"""Hypothesis strategies: sizes, dtypes, memory layouts and scales of the operator's arguments."""

from __future__ import annotations

from math import comb
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

LAYOUTS = ("C", "F", "strided", "reversed", "read-only")
SMALL = 500  # most packed coordinates of a drawn problem

seeds = st.integers(min_value=3, max_value=2**32 - 1)
dtypes = st.sampled_from(["float32", "float64"])
layouts = st.sampled_from(LAYOUTS)
exponents = st.integers(min_value=-12, max_value=12)  # of ten


def laid_out(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return an array of the same entries and dtype in another memory layout."""
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided":
        wide = np.zeros([2 * side for side in array.shape], array.dtype)
        window = wide[tuple(slice(None, None, 2) for _ in array.shape)]
        window[...] = array
        return window
    if layout == "reversed":
        backwards = tuple(slice(None, None, -1) for _ in array.shape)
        return np.ascontiguousarray(array[backwards])[backwards]
    array = array.copy()
    array.flags.writeable = layout != "read-only"
    return array


@st.composite
def sizes(draw: st.DrawFn, max_degree: int = 6, max_inputs: int = 12) -> tuple[int, int]:
    """(d, q) with at most SMALL packed coordinates."""
    q = draw(st.integers(1, max_degree))
    largest = max(d for d in range(1, max_inputs + 1) if comb(d + q - 1, q) <= SMALL)
    return draw(st.integers(1, largest)), q


class Problem(NamedTuple):
    """Samples and a block of vectors, with the dtype the operator is asked for."""

    X: NDArray[Any]
    y: NDArray[Any]
    V: NDArray[Any]
    degree: int
    dtype: str


@st.composite
def problems(draw: st.DrawFn, max_samples: int = 70) -> Problem:
    """Samples (n, d), labels and a block (D, k), of any layout and scale."""
    d, q = draw(sizes())
    n = draw(st.one_of(st.sampled_from([1, 5, 47]), st.integers(1, max_samples)))
    k = draw(st.one_of(st.sampled_from([1, 2, 7, 16, 33]), st.integers(1, 20)))
    dtype = draw(dtypes)
    rng = np.random.default_rng(draw(seeds))
    X = rng.standard_normal((n, d)).astype(dtype)
    y = rng.standard_normal(n) * 10.0 ** draw(exponents)
    V = rng.standard_normal((comb(d + q - 1, q), k))
    # Columns of one block may differ in scale as much as blocks do.
    V = (V * 10.0 ** np.array(draw(st.lists(exponents, min_size=k, max_size=k)))).astype(draw(dtypes))
    return Problem(
        laid_out(X, draw(layouts)), laid_out(y, draw(layouts)), laid_out(V, draw(layouts)), q, dtype
    )
