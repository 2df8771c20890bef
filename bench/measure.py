"""Timing, memory and the record of the machine: what every experiment measures with."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PACKAGES = (
    "numpy",
    "scipy",
    "numba",
    "llvmlite",
    "h5py",
    "scikit-learn",
    "pyamg",
    "matplotlib",
    "threadpoolctl",
    "torch",
)
# Variables that steer a thread pool or a choice of BLAS kernel: a measurement starts without them.
THREAD_VARIABLES = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CLEANED_VARIABLES = (
    *THREAD_VARIABLES,
    "BLIS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "NUMBA_CPU_FEATURES",
    "NUMBA_CPU_NAME",
    "NUMBA_DISABLE_JIT",
    "OMP_DYNAMIC",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OPENBLAS_CORETYPE",
    "VECLIB_MAXIMUM_THREADS",
)
BLAS_SIZE = 2000


class ChildError(RuntimeError):
    """A measurement in a process of its own ended without an answer.

    Attributes
    ----------
    out_of_time : bool
        Whether `limit_time` ended it.
    """

    def __init__(self, message: str, *, out_of_time: bool = False) -> None:
        super().__init__(message)
        self.out_of_time = out_of_time


# ---- time


@dataclass(frozen=True)
class Spread:
    """The middle and the range of repeated measurements of one number."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> Spread:
        """Summarise ``values``, a non-empty sequence of floats."""
        values = np.asarray(values, dtype=np.float64)
        return cls(float(np.median(values)), float(values.min()), float(values.max()))

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})"

    def to_record(self) -> dict[str, float]:
        """Return ``{"median", "low", "high"}``."""
        return {"median": self.median, "low": self.low, "high": self.high}


def time_interleaved(
    calls: Mapping[str, Callable[[], object]], *, repeats: int, pause: float = 0.05
) -> dict[str, np.ndarray]:
    """Time each call once per round, round after round, so that all see the same machine.

    A processor that slows down or a neighbour that wakes up then disturbs every candidate alike, and the
    ratio of two times of one round is fairer than the ratio of two means.

    Parameters
    ----------
    calls : mapping of str to callable
        What to time; each is called once before the clock starts.
    repeats : int
        Rounds, at least 1.
    pause : float
        Seconds of rest before each call. BLAS threads go on spinning for some milliseconds after a product
        and would take the processor from whatever is timed next.

    Returns
    -------
    dict of str to ndarray of float64, shape (repeats,)
        Seconds.
    """
    if repeats < 1:
        msg = f"`repeats` must be at least 1, got {repeats}."
        raise ValueError(msg)
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(pause)
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def blas_product(dtype: str, *, size: int = BLAS_SIZE, seed: int = 271) -> tuple[Callable[[], object], float]:
    """Return a square matrix product to time and its number of floating-point operations, 2 size^3."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((size, size)).astype(dtype)
    B = rng.standard_normal((size, size)).astype(dtype)
    out = np.empty_like(A)
    return lambda: np.matmul(A, B, out=out), 2.0 * size**3


def processor_seconds() -> float:
    """Return the processor time of this process and of those it started that have ended, all threads."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def limit_time(seconds: float, threads: int) -> None:
    """End this process after so much more time, whatever it is doing: for one of `run_isolated`.

    Parameters
    ----------
    seconds : float
    threads : int
        With one thread time is the processor's, which other work on the machine does not use up, and the
        clock's otherwise.
    """
    timer, end = (
        (signal.ITIMER_PROF, signal.SIGPROF) if threads == 1 else (signal.ITIMER_REAL, signal.SIGALRM)
    )
    signal.signal(end, signal.SIG_DFL)  # ends the process, within a call to LAPACK too
    signal.setitimer(timer, seconds)


# ---- memory


def _from_proc_status(field: str) -> int | None:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return None


def resident_bytes() -> int:
    """Return the resident memory of this process now (its peak where the system tells no more)."""
    now = _from_proc_status("VmRSS")
    return peak_bytes() if now is None else now


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far.

    On Linux this is VmHWM and not ru_maxrss: the latter survives exec, so that a small child of a large
    parent would report its parent's memory.
    """
    peak = _from_proc_status("VmHWM")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class PeakMemory:
    """Peak of the resident memory above what the process held when this was made.

    Where the system lets a process reset its own high-water mark (Linux) the number is exact; elsewhere an
    earlier peak may hide behind it and the number is an upper bound.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self.baseline = resident_bytes()

    def read(self) -> int:
        """Return the bytes of the peak so far beyond the baseline."""
        return max(0, peak_bytes() - self.baseline)


