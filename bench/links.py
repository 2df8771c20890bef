"""Recovery under nonlinear links: proved for gamma below 1/2, tried above."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from matfree_hier.bench import recovery
from matfree_hier.bench.grid import Entry, Grid, Summary, run_grid

if TYPE_CHECKING:
    from matfree_hier.bench.experiment import Options
    from matfree_hier.bench.grid import Case

PROVED_BELOW = 0.5  # gamma, for a link other than the identity (arXiv 2605.14567)


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return what `recovery.summarise` does, with a line that says whether the paper proves it."""
    summary = recovery.summarise(case, entries)
    proved = case["gamma"] < PROVED_BELOW
    verdict = "proved" if proved else "NOT proved"
    note = f"a nonlinear link at gamma = {case['gamma']:g}: {verdict} in the paper"
    for figure in summary.figures.values():
        figure.suptitle(f"{recovery.title(case)} ({verdict} at this gamma)", fontsize=10)
    return replace(summary, lines=[*summary.lines, note])


GRID = Grid("links", recovery.points, recovery.compute, summarise, recovery.cost)


def run(options: Options) -> list[str]:
    """Run the scenarios; see `grid.run_grid`."""
    return run_grid(GRID, options)
