"""CSV files: quoting, line ends, the index of lines, and every fault with its line and column."""

from __future__ import annotations

import re
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matfree_hier.sources import open_source
from matfree_hier.status import InputError

if TYPE_CHECKING:
    from pathlib import Path


def csv(tmp_path: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"a,b,y\n1,2.5,3\n-4e1,5,6\n",
        b"a,b,y\n1,2.5,3\n-4e1,5,6",
        b"a,b,y\r\n1,2.5,3\r\n-4e1,5,6\r\n",
        b"a,b,y\n1,2.5,3\n-4e1,5,6\n\n  \n\r\n",
        b"\xef\xbb\xbfa,b,y\n1,2.5,3\n-4e1,5,6\n",
        b'"a","b",y\n"1","2.5",3\n"-4e1",5,"6"\n',
        b" a , b , y \n 1 , 2.5 , 3\n-4e1,\t5, +6. \n",
    ],
    ids=["plain", "no last line end", "CRLF", "blank last lines", "byte order mark", "quotes", "spaces"],
)
@pytest.mark.parametrize("cache_bytes", [0, 1000])
def test_the_usual_ways_to_write_a_table_are_read(content: bytes, cache_bytes: int, tmp_path: Path) -> None:
    source = open_source(csv(tmp_path, content), cache_bytes=cache_bytes)
    assert (source.input_names, source.target_name) == (("a", "b"), "y")
    assert np.array_equal(source.inputs(), [[1, 2.5], [-40, 5]])
    assert np.array_equal(source.labels(), [3, 6])


def test_a_quoted_name_may_hold_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    path = csv(tmp_path, '"height, m","the ""big""\none",y\n1,2,3\n4,x,6\n')
    with pytest.raises(
        InputError, match=re.escape(f"{path}, line 4, column `the \"big\" one`: 'x' is not a number.")
    ):
        open_source(path)
    assert open_source(path, inputs=["height, m"]).input_names == ("height, m",)


def test_another_delimiter_can_be_given(tmp_path: Path) -> None:
    path = csv(tmp_path, "a;y\n1;2\n")
    with pytest.raises(
        InputError, match=r"line 1 has no comma; if another character .* pass it as `delimiter`"
    ):
        open_source(path)
    assert np.array_equal(open_source(path, delimiter=";").inputs(), [[1]])


def test_columns_not_in_use_may_hold_anything(tmp_path: Path) -> None:
    path = csv(tmp_path, 'id,a,note,y\nu1,1,"x, y",2\nu2,3,,nan\n')
    source = open_source(path, False, inputs=["a"])
    assert np.array_equal(source.inputs(), [[1], [3]])
    with pytest.raises(
        InputError, match=re.escape(f"{path}, line 3, column `y`: nan is not a finite number")
    ):
        open_source(path, "y", inputs=["a"])
    csv(tmp_path, "a,note,y\n1,u,2\n1_0,v,3\n")
    with pytest.raises(InputError, match="line 3, column `a`: '1_0' is not a number"):
        open_source(path, inputs=["a"])
    csv(tmp_path, "a,note,y\n1,u,2\n3,v\n")
    with pytest.raises(InputError, match="line 3 has 2 fields where the header has 3"):
        open_source(path, inputs=["a"])