def total_memory() -> int | None:
    """Return the bytes of memory of this machine, or None where the system does not say."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


# ---- machine


def usable_cpus() -> int:
    """Return the number of processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of what it computes with."""
    own = str(importlib.import_module("matfree_hier").__version__)
    found = {"matfree-hier": own, "python": platform.python_version()}
    return found | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def blas_kernels() -> list[str]:
    """Return a line for NumPy's BLAS, or for each BLAS here if none is its own: version, kernels, threads."""
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy.libs" in pool["filepath"]]  # scipy's wheel brings another
    return [
        f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', 'unknown')} kernels, "
        f"{counted(pool['num_threads'], 'thread')})"
        for pool in own or pools
    ]


def machine() -> dict[str, Any]:
    """Return the record of the machine and the software that go with every measurement."""
    return {
        "record": "machine",
        "processor": _cpu_model(),
        "cpus": usable_cpus(),
        "memory_bytes": total_memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions(),
    }


# ---- processes of their own


def clean_environment(threads: int) -> dict[str, str]:
    """Return this environment without what steers BLAS or numba, and with both at ``threads`` threads."""
    environment = {name: value for name, value in os.environ.items() if name not in CLEANED_VARIABLES}
    return environment | dict.fromkeys(THREAD_VARIABLES, str(threads))


def run_isolated(
    target: str,
    arguments: Mapping[str, Any],
    *,
    threads: int,
    environment: Mapping[str, str] | None = None,
    ranks: int | None = None,
) -> dict[str, Any]:
    """Run ``module:function`` in a new interpreter and return the record it returns.

    Peak memory, thread pools and compile times then belong to this measurement alone. The child's standard
    error is this process's; its standard output is joined to it.

    Parameters
    ----------
    target : str
        Such as ``"matfree_hier.bench.main:run_case"``; called with ``arguments`` as keywords.
    arguments : mapping
        What JSON can hold.
    threads : int
        Threads of BLAS and of numba.
    environment : mapping of str to str, optional
        Further variables.
    ranks : int, optional
        Interpreters that `mpiexec` starts; each calls the function, and rank 0 returns the record.

    Raises
    ------
    ChildError
        If there is no `mpiexec`, or if the child ends without a record: its own message where it gave one.
    """
    command = [sys.executable, "-m", "matfree_hier.bench.child", target]
    if ranks is not None:
        command = [_mpiexec(), "-n", str(ranks), *command]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(threads) | dict(environment or {}),
        text=True,
        encoding="utf-8",
    )
    try:
        output, _ = child.communicate(json.dumps(dict(arguments)))
    except BaseException:
        child.kill()  # a solver would take SIGTERM as a wish to end with the best pairs so far
        child.wait()
        raise
    answer: dict[str, Any] = json.loads(output) if output.strip() else {}
    if "result" in answer:
        result: dict[str, Any] = answer["result"]
        return result
    reason = answer.get("error", f"it ended with exit status {child.returncode} and no message")
    msg = f"the measurement {target} gave no result: {reason}"
    raise ChildError(msg, out_of_time=-child.returncode in (signal.SIGPROF, signal.SIGALRM))


def _mpiexec() -> str:
    """Return the path of `mpiexec`: that of this environment, or else of the system."""
    own = Path(sys.executable).with_name("mpiexec")
    found = str(own) if own.exists() else shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        msg = "ranks need mpi4py and mpiexec: pip install 'matfree-hier[mpi]'"
        raise ChildError(msg)
    return found


def resolve(target: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def to_json(record: Mapping[str, Any]) -> str:
    """Return one line of strict JSON; NaN and infinity become null."""
    return json.dumps(_plain(dict(record)), allow_nan=False)


def _plain(value: Any) -> Any:
    """Return ``value`` in types that strict JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Spread):
        return value.to_record()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
