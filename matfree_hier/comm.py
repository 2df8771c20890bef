"""Processes that share the samples: rank 0 runs the program, the other ranks answer it.

A call that every rank makes with ``comm=`` (a fit, a solve, a product) becomes a *session*. Rank 0 runs the
ordinary code: it decides, draws what is random and writes the files, so that ranks cannot branch apart. The
others wait for commands: "call this function on your share of the samples". A product with the moment
operator is a broadcast of the block, a product of each rank's samples, and a sum. At the end every rank
returns what rank 0 returns, or raises what it raises.

After each command ranks tell rank 0 how it went. An error, an interrupt or a signal anywhere stops the
others between two chunks of samples, and is raised on rank 0, where the ordinary code handles it: a solve
keeps its state, a fit ends with the message on all ranks.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numpy as np

from matfree_hier import buffers, messages
from matfree_hier.blas import single_threaded_blas

if TYPE_CHECKING:
    from types import FrameType

OFFERED = 0
"""Key of what ranks bring to a session: gone at its end."""

_HEADER, _STATUS, _VERDICT, _STOP, _ROWS = 81, 82, 83, 84, 85  # tags of messages
_FIRST_PAUSE, _LONGEST_PAUSE = 2e-5, 2e-3  # seconds between two looks for a message: waiting takes no core

_F = TypeVar("_F", bound=Callable[..., Any])

_teams: list[Team] = []
_working: list[Team] = []  # at most one: whose command this process is at


class Stopped(Exception):  # noqa: N818 - another rank's error, not one of this one
    """The command was given up since another rank failed."""


class Team:
    """The ranks of a communicator, rank 0 ahead.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Duplicated, so that messages do not meet those of the caller.

    Attributes
    ----------
    rank, size : int
    seconds : dict of str to float
        What commands took this rank: ``"work"`` on its share, ``"wait"`` for other ranks, ``"transfer"`` of
        blocks and sums.
    """

    def __init__(self, comm: Any) -> None:
        self.given, self.comm = comm, comm.Dup()
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())
        self.seconds = {"work": 0.0, "wait": 0.0, "transfer": 0.0}
        self.objects: dict[int, Any] = {}
        self._next_key = 0
        self._dropped: list[int] = []
        self.known: Mapping[str, Any] = {}
        self._in_session = False
        self._interrupted, self._honoured, self._signal = False, False, 0
        self._statuses: dict[int, Any] = {}
        self._thread = 0
        self._lock, self._command_lock = threading.RLock(), threading.Lock()
        self.threads = self._threads()

    # --- sessions ------------------------------------------------------------------------------------------

    def collective(
        self,
        name: str,
        run: Callable[..., Any],
        local: Callable[[], Any] = lambda: None,
        known: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run something on rank 0 while the other ranks answer; every rank calls this.

        Within a session, where only rank 0 is, it just runs.

        Parameters
        ----------
        name : str
            What is called: ranks that call different things are told so.
        run : callable
            Takes what `local` returned on each rank, a list; only called on rank 0.
        local : callable
            Called on each rank first, to check and open what is its own; it must return something picklable.
        known : mapping of str to callable, optional
            Functions of the user's, which every rank has and which may not pickle.

        Returns
        -------
        object
            What `run` returns, on every rank.

        Raises
        ------
        Exception
            What `local` or `run` raises, on every rank; from which rank is in its message.
        """
        if self._in_session:
            return run([local()])
        with self._lock, self._signals(), self.few_threads(), single_threaded_blas():
            self.known = known or {}
            try:
                found = self.exchange(name, local)
                return self._lead(run, found) if self.rank == 0 else self._serve()
            finally:
                self.objects.pop(OFFERED, None)

    def exchange(self, name: str, local: Callable[[], Any]) -> list[Any]:
        """Call something on each rank and return the list of results on all; an error is raised on all."""
        value, error = None, None
        try:
            value = local()
        except Exception as caught:
            error = messages.portable(caught)
        heard = self.comm.allgather((name, value, error))
        called = sorted({entry[0] for entry in heard})
        if len(called) > 1:
            msg = f"Every rank must make the same call, got {' and '.join(called)}."
            raise RuntimeError(msg)
        errors = [(rank, entry[2]) for rank, entry in enumerate(heard) if entry[2] is not None]
        if len(errors) == self.size and len({str(e) for _, e in errors}) == 1:
            raise errors[0][1]  # the same argument is wrong everywhere
        if errors:
            raise messages.from_rank(errors[0][1], errors[0][0])
        return [entry[1] for entry in heard]

    def _lead(self, run: Callable[..., Any], found: list[Any]) -> Any:
        self._in_session = True
        try:
            result = run(found)
            final = messages.pack(("return", result, self._dropped, self._honoured), self.known)
        except BaseException as error:
            with self._at_work():
                ended = ("raise", messages.portable(error), self._dropped, self._honoured)
                self._announce(messages.pack(ended))
            raise
        else:
            with self._at_work():
                self._announce(final)
            return result
        finally:
            self._in_session, self._dropped = False, []

    def _serve(self) -> Any:
        """Answer commands until the session ends."""
        while True:
            with self.to_the_end():
                command = self._heard()
                if command[0] == "call":
                    self._answer(*command[1:])
                    continue
                for old in command[2]:
                    self.objects.pop(old, None)
                if command[3]:
                    self._honour()
            if command[0] == "raise":
                raise command[1]
            return command[1]

    # --- commands, on rank 0 -------------------------------------------------------------------------------

    def command(
        self,
        key: int | tuple[int, ...],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        by_row: Sequence[Any] = (),
        *,
        bounds: Sequence[int],
        gather: str = "all",
        placed: bool = False,
        only: int | None = None,
    ) -> Any:
        """Call ``function(object, *arguments, *rows)`` on every rank, on its object of that key.

        Parameters
        ----------
        key : int or tuple of int
            Of several, the function is given a tuple of objects.
        function : callable
            That of a module, so that it pickles.
        arguments : tuple
            The same for all.
        by_row : sequence of ndarray
            Arrays of an entry a sample, of which each rank gets those of its own.
        bounds : sequence of int
            Sample bounds[r] is the first of rank r; may be empty without `by_row` and `placed`.
        gather : {"all", "sum", "keep"}
            Whether the results come to rank 0 as a list, as the sum of arrays, or stay under a new key.
        placed : bool
            Whether the number of the rank's first sample goes before the arguments.
        only : int, optional
            The only rank that is to do it; the list has one result then.

        Returns
        -------
        list, ndarray or int
        """
        if not self._in_session:
            msg = (
                "Samples on several ranks are read by calls that every rank makes, as of a `MomentOperator`."
            )
            raise RuntimeError(msg)
        with self._command_lock:
            new_key = self._new_key() if gather == "keep" else -1
            shapes = [(array.shape[1:], array.dtype) for array in by_row]
            dropped = list(self._dropped)
            details = (key, function, arguments, shapes, list(bounds), gather, placed, only, new_key, dropped)
            message = messages.pack(("call", *details), self.known)
            with self._at_work():
                started = time.perf_counter()
                self._announce(message)
                del self._dropped[: len(dropped)]
                rows = [np.ascontiguousarray(a[bounds[0] : bounds[1]]) for a in by_row]
                for rank in range(1, self.size):
                    if only in (None, rank):
                        for array in by_row:
                            part = np.ascontiguousarray(array[bounds[rank] : bounds[rank + 1]])
                            buffers.send(self.comm, part, rank)
                self.seconds["transfer"] += time.perf_counter() - started
                value, error = self._tried(details, rows)
                result, failure = self._collected(value, error, gather, only, new_key)
        if failure is not None:
            raise failure
        return result

    def _collected(
        self, value: Any, error: BaseException | None, gather: str, only: int | None, new_key: int
    ) -> tuple[Any, BaseException | None]:
        """Hear how the others fared, tell them whether it counts, and take their results."""
        ranks = [rank for rank in range(1, self.size) if only in (None, rank)]
        started = time.perf_counter()
        stopped = False
        pause = _FIRST_PAUSE
        while True:
            self._listen_for_statuses()
            if error is None and self._interrupted:
                error = KeyboardInterrupt()
            failed = [r for r in sorted(self._statuses) if self._statuses[r][0] is not None]
            if (error is not None or failed) and not stopped:
                stopped = True
                for rank in ranks:
                    self.comm.send(None, rank, _STOP)
            if len(self._statuses) == len(ranks):
                break
            pause = _paused(pause)
        statuses, self._statuses = self._statuses, {}
        self.seconds["wait"] += time.perf_counter() - started
        failure = self._failure(error, statuses)
        for rank in ranks:
            self.comm.send((failure is None, stopped), rank, _VERDICT)
        if failure is not None:
            self._honour()
            return None, failure
        started = time.perf_counter()
        try:
            if gather == "keep":
                self.objects[new_key] = value
                return new_key, None
            if gather == "sum":
                return self._summed(value), None
            results = [value] if only in (None, 0) else []
            others = (messages.received(statuses[r][1], self._filler(r), self.known) for r in ranks)
            return [*results, *others], None
        finally:
            self.seconds["transfer"] += time.perf_counter() - started

    def _failure(self, error: BaseException | None, statuses: Mapping[int, Any]) -> BaseException | None:
        """Return what to raise: an interrupt before errors, errors in the order of ranks."""
        errors = {rank: status[0] for rank, status in statuses.items() if status[0] is not None}
        if error is not None:
            errors[0] = error
        real = {rank: e for rank, e in errors.items() if not isinstance(e, Stopped)}
        if any(isinstance(e, KeyboardInterrupt) for e in real.values()):
            return KeyboardInterrupt()
        if not real:
            return None
        rank = min(real)
        return messages.from_rank(real[rank], rank)

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def discard(self, key: int) -> None:
        """Let the objects of a key go, here now and elsewhere with the next command."""
        self.objects.pop(key, None)
        self._dropped.append(key)

    # --- commands, on the other ranks ----------------------------------------------------------------------

    def _answer(self, *details: Any) -> None:
        _, _, _, shapes, bounds, gather, _, only, new_key, dropped = details
        for old in dropped:
            self.objects.pop(old, None)
        if only not in (None, self.rank):
            return
        with self._at_work():
            started = time.perf_counter()
            n_rows = bounds[self.rank + 1] - bounds[self.rank] if shapes else 0
            rows = [np.empty((n_rows, *shape), dtype) for shape, dtype in shapes]
            for array in rows:
                buffers.receive(self.comm, array, 0)
            self.seconds["transfer"] += time.perf_counter() - started
            value, error = self._tried(details, rows)
            message = None
            if error is None and gather == "all":
                try:
                    message = messages.pack(value, self.known)
                except TypeError as caught:
                    error = caught
            announced = None if message is None else message.announcement()
            self.comm.send((None if error is None else messages.portable(error), announced), 0, _STATUS)
            counts, stopped = self._awaited(0, _VERDICT)
            if stopped:
                self.comm.recv(source=0, tag=_STOP)
                self._honour()
            if not counts:
                return
            started = time.perf_counter()
            if gather == "keep":
                self.objects[new_key] = value
            elif gather == "sum":
                self._summed(value)
            elif message is not None:
                messages.send_blocks(self.comm, message, 0)
            self.seconds["transfer"] += time.perf_counter() - started

    # --- on every rank -------------------------------------------------------------------------------------

    def _tried(self, details: tuple[Any, ...], rows: list[Any]) -> tuple[Any, BaseException | None]:
        key, function, arguments, _, bounds, _, placed, only = details[:8]
        if only not in (None, self.rank):
            return None, None
        started = time.perf_counter()
        try:
            between_chunks()
            prefix = (bounds[self.rank],) if placed else ()
            target = tuple(map(self.objects.get, key)) if isinstance(key, tuple) else self.objects.get(key)
            return function(target, *prefix, *arguments, *rows), None
        except (Exception, KeyboardInterrupt) as error:
            return None, error
        finally:
            self.seconds["work"] += time.perf_counter() - started

    def _summed(self, value: Any) -> Any:
        """Sum an array, or each of a tuple of arrays, up to rank 0."""
        for array in value if isinstance(value, tuple) else (value,):
            buffers.sum_to(self.comm, array)
        return value

    def between_chunks(self) -> None:
        """Give up where another rank has failed or this one was interrupted."""
        if self._interrupted:
            raise KeyboardInterrupt
        if self.rank == 0:
            self._listen_for_statuses()
            if any(status[0] is not None for status in self._statuses.values()):
                raise Stopped
        elif self.comm.Iprobe(0, _STOP):
            raise Stopped

    def _listen_for_statuses(self) -> None:
        for rank in range(1, self.size):
            if rank not in self._statuses and self.comm.Iprobe(rank, _STATUS):
                self._statuses[rank] = self.comm.recv(source=rank, tag=_STATUS)

    def _announce(self, message: messages.Message) -> None:
        announcement = message.announcement()
        for rank in range(1, self.size):
            self.comm.send(announcement, rank, _HEADER)
        for block in message.blocks():
            buffers.broadcast(self.comm, block)

    def _heard(self) -> Any:
        started = time.perf_counter()
        announcement = self._awaited(0, _HEADER)
        self.seconds["wait"] += time.perf_counter() - started
        started = time.perf_counter()
        command = messages.received(announcement, self._broadcast, self.known)
        self.seconds["transfer"] += time.perf_counter() - started
        return command

    def _broadcast(self, block: Any) -> None:
        buffers.broadcast(self.comm, block)

    def _filler(self, rank: int) -> Callable[[Any], None]:
        return lambda block: buffers.receive(self.comm, block, rank)

    def _awaited(self, rank: int, tag: int) -> Any:
        """Receive a message, without the busy waiting of MPI, which would take a core."""
        pause = _FIRST_PAUSE
        while not self.comm.Iprobe(rank, tag):
            pause = _paused(pause)
        return self.comm.recv(source=rank, tag=tag)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Be the team whose command this process is at."""
        self._thread = threading.get_ident()
        _working.append(self)
        try:
            with self.to_the_end():
                yield
        finally:
            _working.pop()

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """End all ranks if this one breaks off between messages: the others would wait for ever."""
        try:
            yield
        except BaseException:
            if self.size > 1:
                traceback.print_exc()
                self.comm.Abort(1)
            raise

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM stop commands between chunks: never in the middle of a message."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._interrupted, self._honoured, self._signal = False, False, 0
        previous = [signal.signal(number, self._signalled) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, previous, strict=True):
                signal.signal(number, handler)
            if self._signal and not self._honoured:
                signal.raise_signal(self._signal)  # too late for this call: the caller's affair

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._interrupted, self._signal = True, number
        if self.rank == 0 and self._in_session and not _working:
            self._honour()
            raise KeyboardInterrupt

    def _honour(self) -> None:
        """Take signals to this rank as heard: one goes to all ranks, and that it stops one is enough."""
        self._interrupted, self._honoured = False, True

    @contextmanager
    def few_threads(self) -> Iterator[None]:
        """Share the cores of a node between its ranks."""
        before = numba.get_num_threads()
        numba.set_num_threads(min(before, self.threads))
        try:
            yield
        finally:
            numba.set_num_threads(before)

    def _threads(self) -> int:
        """Return this rank's share of the cores that it may use, at least 1."""
        node = self.comm.Split_type(_shared_memory())
        mine = _allowed_cores()
        users = node.allgather(mine)
        node.Free()
        share = sum(1.0 / sum(core in cores for cores in users) for core in mine)
        return max(1, int(share + 1e-9))


