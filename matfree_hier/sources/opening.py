"""`open_source`: whatever holds samples, by its kind or by the extension of its file."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matfree_hier.sources.arrays import open_arrays
from matfree_hier.sources.base import SampleSource
from matfree_hier.sources.cached import CachedSource
from matfree_hier.sources.delimited import CsvSource
from matfree_hier.sources.files import check_file
from matfree_hier.sources.hdf5 import Hdf5Source, open_hdf5
from matfree_hier.sources.joined import JoinedSource
from matfree_hier.sources.npy import NpzStream, open_npy, open_npz, stored_npy
from matfree_hier.sources.parquet import ParquetSource
from matfree_hier.status import InputError

EXTENSIONS = (".csv", ".tsv", ".npy", ".npz", ".h5", ".hdf5", ".parquet")
CACHE_BYTES = 2**28


def open_source(
    data: Any,
    target: Any = None,
    *,
    inputs: Sequence[str] | None = None,
    inputs_name: str | None = None,
    target_name: str | None = None,
    delimiter: str | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> SampleSource:
    """Open samples (x, y) that stand in memory or in a file.

    Nothing is read whole: memory does not grow with n, but for the labels (8 bytes a sample) and for what
    `cache_bytes` allows. Values are checked by `SampleSource.validate`, not here, except in CSV files,
    which are parsed once to count their rows.

    Parameters
    ----------
    data : array_like of shape (n, d), pair (X, y), data frame, path, list of paths or SampleSource
        A pair may hold arrays or paths: ``("X.npy", "y.npy")``. Integers are read as float64, float16
        as float32. A source is given back as it is. Several files, in a list or as a pattern
        (``"part-*.h5"``, in the order of their names), are read one after another. The kind of a file is told
        by its extension:

        * ``.csv``, ``.tsv``: a header line, numbers below it.
        * ``.parquet``: with pyarrow (``pip install 'matfree-hier[files]'``).
        * ``.npy``: one matrix.
        * ``.npz``: arrays ``X`` and ``y``; compressed ones are decoded from the start at each reading.
        * ``.h5``, ``.hdf5``: datasets ``X`` and ``y``.

        Files are read ahead in a thread while the caller computes.
    target : str, int, path, list of paths, array_like, False or None
        Labels, shape (n,); or where they are. In a table (data frame, CSV, Parquet): a column, the last
        one by default. In ``.npz`` and HDF5: the name of the array. For ``.npy``: another ``.npy`` file, or
        the number of a column (-1 is the last); there is no default. For a matrix in memory: the
        number of a column; there is no target by default. False: no target.
    inputs : sequence of str, optional
        In a table: which columns are the inputs, in this order; every one but the target by default. For
        arrays: names of the d columns.
    inputs_name, target_name : str, optional
        In ``.npz`` and HDF5: names of the arrays. By default ``X`` and ``y``, or the only arrays of the right
        shapes where there is no ``X`` or ``y``. ``target_name`` also names labels given as an array.
    delimiter : str, optional
        What separates the columns of a text file; a comma in ``.csv``, a tab in ``.tsv``.
    cache_bytes : int
        Inputs that have to be decoded (CSV, Parquet, compressed arrays) are kept in memory after the first
        reading if they take no more than this; 256 MiB by default, 0 for never.

    Returns
    -------
    SampleSource

    Raises
    ------
    InputError
        One sentence that names the file, row and column: damaged, truncated or empty file, unknown
        extension, missing column or array, text, complex or ragged data, lengths that differ.
    FileNotFoundError, PermissionError
        If a file is not there or not readable.
    """
    if isinstance(target, np.integer):
        target = int(target)
    if target is True:
        msg = "`target` must be a column, an array, False or None, got True."
        raise InputError(msg)
    if isinstance(data, tuple) and len(data) == 2:
        if target is not None:
            msg = "`target` must be None when `data` is a pair (X, y)."
            raise InputError(msg)
        data, target = data
        both_npy = all(
            isinstance(item, (str, os.PathLike)) and Path(item).suffix == ".npy" for item in (data, target)
        )
        target = target if both_npy else _labels(target)
    if isinstance(data, SampleSource):
        return data if target is None else data.with_labels(target, target_name or "y")
    parts = _parts(data)
    if parts is not None:
        options = {"inputs": inputs, "inputs_name": inputs_name, "delimiter": delimiter}
        return _open_parts(parts, target, target_name, options | {"cache_bytes": cache_bytes // len(parts)})
    if not isinstance(data, (str, os.PathLike)):
        return open_arrays(data, target, inputs=inputs, target_name=target_name or "y")
    path = Path(data)
    if target is None or target is False or isinstance(target, (str, int, os.PathLike)):
        source = _open_file(path, target, inputs, inputs_name, target_name, delimiter, cache_bytes)
    else:
        source = _open_file(path, False, inputs, inputs_name, None, delimiter, cache_bytes)
        source = source.with_labels(target, target_name or "y")
    return source


def _parts(data: Any) -> list[str] | None:
    """Return the files that a list or a pattern names, None where `data` is neither."""
    if isinstance(data, (str, os.PathLike)):
        pattern = os.fspath(data)
        if not glob.has_magic(pattern) or Path(pattern).exists():
            return None
        found = sorted(glob.glob(pattern))
        if not found:
            msg = f"There is no file {pattern}."
            raise FileNotFoundError(msg)
        return found
    if isinstance(data, list) and data and all(isinstance(item, (str, os.PathLike)) for item in data):
        return [os.fspath(item) for item in data]
    return None


def _open_parts(
    parts: list[str], target: Any, target_name: str | None, options: dict[str, Any]
) -> SampleSource:
    """Open several files as one source: labels in each, in as many files beside them, or all in one array."""
    apart: list[Any] | None = _parts(target)
    if apart is not None:
        if len(apart) != len(parts):
            msg = f"`target` names {len(apart)} files, and there are {len(parts)} of inputs."
            raise InputError(msg)
    elif target is None or (isinstance(target, (int, str)) and not str(target).endswith(".npy")):
        apart = [target] * len(parts)
    if apart is not None:
        pairs = zip(parts, apart, strict=True)
        return JoinedSource([open_source(part, y, target_name=target_name, **options) for part, y in pairs])
    inputs = JoinedSource([open_source(part, False, **options) for part in parts])
    return inputs.with_labels(_labels(target), target_name or "y")


def _labels(y: Any) -> Any:
    """Second half of a pair: an array, or the path of one."""
    if isinstance(y, (str, os.PathLike)):
        if Path(y).suffix.lower() != ".npy":
            msg = f"Labels beside inputs must be an array or a `.npy` file, got {y}."
            raise InputError(msg)
        return stored_npy(Path(y))
    return False if y is None else y


def _open_file(
    path: Path,
    target: Any,
    inputs: Sequence[str] | None,
    inputs_name: str | None,
    target_name: str | None,
    delimiter: str | None,
    cache_bytes: int,
) -> SampleSource:
    extension = path.suffix.lower()
    if extension not in EXTENSIONS:
        check_file(path)
        msg = f"{path} has no known extension; those read are {', '.join(EXTENSIONS)}."
        raise InputError(msg)
    source: SampleSource
    if extension in (".csv", ".tsv"):
        separator = delimiter or ("," if extension == ".csv" else "\t")
        table = CsvSource(path, target, inputs, delimiter=separator, keep_bytes=cache_bytes)
        return table if table.kept is None else CachedSource(table, table.kept)
    if extension == ".parquet":
        source = ParquetSource(path, target, inputs)
    elif extension == ".npy":
        source = open_npy(path, target, inputs=inputs, target_name=target_name or "y")
    else:
        opener = open_npz if extension == ".npz" else open_hdf5
        name = target_name if target is None else target
        source = opener(path, inputs_name=inputs_name, target=name, inputs=inputs)
    decoded = isinstance(source, (ParquetSource, NpzStream, Hdf5Source))
    n_bytes = source.n_samples * source.n_inputs * np.dtype(source.dtype).itemsize
    return CachedSource(source) if decoded and n_bytes <= cache_bytes else source
