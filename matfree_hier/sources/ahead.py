"""Read-ahead: the next chunk is read and decoded while the present one is worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_WAIT = 0.1  # seconds after which a reader that nobody listens to any more notices it
_END = object()


def read_ahead(items: Iterator[T], depth: int = 1) -> Iterator[T]:
    """Yield the items of an iterator that runs in a thread of its own, `depth` items ahead.

    The order, and what the iterator raises, are those of the iterator itself. At most ``depth + 2`` items
    exist at a time: one with the caller, `depth` waiting, one in the making. The thread ends, and closes the
    iterator, when the items do, when the iterator raises, or when the caller closes or drops this generator.

    Parameters
    ----------
    items : iterator
        Used by the thread alone from here on.
    depth : int
        At least 1.
    """
    waiting: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[Any, BaseException | None]) -> None:
        while not stopped.is_set():
            try:
                waiting.put(entry, timeout=_WAIT)
            except queue.Full:
                continue
            return

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put((item, None))
                if stopped.is_set():
                    break
        except BaseException as caught:
            error = caught
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
        put((_END, error))

    reader = threading.Thread(target=run, name="matfree_hier read-ahead", daemon=True)
    reader.start()
    try:
        while True:
            item, error = waiting.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()
        reader.join()
