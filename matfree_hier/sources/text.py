"""CSV text to numbers: a fast way, and a slow one that says which cell is wrong."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.files import reading
from matfree_hier.status import InputError

HEADER_LIMIT = 2**24  # bytes; a longer first line is no header
UTF8_MARK, UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


class CsvFormat:
    """Header of a CSV file and how its lines become numbers.

    Attributes
    ----------
    names : list of str
        Columns, from the header line.
    offset, first_line : int
        Byte at which the data begin, and the number of that line (1-based).
    used : list of int
        Columns whose cells must be numbers; the others may hold anything. Set by the caller.
    """

    def __init__(self, path: Path, delimiter: str) -> None:
        self.path, self.delimiter = path, delimiter
        with reading(path, "CSV file"), path.open("rb") as file:
            line = file.readline(HEADER_LIMIT)
            self.first_line = 2
            while line.count(b'"') % 2 and (more := file.readline(HEADER_LIMIT)):
                line += more  # a quoted name may hold a line break
                self.first_line += 1
            self.offset = file.tell()
        self.names = self._names(line)
        self.used = list(range(len(self.names)))
        self._all_numbers = True

    def _names(self, line: bytes) -> list[str]:
        if line.startswith(UTF16_MARKS) or b"\x00" in line or len(line) >= HEADER_LIMIT:
            self.fail(1, "is not UTF-8 text in lines")
        text = self._decode([line.removeprefix(UTF8_MARK)], 1)
        if "\r" in text.rstrip("\r\n") and '"' not in text:
            self.fail(1, "has a lone carriage return; end lines with a line feed")
        names = [" ".join(name.strip().splitlines()) for name in self._fields(text, 1)]
        if not any(names):
            self.fail(1, "is blank where the column names should stand")
        if len(names) == 1 and self.delimiter == "," and (";" in text or "\t" in text):
            self.fail(1, "has no comma; if another character separates the columns, pass it as `delimiter`")
        if "" in names:
            self.fail(1, f"has no name for column {names.index('') + 1} (an index that was saved?)")
        if all(_is_number(name) for name in names):
            self.fail(1, "holds numbers where the column names should stand; a header line is needed")
        return names

    def parse(self, lines: Sequence[bytes], first_line: int) -> NDArray[np.float64]:
        """Numbers of whole lines, shape (m, columns); columns not used are NaN where they are not numbers.

        Raises
        ------
        InputError
            Names the file, the line (1-based) and the column of the first cell that is not a number.
        """
        rows = self._decode(lines, first_line).replace("\r\n", "\n").removesuffix("\n").split("\n")
        if self._all_numbers:
            try:
                A: NDArray[np.float64] = np.loadtxt(
                    rows, np.float64, comments=None, delimiter=self.delimiter, quotechar='"', ndmin=2
                )
                if A.shape == (len(rows), len(self.names)):
                    return A
            except ValueError:  # a cell is not a number, or a line has too few
                self._all_numbers = len(self.used) == len(self.names)
        mixed = None if self._all_numbers else self._parse_used(rows)
        return self._parse_cells(rows, first_line) if mixed is None else mixed

    def _parse_used(self, rows: list[str]) -> NDArray[np.float64] | None:
        """Parse the columns in use beside others of text; None if anything is wrong."""
        A = np.full((len(rows), len(self.names)), np.nan)
        try:
            fields = list(csv.reader(rows, delimiter=self.delimiter, strict=True))
            if len(fields) != len(rows) or any(len(row) != len(self.names) for row in fields):
                return None
            for j in self.used:
                column = [row[j] for row in fields]
                A[:, j] = list(map(float, column))
                if "_" in "".join(column):  # see _is_number
                    return None
        except (ValueError, csv.Error):
            return None
        return A

    def _parse_cells(self, rows: list[str], first_line: int) -> NDArray[np.float64]:
        A = np.full((len(rows), len(self.names)), np.nan)
        for i, row in enumerate(rows):
            fields = self._fields(row, first_line + i)
            if len(fields) != len(self.names):
                what = (
                    f"has {len(fields)} fields where the header has {len(self.names)}"
                    if row.strip()
                    else "is blank"
                )
                self.fail(first_line + i, what)
            for j in self.used:
                if not _is_number(fields[j]):
                    cell = f"{fields[j]!r} is not a number" if fields[j].strip() else "the cell is empty"
                    msg = f"{self.where(first_line + i, j)}: {cell}."
                    raise InputError(msg)
                A[i, j] = float(fields[j])
        return A

    def where(self, line: int, column: int) -> str:
        """Say in words where a cell stands."""
        return f"{self.path}, line {line}, column `{self.names[column]}`"

    def _decode(self, lines: Sequence[bytes], first_line: int) -> str:
        try:
            return b"".join(lines).decode()
        except UnicodeDecodeError:
            for i, line in enumerate(lines):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    self.fail(first_line + i, "is not UTF-8 text")
            raise

    def _fields(self, row: str, line: int) -> list[str]:
        reader = csv.reader(io.StringIO(row, newline=""), delimiter=self.delimiter, strict=True)
        try:
            return next(reader, [])
        except csv.Error as error:
            self.fail(line, f"cannot be divided into fields ({error})")

    def fail(self, line: int, what: str) -> NoReturn:
        """Refuse a line."""
        msg = f"{self.path}, line {line} {what}."
        raise InputError(msg)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python reads 1_000 as a number, no other program does