def team_of(comm: Any) -> Team | None:
    """Return the team of a communicator, made at the first call, which every rank must make; None for None.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or None
        None, and a communicator of one process, need no team.

    Raises
    ------
    TypeError
        If it is no intracommunicator.
    """
    if comm is None:
        return None
    if not type(comm).__module__.startswith("mpi4py."):
        msg = f"`comm` must be a communicator of mpi4py or None, got {type(comm).__name__}."
        raise TypeError(msg)
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm):
        msg = f"`comm` must be an intracommunicator, got {type(comm).__name__}."
        raise TypeError(msg)
    if comm.Get_size() == 1:
        return None
    _teams[:] = [team for team in _teams if team.given != MPI.COMM_NULL]  # which their owner has freed
    for team in _teams:
        if MPI.Comm.Compare(comm, team.given) == MPI.IDENT:
            return team
    _teams.append(Team(comm))
    return _teams[-1]


def collectively(function: _F) -> _F:
    """Make a function or method of an operator a call of every rank, where its samples are on ranks."""
    first = next(iter(inspect.signature(function).parameters))

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        operator: Any = arguments[0] if arguments else options.get(first)
        team: Team | None = getattr(operator, "team", None)
        if team is None:
            return function(*arguments, **options)

        def run(_: list[Any]) -> tuple[Any, float]:
            return function(*arguments, **options), operator.n_applied

        result, operator.n_applied = team.collective(function.__qualname__, run)
        return result

    return cast("_F", call)


def between_chunks() -> None:
    """Give up a command that another rank's failure, or an interrupt, has made useless."""
    if _working and _working[-1]._thread == threading.get_ident():
        _working[-1].between_chunks()


def note_interrupt() -> bool:
    """Note a signal that the caller heeds; return whether a command is at work, which ends between chunks."""
    for team in _teams:
        team._honoured = team._honoured or team._in_session
    if not _working:
        return False
    _working[-1]._interrupted = True
    return True


def _paused(pause: float) -> float:
    time.sleep(pause)
    return min(1.5 * pause, _LONGEST_PAUSE)


def _shared_memory() -> Any:
    from mpi4py import MPI

    return MPI.COMM_TYPE_SHARED


def _allowed_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
