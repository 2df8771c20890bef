"""Parquet files, read by record batches with pyarrow (the extra `files`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.base import SampleSource
from matfree_hier.sources.chunks import Chunk
from matfree_hier.sources.convert import check_table_size, pick_columns
from matfree_hier.sources.files import FileStamp, check_file, reading, unchanged
from matfree_hier.status import InputError

_SLAB_ROWS = 256


class ParquetSource(SampleSource):
    """Columns of a Parquet file; rows are put together batch by batch.

    Parameters
    ----------
    path : Path
        The file.
    target : str, int, False or None
        Column of the labels; None for the last one, False for none.
    inputs : sequence of str, optional
        Columns of the inputs, every other one by default.
    """

    reads_ahead = True

    def __init__(
        self, path: Path, target: str | int | bool | None = None, inputs: Sequence[str] | None = None
    ) -> None:
        check_file(path)
        self.stamp = FileStamp(path)
        parquet = _pyarrow_parquet(path)
        with reading(path, "Parquet file"), parquet.ParquetFile(path) as file:
            schema, groups = file.schema_arrow, file.metadata
            ends = np.cumsum(
                [groups.row_group(i).num_rows for i in range(groups.num_row_groups)], dtype=np.int64
            )
        picked, chosen = pick_columns(schema.names, target, inputs, str(path))
        self.ends: list[int] = ends.tolist()
        check_table_size(self.ends[-1] if self.ends else 0, len(picked), str(path))
        self.columns = [schema.names[j] for j in picked]
        target_name = None if chosen is None else schema.names[chosen]
        for name in [*self.columns, *([] if target_name is None else [target_name])]:
            _check_kind(schema.field(name).type, f"{path}, column `{name}`")
        small = all(str(schema.field(name).type) in ("float", "halffloat") for name in self.columns)
        super().__init__(
            self.ends[-1],
            self.columns,
            np.float32 if small else np.float64,
            target_name,
            has_target=chosen is not None,
            name=str(path),
        )

    def _blocks(
        self,
        start: int,
        stop: int,
        rows: int | None,  # noqa: ARG002 - cut as the file is stored
        labels: bool,
    ) -> Iterator[Chunk]:
        names = [*self.columns, *([str(self.target_name)] if labels else [])]
        for first, batch in self._batches(start, stop, names):
            X = _side_by_side([_numbers(batch.column(j)) for j in range(self.n_inputs)], self.dtype)
            y = np.array(_numbers(batch.column(len(names) - 1)), np.float64) if labels else None
            yield Chunk(first, X, y)

    def _batches(self, start: int, stop: int, names: list[str]) -> Iterator[tuple[int, Any]]:
        """Record batches that cover rows ``start:stop`` and no more, with the first row of each."""
        if start == stop:
            return
        path = self.stamp.path
        group = bisect_right(self.ends, start)
        last_group = bisect_right(self.ends, stop - 1)
        at = self.ends[group - 1] if group else 0
        parquet = _pyarrow_parquet(path)
        with unchanged([self.stamp], start, stop), reading(path, "Parquet file"):
            opened = parquet.ParquetFile(path)
        with opened as file:
            groups = list(range(group, last_group + 1))
            batches = file.iter_batches(self._natural_rows(), row_groups=groups, columns=names)
            while True:
                with unchanged([self.stamp], at, stop), reading(path, "Parquet file"):
                    batch = next(batches, None)
                if batch is None:
                    return
                skip = max(0, start - at)
                part = batch.slice(skip, stop - at - skip)
                if part.num_rows:
                    yield at + skip, part.select(names)
                at += batch.num_rows
                if at >= stop:
                    return

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        y = np.empty(stop - start)
        for first, batch in self._batches(start, stop, [str(self.target_name)]):
            y[first - start : first - start + batch.num_rows] = _numbers(batch.column(0))
        return y


def _side_by_side(columns: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return columns as a matrix in C order, some rows at a time: what is written stays in the cache."""
    X = np.empty((len(columns[0]), len(columns)), dtype)
    for first in range(0, len(X), _SLAB_ROWS):
        rows = slice(first, first + _SLAB_ROWS)
        for j, column in enumerate(columns):
            X[rows, j] = column[rows]
    return X


def _numbers(column: Any) -> NDArray[Any]:
    """Turn an Arrow column into numbers; a missing value becomes NaN, which `validate` finds."""
    kind = str(column.type)
    if kind in ("float", "double") and not column.null_count:
        return np.asarray(column)
    target = kind if kind in ("float", "double") else "float" if kind == "halffloat" else "double"
    array: NDArray[Any] = column.cast(target, safe=False).to_numpy(zero_copy_only=False)
    return array


def _check_kind(kind: Any, where: str) -> None:
    if not str(kind).startswith(("int", "uint", "float", "double", "halffloat", "bool", "decimal")):
        msg = f"{where} must hold real numbers, got {kind}."
        raise InputError(msg)


def _pyarrow_parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        msg = f"{path}: reading Parquet needs pyarrow; install it with: pip install 'matfree-hier[files]'."
        raise InputError(msg) from None
    return parquet
