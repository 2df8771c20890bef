"""CSV files, parsed in chunks from a sparse index of line offsets."""

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
from matfree_hier.sources.text import CsvFormat
from matfree_hier.status import InputError

TEXT_BYTES = 2**21  # of text parsed at a time, and between two entries of the index


class CsvSource(SampleSource):
    """Columns of a CSV file with a header line.

    Opening reads the file once: it counts and checks the rows, notes the byte at which every 2 MiB of text
    begin, and keeps the labels (8 bytes a sample). Each reading parses the text anew (2 to 4 million
    cells a second), from any row on.

    Parameters
    ----------
    path : Path
        The file: UTF-8, quoted fields allowed, none with a line break outside the header.
    target : str, int, False or None
        Column of the labels; None for the last one, False for none.
    inputs : sequence of str, optional
        Columns of the inputs, every other one by default. Columns that are not used may hold anything.
    delimiter : str
        What separates the columns.
    keep_bytes : int
        Keep the parsed inputs in ``kept`` (n, d) if they take no more than this.

    Raises
    ------
    InputError
        Names the file, the line (1-based) and the column of a cell that is not a finite number, or a line of
        the wrong length.
    """

    reads_ahead = True

    def __init__(
        self,
        path: Path,
        target: str | int | bool | None = None,
        inputs: Sequence[str] | None = None,
        *,
        delimiter: str = ",",
        keep_bytes: int = 0,
    ) -> None:
        check_file(path)
        self.stamp = FileStamp(path)
        self.format = CsvFormat(path, delimiter)
        names = self.format.names
        self.picked, self.chosen = pick_columns(names, target, inputs, str(path))
        self.format.used = [*self.picked, *([] if self.chosen is None else [self.chosen])]
        super().__init__(
            0,  # counted below
            [names[j] for j in self.picked],
            np.float64,
            None if self.chosen is None else names[self.chosen],
            has_target=self.chosen is not None,
            name=str(path),
            validated=True,
        )
        self.index_rows: list[int] = []
        self.index_offsets: list[int] = []
        self.kept: NDArray[np.float64] | None = None
        self._count(keep_bytes)
        check_table_size(self.n_samples, self.n_inputs, str(path))

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands."""
        j = self.chosen if column is None else self.picked[column]
        return self.format.where(self.format.first_line + row, j or 0)

    def _count(self, keep_bytes: int) -> None:
        kept: list[NDArray[np.float64]] = []
        labels: list[NDArray[np.float64]] = []
        n_blank, keep = 0, True
        for row, offset, lines in self._lines(0, self.format.offset):
            self.index_rows.append(row)
            self.index_offsets.append(offset)
            n_filled = max((i + 1 for i, line in enumerate(lines) if line.strip()), default=0)
            if n_blank and n_filled:  # blank lines are well at the end of the file only
                self.format.fail(self.format.first_line + row - n_blank, "is blank")
            n_blank = n_blank + len(lines) if n_filled == 0 else len(lines) - n_filled
            if n_filled:
                chunk = self._chunk(row, lines[:n_filled], labels=True)
                self._check_finite(chunk)
                self.n_samples = row + n_filled
                keep = keep and self.n_samples * self.n_inputs * 8 <= keep_bytes
                kept = [*kept, chunk.X] if keep else []
                if chunk.y is not None:
                    labels.append(chunk.y)
        if keep and kept:
            self.kept = np.concatenate(kept)
        if labels:
            self._labels = np.concatenate(labels)
            self._labels.flags.writeable = False

    def _lines(self, row: int, offset: int) -> Iterator[tuple[int, int, list[bytes]]]:
        with reading(self.stamp.path, "CSV file"), self.stamp.path.open("rb") as file:
            file.seek(offset)
            while lines := file.readlines(TEXT_BYTES):
                yield row, offset, lines
                row += len(lines)
                offset += sum(map(len, lines))

    def _chunk(self, row: int, lines: list[bytes], *, labels: bool) -> Chunk:
        A = self.format.parse(lines, self.format.first_line + row)
        y = np.ascontiguousarray(A[:, self.chosen]) if labels and self.chosen is not None else None
        return Chunk(row, np.ascontiguousarray(A[:, self.picked]), y)

    def _blocks(
        self,
        start: int,
        stop: int,
        rows: int | None,  # noqa: ARG002 - cut as the file is stored
        labels: bool,
    ) -> Iterator[Chunk]:
        if start == stop:
            return
        entry = bisect_right(self.index_rows, start) - 1
        first = start
        with unchanged([self.stamp], start, stop):
            blocks = self._lines(self.index_rows[entry], self.index_offsets[entry])
        while True:
            with unchanged([self.stamp], first, stop):
                row, _, lines = next(blocks, (first, 0, []))
                if not lines:
                    msg = f"{self.stamp.path} is truncated: row {first} (counted from 0) is missing."
                    raise InputError(msg)
                wanted = lines[max(0, start - row) : stop - row]
                chunk = self._chunk(max(row, start), wanted, labels=labels) if wanted else None
            if chunk is not None:
                yield chunk
                first = chunk.start + len(wanted)
            if row + len(lines) >= stop:
                return

    def _read_labels(self, start: int, stop: int) -> NDArray[Any]:
        assert self._labels is not None
        return self._labels[start:stop]
