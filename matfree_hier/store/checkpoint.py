"""The big state of a running solve, in a file beside its run file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from matfree_hier.store.atomic import temporary_path, verified, write_whole
from matfree_hier.store.encoding import bytes_of, checked, dtype_from, dtype_text, is_fortran

if TYPE_CHECKING:
    from matfree_hier.store.runs import PathLike, RunFile

_CHECKPOINT = "matfree_hier checkpoint"


class Checkpoint:
    """One dict of values in a file of its own: the big state of a running solve, replaced at each save.

    It holds the same values as a run (`RunFile`), each array bit for bit and in its memory order, so that a
    solve that goes on from it does what it would have done. A save costs one write and one checksum, and no
    copy of an array in C or Fortran order; a load reads twice, first to check. It has no lock: the run file's
    guards both.

    Parameters
    ----------
    path : str or path
        The file; `Checkpoint.beside` names it after a run.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(os.path.realpath(os.fspath(path)))

    @classmethod
    def beside(cls, run: RunFile) -> Self:
        """Return that of `run`: ``run.h5.checkpoint``, or ``run.h5.NAME.checkpoint`` unless NAME is "run"."""
        middle = "" if run.name == "run" else f".{run.name}"
        return cls(run.path.with_name(f"{run.path.name}{middle}.checkpoint"))

    def exists(self) -> bool:
        """Whether there is a checkpoint."""
        return self.path.exists()

    def save(self, values: Mapping[str, Any]) -> None:
        """Replace the checkpoint by `values`, atomically.

        Raises
        ------
        CommitError
            (an OSError) if it could not be written, as on a full disk; the one before it is kept.
        TypeError, ValueError
            If a value cannot be stored.
        """
        arrays: list[NDArray[Any]] = []
        text = json.dumps(_describe(checked("values", values, copy=False), arrays)).encode()
        head = len(text).to_bytes(8, "little") + text
        write_whole(self.path, _CHECKPOINT, [head, *(bytes_of(array).data for array in arrays)])

    def load(self) -> dict[str, Any]:
        """Return what was saved.

        Raises
        ------
        FileNotFoundError
            If there is no checkpoint.
        RunFileError
            If the file is damaged, of another kind or another format version.
        """
        if not self.exists():
            msg = f"There is no checkpoint `{self.path}`."
            raise FileNotFoundError(msg)
        with verified(self.path, _CHECKPOINT) as file:
            description = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            values: dict[str, Any] = _rebuild(description, file)
        return values

    def delete(self) -> None:
        """Remove the checkpoint, if there is one, and what a killed save left."""
        self.path.unlink(missing_ok=True)
        temporary_path(self.path).unlink(missing_ok=True)


def _describe(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return what JSON can hold of `value`; its arrays are collected in the order of a walk."""
    match value:
        case dict():
            return {"dict": {key: _describe(entry, arrays) for key, entry in value.items()}}
        case np.generic():
            return {"scalar": dtype_text(value.dtype), "bytes": value.tobytes().hex()}
        case float():
            return {"float": np.float64(value).tobytes().hex()}
        case np.ndarray():
            arrays.append(value.T if is_fortran(value) else value)
            return {
                "array": dtype_text(value.dtype),
                "shape": arrays[-1].shape,
                "order": "F" if is_fortran(value) else "C",
            }
    return value


def _rebuild(value: Any, file: IO[bytes]) -> Any:
    """Invert `_describe`; arrays are read from `file` in order."""
    match value:
        case {"dict": entries}:
            return {key: _rebuild(entry, file) for key, entry in entries.items()}
        case {"scalar": dtype, "bytes": content}:
            return np.frombuffer(bytes.fromhex(content), dtype_from(dtype))[0]
        case {"float": content}:
            return float(np.frombuffer(bytes.fromhex(content))[0])
        case {"array": dtype, "shape": shape, "order": order}:
            array = np.empty(shape, dtype_from(dtype))
            file.readinto(bytes_of(array).data)  # type: ignore[attr-defined]
            return array.T if order == "F" else array
    return value
