"""Samples in files: speed beside samples in memory, memory against their number, files larger than memory."""

from __future__ import annotations

import resource
import tempfile
import time
from functools import partial
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from matfree_hier.bench.experiment import format_table, size_text
from matfree_hier.bench.files import write_samples
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Summary, run_grid, solved
from matfree_hier.bench.measure import Spread, peak_bytes, run_isolated, time_interleaved

if TYPE_CHECKING:
    from matfree_hier.bench.experiment import Options
    from matfree_hier.sources import SampleSource

JOBS = ("estimator", "solver")
GROWTH = 16
ROUNDS = 5
_SAMPLES = ("degree", "n_inputs", "n_samples")


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment; files are written to the folder of the run and removed again."""
    return run_grid(Grid("outofcore", points, partial(compute, out=options.out), summarise, cost), options)


def points(case: Case) -> list[Point]:
    """Return the products, the fits of n and 16 n samples, or the fit within a limit, of a case."""
    threads = {"threads": numba.get_num_threads()}
    samples = {key: case[key] for key in _SAMPLES} | threads
    if "files" in case:
        kinds = [kind.split() for kind in case["files"]]
        return [samples | {"k": case["k"], "layout": layout, "dtype": dtype} for layout, dtype in kinds]
    if "limit_bytes" in case:
        return [samples | {"job": "estimator", "limit_bytes": case["limit_bytes"]}]
    sizes = [case["n_samples"], GROWTH * case["n_samples"]]
    return [samples | {"n_samples": n, "job": job, "limit_bytes": 0} for job in JOBS for n in sizes]


def cost(point: Point) -> float:
    """Return a number in proportion to time: products and passes of a fit."""
    size = comb(point["n_inputs"] + point["degree"] - 1, point["degree"])
    return float(point["n_samples"]) * size * float(point.get("k", 600))


def compute(point: Point, seed: int, out: Path) -> dict[str, Any]:
    """Write the files, measure, each in a process of its own, and remove the files."""
    samples: dict[str, Any] = {key: point[key] for key in _SAMPLES}
    module = "matfree_hier.bench.outofcore"
    with tempfile.TemporaryDirectory(dir=out, prefix="outofcore-") as folder:
        kind = {"layout": point.get("layout", "npy"), "dtype": point.get("dtype", "float32")}
        arguments = samples | kind | {"folder": folder, "seed": seed}
        paths = run_isolated(f"{module}:written", arguments, threads=1)["paths"]
        arguments = {"paths": paths, "degree": point["degree"], "seed": seed}
        if "k" in point:
            target, more = "time_products", {"k": point["k"]}
        else:
            target, more = "fit", {"job": point["job"], "limit_bytes": point["limit_bytes"]}
        values = run_isolated(f"{module}:{target}", arguments | more, threads=point["threads"])
        return values | {"file_bytes": sum(Path(path).stat().st_size for path in paths)}


# ---- in processes of their own


def written(**arguments: Any) -> dict[str, Any]:
    """Write samples; the record holds the paths."""
    return {"paths": write_samples(**arguments)}


def opened(paths: list[str]) -> SampleSource:
    """Open what `write_samples` has written; nothing is kept in memory."""
    from matfree_hier.sources import open_source

    if len(paths) == 1:
        return open_source(paths[0], cache_bytes=0)
    return open_source(paths[::2], paths[1::2])


def time_products(paths: list[str], degree: int, k: int, seed: int) -> dict[str, Any]:
    """Time the product with k vectors from the files, and from float32 arrays in memory, round by round."""
    from matfree_hier.operator import MomentOperator

    source = opened(paths)
    X, y = source.inputs().astype(np.float32), np.array(source.labels())
    from_file, from_memory = (
        MomentOperator(*data, degree=degree, dtype="float32") for data in ((source,), (X, y))
    )
    V = np.random.default_rng(seed).standard_normal((from_file.shape[0], k), np.float32)
    seconds = time_interleaved(
        {"memory": lambda: from_memory @ V, "file": lambda: from_file @ V}, repeats=ROUNDS
    )
    ratio = Spread.of(seconds["memory"] / seconds["file"])
    return {
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "memory_seconds": float(np.median(seconds["memory"])),
        "file_seconds": float(np.median(seconds["file"])),
        "same_bits": bool(np.array_equal(from_memory @ V, from_file @ V)),
    }


def fit(paths: list[str], degree: int, job: str, limit_bytes: int, seed: int) -> dict[str, Any]:
    """Fit the default estimator, or solve for the top eigenpairs, within a limit of address space if any."""
    from matfree_hier.eigen import top_eigenpairs
    from matfree_hier.estimator import HierarchicalSpectralRegressor
    from matfree_hier.operator import MomentOperator

    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    start = time.perf_counter()
    source = opened(paths)
    if job == "estimator":
        model = HierarchicalSpectralRegressor(degree=degree, random_state=seed).fit(source)
        passes, found = model.report_.n_passes, len(model.features_)
    else:
        operator = MomentOperator(source, degree=degree, dtype="float32", label_transform="normalised")
        result = solved(top_eigenpairs(operator, 4, tol=1e-3, seed=seed))
        passes, found = result.n_passes, len(result.eigenvalues)
    return {
        "seconds": time.perf_counter() - start,
        "passes": float(passes),
        "features": found,
        "peak_bytes": peak_bytes(),
    }


# ---- what the entries show


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return the table and checks of one kind of case."""
    if "files" in case:
        return _products(case, entries)
    rows = [
        {"job": e.point["job"], "n_samples": e.point["n_samples"], "seed": e.seed, **e.values}
        for e in entries
    ]
    return _limit(case, rows) if "limit_bytes" in case else _memory(case, rows)


