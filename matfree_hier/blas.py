"""BLAS at one thread: for bits that do not depend on the machine, and while kernels take the cores."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Blas:
    """Who wants BLAS at one thread now: the first one in sets the limit, the last one out lifts it."""

    lock = threading.Lock()
    users = 0
    limit: Any = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS at one thread, so that D x k products have the same bits whatever the machine.

    Contexts may nest, and overlap between threads.
    """
    with _Blas.lock:
        if not _Blas.users:
            _Blas.limit = ThreadpoolController().limit(limits=1, user_api="blas")
        _Blas.users += 1
    try:
        yield
    finally:
        with _Blas.lock:
            _Blas.users -= 1
            if not _Blas.users:
                _Blas.limit.restore_original_limits()
