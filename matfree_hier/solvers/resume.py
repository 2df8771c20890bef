"""Solves kept in a run file: what was asked, the state on the way, the result at the end."""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from matfree_hier.operator import MomentOperator
from matfree_hier.result import EigenResult
from matfree_hier.status import RunFileError, Status
from matfree_hier.store import Checkpoint, CommitError, RunFile, differences, provenance

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

_CONFIGURATION, _RESULT, _HISTORY = "spectrum_configuration", "spectrum", "spectrum_history"


def fingerprint(linear: Any, probe: Callable[[], np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Return what identifies an operator: its samples, or how it answers a probe.

    Parameters
    ----------
    linear : LinearOperator
        The operator.
    probe : callable
        Returns the product with a fixed block; asked only of operators without samples.
    """
    common = {"size": int(linear.shape[0]), "dtype": np.dtype(linear.dtype).name}
    if isinstance(linear, MomentOperator):
        identity = linear.source.identity
        return common | {
            "data": linear.source.fingerprint() if identity is None else identity,
            "labels": digest(linear.labels()) if identity is None else "",
            "n_samples": linear.n_samples,
            "n_inputs": linear.n_inputs,
            "degree": linear.degree,
            "center_trace": linear.center_trace,
        }
    return common | {"operator": digest(probe())}


def digest(array: np.ndarray[Any, Any] | None) -> str | None:
    """Return a hash of an array's values."""
    return None if array is None else hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


class StoredSolve:
    """One solve in a run file, locked while the context is open.

    Parameters
    ----------
    path : path
        ``PATH`` or ``PATH::NAME``.
    configuration : mapping
        All that decides the result, by name: a run of another one is refused.
    arguments : mapping
        What goes into the provenance.
    seconds : float
        Between checkpoints.

    Raises
    ------
    RunFileError
        If the file is damaged or in use, or holds a solve of another configuration.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        configuration: Mapping[str, Any],
        arguments: Mapping[str, Any],
        seconds: float,
    ) -> None:
        self.troubles: list[str] = []
        self._run = RunFile(path)
        self._checkpoint = Checkpoint.beside(self._run)
        self._seconds = seconds
        self._saved = time.monotonic()
        self._configuration = dict(configuration)
        try:
            self._begin(arguments)
        except BaseException:
            self._run.close()
            raise

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        if self._run.has(_CONFIGURATION):
            self._require_same(self._run.load(_CONFIGURATION)["configuration"], str(self._run.path))
            return
        shape = tuple(
            self._configuration[name] for name in ("n_samples", "n_inputs") if name in self._configuration
        )
        data = str(self._configuration.get("data", self._configuration.get("operator")))
        made = provenance(arguments, seed=self._configuration["seed"], shape=shape, fingerprint=data)
        self._run.save(_CONFIGURATION, {"configuration": self._configuration, "provenance": made})
        self._checkpoint.delete()  # of a run that is gone
        self._try(self._run.commit)

    def _require_same(self, stored: Mapping[str, Any], where: str) -> None:
        differing = differences(stored, self._configuration)
        if differing:
            msg = f"`{where}` holds a solve of another configuration: {differing}."
            raise RunFileError(msg)

    def result(self, max_passes: float) -> EigenResult | None:
        """Return the stored result, unless there is none or more passes may now improve it."""
        if not self._run.has(_RESULT):
            return None
        values = self._run.load(_RESULT)
        history = {f"history_{name}": column for name, column in self._run.load(_HISTORY).items()}
        result = EigenResult.from_arrays(values | history)
        finished = result.status.ok or result.status is Status.DTYPE_LIMIT
        return result if finished or max_passes <= values["max_passes"] else None

    def state(self) -> dict[str, Any] | None:
        """Return the state to go on from, if there is one.

        Raises
        ------
        RunFileError
            If it is damaged, or belongs to another configuration.
        """
        if not self._checkpoint.exists():
            return None
        stored = self._checkpoint.load()
        self._require_same(stored["configuration"], str(self._checkpoint.path))
        state: dict[str, Any] = stored["state"]
        return state

    def save_state(self, state: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Save the state if the last one is old enough, or `now`."""
        if not now and time.monotonic() - self._saved < self._seconds:
            return
        self._try(lambda: self._checkpoint.save({"configuration": self._configuration, "state": state()}))
        self._saved = time.monotonic()

    def save_result(self, result: EigenResult, max_passes: float) -> None:
        """Store a result that more passes cannot improve, or only more than `max_passes`."""
        values = {name: v for name, v in result.to_arrays().items() if not name.startswith("history_")}
        self._run.save(_RESULT, values | {"max_passes": max_passes})
        self._run.save_series(_HISTORY, result.history.to_arrays())
        self._try(self._run.commit)
        if result.status.ok and not self.troubles:
            self._checkpoint.delete()

    def _try(self, write: Callable[[], None]) -> None:
        """Write; a full disk does not end the solve, but is said."""
        try:
            write()
        except CommitError as error:
            if str(error) not in self.troubles:
                self.troubles.append(str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(CommitError):
            self._run.close()
