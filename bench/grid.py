"""Experiments over a grid of points and seeds: a run file keeps what is done, so that a killed run goes on.

An experiment is a `Grid` of three functions: which points a scenario has, what is computed at one of them
with one seed, and what all of it shows. `run_grid` does the rest: progress, run file, tables, checks, figures
and the page.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numba
import numpy as np

from matfree_hier.bench.experiment import GridInterrupted, count_of_seconds
from matfree_hier.bench.measure import ChildError, to_json, versions
from matfree_hier.bench.record import (
    Made,
    Stopwatch,
    case_record,
    read_about,
    sentence,
    this_machine,
    write_about,
)
from matfree_hier.bench.revision import code_digest, package_digest
from matfree_hier.page import Section, Table, how_made, page, rows_of
from matfree_hier.progress import GridProgress
from matfree_hier.status import NotConverged, Status
from matfree_hier.store import RunFile
from matfree_hier.wording import check_sentence, counted

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

ENTRY = "entry-"  # of a run file's groups; the rest of the name is the hash of what decides them
COMMIT_EVERY = 20  # times what the last commit took
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

    @property
    def side(self) -> str:
        """Of the bound that the value has to be on, in words."""
        return "at least" if self.at_least else "at most"

    def __str__(self) -> str:
        return check_sentence(self.what, self.value, self.side, self.bound, self.met)


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
        entries are taken for what it would return, until its code changes or that of the bench it uses
        (`revision.definitions_used`). Solves go through `solved`.
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


def columns_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return a table by columns, as run files and `matfree_hier.report` have it."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


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
    ``SCENARIO.txt`` (what is printed), ``SCENARIO-FIGURE.png`` and ``about.json`` (how each scenario was
    made). Scenarios that an earlier run left there stay, on the page as they were stored, whichever code made
    them.

    A scenario that runs out of memory or misses an accuracy on its way has no result: it is missed, its
    entries so far are kept, and the others go on.

    Raises
    ------
    RunFileError
        If the run file is damaged or another process uses it.
    GridInterrupted
        On Ctrl-C.
    """
    try:
        return _run_all(grid, options)
    except GridInterrupted:
        raise
    except KeyboardInterrupt:  # of what comes after the entries
        msg = f"{grid.name}: all entries computed are kept"
        raise GridInterrupted(msg) from None


def _run_all(grid: Grid, options: Options) -> list[str]:
    kept = options.out / grid.name
    kept.mkdir(exist_ok=True)
    records = read_about(kept / "about.json")
    missed: list[str] = []
    sections: list[Section] = []
    totals: dict[str, dict[str, Any]] = {}
    for name, case in options.cases.items():
        try:
            with kernel_threads(_threads(options)):
                entries, record = _computed(grid, name, case, options)
            summary = grid.summarise(case, entries)
        except (_NoResultError, MemoryError) as error:
            missed.append(f"{name}: no result, {_words(error)}")
            options.emit({"record": "check", "case": name, "what": "it has a result", "met": False})
            options.say(f"\n{missed[-1]}")
            sections.append(Section(name, case, checks=[(missed[-1], False)]))
            continue
        presets = [preset for preset, cases in options.presets.items() if name in cases]
        checks = [_check_record(check) for check in summary.checks]
        record = {"presets": presets, **record, "checks": checks}
        _emit(options, name, summary, record)
        _write(kept, name, summary, record)
        sections.append(_section(name, case, summary, record))
        missed += [f"{name}: {check}." for check in summary.checks if not check.met]
        with RunFile(_run_file(grid, options), name) as run:
            for group in run.groups():
                if group.startswith(f"{TABLE}-"):
                    run.delete(group)  # one that this time may not have
            run.save(TABLE, columns_of(summary.rows))
            for table_name, rows in summary.tables.items():
                run.save(f"{TABLE}-{table_name}", columns_of(rows))
            about = {"experiment": grid.name, "scenario": to_json(case), "versions": record["versions"]}
            run.save(ABOUT, about | {"record": to_json(record), "lines": json.dumps(list(summary.lines))})
        records[name] = record
        totals = write_about(kept / "about.json", grid.name, records, options.presets)
    sections += _sections_of_others(grid, options)
    for preset, spent in totals.items():
        options.say(f"\npreset {preset}: {counted(spent['cases'], 'case')} in {count_of_seconds(spent)}")
    about = this_machine() | {"threads": _threads(options)}
    text = page(f"{grid.name}: an experiment of matfree_hier", sections, about)
    (options.out / f"{grid.name}.html").write_text(text, encoding="utf-8")
    return missed


