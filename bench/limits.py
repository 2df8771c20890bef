"""How far one machine goes: time against n, D and the number of vectors, and features of 10^6 coordinates."""

from __future__ import annotations

import time
from functools import partial
from math import comb
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from matfree_hier import report
from matfree_hier.bench.experiment import format_table, size_text
from matfree_hier.bench.grid import (
    Case,
    Check,
    Entry,
    Grid,
    Point,
    Summary,
    columns_of,
    kernel_threads,
    run_grid,
    solved,
)
from matfree_hier.bench.laws import PowerLaw, fit_power_law
from matfree_hier.bench.main import alternating_weights
from matfree_hier.bench.measure import run_isolated
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.recovery import overlaps
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from matfree_hier.bench.experiment import Options

NAMES = {"n": "samples n", "D": "coordinates D", "k": "vectors k"}
ROUNDS = 3  # products of which the fastest counts: what disturbs one only makes it slower


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment; a solve that is cut short goes on from its own run file."""
    return run_grid(Grid("limits", points, partial(compute, out=options.out), summarise, cost), options)


def points(case: Case) -> list[Point]:
    """Return a point for each size of a product, or the one of a whole recovery."""
    if "n_samples" in case:
        keys = ("degree", "n_inputs", "n_samples", "n_features", "gamma", "tol", "block_size")
        return [{key: case[key] for key in keys} | {"threads": numba.get_num_threads()}]
    base = {key: case[key] for key in ("degree", "n_inputs", "n", "k")}
    sizes = {"n": ("n", case["ns"]), "D": ("n_inputs", case["n_inputs_s"]), "k": ("k", case["ks"])}
    return [
        base | {key: value, "varied": varied} for varied, (key, values) in sizes.items() for value in values
    ]


def n_packed(point: Point) -> int:
    """Return D."""
    return comb(point["n_inputs"] + point["degree"] - 1, point["degree"])


def cost(point: Point) -> float:
    """Return the operations of one product."""
    return float(point.get("n", 1)) * n_packed(point) * float(point.get("k", 1))


def compute(point: Point, seed: int, out: Path) -> dict[str, Any]:
    """Time a product, or recover features in a process of its own."""
    if "varied" in point:
        return {"seconds": time_product(point, seed)}
    arguments = {"point": dict(point), "seed": seed, "run_file": str(out / f"limits-solve-{seed}.h5")}
    return run_isolated("matfree_hier.bench.limits:recover", arguments, threads=point["threads"])


def time_product(point: Point, seed: int) -> float:
    """Return the processor seconds of one product with the moment operator on one thread, the least of a few.

    Of this thread: those of BLAS wait for their next call on a processor of their own.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((point["n"], point["n_inputs"]), np.float32)
    y = rng.standard_normal(point["n"])
    C = MomentOperator(X, y, degree=point["degree"], dtype="float32", center_trace=False)
    V = rng.standard_normal((C.shape[0], point["k"]), np.float32)
    C.restricted(0, 64) @ V  # compiled
    seconds = []
    with kernel_threads(1):
        for _ in range(ROUNDS):
            start = time.thread_time()
            C @ V
            seconds.append(time.thread_time() - start)
    return min(seconds)


def recover(point: dict[str, Any], seed: int, run_file: str) -> dict[str, Any]:
    """Find the features of one teacher; called through `run_isolated`."""
    from matfree_hier.bench.measure import PeakMemory
    from matfree_hier.bench.recover import rate

    memory = PeakMemory()
    weights = alternating_weights(point["n_features"], point["gamma"])
    teacher = HierarchicalModel(point["n_inputs"], point["degree"], weights=weights, seed=seed)
    X, y = teacher.sample(point["n_samples"], seed + 1, np.float32)
    C = MomentOperator(X, y, degree=point["degree"], dtype="float32", label_transform="normalised")
    started = time.process_time()
    found = solved(
        top_eigenpairs(
            C,
            point["n_features"],
            tol=point["tol"],
            stop="outliers",
            block_size=point["block_size"],
            seed=seed + 2,
            run_file=run_file,
        )
    )
    processor_seconds = time.process_time() - started  # of this process: of the passes since it was resumed
    passes, peak = C.n_applied, memory.read()
    speed = rate(C, point["block_size"])
    recovered = overlaps(found.eigenvectors.T, teacher.features_)
    operations = 4.0 * C.n_samples * C.shape[0] * point["block_size"]
    return {
        "overlap": float(np.mean(recovered)),
        "weakest": float(np.min(recovered)),
        "n_passes": float(found.n_passes),
        "seconds": float(found.history.seconds[-1]),
        "processor_seconds_a_pass": processor_seconds / max(passes, 1.0),
        "solve_gflops": passes * operations / processor_seconds / 1e9,
        "blas_gflops": speed["blas_gflops"].median,
        "peak_bytes": float(peak),
        "data_bytes": float(X.nbytes),
        "gflops": speed["gflops"].median,
        "share": speed["share"].median,
    }


