"""The whole task, from samples to features of a given overlap, by ours and by what else there is."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from matfree_hier import report
from matfree_hier.bench import rivals
from matfree_hier.bench.experiment import format_table, size_text
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Summary, columns_of, run_grid
from matfree_hier.bench.measure import ChildError, Spread, run_isolated
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from matfree_hier.bench.experiment import Options

WHAT = {
    "ours": "block Krylov on the compiled product",
    "torch": "the authors' algorithm in PyTorch, block power iteration",
    "arpack": "SciPy's eigsh (ARPACK) over a product by NumPy, features made in chunks",
    "lobpcg": "SciPy's LOBPCG, one run an end of the spectrum, over the same product",
    "sklearn": "scikit-learn's PolynomialFeatures into the dense matrix, and LAPACK",
}
STOPPED = "not reached"
SHORT = 0.98  # of the best mean overlap, which a route has to reach to be timed


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment."""
    ours: dict[str, float] = {}  # seconds, by task
    return run_grid(Grid("peers", points, partial(compute, ours=ours), summarise), options)


def points(case: Case) -> list[Point]:
    """Return a point for each route, PyTorch's where it is installed."""
    keys = ("degree", "n_inputs", "n_samples", "n_features", "gamma", "give_up_factor")
    shared = {key: case[key] for key in keys}
    shared["threads"] = numba.get_num_threads()
    routes = [route for route in case["routes"] if route != "torch" or find_spec("torch")]
    return [shared | {"route": route, "settings": rivals.SETTINGS[route]} for route in routes]


def compute(point: Point, seed: int, ours: dict[str, float]) -> dict[str, Any]:
    """Walk one route in a process of its own: other libraries' threads would slow ours, and ours theirs.

    A rival that takes more than `give_up_factor` times our own time is stopped there. Where ours was timed
    in an earlier run that this one goes on from, it is timed again. A route that fails has no result.
    """
    task = f"{ {key: value for key, value in point.items() if key not in ('route', 'settings')} } {seed}"
    if point["route"] == "ours":
        values = _walk(point, seed)
        ours[task] = _seconds(values, point["threads"])
        return values
    if task not in ours:
        ours[task] = _seconds(_walk({**point, "route": "ours"}, seed), point["threads"])
    give_up = float(point["give_up_factor"]) * ours[task]
    try:
        return _walk(point, seed, give_up)
    except ChildError as error:
        if error.out_of_time:
            return {"outcome": STOPPED, "seconds": give_up, "processor_seconds": give_up}
        if "MemoryError" in str(error):
            return {"outcome": "does not fit: out of memory"}
        raise


