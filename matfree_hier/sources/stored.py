"""Arrays that lie uncompressed in a file, read by rows when they are asked for.

Reading beats mapping here: a map of a file larger than the address space allowed to the process fails, and
its pages count as memory of the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.convert import check_real
from matfree_hier.sources.files import reading
from matfree_hier.status import InputError

READ_BYTES = 2**23  # at a time, where only some columns of the rows read are kept


class Extent(NamedTuple):
    """Where an array lies in a file: its shape, dtype and order, and the byte at which its data begin."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def n_bytes(self) -> int:
        """Size of the data."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


class StoredArray:
    """A vector or matrix in a file, or some columns of one; ``array[first:last]`` reads rows.

    Memory is that of the rows asked for, whatever the size of the file.

    Parameters
    ----------
    path : Path
        The file.
    extent : Extent
        Of one or two axes.
    where : str
        What error messages call the array.
    columns : slice, int or ndarray of int, optional
        Which columns of a matrix; with an int, the array is a vector.

    Raises
    ------
    InputError
        If the numbers are not real, or the file ends before the array does; the latter also at each reading.
    """

    def __init__(self, path: Path, extent: Extent, where: str, columns: Any = None) -> None:
        check_real(extent.dtype, where)
        self.path, self.extent, self.where, self.columns = path, extent, where, columns
        self.dtype = extent.dtype
        no_rows = np.empty((0, *extent.shape[1:]))
        picked = no_rows if columns is None else no_rows[:, columns]
        self.shape: tuple[int, ...] = (*extent.shape[:1], *picked.shape[1:])
        with reading(path):
            size = path.stat().st_size
        if size < extent.offset + extent.n_bytes:
            raise self._truncated(size)

    @property
    def ndim(self) -> int:
        """1 or 2."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any, /) -> Any:
        """Read rows ``array[first:last]``, or name columns ``array[:, columns]`` without reading."""
        if isinstance(key, tuple):
            rows, columns = key
            if rows != slice(None) or self.columns is not None:
                msg = f"{self.where} can be indexed by rows or once by columns, got {key}."
                raise IndexError(msg)
            return StoredArray(self.path, self.extent, self.where, columns)
        first, last, step = key.indices(len(self))
        if step != 1:
            msg = f"{self.where} is read by runs of rows, got a step of {step}."
            raise IndexError(msg)
        return self._read(first, max(first, last))

    def _read(self, first: int, last: int) -> NDArray[Any]:
        out = np.empty((last - first, *self.shape[1:]), self.dtype)
        with reading(self.path), self.path.open("rb", buffering=0) as file:
            if self.extent.fortran and len(self.extent.shape) == 2:
                self._read_columns(file, first, out)
            elif self.columns is None:
                self._fill(file, first, out)
            else:
                width = self.extent.shape[1]
                rows = max(1, READ_BYTES // max(1, width * self.dtype.itemsize))
                for at in range(0, len(out), rows):
                    block = np.empty((min(rows, len(out) - at), width), self.dtype)
                    self._fill(file, first + at, block)
                    out[at : at + rows] = block[:, self.columns]
        return out

    def _read_columns(self, file: Any, first: int, out: NDArray[Any]) -> None:
        """Read a run of rows of a matrix that is stored column by column."""
        n, d = self.extent.shape
        wanted = np.arange(d) if self.columns is None else np.atleast_1d(np.arange(d)[self.columns])
        columns = out[:, np.newaxis] if out.ndim == 1 else out
        part = np.empty(len(out), self.dtype)
        for j, column in enumerate(wanted):
            self._fill(file, int(column) * n + first, part)
            columns[:, j] = part

    def _fill(self, file: Any, row: int, out: NDArray[Any]) -> None:
        """Fill a C-contiguous array from its row on (its entry, in a column)."""
        row_bytes = out.strides[0] if len(out) else 0
        file.seek(self.extent.offset + row * row_bytes)
        data, at = out.reshape(-1).view(np.uint8).data, 0
        while at < len(data):
            n_read = file.readinto(data[at:])
            if not n_read:
                raise self._truncated(self.path.stat().st_size)
            at += n_read

    def _truncated(self, size: int) -> InputError:
        end = self.extent.offset + self.extent.n_bytes
        msg = f"{self.path} is truncated: its array ends at byte {end}, the file at byte {size}."
        return InputError(msg)
