"""One self-contained HTML page: tables, parameters, figures inline. Nothing is fetched when it is read."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FOLD = 40  # rows, from which a table is shown only when asked for
_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --rule: #ddd; --panel: #f5f5f5;
        --met: #00795a; --missed: #b84a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #17191c; --rule: #3a3d42; --panel: #22252a;
          --met: #35c495; --missed: #ff8f45; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76em;
       margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; }
h2 { font-size: 1.2em; margin-top: 2em; border-top: 1px solid var(--rule); padding-top: .8em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6em 0; font-variant-numeric: tabular-nums; }
th, td { padding: .15em .7em; text-align: right; border-bottom: 1px solid var(--rule); }
th.text, td.text { text-align: left; }
td.text + td.text { overflow-wrap: anywhere; min-width: 5em; }
pre { background: var(--panel); padding: .8em; overflow-x: auto; font-size: .87em; }
pre.prose { white-space: pre-wrap; }
figure { margin: 1em 0; overflow-x: auto; }
figure img { max-width: 100%; min-width: 34em; height: auto; background: #fff; }
.met::before { content: "\\2713\\a0"; color: var(--met); }
.missed::before { content: "\\2717\\a0"; color: var(--missed); }
ul.checks { list-style: none; padding: 0; }
details { margin: 1em 0; } summary { cursor: pointer; }
"""


@dataclass(frozen=True)
class Table:
    """A table of text; columns that hold other than numbers are set to the left.

    Attributes
    ----------
    columns : sequence of str
    rows : sequence of sequence of str
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Return the table of mappings with the same keys."""
        columns = list(rows[0]) if rows else []
        return cls(columns, [[cell(row[column]) for column in columns] for row in rows])


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes
    ----------
    title : str
    parameters : mapping
        Shown as a table of two columns.
    lines : sequence of str
        Shown in a fixed-width type; those that hold line breaks, tables, are not wrapped.
    checks : sequence of tuple of str and bool
        Sentences and whether they hold.
    figures : mapping of str to Figure
    tables : mapping of str to Table
        By caption; one of more than 40 rows is folded.
    """

    title: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    checks: Sequence[tuple[str, bool]] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)


def page(title: str, sections: Sequence[Section], about: Mapping[str, Any]) -> str:
    """Return an HTML page that needs nothing beside itself.

    Parameters
    ----------
    title : str
    sections : sequence of Section
    about : mapping
        Shown at the end: machine, versions.
    """
    body = "".join(_section(section) for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n"
        f"{body}<h2>How it was made</h2>\n{_facts(about)}</body>\n</html>\n"
    )


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of a table of columns of one length."""
    return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]


def how_made(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of the record of how a result of the bench was made, among its parameters."""
    names = ("presets", "first_seed", "computed", "seconds", "processor_seconds", "threads", "processor")
    facts = {name.replace("_", " "): record[name] for name in names if name in record}
    versions = record.get("versions", {})
    return facts | {
        name: found[name] for name, found in (("matfree-hier", versions), ("source", record)) if name in found
    }


def cell(value: Any) -> str:
    """Return a number in at most four digits after the first, other values as text; NaN is empty."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.5g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    return str(value)


def _section(section: Section) -> str:
    checks = "".join(
        f'<li class="{"met" if met else "missed"}">{_text(sentence)}</li>' for sentence, met in section.checks
    )
    parts = [
        f"<h2>{_text(section.title)}</h2>\n",
        f'<ul class="checks">{checks}</ul>\n' if checks else "",
        *(
            _block(list(lines), tabular)
            for tabular, lines in groupby(section.lines, lambda line: "\n" in line)
        ),
        *(_figure(name, figure) for name, figure in section.figures.items()),
        *(_table(caption, table) for caption, table in section.tables.items()),
        _facts(section.parameters, "parameters"),
    ]
    return "".join(parts)


def _block(lines: Sequence[str], tabular: bool) -> str:
    """Return lines in a fixed-width type: a table, of several lines in one, scrolls; others are wrapped."""
    kind = "" if tabular else ' class="prose"'
    return f"<pre{kind}>{_text(chr(10).join(lines).strip(chr(10)))}</pre>\n" if any(lines) else ""


def _figure(name: str, figure: Figure) -> str:
    """Return a figure as an SVG image inside the page."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<figure><img alt="{_text(name)}" src="data:image/svg+xml;base64,{data}"></figure>\n'


def _table(caption: str, table: Table) -> str:
    kinds = [' class="text"' if any(map(_is_text, column)) else "" for column in _columns(table)]
    head = "".join(f"<th{kind}>{_text(c)}</th>" for kind, c in zip(kinds, table.columns, strict=True))
    rows = [
        "".join(f"<td{kind}>{_text(c)}</td>" for kind, c in zip(kinds, row, strict=True))
        for row in table.rows
    ]
    return _folded(caption, f"<tr>{head}</tr>\n" + "".join(f"<tr>{row}</tr>\n" for row in rows), len(rows))


def _columns(table: Table) -> list[list[str]]:
    return [[row[i] for row in table.rows] for i in range(len(table.columns))]


def _is_text(shown: str) -> bool:
    """Whether a cell is neither a number nor empty."""
    try:
        float(shown or 0)
    except ValueError:
        return True
    return False


def _folded(caption: str, rows: str, n_rows: int) -> str:
    is_open = " open" if n_rows <= _FOLD else ""
    return (
        f"<details{is_open}><summary>{_text(caption)} ({n_rows} rows)</summary>\n"
        f'<div class="scroll"><table>{rows}</table></div></details>\n'
    )


def _facts(values: Mapping[str, Any], caption: str = "") -> str:
    if not values:
        return ""
    rows = "".join(
        f'<tr><td class="text">{_text(key)}</td><td class="text">{_text(cell(v))}</td></tr>\n'
        for key, v in values.items()
    )
    return _folded(caption, rows, len(values)) if caption else f"<table>{rows}</table>\n"


def _text(value: str) -> str:
    return html.escape(value)