def _run_file(grid: Grid, options: Options) -> Path:
    return options.out / f"{grid.name}.h5"


class _NoResultError(RuntimeError):
    """A scenario cannot be completed; entries so far are kept."""


def _words(error: Exception) -> str:
    """Return an error in words; that of memory comes with or without any."""
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory."
    return str(error)


def _computed(grid: Grid, name: str, case: Case, options: Options) -> tuple[list[Entry], dict[str, Any]]:
    """Return all entries of a scenario, those of the run file and others computed, and how they were made."""
    first = grid.first_seed if options.seed is None else options.seed
    keys = _keys(grid, case, first)
    entries: list[Entry] = []
    made: list[Made] = []
    where = None
    with (
        RunFile(_run_file(grid, options), name) as run,
        GridProgress(f"{grid.name} {name}", [grid.cost(point) for point, _ in keys.values()]) as bar,
    ):
        if run.has(ABOUT):
            where = _where(json.loads(run.load(ABOUT).get("record", "{}")))
        commits = _Commits(run)
        try:
            for key, (point, seed) in keys.items():
                if fresh := not run.has(key):
                    watch = Stopwatch(_threads(options))
                    values = grid.compute(point, seed)
                    run.save(key, {"seed": seed, "values": values, "made": watch.read().to_text()})
                    commits.commit_if_due()
                    where = this_machine()
                entry, how = _loaded(run, key, point, seed)
                entries.append(entry)
                made.append(how)
                bar.update(computed=fresh)
        except KeyboardInterrupt:
            msg = f"{grid.name} {name}: {_count_kept(run, keys)}"
            raise GridInterrupted(msg) from None
        except (MemoryError, NotConverged, ChildError) as error:
            msg = f"{_count_kept(run, keys)}: {_words(error)}"
            raise _NoResultError(msg) from error
        finally:
            run.commit()
    _warn_of_other_code(grid, name, made, options)
    return entries, case_record(case, first, made, where or this_machine())


def _count_kept(run: RunFile, keys: Collection[str]) -> str:
    return f"{sum(map(run.has, keys))} of {len(keys)} entries are kept"


class _Commits:
    """Commits of a run file as often as takes a small share of the time: each writes the whole file."""

    def __init__(self, run: RunFile) -> None:
        self.run, self.took, self.last = run, 0.0, time.monotonic()

    def commit_if_due(self) -> None:
        start = time.monotonic()
        if start - self.last >= COMMIT_EVERY * self.took:
            self.run.commit()
            self.last = time.monotonic()
            self.took = self.last - start


def _keys(grid: Grid, case: Case, first: int) -> dict[str, tuple[Point, int]]:
    """Return point and seed of each entry of a scenario by its name in the run file."""
    code = code_digest(grid.compute)
    seeds = range(first, first + int(case["seeds"]))
    return {
        ENTRY + _digest(grid.name, point, seed, code): (point, seed)
        for point in grid.points(case)
        for seed in seeds
    }


def _loaded(run: RunFile, key: str, point: Point, seed: int) -> tuple[Entry, Made]:
    stored = run.load(key)
    return Entry(point, seed, stored["values"]), Made.from_text(stored["made"])