# ---- what the entries show


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return fitted exponents with a figure, or the account of a recovery."""
    return _recovered(case, entries) if "n_samples" in case else _exponents(case, entries)


def _recovered(case: Case, entries: list[Entry]) -> Summary:
    rows = [{"seed": entry.seed, **entry.values} for entry in entries]
    size, dense = n_packed(case), 8 * case["n_inputs"] ** (2 * case["degree"])
    table = [
        [
            str(row["seed"]),
            f"{row['overlap']:.3f}",
            f"{row['weakest']:.3f}",
            f"{row['n_passes']:.3g}",
            f"{row['seconds']:,.0f}",
            f"{row['processor_seconds_a_pass']:.0f}",
            size_text(row["peak_bytes"]),
            size_text(row["data_bytes"]),
            f"{row['gflops']:.1f}",
            f"{row['share']:.2f}",
            f"{row['solve_gflops'] / row['blas_gflops']:.2f}",
        ]
        for row in rows
    ]
    headers = ["seed", "overlap^2", "weakest", "passes", "seconds", "s a pass", "memory", "data"]
    headers += ["GFlop/s", "of BLAS", "whole solve"]
    lines = [
        f"q = {case['degree']}, d = {case['n_inputs']}, D = {size:,}, n = {case['n_samples']:,}",
        f"the dense d^q x d^q matrix would take {size_text(dense)}",
        format_table(headers, table),
        "",
        "seconds: of the clock; s a pass: of the processor, the solver's own work included;",
        "GFlop/s, of BLAS: of one product, beside a square one by BLAS; whole solve: its share likewise.",
    ]
    worst = min(row["weakest"] for row in rows)
    return Summary(rows, lines, [Check("weakest overlap", worst, case["min_overlap"], at_least=True)])


def _exponents(case: Case, entries: list[Entry]) -> Summary:
    laws: dict[str, PowerLaw] = {}
    rows: list[dict[str, Any]] = []
    for varied in NAMES:
        mine = [entry for entry in entries if entry.point["varied"] == varied]
        sizes = sorted({_size(entry.point) for entry in mine})
        seconds = np.array(
            [[e.values["seconds"] for e in mine if _size(e.point) == size] for size in sizes]
        ).T
        laws[varied] = fit_power_law(sizes, seconds)
        rows += [
            {
                "varied": varied,
                "size": size,
                "seconds": float(np.median(values)),
                "low": float(values.min()),
                "high": float(values.max()),
            }
            for size, values in zip(sizes, seconds.T, strict=True)
        ]
    table = [
        [NAMES[varied], f"{min(sizes):,}..{max(sizes):,}", str(law)]
        for varied, law in laws.items()
        for sizes in [[row["size"] for row in rows if row["varied"] == varied]]
    ]
    lines = [format_table(["processor time of one product against", "from..to", "exponent [95 %]"], table)]
    checks = [
        Check(f"exponent of time in {varied}", law.exponent, case["max_exponent"])
        for varied, law in laws.items()
    ]
    return Summary(rows, lines, checks, {"time": draw(case, rows, laws)})


def _size(point: Point) -> int:
    return n_packed(point) if point["varied"] == "D" else int(point[point["varied"]])


def draw(case: Case, rows: list[dict[str, Any]], laws: dict[str, PowerLaw]) -> Figure:
    """Draw seconds against each size over the smallest of it, with the fitted laws."""
    fitted = {varied: (law.constant, law.exponent) for varied, law in laws.items()}
    figure = report.plot_times({"table": columns_of(rows)}, laws=fitted)
    (axes,) = figure.axes
    axes.set_ylabel("processor seconds of one product")
    axes.set_title(
        f"q = {case['degree']}; unless varied d = {case['n_inputs']}, n = {case['n']:,},"
        f" {counted(case['k'], 'vector')}",
        fontsize=10,
    )
    return figure