FAULTS = {
    "text": ("a,b,y\n1,2,3\n4,five,6\n", ", line 3, column `b`: 'five' is not a number."),
    "text in the target": ("a,b,y\n1,2,3\n4,5,high\n", ", line 3, column `y`: 'high' is not a number."),
    "underscore": ("a,b,y\n1,2,3\n4,5_0,6\n", ", line 3, column `b`: '5_0' is not a number."),
    "two numbers": ("a,b,y\n1,2 7,3\n", ", line 2, column `b`: '2 7' is not a number."),
    "empty cell": ("a,b,y\n1,2,3\n4,,6\n", ", line 3, column `b`: the cell is empty."),
    "blank cell": ('a,b,y\n1,2,3\n4,5,"  "\n', ", line 3, column `y`: the cell is empty."),
    "NA": ("a,b,y\n1,NA,3\n", ", line 2, column `b`: 'NA' is not a number."),
    "nan": (
        "a,b,y\n1,2,3\n4,NaN,6\n",
        ", line 3, column `b`: nan is not a finite number (NaN, inf and missing values are refused).",
    ),
    "inf": (
        "a,b,y\n1,2,-inf\n",
        ", line 2, column `y`: -inf is not a finite number (NaN, inf and missing values are refused).",
    ),
    "too large": (
        "a,b,y\n1,2,1e999\n",
        ", line 2, column `y`: inf is not a finite number (NaN, inf and missing values are refused).",
    ),
    "short row": ("a,b,y\n1,2,3\n4,5\n", ", line 3 has 2 fields where the header has 3."),
    "long row": ("a,b,y\n1,2,3\n4,5,6,7\n", ", line 3 has 4 fields where the header has 3."),
    "all rows long": ("a,b,y\n1,2,3,4\n4,5,6,7\n", ", line 2 has 4 fields where the header has 3."),
    "trailing comma": ("a,b,y\n1,2,3,\n", ", line 2 has 4 fields where the header has 3."),
    "blank line": ("a,b,y\n1,2,3\n\n4,5,6\n", ", line 3 is blank."),
    "blank first line": ("\na,b,y\n1,2,3\n", ", line 1 is blank where the column names should stand."),
    "line break in a field": (
        'a,b,y\n1,"2\n",3\n4,5,6\n',
        ", line 2 cannot be divided into fields (unexpected end of data).",
    ),
    "no header": (
        "1,2,3\n4,5,6\n",
        ", line 1 holds numbers where the column names should stand; a header line is needed.",
    ),
    "saved index": (",a,y\n0,1,2\n", ", line 1 has no name for column 1 (an index that was saved?)."),
    "same name": ("a,a,y\n1,2,3\n", " has more than one column `a`."),
    "header only": ("a,b,y\n", " has 0 sample(s) (shape=(0, 2)) while a minimum of 1 is required."),
    "one column": ("y\n1\n", " has 0 feature(s) (shape=(1, 0)) while a minimum of 1 is required."),
    "latin 1": ("a,b,y\n1,2,3\n4,5,6é\n".encode("latin1"), ", line 3 is not UTF-8 text."),
    "latin 1 header": ("a,é,y\n1,2,3\n".encode("latin1"), ", line 1 is not UTF-8 text."),
    "utf 16": ("a,b,y\n1,2,3\n".encode("utf-16"), ", line 1 is not UTF-8 text in lines."),
    "binary": (b"a\x00b,y\n1,2\n", ", line 1 is not UTF-8 text in lines."),
    "old Mac line ends": (
        "a,b,y\r1,2,3\r",
        ", line 1 has a lone carriage return; end lines with a line feed.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_with_its_line_and_column(fault: str, tmp_path: Path) -> None:
    content, sentence = FAULTS[fault]
    path = csv(tmp_path, content)
    with pytest.raises(InputError, match=re.escape(f"{path}{sentence}") + "$"):
        open_source(path)


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,y\n1,2,3\n")
    with pytest.raises(InputError, match=re.escape(f"{path} has no column `z`; its columns are a, b, y.")):
        open_source(path, "z")
    with pytest.raises(InputError, match=re.escape(f"{path} has no column `c`; its columns are a, b, y.")):
        open_source(path, inputs=["a", "c"])


def long_table(tmp_path: Path, n: int) -> tuple[Path, np.ndarray]:
    A = np.random.default_rng(77).normal(size=(n, 3))
    lines = [",".join(map(repr, row)) for row in A.tolist()]
    return csv(tmp_path, "a,b,y\n" + "\n".join(lines) + "\n"), A


@given(start=st.integers(0, 300), length=st.integers(0, 120), rows=st.none() | st.integers(1, 50))
def test_rows_are_reached_through_the_index(
    start: int, length: int, rows: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matfree_hier.sources.delimited.TEXT_BYTES", 700)
        path, A = long_table(tmp_path_factory.mktemp("csv"), 420)
        source: Any = open_source(path, cache_bytes=0)
        assert len(source.index_rows) > 20
        chunks = list(source.chunks(start, start + length, rows=rows))
    assert np.array_equal(np.concatenate([A[:0, :2], *(c.X for c in chunks)]), A[start : start + length, :2])
    assert np.array_equal(np.concatenate([A[:0, 2], *(c.y for c in chunks)]), A[start : start + length, 2])


def test_faults_are_found_in_every_part_of_a_long_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matfree_hier.sources.delimited.TEXT_BYTES", 700)
    path, _ = long_table(tmp_path, 420)
    lines = path.read_text().split("\n")
    for line, text, sentence in (
        (400, "1,nan,2", f"{path}, line 400, column `b`: nan is not a finite number"),
        (213, "1,x,2", f"{path}, line 213, column `b`: 'x' is not a number."),
        (100, "", f"{path}, line 100 is blank."),
    ):
        lines[line - 1] = text
        path.write_text("\n".join(lines))
        with pytest.raises(InputError, match=re.escape(sentence)):
            open_source(path)
    path.write_text("a,b,y\n1,2,3\n" + "\n" * 3000 + "4,5,6\n")
    with pytest.raises(InputError, match=re.escape(f"{path}, line 3 is blank.")):
        open_source(path)
    path.write_text("a,b,y\n1,2,3\n" + "\n" * 3000)
    assert open_source(path).n_samples == 1


def test_a_long_file_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matfree_hier.sources.delimited.TEXT_BYTES", 2**15)
    path, A = long_table(tmp_path, 30_000)
    size = path.stat().st_size
    tracemalloc.start()
    source = open_source(path, cache_bytes=0)
    total = sum(chunk.X.sum() for chunk in source.chunks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == pytest.approx(A[:, :2].sum())
    assert peak < size / 3
    assert source.n_samples == 30_000