def _where(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the machine of a record, or None if it has none."""
    names = this_machine().keys()
    return {name: record[name] for name in names} if names <= record.keys() else None


def _warn_of_other_code(grid: Grid, name: str, made: Sequence[Made], options: Options) -> None:
    others = sum(entry.source != package_digest() for entry in made)
    if others:
        msg = (
            f"{grid.name} {name}: {others} of {len(made)} entries were made before the package "
            f"was changed; to compute all anew, remove {_run_file(grid, options)} or choose another --out."
        )
        with suppress(BrokenPipeError):  # of `2>&1 | head`
            print(msg, file=sys.stderr)


def _sections_of_others(grid: Grid, options: Options) -> list[Section]:
    """Return the sections of scenarios that earlier runs completed, from what these stored."""
    with suppress(FileNotFoundError), RunFile(_run_file(grid, options), mode="r") as file:
        names = [name for name in file.names() if name not in options.cases]
        return [section for name in names if (section := _stored_section(grid, name, options)) is not None]
    return []


def _stored_section(grid: Grid, name: str, options: Options) -> Section | None:
    """Return the section of a scenario as it was stored; None if it was not completed.

    Nothing is asked of the experiment: its code may know the scenario no more.
    """
    # Not for the processes of measurements, which import this module: they would load the estimator.
    from matfree_hier.report.pages import table_figures
    from matfree_hier.report.runs import further_tables, record_of

    with RunFile(_run_file(grid, options), name, mode="r") as run:
        groups = {group: run.load(group) for group in run.groups() if not group.startswith(ENTRY)}
    record = record_of(groups)
    if TABLE not in groups or "parameters" not in record:
        return None
    figures, notes = table_figures(groups)
    lines = json.loads(groups[ABOUT].get("lines", "[]"))
    tables = {name: rows_of(columns) for name, columns in further_tables(groups).items()}
    summary = Summary(rows_of(groups[TABLE]), [*lines, *notes], figures=figures, tables=tables)
    return _section(name, record["parameters"], summary, record)


def _digest(experiment: str, point: Point, seed: int, code: str) -> str:
    """Return a name for what decides an entry: a changed scenario or code asks for other entries.

    `code` is that of the experiment. A change elsewhere in the package keeps entries, and is said.
    """
    decides = {"experiment": experiment, "point": dict(point), "seed": seed, "code": code}
    decides["version"] = versions()["matfree-hier"]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]


def _threads(options: Options) -> int:
    return min(options.threads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined,no-any-return]


@contextmanager
def kernel_threads(threads: int) -> Iterator[None]:
    """Run the kernels on so many threads."""
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        yield
    finally:
        numba.set_num_threads(before)


# ---- what is shown and written


def _emit(options: Options, name: str, summary: Summary, record: Mapping[str, Any]) -> None:
    for row in summary.rows:
        options.emit({"record": "row", "case": name, **row})
    for check in summary.checks:
        options.emit({"record": "check", "case": name, **_check_record(check)})
    options.emit({"record": "made", "case": name, **record})
    options.say(f"\n{name}\n")
    for line in _printed(summary, record):
        options.say(line)


def _check_record(check: Check) -> dict[str, Any]:
    record = {name: getattr(check, name) for name in ("what", "value", "side", "bound", "met")}
    plain: dict[str, Any] = json.loads(to_json(record))
    return plain


def _printed(summary: Summary, record: Mapping[str, Any]) -> list[str]:
    """Return what is printed of a scenario, and kept."""
    return [*summary.lines, *(f"check: {check}" for check in summary.checks), sentence(record)]


def _write(kept: Path, name: str, summary: Summary, record: Mapping[str, Any]) -> None:
    _write_table(kept / f"{name}.csv", summary.rows)
    for table_name, rows in summary.tables.items():
        _write_table(kept / f"{name}-{table_name}.csv", rows)
    for figure_name, figure in summary.figures.items():
        figure.savefig(kept / f"{name}-{figure_name}.png", dpi=130)
    text = "".join(f"{line}\n" for line in _printed(summary, record))
    (kept / f"{name}.txt").write_text(text, encoding="utf-8")


def _write_table(path: Path, rows: Sequence[Row]) -> None:
    columns = list(rows[0])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row[column]) for column in columns] for row in rows)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _section(name: str, case: Case, summary: Summary, record: Mapping[str, Any]) -> Section:
    return Section(
        title=name,
        parameters={**case, **how_made(record)},
        lines=summary.lines,
        checks=[(check_sentence(**check), check["met"]) for check in record.get("checks", ())],
        figures=summary.figures,
        tables={"results": Table.of(summary.rows)}
        | {name: Table.of(rows) for name, rows in summary.tables.items()},
    )
