"""Named runs in one HDF5 file, which is made and read in memory and written whole."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import h5py
import numpy as np

from matfree_hier.status import RunFileError
from matfree_hier.store.atomic import FORMAT_VERSION, Lock, temporary_path, verified, write_whole
from matfree_hier.store.encoding import (
    Series,
    checked,
    checked_columns,
    checked_name,
    checked_series,
    decode,
    encode,
)

PathLike: TypeAlias = str | os.PathLike[str]
Mode: TypeAlias = Literal["a", "r"]

_RUN_FILE = "matfree_hier run file"


class RunFile:
    """One named run in an HDF5 file that may hold several; changes wait in memory until `commit`.

    A run is a set of groups, each a dict of values: arrays of any fixed-size dtype (bits, shape and C or
    Fortran order come back), numbers, truth values, str, lists of str, None, and dicts of these. The file is
    an HDF5 file any tool can read (one that writes to it makes it refused as damaged). While a run is open
    for changes, a lock file beside the file keeps every other process from changing it; reading needs no lock
    and sees the last commit before it opened.

    A commit costs a write of the whole file and about three times its size in memory: big state that changes
    often belongs in a `Checkpoint`. Leaving a ``with`` block without an exception commits; with one, what was
    staged is dropped and the last commit stays.

    Parameters
    ----------
    path : str or path
        The file, or ``PATH::NAME``. Made by the first commit if it is not there.
    name : str, optional
        The run in the file; by default the ``NAME`` in `path`, or "run".
    mode : {"a", "r"}
        Open for changes, or to read only.

    Raises
    ------
    FileNotFoundError
        To read, if there is no such file; for changes, if there is no such folder.
    RunFileError
        If the file is damaged, of another kind or format version, or open for changes elsewhere.

    Examples
    --------
    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> with RunFile(path) as run:
    ...     run.save("result", {"eigenvalues": np.array([2.0, -1.0]), "status": "CONVERGED"})
    >>> with RunFile(path, mode="r") as run:
    ...     run.load("result")["status"]
    'CONVERGED'
    """

    def __init__(self, path: PathLike, name: str | None = None, mode: Mode = "a") -> None:
        if mode not in ("a", "r"):
            msg = f'`mode` must be "a" or "r", got {mode!r}.'
            raise ValueError(msg)
        plain, parsed = self.parse(path) if name is None else (os.fspath(path), name)
        self.name = checked_name("`name`", parsed)
        self.path = Path(os.path.realpath(plain))  # a rename over a link would replace the link
        self.mode = mode
        self._staged: dict[str, dict[str, Any] | Series | None] = {}
        self._lock: Lock | None = None
        if mode == "a":
            if not self.path.parent.is_dir():
                msg = f"`path` must lie in an existing folder, got {plain!r}."
                raise FileNotFoundError(msg)
            self._lock = Lock(self.path)
            temporary_path(self.path).unlink(missing_ok=True)  # what a killed commit left
        try:
            self._file: h5py.File = self._opened()
        except BaseException:
            self.close()
            raise

    def _opened(self) -> h5py.File:
        try:
            with verified(self.path, _RUN_FILE) as file:
                image = file.read()
        except FileNotFoundError:
            if self.mode == "r":
                msg = f"There is no run file `{self.path}`."
                raise FileNotFoundError(msg) from None
            return _new_image()
        return h5py.File(h5py.h5f.open_file_image(image))

    @staticmethod
    def parse(text: PathLike) -> tuple[str, str]:
        """Split ``PATH::NAME`` into path and name; the name is "run" where none is given.

        Raises
        ------
        ValueError
            If the path or the name is empty.
        """
        path, separator, name = os.fspath(text).rpartition("::")
        if not separator:
            path, name = name, "run"
        if not path or not name:
            msg = f"A run is named as PATH or PATH::NAME, got {os.fspath(text)!r}."
            raise ValueError(msg)
        return path, name

    def names(self) -> list[str]:
        """Return the names of the runs in the file, this one included once it holds a group, sorted."""
        others = {name for name in self._require_open() if name != self.name}
        return sorted(others | ({self.name} if self.groups() else set()))

    def groups(self) -> list[str]:
        """Return the names of this run's groups, staged ones included, sorted."""
        return sorted({name for name in self._committed() | self._staged.keys() if self.has(name)})

    def has(self, group: str) -> bool:
        """Whether this run holds `group`, staged or committed."""
        committed = self._committed()
        return self._staged[group] is not None if group in self._staged else group in committed

    def save(self, group: str, values: Mapping[str, Any]) -> None:
        """Stage `values` as the whole content of `group`; they are copied.

        Raises
        ------
        TypeError, ValueError
            If a value or a name cannot be stored; nothing is staged then.
        """
        self._require_writable()
        self._staged[checked_name("`group`", group)] = checked("values", values)

    def save_series(self, group: str, columns: Mapping[str, Any]) -> None:
        """Stage `columns`, arrays of one length, as the whole content of `group`, which `append` can extend.

        In the file each is a dataset in chunks without an upper limit on its rows.

        Raises
        ------
        TypeError, ValueError
            If a column is not numeric, or lengths differ; nothing is staged then.
        """
        self._require_writable()
        self._staged[checked_name("`group`", group)] = checked_series("columns", columns)

    def append(self, group: str, row: Mapping[str, Any]) -> None:
        """Stage one more row of a series: a number or an array for each column; the first makes the series.

        Raises
        ------
        TypeError, ValueError
            If `group` is not a series, or the row differs in names, shapes or dtypes from those before it.
        """
        self._require_writable()
        values = checked_columns("row", row, least_dim=0)
        if not self.has(checked_name("`group`", group)):
            self._staged[group] = Series({k: np.empty((0, *v.shape), v.dtype) for k, v in values.items()})
        elif group not in self._staged:
            self._staged[group] = decode(self._require_open()[self.name][group])
        series = self._staged[group]
        if not isinstance(series, Series):
            msg = f"`group` must be a series to append to, and {group!r} holds single values."
            raise TypeError(msg)
        series.append(values)

    def load(self, group: str) -> dict[str, Any]:
        """Return the values of `group`, staged or committed, as new objects; a series as its columns.

        Raises
        ------
        RunFileError
            If this run has no such group.
        """
        file = self._require_open()
        if not self.has(group):
            msg = f"The run `{self.name}` of `{self.path}` has no group `{group}`; it has {self.groups()}."
            raise RunFileError(msg)
        value = self._staged[group] if group in self._staged else decode(file[self.name][group])
        if isinstance(value, Series):
            return {key: column.copy() for key, column in value.joined().items()}
        loaded: dict[str, Any] = checked("values", value)  # copies
        return loaded

    def delete(self, group: str) -> None:
        """Stage the removal of `group`; nothing happens if it is not there."""
        self._require_writable()
        if self.has(group):
            self._staged[group] = None

    def commit(self) -> None:
        """Write what is staged: the file holds it all, or on an error nothing of it.

        Raises
        ------
        CommitError
            (an OSError) if the file could not be written, as on a full disk. The file keeps its last complete
            state and everything stays staged.
        """
        self._require_writable()
        if not self._staged:
            return
        image = self._image()
        write_whole(self.path, _RUN_FILE, [image])
        self._require_open().close()
        self._file = h5py.File(h5py.h5f.open_file_image(image))
        self._staged.clear()

    def _image(self) -> bytes:
        """Return the HDF5 file to be written, as bytes: the other runs copied, this one with its changes."""
        old = self._require_open()
        with _new_image() as new:
            new.attrs["format"] = _RUN_FILE
            new.attrs["format_version"] = FORMAT_VERSION
            for name in old:
                if name != self.name:
                    old.copy(name, new)
            if groups := self.groups():
                own = new.create_group(self.name, track_order=True)
                for group in groups:
                    if group in self._staged:
                        encode(own, group, self._staged[group])
                    else:
                        old.copy(old[self.name][group], own, group)
            new.flush()
            image: bytes = new.id.get_file_image()
        return image

    def close(self) -> None:
        """Drop what is staged and give the lock back; a second call does nothing."""
        self._staged.clear()
        if hasattr(self, "_file"):
            self._file.close()
        if self._lock is not None:
            self._lock.release()

    def _committed(self) -> set[str]:
        file = self._require_open()
        return set(file[self.name]) if self.name in set(file) else set()

    def _require_open(self) -> h5py.File:
        if not self._file:
            msg = f"The run `{self.name}` of `{self.path}` is closed."
            raise RunFileError(msg)
        return self._file

    def _require_writable(self) -> None:
        self._require_open()
        if self.mode == "r":
            msg = f"The run `{self.name}` of `{self.path}` is open to read only."
            raise RunFileError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._staged:
                self.commit()
        finally:
            self.close()


def _new_image() -> h5py.File:
    """Return a new HDF5 file that is in memory only; two open ones must not share a name."""
    return h5py.File(uuid.uuid4().hex, "w", driver="core", backing_store=False, track_order=True)
