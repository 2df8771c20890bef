"""Errors in the middle of a product of several ranks: noted, told to the others, raised by all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matfree_hier import messages
from matfree_hier.status import InputError

_ALARM = 86  # tag of messages


class Failures:
    """What goes wrong on this rank while all have to take part in sums.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks that take part.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.error: Exception | None = None
        self._alarms: list[Any] = []

    def attempt(self, work: Callable[[], object]) -> None:
        """Do some work of this rank's own, unless an earlier one failed; the first error is kept and told."""
        if self.error is not None:
            return
        try:
            work()
        except Exception as error:
            self.error = error
            others = (rank for rank in range(self.comm.Get_size()) if rank != self.comm.Get_rank())
            self._alarms = [self.comm.isend(None, rank, _ALARM) for rank in others]

    def anywhere(self) -> bool:
        """Whether this rank knows of a failure, its own or another's; other ranks may not know of it yet."""
        return self.error is not None or bool(self.comm.Iprobe(tag=_ALARM))

    def settled(self) -> BaseException | None:
        """End the work of all ranks, which all call this; return the same error on all, None without one.

        It is the one of the lowest rank, with its number; an `InputError` before others, since sums carry
        NaN of one rank's samples to all.
        """
        told = None if self.error is None else messages.portable(self.error)
        errors = self.comm.allgather(told)
        failed = [rank for rank, error in enumerate(errors) if error is not None]
        for rank in failed:
            if rank != self.comm.Get_rank():
                self.comm.recv(source=rank, tag=_ALARM)
        for alarm in self._alarms:
            alarm.wait()
        self.error, self._alarms = None, []
        if not failed:
            return None
        first = min(failed, key=lambda rank: (not isinstance(errors[rank], InputError), rank))
        return messages.from_rank(errors[first], first)