def _walk(point: Point, seed: int, give_up: float | None = None) -> dict[str, Any]:
    arguments = {"point": dict(point), "seed": seed, "give_up": give_up}
    return run_isolated("matfree_hier.bench.rivals:run_route", arguments, threads=point["threads"])


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return seconds, passes, memory, accuracy and how many times faster ours is, seed by seed."""
    walked = {
        (e.point["route"], e.seed): e.values for e in entries if e.values["outcome"] in ("done", STOPPED)
    }
    seeds = sorted({entry.seed for entry in entries})
    best = {
        s: max((v.get("overlap", 0.0) for (_, seed), v in walked.items() if seed == s), default=np.nan)
        for s in seeds
    }
    rows = [_row(route, walked, entries, best, case["give_up_factor"]) for route in case["routes"]]
    table = [
        [
            row["route"],
            _spread(row, "seconds", ".2f"),
            _number(row["n_passes"], ".3g"),
            _number(row["peak_bytes"], "size"),
            _number(row["overlap"], ".3f"),
            _spread(row, "times", ".1f"),
            row["outcome"],
        ]
        for row in rows
    ]
    headers = ["", "seconds", "passes", "memory", "overlap^2", "times ours", "outcome"]
    lines = [
        format_table(headers, table),
        "",
        *(f"{route}: {WHAT[route]}; {rivals.SETTINGS[route]}" for route in case["routes"]),
        "seconds: of the processor where one thread works, else of the clock; medians and ranges;",
        "memory: the highest of the whole process, samples and libraries included;",
        f"overlap^2: mean over features; a route that stays below {SHORT:g} of the best is not compared;",
        f"{STOPPED}: stopped at {case['give_up_factor']:g} times our own seconds; > is what was measured.",
    ]
    checks = [
        Check(f"times ours, {row['route']}", row["times"], case["times_faster"], at_least=True)
        for row in rows
        if row["route"] != "ours" and np.isfinite(row["times"])
    ]
    return Summary(rows, lines, checks, {"seconds": draw(case, rows)})


def _seconds(values: dict[str, Any], threads: int) -> float:
    """Return the time of the processor with one thread, as other work on the machine does not count there."""
    return float(values["processor_seconds" if threads == 1 else "seconds"])


def _row(
    route: str,
    walked: dict[tuple[str, int], dict[str, Any]],
    entries: list[Entry],
    best: dict[int, float],
    give_up_factor: float,
) -> dict[str, Any]:
    """Return the line of a route; where it was stopped, seconds and times are lower bounds."""
    mine = {seed: values for (name, seed), values in walked.items() if name == route}
    done = {seed: values for seed, values in mine.items() if values["outcome"] == "done"}
    outcomes = {str(e.values["outcome"]) for e in entries if e.point["route"] == route}
    threads = int(entries[0].point["threads"])
    row: dict[str, Any] = {"route": route, "outcome": "; ".join(sorted(outcomes)) or "not installed"}
    row["at_least"] = len(done) < len(mine)
    row |= dict.fromkeys(
        ("seconds", "seconds_low", "seconds_high", "n_passes", "peak_bytes", "overlap"), np.nan
    )
    row |= dict.fromkeys(("times", "times_low", "times_high"), np.nan)
    if not mine:
        return row
    _set_spread(row, "seconds", [_seconds(v, threads) for v in mine.values()])
    if done:
        row["overlap"] = float(np.mean([v["overlap"] for v in done.values()]))
        for key in ("n_passes", "peak_bytes"):
            row[key] = float(np.median([v[key] for v in done.values()]))
        if min(v["overlap"] / best[s] for s, v in done.items()) < SHORT:
            row["outcome"] = "inaccurate"
            return row
    ours = {s: _seconds(walked["ours", s], threads) for s in mine if ("ours", s) in walked}
    ratios = [_seconds(mine[s], threads) / own if s in done else give_up_factor for s, own in ours.items()]
    if ratios:
        _set_spread(row, "times", ratios)
    return row


def _set_spread(row: dict[str, Any], key: str, values: list[float]) -> None:
    spread = Spread.of(values)
    row |= {key: spread.median, f"{key}_low": spread.low, f"{key}_high": spread.high}


def _spread(row: dict[str, Any], key: str, spec: str) -> str:
    if not np.isfinite(row[key]):
        return "-"
    spread = Spread(row[key], row[f"{key}_low"], row[f"{key}_high"])
    return ("> " if row["at_least"] else "") + format(spread, spec)


def _number(value: float, spec: str) -> str:
    if not np.isfinite(value):
        return "-"
    return size_text(value) if spec == "size" else f"{value:{spec}}"


def draw(case: Case, rows: list[dict[str, Any]]) -> Figure:
    """Draw seconds as bars on a log axis, with how many times ours; or why there are none."""
    figure = report.plot_peers({"table": columns_of(rows)})
    (axes,) = figure.axes
    axes.set_xlabel("seconds from samples to features")
    axes.set_title(
        f"q = {case['degree']}, d = {case['n_inputs']}, n = {case['n_samples']:,},"
        f" {counted(case['n_features'], 'feature')} of the same overlap",
        fontsize=10,
    )
    return figure
