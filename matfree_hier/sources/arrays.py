"""Samples held as arrays: in memory, stored in a file, or the columns of a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.base import Mask, SampleSource
from matfree_hier.sources.convert import (
    as_labels,
    check_real,
    check_table_size,
    chunk_dtype,
    column_names,
    column_position,
    converted,
    pick_columns,
    to_array,
    to_float64,
)
from matfree_hier.sources.files import FileStamp, unchanged
from matfree_hier.sources.stored import StoredArray
from matfree_hier.status import InputError


class Rows(Protocol):
    """A matrix that gives runs of its rows: array, `StoredArray`, open HDF5 dataset, `ColumnStack`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Kind of the numbers."""

    def __getitem__(self, key: Any, /) -> Any: ...


class ColumnStack:
    """Columns of one length side by side as a matrix; rows are put together when they are read."""

    def __init__(self, columns: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        self.columns, self.dtype = columns, dtype
        self.shape = (len(columns[0]) if columns else 0, len(columns))

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        out = np.empty((last - first, self.shape[1]), self.dtype)
        for j, column in enumerate(self.columns):
            out[:, j] = column[first:last]
        return out


class ArraySource(SampleSource):
    """Samples from a matrix and a vector; chunks are views where the layout allows.

    Parameters
    ----------
    X : Rows, shape (n, d)
        Anything real. C-contiguous, aligned, native float32 or float64 is given out without a copy;
        the rest is converted chunk by chunk.
    y : array_like of shape (n,) or (n, 1), optional
        Labels.
    input_names, target_name, name
        As in `SampleSource`.
    target_where : str
        What error messages call the labels.
    stamps : sequence of FileStamp
        The files behind the arrays; each is checked to be unchanged after every run of rows read.
    """

    takes = True

    def __init__(
        self,
        X: Rows,
        y: Any = None,
        *,
        input_names: Sequence[str] | None = None,
        target_name: str = "y",
        name: str = "`X`",
        target_where: str = "`y`",
        stamps: Sequence[FileStamp] = (),
        validated: bool = False,
    ) -> None:
        check_matrix(X, name)
        n, d = X.shape
        super().__init__(
            n,
            column_names(input_names, d, name),
            chunk_dtype(X.dtype),
            target_name,
            has_target=y is not None,
            name=name,
            validated=validated,
        )
        self.X, self.stamps, self.target_where = X, stamps, target_where
        self.reads_ahead = not isinstance(X, (np.ndarray, ColumnStack))
        self.y = None if y is None else as_labels(y, n, target_where, name)

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands."""
        if column is None:
            return f"{self.target_where}, row {row} (counted from 0)"
        return super().where(row, column)

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        with unchanged(self.stamps, start, stop):
            if keep is not None and isinstance(self.X, StoredArray):
                block = self.X.selected(start, keep)
            else:
                block = np.asarray(self.X[start:stop])
                block = block if keep is None else np.compress(keep, block, axis=0)
        return converted(block, dtype)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        assert self.y is not None
        with unchanged(self.stamps, start, stop):
            return to_float64(self.y[start:stop])


def check_matrix(X: Any, where: str) -> None:
    """Refuse what is not a real matrix with at least one row and one column."""
    check_real(X.dtype, where)
    shape = tuple(X.shape)
    if len(shape) != 2:
        msg = (
            f"{where} must have two axes, samples and inputs, got shape {shape}. Reshape your data:"
            " X.reshape(-1, 1) for one input, X.reshape(1, -1) for one sample."
        )
        raise InputError(msg)
    check_table_size(*shape, where)


def open_arrays(
    X: Any, target: Any = None, *, inputs: Sequence[str] | None = None, target_name: str = "y"
) -> ArraySource:
    """Open a matrix in memory; ``target`` holds labels, or is the number of the column that does."""
    if is_frame(X):
        return open_frame(X, target, inputs=inputs, target_name=target_name)
    X = to_array(X, "`X`")
    if target is False:
        target = None
    if isinstance(target, str):
        msg = f"`X` is an array without column names, so it has no column `{target}`; pass a column number."
        raise InputError(msg)
    if isinstance(target, int):
        check_matrix(X, "`X`")
        X, y = split_column(X, target, "`X`")
        return ArraySource(
            X, y, input_names=inputs, target_name=target_name, target_where="Target column of `X`"
        )
    return ArraySource(X, target, input_names=inputs, target_name=target_name)


def split_column(A: Any, target: int, where: str) -> tuple[Any, Any]:
    """Split a matrix in memory or stored into all columns but one, and that one, without reading it."""
    d = A.shape[1]
    position = column_position(target, d, where)
    if isinstance(A, StoredArray):
        return A[:, np.delete(np.arange(d), position)], A[:, position]
    if position in (0, d - 1):
        return (A[:, 1:] if position == 0 else A[:, :-1]), A[:, position]
    columns = [A[:, j] for j in range(d) if j != position]
    return ColumnStack(columns, A.dtype), A[:, position]


def is_frame(data: Any) -> bool:
    """Whether data are a table with named columns (pandas, polars, pyarrow), by behaviour."""
    return hasattr(data, "columns") and hasattr(data, "__getitem__") and len(getattr(data, "shape", ())) == 2


def open_frame(
    frame: Any, target: Any = None, *, inputs: Sequence[str] | None = None, target_name: str = "y"
) -> ArraySource:
    """Open a data frame; ``target`` is a column (None: the last one; False: none) or holds the labels."""
    keys = list(getattr(frame, "column_names", frame.columns))
    names = [str(key) for key in keys]
    apart = target is not None and not isinstance(target, (str, int))
    picked, chosen = pick_columns(names, False if apart else target, inputs, "The data frame")
    columns = [to_array(frame[keys[j]], f"Column `{names[j]}`") for j in picked]
    for j, column in zip(picked, columns, strict=True):
        check_real(column.dtype, f"Column `{names[j]}`")
    small = all(chunk_dtype(column.dtype) == np.float32 for column in columns)
    X = ColumnStack(columns, np.dtype(np.float32 if small and columns else np.float64))
    X.shape = (len(frame), len(columns))  # also when no column is left
    if apart:
        y, where = target, "`y`"
        target_name = str(getattr(target, "name", None) or target_name)
    else:
        y = None if chosen is None else frame[keys[chosen]]
        where = "" if chosen is None else f"Column `{names[chosen]}`"
        target_name = "" if chosen is None else names[chosen]
    return ArraySource(
        X, y, input_names=[names[j] for j in picked], target_name=target_name, name="`X`", target_where=where
    )
