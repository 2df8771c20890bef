"""A fit in a run file: whose it is, how far it got, and the model at the end."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.fitting.fitted import Fitted, readout_from, readout_values
from matfree_hier.status import RunFileError
from matfree_hier.store import Checkpoint, CommitError, RunFile, differences, provenance

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from matfree_hier.fitting.readout import Readout
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

_CONFIGURATION = "fit_configuration"
_SECONDS = 30.0  # between checkpoints of a refinement
_MOST_REFINEMENTS = 3  # of a fit


@dataclass(frozen=True, eq=False)
class Attempt:
    """A refinement of a readout.

    Attributes
    ----------
    readout : Readout
        Fitted to all samples; its r2 is that of `prediction`.
    prediction : ndarray of float64, shape (m,)
        Of the held-out labels, by what the refinement had found without them.
    n_passes : float
    n_steps : int
    """

    readout: Readout
    prediction: Array
    n_passes: float
    n_steps: int


class FitFile:
    """The run file of one fit.

    A file that holds a fit of other data or options is refused before any work. Solves keep themselves there
    (`top_eigenpairs`); refinements, by their number, in files beside it, since their state is big.

    Parameters
    ----------
    path : path
        ``PATH`` or ``PATH::NAME``.
    arguments : mapping
        The parameters of the estimator.
    seed : int
        That the arguments stand for.
    source : SampleSource
        The data.

    Raises
    ------
    RunFileError
        If the file is damaged, in use, or holds another fit.
    """

    def __init__(
        self, path: str | os.PathLike[str], arguments: Mapping[str, Any], seed: int, source: SampleSource
    ) -> None:
        self.path, self.source = path, source
        self.arguments = {
            name: value for name, value in arguments.items() if name not in ("progress", "comm")
        }
        without = ("progress", "run_file", "max_passes", "random_state", "comm")
        self._configuration = {
            name: _storable(value) for name, value in arguments.items() if name not in without
        } | {
            "seed": seed,
            "data": source.fingerprint(),
            "input_names": list(source.input_names),
        }
        self._saved = time.monotonic()
        with RunFile(path) as run:
            self._file, self._name = run.path, run.name
            if run.has(_CONFIGURATION):
                self._require_same(run.load(_CONFIGURATION), f"{run.path}::{run.name}")
            else:
                run.save(_CONFIGURATION, self._configuration)

    def _require_same(self, stored: Mapping[str, Any], where: str) -> None:
        differing = differences(stored, self._configuration)
        if differing:
            msg = f"`{where}` holds another fit: {differing}. Name another run file for this one."
            raise RunFileError(msg)

    @property
    def identity(self) -> str:
        """What stands for the samples that the fit derives from its data, in its solves."""
        text = repr(sorted(self._configuration.items()))
        return f"fit {hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def finished(self, link: Any) -> Fitted | None:
        """Return the model, if the fit is done and more passes would not make it another.

        Parameters
        ----------
        link : str or callable
            Of the estimator: a callable is not stored.
        """
        with RunFile(self.path) as run:
            if not run.has("model"):
                return None
            allowed = run.load("model_provenance")["arguments"]["max_passes"]
        if allowed != self.arguments["max_passes"]:
            return None
        return Fitted.load(self.path, None if isinstance(link, str) else link)[0]

    def save(self, fitted: Fitted, seed: Any) -> None:
        """Keep the model, and drop what was kept on the way."""
        made = provenance(
            self.arguments,
            seed=seed,
            shape=(self.source.n_samples, self.source.n_inputs),
            fingerprint=self.source.fingerprint(),
        )
        with RunFile(self.path) as run:
            run.save("model", fitted.to_values())
            run.save("model_provenance", made)
        for number in range(_MOST_REFINEMENTS):
            self._checkpoint(number).delete()

    # --- refinements ---------------------------------------------------------------------------------------

    def _checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(self._file.with_name(f"{self._file.name}.{self._name}.refinement{number}"))

    def _load(self, number: int, max_steps: int) -> dict[str, Any]:
        checkpoint = self._checkpoint(number)
        if not checkpoint.exists():
            return {}
        values = checkpoint.load()
        same = values["configuration"] == self._configuration and values["max_steps"] == max_steps
        return values if same else {}

    def state(self, number: int, max_steps: int) -> dict[str, Any] | None:
        """Return the state that a refinement can go on from, None if there is none."""
        return self._load(number, max_steps).get("state")

    def attempt(self, number: int, max_steps: int, link: Any) -> Attempt | None:
        """Return a refinement that is done, None if it is not; a callable link is not stored."""
        values = self._load(number, max_steps).get("attempt")
        if values is None:
            return None
        names = ("prediction", "n_passes", "n_steps")
        return Attempt(readout_from(values, link), *(values[name] for name in names))

    def save_state(self, number: int, max_steps: int, state: dict[str, Any]) -> None:
        """Keep the state of a refinement, unless the last one is young; a full disk is no reason to end."""
        if time.monotonic() - self._saved >= _SECONDS:
            self._write(number, {"max_steps": max_steps, "state": state})
            self._saved = time.monotonic()

    def save_attempt(self, number: int, max_steps: int, attempt: Attempt) -> None:
        """Keep a refinement, for when there are others to come."""
        values = readout_values(attempt.readout) | {
            "prediction": attempt.prediction,
            "n_passes": attempt.n_passes,
            "n_steps": attempt.n_steps,
        }
        self._write(number, {"max_steps": max_steps, "attempt": values})

    def _write(self, number: int, values: dict[str, Any]) -> None:
        try:
            self._checkpoint(number).save({"configuration": self._configuration} | values)
        except CommitError:
            return


def _storable(value: Any) -> Any:
    """Return a parameter, the name of a callable one, or a hash of an array."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, tuple | list | np.ndarray) or hasattr(value, "toarray"):
        array = value.toarray() if hasattr(value, "toarray") else np.asarray(value)
        return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]
    return getattr(value, "__qualname__", type(value).__name__)