def _products(case: Case, entries: list[Entry]) -> Summary:
    rows = [
        {"layout": e.point["layout"], "dtype": e.point["dtype"], "seed": e.seed, **e.values} for e in entries
    ]
    table = [
        [
            f"{row['layout']} {row['dtype']}",
            size_text(row["file_bytes"]),
            f"{row['memory_seconds']:.3f}",
            f"{row['file_seconds']:.3f}",
            f"{row['ratio']:.2f} ({row['low']:.2f}-{row['high']:.2f})",
            "yes" if row["same_bits"] else "NO",
        ]
        for row in rows
    ]
    headers = ["file", "size", "memory, s", "file, s", "speed over memory's", "same bits"]
    lines = [_title(case) + f", products with {case['k']} vectors", format_table(headers, table)]
    checks = [
        Check(f"speed from {row['layout']} {row['dtype']} over that from memory", row["ratio"],
              case["min_ratio"], at_least=True)
        for row in rows
    ]  # fmt: skip
    checks.append(Check("products of other bits", sum(not row["same_bits"] for row in rows), 0))
    return Summary(rows, lines, checks)


def _memory(case: Case, rows: list[dict[str, Any]]) -> Summary:
    checks = []
    for job in JOBS:
        few, many = (max(r["peak_bytes"] for r in rows if (r["job"], r["n_samples"]) == (job, n))
                     for n in (case["n_samples"], GROWTH * case["n_samples"]))  # fmt: skip
        what = f"peak memory of the {job} with {GROWTH} n samples over that with n"
        checks.append(Check(what, many / few, case["max_growth"]))
    return Summary(rows, [_title(case), _fits(rows)], checks)


def _limit(case: Case, rows: list[dict[str, Any]]) -> Summary:
    limit = case["limit_bytes"]
    lines = [_title(case) + f", address space limited to {size_text(limit)}", _fits(rows)]
    smallest = min(row["file_bytes"] for row in rows)
    checks = [
        Check("size of the file over the limit", smallest / limit, 1.0, at_least=True),
        Check("features found of the four", min(row["features"] for row in rows), 4, at_least=True),
    ]
    return Summary(rows, lines, checks)


def _fits(rows: list[dict[str, Any]]) -> str:
    table = [
        [
            row["job"],
            f"{row['n_samples']:,}",
            size_text(row["file_bytes"]),
            size_text(row["peak_bytes"]),
            f"{row['seconds']:.1f}",
            f"{row['passes']:.3g}",
            str(row["features"]),
        ]
        for row in rows
    ]
    return format_table(["job", "n", "file", "peak memory", "seconds", "passes", "features"], table)


def _title(case: Case) -> str:
    size = comb(case["n_inputs"] + case["degree"] - 1, case["degree"])
    return f"q = {case['degree']}, d = {case['n_inputs']}, D = {size:,}, n = {case['n_samples']:,}"
