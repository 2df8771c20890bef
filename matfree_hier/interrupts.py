"""Ctrl-C and SIGTERM as requests: a solve ends where its state is whole."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

from matfree_hier.comm import note_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class Interrupts:
    """Catch SIGINT and SIGTERM while the context is open, in the main thread; elsewhere do nothing.

    Parameters
    ----------
    *may_raise : callable
        Each says whether KeyboardInterrupt may be raised right now, as in the middle of a long product. If
        none does, the signal is only noted in `requested`, and the loop has to ask.
    """

    def __init__(self, *may_raise: Callable[[], bool]) -> None:
        self.requested = False
        self._may_raise = list(may_raise)
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def also(self, may_raise: Callable[[], bool]) -> None:
        """Add a place where KeyboardInterrupt may be raised."""
        self._may_raise.append(may_raise)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.requested = True
        if note_interrupt():  # a product of several ranks ends between two chunks of samples
            return
        if any(may_raise() for may_raise in self._may_raise):
            raise KeyboardInterrupt
