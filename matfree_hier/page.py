"""One self-contained HTML page: tables, parameters, figures inline. Nothing is fetched when it is read."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 70em;
       margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; }
h2 { font-size: 1.2em; margin-top: 2em; border-top: 1px solid #ccc; padding-top: .8em; }
table { border-collapse: collapse; margin: .6em 0; font-variant-numeric: tabular-nums; }
th, td { padding: .15em .7em; text-align: right; border-bottom: 1px solid #e3e3e3; }
th { border-bottom: 1px solid #888; } td:first-child, th:first-child { text-align: left; }
.facts td { text-align: left; } pre { background: #f5f5f5; padding: .8em; overflow-x: auto; }
figure { margin: 1em 0; } figure img { max-width: 100%; height: auto; }
.met::before { content: "\\2713\\a0"; color: #009E73; }
.missed::before { content: "\\2717\\a0"; color: #D55E00; }
ul.checks { list-style: none; padding: 0; } summary { cursor: pointer; }
"""


@dataclass(frozen=True)
class Table:
    """A table of text.

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
        Shown as they are, in a fixed-width type.
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
        f"<pre>{_text(chr(10).join(section.lines))}</pre>\n" if section.lines else "",
        *(_figure(name, figure) for name, figure in section.figures.items()),
        *(_table(caption, table) for caption, table in section.tables.items()),
        _facts(section.parameters),
    ]
    return "".join(parts)


def _figure(name: str, figure: Figure) -> str:
    """Return a figure as an SVG image inside the page."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<figure><img alt="{_text(name)}" src="data:image/svg+xml;base64,{data}"></figure>\n'


def _table(caption: str, table: Table) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{_text(c)}</td>' for c in row)}</tr>\n" for row in table.rows)
    is_open = " open" if len(table.rows) <= 40 else ""
    return (
        f"<details{is_open}><summary>{_text(caption)} ({len(table.rows)} rows)</summary>\n"
        f"<table><tr>{head}</tr>\n{rows}</table></details>\n"
    )


def _facts(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><td>{_text(key)}</td><td>{_text(cell(v))}</td></tr>\n" for key, v in values.items())
    return f'<table class="facts">{rows}</table>\n' if rows else ""


def _text(value: str) -> str:
    return html.escape(value)
