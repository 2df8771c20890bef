"""HDF5 files: contiguous datasets are read where they lie, chunked ones along their storage chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.arrays import ArraySource, check_matrix
from matfree_hier.sources.base import SampleSource
from matfree_hier.sources.chunks import Chunk
from matfree_hier.sources.convert import as_labels, chunk_dtype, column_names, converted, to_float64
from matfree_hier.sources.files import FileStamp, check_file, reading, unchanged
from matfree_hier.sources.finding import Layout, find_arrays
from matfree_hier.sources.stored import Extent, StoredArray

STORAGE_BYTES = 2**26  # rows of longer storage chunks are read in parts, and the chunks decoded anew for each


def open_hdf5(
    path: Path,
    *,
    inputs_name: str | None = None,
    target: str | bool | None = None,
    inputs: Sequence[str] | None = None,
) -> SampleSource:
    """Open datasets of an HDF5 file, found by `find_arrays` at any depth (``group/X`` is a name).

    Inputs stored contiguously, with no filter, are read where they lie. Labels are kept in memory when they
    are first asked for.
    """
    check_file(path)
    stamp = FileStamp(path)
    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        X_name, y_name = find_arrays(_layouts(file, inputs_name, target), str(path), inputs_name, target)
        X, name = file[X_name], f"{path}, dataset `{X_name}`"
        check_matrix(X, name)
        y_where = f"{path}, dataset `{y_name}`"
        if y_name is not None:
            as_labels(file[y_name], len(X), y_where, name)
        extent = _extent(file, X)
        if extent is None:
            return Hdf5Source(stamp, X, X_name, y_name, inputs, name, y_where)
        y = None if y_name is None else _extent(file, file[y_name])
        labels = None if y_name is None else file[y_name][()] if y is None else StoredArray(path, y, y_where)
        return ArraySource(
            StoredArray(path, extent, name),
            labels,
            input_names=inputs,
            target_name=y_name or "",
            name=name,
            target_where=y_where,
            stamps=[stamp],
        )


class Hdf5Source(SampleSource):
    """Inputs in a chunked or otherwise encoded HDF5 dataset; the file is open only while it is read."""

    reads_ahead = True

    def __init__(
        self,
        stamp: FileStamp,
        X: Any,
        X_name: str,
        y_name: str | None,
        input_names: Sequence[str] | None,
        name: str,
        target_where: str,
    ) -> None:
        n, d = X.shape
        names = column_names(input_names, d, name)
        super().__init__(n, names, chunk_dtype(X.dtype), y_name, has_target=y_name is not None, name=name)
        self.stamp, self.X_name, self.y_name, self.target_where = stamp, X_name, y_name, target_where
        self.storage_rows = 1 if X.chunks is None else X.chunks[0]

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands."""
        if column is None:
            return f"{self.target_where}, row {row} (counted from 0)"
        return super().where(row, column)

    def _blocks(
        self,
        start: int,
        stop: int,
        rows: int | None,  # noqa: ARG002 - cut as the file is stored
        labels: bool,
    ) -> Iterator[Chunk]:
        step = self._natural_rows()
        if self.storage_rows * self.n_inputs * self.dtype.itemsize <= STORAGE_BYTES:
            # Whole storage chunks: each is decoded once, however the caller cuts the rows.
            step = max(1, step // self.storage_rows) * self.storage_rows
        y = self.labels() if labels else None
        first = start
        with self._open(start, stop) as file:
            X = file[self.X_name]
            while first < stop:
                last = min((first // step + 1) * step, stop)
                with unchanged([self.stamp], first, last), reading(self.stamp.path, "HDF5 file"):
                    if X.dtype == self.dtype:
                        block = np.empty((last - first, self.n_inputs), self.dtype)
                        X.read_direct(block, np.s_[first:last])
                    else:
                        block = converted(X[first:last], self.dtype)
                yield Chunk(first, block, None if y is None else y[first:last])
                first = last

    def _open(self, start: int, stop: int) -> Any:
        """Open the file to read these rows."""
        with unchanged([self.stamp], start, stop), reading(self.stamp.path, "HDF5 file"):
            return h5py.File(self.stamp.path, "r")

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        with (
            self._open(start, stop) as file,
            unchanged([self.stamp], start, stop),
            reading(self.stamp.path, "HDF5 file"),
        ):
            return to_float64(file[self.y_name][start:stop])


def _layouts(file: Any, *names: str | bool | None) -> dict[str, Layout]:
    """Shapes and dtypes of the datasets of a file, and of ``names`` that are links to datasets."""
    found: dict[str, Layout] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            found[name] = (item.shape, item.dtype)

    file.visititems(visit)
    for name in {"X", "y", *names}:
        if isinstance(name, str):
            visit(name, file.get(name))
    return found


def _extent(file: Any, dataset: Any) -> Extent | None:
    """Where the data of a dataset lie, if in one piece and as they are."""
    if (
        dataset.chunks is not None
        or dataset.is_virtual
        or dataset.external
        or dataset.dtype.kind not in "iuf"
    ):
        return None
    if not dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype)):
        return None  # a number format that only the library decodes
    offset = dataset.id.get_offset()
    if offset is None or file.userblock_size:
        return None
    return Extent(dataset.shape, dataset.dtype, False, offset)
