"""Functions and commands run on several MPI ranks, as `mpiexec` beside this interpreter starts them.

A test calls `run_ranks(n, function, ...)`; this file, run as a module on every rank, calls the function with
that rank's communicator and hands its result back.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")

_OF_EVERY_RANK = {
    **dict.fromkeys(("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1"),
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PYTHONFAULTHANDLER": "1",
}


class Ended(NamedTuple):
    """A command on ranks that came to its end."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def available() -> bool:
    """Whether `mpiexec` stands beside the interpreter; mpi4py is for the caller to import."""
    return MPIEXEC.exists()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what ranks run in: this process's environment, one thread each, this checkout first."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]))
    return dict(os.environ) | _OF_EVERY_RANK | {"PYTHONPATH": path} | dict(extra or {})


def mpiexec(
    n: int, command: Sequence[str], *, timeout: float = 60.0, env: Mapping[str, str] | None = None
) -> Ended:
    """Run ``mpiexec -n N COMMAND`` to its end, whatever that is.

    Parameters
    ----------
    n : int
        Ranks.
    command : sequence of str
        For example ``[sys.executable, "-m", "matfree_hier", "fit", ...]``.
    timeout : float
        Seconds, after which the ranks are killed and `subprocess.TimeoutExpired` is raised.
    env : mapping, optional
        Beside `environment`.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [str(MPIEXEC), "-n", str(n), *command],
        capture_output=True, text=True, timeout=timeout, env=environment(env), check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr, time.perf_counter() - started)


def run_ranks(n: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
    """Call ``function(comm, *args)`` on n ranks and return what each returned.

    Parameters
    ----------
    n : int
        Ranks.
    function : callable
        Of the top level of a module that ranks can import; test modules are.
    *args
        What can be pickled.
    timeout : float
        Seconds, after which all ranks are killed.

    Raises
    ------
    AssertionError
        If an exception leaves the function on any rank; its traceback is shown, and all ranks are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "call").write_bytes(pickle.dumps((function, args)))
        ended = mpiexec(n, [sys.executable, "-m", "tests.ranks", folder], timeout=timeout)
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(n)]


def _serve(folder: str) -> None:
    """Run this rank's part of `run_ranks`; an exception ends every rank."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    function, args = pickle.loads(Path(folder, "call").read_bytes())
    try:
        result = function(comm, *args)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        comm.Abort(1)
    Path(folder, str(comm.Get_rank())).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    _serve(sys.argv[1])
