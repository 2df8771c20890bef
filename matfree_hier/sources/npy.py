"""NumPy's own files: `.npy` and stored `.npz` members are read by rows, compressed ones streamed."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.arrays import ArraySource, check_matrix, split_column
from matfree_hier.sources.base import SampleSource
from matfree_hier.sources.chunks import Chunk
from matfree_hier.sources.convert import (
    as_labels,
    check_real,
    chunk_dtype,
    column_names,
    converted,
    to_float64,
)
from matfree_hier.sources.files import FileStamp, check_file, reading, unchanged
from matfree_hier.sources.finding import find_arrays
from matfree_hier.sources.stored import Extent, StoredArray
from matfree_hier.status import InputError

LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a zip member; the last two are the lengths of name and extra

READ_BYTES = 2**18


def open_npy(
    path: Path, target: Any = None, *, inputs: Sequence[str] | None = None, target_name: str = "y"
) -> ArraySource:
    """Open a matrix; ``target`` is a `.npy` file, an array, the number of a column, or False for none."""
    X = stored_npy(path)
    stamps = [FileStamp(path)]
    where = "`y`"
    if isinstance(target, str) and _is_integer(target):
        target = int(target)
    if target is None:
        msg = (
            f"{path} holds one array and no names, so the target must be given: another `.npy` file, or the"
            " number of a column (-1 for the last)."
        )
        raise InputError(msg)
    if target is False:
        target = None
    elif isinstance(target, int):
        check_matrix(X, str(path))
        X, target = split_column(X, target, str(path))
        where = f"{path}, target column"
    elif isinstance(target, (str, Path)):
        target_path = Path(target)
        if target_path.suffix.lower() != ".npy":
            msg = (
                f"{path} has no column names, so no target `{target}`; give a `.npy` file or a column number."
            )
            raise InputError(msg)
        target, where = stored_npy(target_path), str(target_path)
        stamps.append(FileStamp(target_path))
    return ArraySource(
        X,
        target,
        input_names=inputs,
        target_name=target_name,
        name=str(path),
        target_where=where,
        stamps=stamps,
    )


def stored_npy(path: Path) -> StoredArray:
    """Find the array of a `.npy` file."""
    check_file(path)
    with reading(path, "NumPy file"), path.open("rb") as file:
        extent = _read_header(file)
    return StoredArray(path, extent, str(path))


def open_npz(
    path: Path,
    *,
    inputs_name: str | None = None,
    target: str | bool | None = None,
    inputs: Sequence[str] | None = None,
) -> SampleSource:
    """Open arrays of a `.npz` archive: stored ones are read where they lie, compressed ones streamed.

    Members are found by `find_arrays`. The checksum of a stored member is not verified.
    """
    check_file(path)
    stamp = FileStamp(path)
    with reading(path, "NumPy archive"), zipfile.ZipFile(path) as archive:
        members = {}
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                with archive.open(info) as file:
                    members[info.filename.removesuffix(".npy")] = (info, _read_header(file))
    shapes = {name: (extent.shape, extent.dtype) for name, (_, extent) in members.items()}
    X_name, y_name = find_arrays(shapes, str(path), inputs_name, target)
    name, y_where = f"{path}, array `{X_name}`", f"{path}, array `{y_name}`"
    y = None
    if y_name is not None:
        y = _stored_member(path, *members[y_name], y_where)
        y = _decoded_member(path, *members[y_name], y_where) if y is None else y
    info, extent = members[X_name]
    X = _stored_member(path, info, extent, name)
    if X is None and extent.fortran and len(extent.shape) == 2 and min(extent.shape) > 1:
        msg = f"{name} is compressed in Fortran order and cannot be read by rows; save it in C order."
        raise InputError(msg)
    target_name = y_name or ""
    if X is None:
        return NpzStream(stamp, info, extent, y, inputs, target_name, name, y_where)
    return ArraySource(
        X, y, input_names=inputs, target_name=target_name, name=name, target_where=y_where, stamps=[stamp]
    )


class NpzStream(SampleSource):
    """Inputs in a compressed member of a `.npz` archive, decompressed anew at each reading."""

    random_access = False
    reads_ahead = True

    def __init__(
        self,
        stamp: FileStamp,
        info: zipfile.ZipInfo,
        extent: Extent,
        y: Any,
        input_names: Sequence[str] | None,
        target_name: str,
        name: str,
        target_where: str,
    ) -> None:
        check_matrix(extent, name)
        n, d = extent.shape
        names = column_names(input_names, d, name)
        super().__init__(
            n, names, chunk_dtype(extent.dtype), target_name, has_target=y is not None, name=name
        )
        self.stamp, self.info, self.extent, self.target_where = stamp, info, extent, target_where
        self.y: Any = None if y is None else as_labels(y, n, target_where, name)

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
        row_bytes = self.n_inputs * self.extent.dtype.itemsize
        step = self._natural_rows()
        with (
            unchanged([self.stamp], start, stop),
            reading(self.stamp.path, "NumPy archive"),
            zipfile.ZipFile(self.stamp.path) as archive,
            archive.open(self.info) as file,
        ):
            file.seek(self.extent.offset + start * row_bytes)
            for first in range(start, stop, step):
                last = min(first + step, stop)
                with unchanged([self.stamp], first, last), reading(self.stamp.path, "NumPy archive"):
                    block = _read_array(file, (last - first, self.n_inputs), self.extent.dtype)
                y = to_float64(self.y[first:last]) if labels and self.y is not None else None
                yield Chunk(first, converted(block, self.dtype), y)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        assert self.y is not None
        return to_float64(self.y[start:stop])


def _stored_member(path: Path, info: zipfile.ZipInfo, extent: Extent, where: str) -> Any:
    """Find a member that is stored as it is; None if it is compressed."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    with reading(path, "NumPy archive"), path.open("rb") as file:
        file.seek(info.header_offset)
        *_, name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    before = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
    return StoredArray(path, extent._replace(offset=before + extent.offset), where)


def _decoded_member(path: Path, info: zipfile.ZipInfo, extent: Extent, where: str) -> NDArray[Any]:
    """Read a compressed vector of labels whole."""
    check_real(extent.dtype, where)
    with reading(path, "NumPy archive"), zipfile.ZipFile(path) as archive, archive.open(info) as file:
        file.seek(extent.offset)
        return _read_array(file, extent.shape, extent.dtype)


def _read_array(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.empty(shape, dtype)
    data, at = array.reshape(-1).view(np.uint8).data, 0
    while at < len(data):  # in pieces: the archive makes a bytes object of each
        n_read = file.readinto(data[at : at + READ_BYTES])  # type: ignore[attr-defined]
        if n_read == 0:
            msg = f"{len(data) - at} bytes are missing"
            raise EOFError(msg)
        at += n_read
    return array


def _read_header(file: IO[bytes]) -> Extent:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(
        version
    )
    if read is None:  # version 3 is for field names beyond Latin 1 only
        msg = f"format version {version} holds records, not numbers"
        raise ValueError(msg)
    shape, fortran, dtype = read(file)
    return Extent(shape, dtype, fortran, file.tell())


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
