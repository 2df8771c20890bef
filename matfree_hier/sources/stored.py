"""Arrays that lie uncompressed in a file, read by rows when they are asked for.

Reading beats mapping here: a map of a file larger than the address space allowed to the process fails, and
its pages count as memory of the process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.convert import check_real
from matfree_hier.sources.files import reading
from matfree_hier.status import InputError

READ_BYTES = 2**23  # at a time, where only some columns of the rows read are kept
SKIPPED_BYTES = 2**14  # unwanted rows up to this many bytes are read over rather than skipped
RUN_BYTES = 2**10  # wanted runs shorter than this on average: rows are read whole and then picked
BUFFERS = 1000  # of one system call, which takes 1024


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

    def selected(self, first: int, keep: NDArray[np.bool_]) -> NDArray[Any]:
        """Read those of the rows from `first` on that `keep` marks.

        The system sorts them out: each run of wanted rows goes to its place in the result, what lies between
        to a buffer that nobody looks at.
        """
        ends = np.flatnonzero(np.diff(keep, prepend=False, append=False)).reshape(-1, 2)
        n_rows = int(np.count_nonzero(keep))
        width = int(np.prod(self.extent.shape[1:])) * self.dtype.itemsize
        plain = self.columns is None and not (self.extent.fortran and len(self.extent.shape) == 2)
        if not plain or n_rows * width < RUN_BYTES * len(ends):
            return np.compress(keep, self._read(first, first + len(keep)), axis=0)
        out = np.empty((n_rows, *self.shape[1:]), self.dtype)
        data, at = out.reshape(-1).view(np.uint8).data, 0
        between = memoryview(bytearray(SKIPPED_BYTES))
        where = stop = self.extent.offset + first * width
        buffers: list[memoryview] = []
        with reading(self.path), self.path.open("rb", buffering=0) as file:
            for begin, end in (ends * width + stop).tolist():
                gap = begin - stop
                if buffers and (gap > SKIPPED_BYTES or len(buffers) >= BUFFERS):
                    self._scatter(file, where, buffers)
                    buffers = []
                if not buffers:
                    where = begin
                elif gap:
                    buffers.append(between[:gap])
                buffers.append(data[at : at + end - begin])
                at += end - begin
                stop = end
            self._scatter(file, where, buffers)
        return out

    def _scatter(self, file: Any, where: int, buffers: list[memoryview]) -> None:
        """Fill buffers with consecutive bytes of the file."""
        if not buffers:
            return
        n_read = os.preadv(file.fileno(), buffers, where)
        for buffer in buffers:  # what one call has not read: signals and the limit of 2 GiB a call
            begin = min(len(buffer), max(0, n_read))
            while begin < len(buffer):
                file.seek(where + begin)
                more = file.readinto(buffer[begin:])
                if not more:
                    raise self._truncated(where + begin)
                begin += more
            where, n_read = where + len(buffer), n_read - len(buffer)

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
                raise self._truncated(file.tell())
            at += n_read

    def _truncated(self, size: int) -> InputError:
        """Return the error of a file in which the bytes from `size` on are missing."""
        end = self.extent.offset + self.extent.n_bytes
        msg = f"{self.path} is truncated: its array ends at byte {end}, the file at byte {size}"
        if not self.extent.fortran or len(self.extent.shape) == 1:
            row_bytes = max(1, self.extent.n_bytes // max(1, self.extent.shape[0]))
            row = max(0, size - self.extent.offset) // row_bytes
            msg += f"; rows {row} to {self.extent.shape[0] - 1} (counted from 0) are missing"
        return InputError(f"{msg}.")
