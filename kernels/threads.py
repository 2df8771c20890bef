"""Threads of the kernels: compiled loops release the interpreter's lock, so plain Python threads carry them.

numba's own parallel loops would need a threading layer that either aborts the process when two threads enter
it (workqueue) or spins against other OpenMP users.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numba


def follow_affinity() -> None:
    """Let numba's thread count follow the processors this process may use, unless the user has set it."""
    if "NUMBA_NUM_THREADS" not in os.environ and hasattr(os, "sched_getaffinity"):
        numba.set_num_threads(min(len(os.sched_getaffinity(0)), numba.get_num_threads()))


def run_all(task: Callable[..., None], arguments: Sequence[tuple[int, ...]]) -> None:
    """Call ``task(*a)`` for every a, on as many threads as `numba.get_num_threads()` says.

    The threads live only as long as the call, so nothing breaks after a fork and no lock is needed.
    """
    n_threads = min(numba.get_num_threads(), len(arguments))
    if n_threads <= 1:
        for a in arguments:
            task(*a)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for future in [pool.submit(task, *a) for a in arguments]:
            future.result()
