"""Plans, workspaces and threads for the compiled loops: what the rest of the package calls."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from matfree_hier.kernels import contraction, recurrence
from matfree_hier.kernels.plan import Plan, make_plan, n_features
from matfree_hier.kernels.threads import run_all

Array = NDArray[Any]


def _cache_bytes() -> int:
    """Return the size of a core's L2 cache; 512 KiB where the system does not say."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text(encoding="ascii").strip()
        return int(text.rstrip("KM")) * (1024 if text.endswith("K") else 1024**2)
    except (OSError, ValueError):
        return 512 * 1024


CACHE_BYTES = min(_cache_bytes(), 2 * 1024**2)
FORWARD_GROUPS = 4
BACKWARD_LANES = 240
_SAMPLES = 1024  # whose features are formed at a time
_BAND = 256  # rows of a moment matrix that are one task
FLUSH_SAMPLES = 4080
"""Samples summed in the working precision before they are added to float64 sums."""


@lru_cache(maxsize=64)
def _plan(n_inputs: int, degree: int, lo: int, hi: int, budget: int) -> Plan:
    return make_plan(n_inputs, degree, lo, hi, budget)


def _budget(lanes: int, itemsize: int, n_inputs: int, degree: int) -> int:
    """Return the panel rows that fill five eighths of the L2 cache beside the powers."""
    return max(5 * CACHE_BYTES // (8 * lanes * itemsize) - 1 - n_inputs * degree, 64)


class _Alias:
    """The memory of an array, said to be writable."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _plain(array: Array) -> Array:
    """Return `array` aligned and marked writable: numba compiles anew for every other kind, for no gain."""
    if not array.flags.aligned:
        return array.copy()
    return array if array.flags.writeable else np.asarray(_Alias(array))


def forward(X: Array, V: Array, degree: int, out: Array, first: int = 0) -> None:
    """Overwrite `out` with ``U = Phi V``, row i of Phi being F(x_i), or some features of it.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d), C order
    V : ndarray of the same dtype, shape (D, k), C order
        Fewer rows are those of the features `first`, `first` + 1, ... alone.
    degree : int
        q.
    out : ndarray of the same dtype, shape (n, k), C order, overwritten
    first : int
        The feature of row 0 of V.

    Notes
    -----
    2 n D k flops. Memory a thread: a workspace the size of the L2 cache.
    """
    X, V = _plain(X), _plain(V)
    n, d = X.shape
    lanes = contraction.GROUP_VECTORS * contraction.VECTOR_BYTES // X.itemsize
    groups = min(FORWARD_GROUPS, max(1, -(-n // lanes)))
    plan = _plan(d, degree, first, first + V.shape[0], _budget(groups * lanes, X.itemsize, d, degree))
    flat = np.concatenate((V, V[plan.scattered])).reshape(-1)
    tile = groups * lanes
    n_tiles = -(-n // tile)
    share = max(1, -(-n_tiles // (8 * numba.get_num_threads())))

    def task(start: int, stop: int) -> None:
        contraction.forward_samples(
            X,
            flat,
            V.shape[1],
            plan.program,
            plan.n_rows,
            degree,
            lanes,
            groups,
            start,
            stop,
            out,
        )

    run_all(task, [(i, min(i + share * tile, n)) for i in range(0, n, share * tile)])


def backward(X: Array, G: Array, degree: int, out: Array, first: int = 0) -> None:
    """Add ``Phi^T G``, or some rows of it, to `out`.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d), C order
    G : ndarray of the same dtype, shape (n, k), C order
    degree : int
        q.
    out : ndarray of float64, shape (D, k), C order, accumulated into
        Fewer rows are those of the features `first`, `first` + 1, ... alone.
    first : int
        The feature of row 0 of `out`.

    Notes
    -----
    2 n D k flops. Every entry of `out` is one thread's, and its sum is formed in the order of the samples:
    the result has the same bits for every number of threads and every range of features.
    """
    X, G = _plain(X), _plain(G)
    n, d = X.shape
    D, k = out.shape
    vector = contraction.VECTOR_BYTES // X.itemsize
    group = contraction.GROUP_VECTORS * vector
    lanes = group * max(1, min(BACKWARD_LANES // group, -(-n // group)))
    budget = _budget(lanes, X.itemsize, d, degree)
    n_threads = min(numba.get_num_threads(), D)
    cuts = [D * t // n_threads for t in range(n_threads + 1)]

    def task(column: int, lo: int, hi: int) -> None:
        plan = _plan(d, degree, first + lo, first + hi, budget)
        contraction.backward_features(
            X, G, column, min(2 * vector, k - column), plan.program, plan.scattered, plan.n_rows, degree,
            lanes, FLUSH_SAMPLES, lo, hi, out,
        )  # fmt: skip

    if n:
        run_all(task, [(c, cuts[t], cuts[t + 1]) for c in range(0, k, 2 * vector) for t in range(n_threads)])


def features(X: Array, degree: int, out: Array) -> None:
    """Overwrite `out`, shape (n, D), with the features themselves: small sizes only.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d), C order
    degree : int
        q.
    out : ndarray of the same dtype, shape (n, D), overwritten
    """
    for start in range(0, len(X), _SAMPLES):
        block = X[start : start + _SAMPLES]
        out[start : start + len(block)] = _feature_panel(block, degree).T


def _feature_panel(X: Array, degree: int) -> Array:
    """Return the features of a few samples, shape (D, n)."""
    d = X.shape[1]
    panels = [np.ones((1, len(X)), X.dtype), np.ascontiguousarray(X.T)]
    powers = panels[:]
    for m in range(1, degree):
        powers.append(
            (panels[1] * powers[m] - np.sqrt(X.dtype.type(m)) * powers[m - 1]) / np.sqrt(X.dtype.type(m + 1))
        )
    for r in range(2, degree + 1):
        parts = [
            powers[m][i] * panels[r - m][len(panels[r - m]) - n_features(d - i - 1, r - m) :]
            for i in range(d)
            for m in range(r, 0, -1)
        ]
        panels.append(np.concatenate(parts))
    return panels[degree]


def moment(X: Array, t: Array, degree: int, out: Array) -> None:
    """Add Phi^T diag(t) Phi to the upper triangle of `out`, and something to the lower one: small D only.

    Bands of rows are one thread's each, so the bits do not depend on the number of threads if BLAS is held
    to one. Cost n D^2 operations, memory for some thousand feature vectors.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d), C order
    t : ndarray of the same dtype, shape (n,)
    degree : int
        q.
    out : ndarray of float64, shape (D, D), added to
    """
    for start in range(0, len(X), _SAMPLES):
        rows = slice(start, start + _SAMPLES)
        panel = _feature_panel(X[rows], degree)
        weighted = panel * t[rows]

        def band(low: int, panel: Array = panel, weighted: Array = weighted) -> None:
            out[low : low + _BAND, low:] += weighted[low : low + _BAND] @ panel[low:].T

        run_all(band, [(low,) for low in range(0, len(out), _BAND)])


def gram(X: Array, Y: Array, degree: int, out: Array) -> None:
    """Overwrite `out` with K_q(x_i, y_j) = <F(x_i), F(y_j)>, in O(n m (d + q)).

    Parameters
    ----------
    X, Y : ndarray of float64, shapes (n, d) and (m, d)
    degree : int
        q.
    out : ndarray of float64, shape (n, m), C order, overwritten
    """
    np.matmul(X, Y.T, out=out)
    squares_x, squares_y = (X * X).sum(axis=1), (Y * Y).sum(axis=1)
    step = max(1, -(-len(X) // (4 * numba.get_num_threads())))

    def task(start: int) -> None:
        stop = start + step
        recurrence.gram_rows(squares_x[start:stop], squares_y, X.shape[1], degree, out[start:stop])

    run_all(task, [(start,) for start in range(0, len(X), step)])


def squared_norms(X: Array, degree: int, out: Array) -> None:
    """Overwrite `out` with |F(x_i)|^2 = K_q(x_i, x_i), in O(d + q) a sample.

    Parameters
    ----------
    X : ndarray of float32 or float64, shape (n, d), C order
    degree : int
        q.
    out : ndarray of float64, shape (n,), overwritten
    """
    recurrence.squared_norm_rows(_plain(X), degree, out)
