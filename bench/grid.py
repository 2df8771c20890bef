"""Experiments over a grid of points and seeds: a run file keeps what is done, so that a killed run goes on.

An experiment is a `Grid` of three functions: which points a scenario has, what is computed at one of them
with one seed, and what all of it shows. `run_grid` does the rest: progress, run file, tables, checks, figures
and the page.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numba
import numpy as np

from matfree_hier.bench.experiment import GridInterrupted
from matfree_hier.bench.measure import machine, to_json, versions
from matfree_hier.page import Section, Table, page
from matfree_hier.progress import GridProgress
from matfree_hier.status import Status
from matfree_hier.store import RunFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from matplotlib.figure import Figure

    from matfree_hier.bench.experiment import Options
    from matfree_hier.result import EigenResult

Case: TypeAlias = Mapping[str, Any]
"""A scenario, as the table of its TOML file has it; ``seeds`` says how many there are."""
Point: TypeAlias = Mapping[str, Any]
"""All that decides a result besides the seed: numbers, text and lists of them."""
Row: TypeAlias = Mapping[str, Any]
"""One line of the table of results: a number or text by column."""

ENTRY = "entry-"  # of a run file's groups; the rest of the name is the hash of point, seed and version
TABLE = "table"
ABOUT = "about"


class Entry(NamedTuple):
    """What was computed at one point with one seed."""

    point: Point
    seed: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Check:
    """Something that a scenario asks of its results."""

    what: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value keeps to the bound; NaN does not."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        return f"{self.what}: {self.value:.4g}, {side} {self.bound:g}: {'met' if self.met else 'MISSED'}"


@dataclass(frozen=True)
class Summary:
    """What the entries of a scenario show.

    Attributes
    ----------
    rows : sequence of mapping
        The table, a line each with the same columns: written as CSV and stored in the run file.
    lines : sequence of str
        Printed, and shown on the page.
    checks : sequence of Check
        The run ends with exit status 1 if one is not met.
    figures : mapping of str to Figure
        By name; written as ``SCENARIO-NAME.png``.
    tables : mapping of str to sequence of mapping
        Further tables by name; written as ``SCENARIO-NAME.csv`` and stored in the run file.
    """

    rows: Sequence[Row]
    lines: Sequence[str] = ()
    checks: Sequence[Check] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """An experiment over points and seeds.

    Attributes
    ----------
    name : str
        Of the experiment.
    points : callable
        Scenario to the list of its points.
    compute : callable
        Point and seed to a dict of numbers, text and arrays. A function of its arguments alone: stored
        entries are taken for what it would return. Solves go through `solved`.
    summarise : callable
        Scenario and its entries, in the order of points and then seeds, to a `Summary`.
    cost : callable
        Point to a number in proportion to its time, for the time left.
    first_seed : int
        Seeds are this one and those that follow.
    """

    name: str
    points: Callable[[Case], list[Point]]
    compute: Callable[[Point, int], dict[str, Any]]
    summarise: Callable[[Case, list[Entry]], Summary]
    cost: Callable[[Point], float] = lambda _: 1.0
    first_seed: int = 2_605_145


def solved(result: EigenResult) -> EigenResult:
    """Return a solve that reached what it was asked for; hand an interruption on, which solves catch.

    Raises
    ------
    KeyboardInterrupt
        If it was interrupted.
    NotConverged
        If it did not reach what it was asked for.
    """
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result.require_converged()


def run_grid(grid: Grid, options: Options) -> list[str]:
    """Run the scenarios of a grid or go on with them, print and write what they show, return what is missed.

    Written to the folder `options.out`: the run file ``NAME.h5``, a run for each scenario; the page
    ``NAME.html``; and in the folder ``NAME`` what is worth keeping, ``SCENARIO.csv``, ``SCENARIO-TABLE.csv``,
    ``SCENARIO-FIGURE.png`` and ``about.json``.

    Raises
    ------
    RunFileError
        If the run file is damaged or another process uses it.
    GridInterrupted
        On Ctrl-C.
    """
    kept = options.out / grid.name
    kept.mkdir(exist_ok=True)
    missed: list[str] = []
    sections: list[Section] = []
    for name, case in options.cases.items():
        with _kernel_threads(_threads(options)):
            entries = _entries(grid, name, case, options)
        summary = grid.summarise(case, entries)
        _emit(options, name, summary)
        _write(kept, name, summary)
        sections.append(_section(name, case, summary))
        missed += [f"{name}: {check}." for check in summary.checks if not check.met]
        with RunFile(options.out / f"{grid.name}.h5", name) as run:
            run.save(TABLE, _columns(summary.rows))
            for table_name, rows in summary.tables.items():
                run.save(f"{TABLE}-{table_name}", _columns(rows))
            run.save(ABOUT, {"experiment": grid.name, "scenario": to_json(case), "versions": versions()})
    about = _about(options)
    (kept / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    text = page(f"{grid.name}: an experiment of matfree_hier", sections, about)
    (options.out / f"{grid.name}.html").write_text(text, encoding="utf-8")
    return missed


def _entries(grid: Grid, name: str, case: Case, options: Options) -> list[Entry]:
    """Return all entries of a scenario: those of the run file, and the others computed and committed."""
    first = grid.first_seed if options.seed is None else options.seed
    seeds = range(first, first + int(case["seeds"]))
    wanted = [(point, seed, grid.cost(point)) for point in grid.points(case) for seed in seeds]
    entries: list[Entry] = []
    with (
        RunFile(options.out / f"{grid.name}.h5", name) as run,
        GridProgress(f"{grid.name} {name}", [cost for *_, cost in wanted]) as bar,
    ):
        try:
            for point, seed, _ in wanted:
                key = ENTRY + _digest(grid.name, point, seed)
                fresh = not run.has(key)
                if fresh:
                    run.save(key, {"seed": seed, "values": grid.compute(point, seed)})
                    run.commit()
                entries.append(Entry(point, seed, run.load(key)["values"]))
                bar.update(computed=fresh)
        except KeyboardInterrupt:
            msg = f"{grid.name} {name}: {len(entries)} of {len(wanted)} entries are kept"
            raise GridInterrupted(msg) from None
    return entries


def _digest(experiment: str, point: Point, seed: int) -> str:
    """Return a name for what decides an entry: a scenario that is changed asks for other entries."""
    decides = {"experiment": experiment, "point": dict(point), "seed": seed}
    decides["version"] = versions()["matfree-hier"]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]


def _threads(options: Options) -> int:
    return min(options.threads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined,no-any-return]


@contextmanager
def _kernel_threads(threads: int) -> Iterator[None]:
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        yield
    finally:
        numba.set_num_threads(before)


# ---- what is shown and written


def _emit(options: Options, name: str, summary: Summary) -> None:
    for row in summary.rows:
        options.emit({"record": "row", "case": name, **row})
    for check in summary.checks:
        record = {"what": check.what, "value": check.value, "bound": check.bound, "met": check.met}
        options.emit({"record": "check", "case": name, **record})
    options.say(f"\n{name}\n")
    for line in [*summary.lines, *(f"check: {check}" for check in summary.checks)]:
        options.say(line)


def _write(kept: Path, name: str, summary: Summary) -> None:
    _write_table(kept / f"{name}.csv", summary.rows)
    for table_name, rows in summary.tables.items():
        _write_table(kept / f"{name}-{table_name}.csv", rows)
    for figure_name, figure in summary.figures.items():
        figure.savefig(kept / f"{name}-{figure_name}.png", dpi=130)


def _write_table(path: Path, rows: Sequence[Row]) -> None:
    columns = list(rows[0])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row[column]) for column in columns] for row in rows)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _section(name: str, case: Case, summary: Summary) -> Section:
    return Section(
        title=name,
        parameters=case,
        lines=summary.lines,
        checks=[(str(check), check.met) for check in summary.checks],
        figures=summary.figures,
        tables={"results": Table.of(summary.rows)}
        | {name: Table.of(rows) for name, rows in summary.tables.items()},
    )


def _about(options: Options) -> dict[str, Any]:
    """Return machine and versions in one mapping, without what names a machine or a person."""
    record = machine()
    gigabytes = None if record["memory_bytes"] is None else round(record["memory_bytes"] / 1e9)
    return {
        "processor": record["processor"],
        "cpus": record["cpus"],
        "threads": _threads(options),
        "memory_gb": gigabytes,
        "versions": record["versions"],
    }
