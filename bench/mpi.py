"""Samples on several MPI ranks: how much faster products are, what communication takes, that they agree."""

from __future__ import annotations

import time
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier import report
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Summary, columns_of, run_grid, solved
from matfree_hier.bench.measure import run_isolated
from matfree_hier.comm import team_of
from matfree_hier.divided import DividedOperator, cost_table, divided_eigenpairs
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.operator import MomentOperator
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from matfree_hier.bench.experiment import Options


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment."""
    return run_grid(GRID, options)


def points(case: Case) -> list[Point]:
    """Return a point for each way to divide samples and each number of ranks."""
    shared = {key: case[key] for key in ("degree", "n_inputs", "n", "k", "dtype", "rounds")}
    if "grids" in case:
        return [shared | {"mode": "grid", "grid": grid, "ranks": grid[0] * grid[1]} for grid in case["grids"]]
    return [shared | {"mode": mode, "ranks": ranks} for mode in case["modes"] for ranks in case["ranks"]]


def cost(point: Point) -> float:
    """Return the operations of a round, up to a factor."""
    return float(point["n"]) * (2.0 if point["mode"] == "weak" else 1.0 + 1.0 / point["ranks"])


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Time products on ranks and on rank 0 alone, in processes of their own of one thread each."""
    arguments = {"point": dict(point), "seed": seed}
    name = "divided" if point["mode"] == "grid" else "products"
    return run_isolated(f"matfree_hier.bench.mpi:{name}", arguments, threads=1, ranks=point["ranks"])


def products(point: dict[str, Any], seed: int) -> dict[str, Any]:
    """Time products, in turn on rank 0 alone and on all ranks; called through `run_isolated` on every rank.

    Rank 0 alone does its own share if every rank has `n` samples, and everything if all together have `n`.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    weak = point["mode"] == "weak"
    counts = [point["n"]] * size if weak else np.diff(point["n"] * np.arange(size + 1) // size).tolist()
    options = {"degree": point["degree"], "dtype": point["dtype"]}
    together = MomentOperator(*_share(point, counts, seed, rank), comm=comm, **options)
    if rank == 0:
        shares = [_share(point, counts, seed, r) for r in range(size)]
        X, y = (np.concatenate(arrays) for arrays in zip(*shares, strict=True))
        whole = MomentOperator(X, y, **options)
        alone = MomentOperator(*shares[0], **options) if weak else whole
    V = np.random.default_rng(seed).standard_normal((together.shape[0], point["k"])).astype(point["dtype"])

    def timed(_: object) -> dict[str, Any]:
        W, exact = together @ V, whole @ V
        error = float(np.abs(W - exact).max() / np.abs(exact).max())
        by_one, by_all, transfer, wait = [], [], [], []
        for _ in range(point["rounds"]):
            started = time.perf_counter()
            alone @ V
            by_one.append(time.perf_counter() - started)
            before = dict(team.seconds) if team else {}
            started = time.perf_counter()
            together @ V
            by_all.append(time.perf_counter() - started)
            spent = {name: team.seconds[name] - before[name] for name in before} if team else {}
            transfer.append(spent.get("transfer", 0.0) / by_all[-1])
            wait.append(spent.get("wait", 0.0) / by_all[-1])
        ratio = float(np.median(np.array(by_one) / np.array(by_all)))
        return {
            "efficiency": ratio if weak else ratio / size,
            "seconds": float(np.median(by_all)),
            "seconds_alone": float(np.median(by_one)),
            "transfer": float(np.median(transfer)),
            "wait": float(np.median(wait)),
            "error": error,
        }

    team = team_of(comm)
    if team is None:
        return timed(None)
    # Only rank 0 times; the others answer it, and sleep while it works alone.
    result: dict[str, Any] = team.collective("bench mpi", timed)
    return result


def divided(point: dict[str, Any], seed: int) -> dict[str, Any]:
    """Compare products and eigenpairs on vectors divided over a grid of ranks with those of rank 0 alone."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows, columns = point["grid"]
    counts = np.diff(point["n"] * np.arange(rows + 1) // rows).tolist()
    options = {"degree": point["degree"], "dtype": point["dtype"]}
    mine = _share(point, counts, seed, comm.Get_rank() // columns)
    C = DividedOperator(*mine, comm=comm, grid=(rows, columns), **options)
    V = np.random.default_rng(seed).standard_normal((C.shape[0], point["k"])).astype(point["dtype"])
    seconds, part = [], V[C.lo : C.hi]
    for _ in range(point["rounds"]):
        started = time.perf_counter()
        part = C.matmat(V[C.lo : C.hi])
        seconds.append(time.perf_counter() - started)
    pairs = divided_eigenpairs(C, 2, tol=1e-10, seed=seed, max_passes=400)
    parts, found = comm.gather(part) or [], pairs.gather()
    if found is None:
        return {}
    shares = [_share(point, counts, seed, row) for row in range(rows)]
    X, y = (np.concatenate(arrays) for arrays in zip(*shares, strict=True))
    whole = MomentOperator(X, y, **options)
    exact, together = whole @ V, np.empty_like(V)
    for (lo, hi), rows_of_rank in zip(C.parts, parts, strict=True):
        together[lo:hi] = rows_of_rank
    alone = solved(top_eigenpairs(whole, 2, tol=1e-10, method="dense"))
    apart = 1.0 - np.abs(np.sum(alone.eigenvectors * found.eigenvectors, axis=0))
    return {
        "seconds": float(np.median(seconds)),
        "error": float(np.abs(together - exact).max() / np.abs(exact).max()),
        "eigenvalues": float(np.abs(alone.eigenvalues - found.eigenvalues).max() / abs(alone.eigenvalues[0])),
        "vectors": float(apart.max()),
        "n_passes": float(found.n_passes),
    }


def _share(
    point: dict[str, Any], counts: list[int], seed: int, rank: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw the samples of a rank."""
    rng = np.random.default_rng([seed, rank])
    X = rng.standard_normal((counts[rank], point["n_inputs"])).astype(point["dtype"])
    return X, rng.standard_normal(counts[rank])


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return efficiencies and shares of communication, with checks where the case asks for them."""
    if "grids" in case:
        return _on_grids(case, entries)
    rows = []
    for mode in case["modes"]:
        for ranks in case["ranks"]:
            mine = [e.values for e in entries if (e.point["mode"], e.point["ranks"]) == (mode, ranks)]
            efficiencies = [values["efficiency"] for values in mine]
            rows.append(
                {"mode": mode, "ranks": ranks}
                | {key: float(np.median([values[key] for values in mine])) for key in mine[0]}
                | {"low": min(efficiencies), "high": max(efficiencies)}
                | {"error": max(values["error"] for values in mine)}
            )
    size = comb(case["n_inputs"] + case["degree"] - 1, case["degree"])
    table = [
        [
            f"{row['mode']}, {row['ranks']}",
            f"{row['seconds_alone']:.3f}",
            f"{row['seconds']:.3f}",
            f"{row['efficiency']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
            f"{100 * row['transfer']:.2f} %",
            f"{100 * row['wait']:.2f} %",
            f"{row['error']:.1e}",
        ]
        for row in rows
    ]
    headers = ["samples, ranks", "one: s", "all: s", "efficiency", "transfer", "waiting", "difference"]
    lines = [
        f"q = {case['degree']}, d = {case['n_inputs']}, D = {size:,}, k = {case['k']}, {case['dtype']}",
        f"{case['n']:,} samples a rank (weak) or in all (strong), one thread a rank",
        format_table(headers, table),
        "transfer: broadcast and sum; waiting: of rank 0 for others; difference: from all samples on one.",
    ]
    checks = [
        Check(f"{row['mode']}, {counted(row['ranks'], 'rank')}: difference", row["error"], case["max_error"])
        for row in rows
    ]
    for row in rows:
        if row["ranks"] == 1 or row["mode"] != "weak":
            continue
        name = f"weak scaling to {counted(row['ranks'], 'rank')}"
        if "min_efficiency" in case:
            checks.append(
                Check(f"{name}: efficiency", row["efficiency"], case["min_efficiency"], at_least=True)
            )
        if "max_transfer" in case:
            checks.append(Check(f"{name}: share of transfers", row["transfer"], case["max_transfer"]))
    return Summary(rows, lines, checks, {"efficiency": draw(case, rows)})


def _on_grids(case: Case, entries: list[Entry]) -> Summary:
    """Return how far grids of ranks are from one rank, and what they would take at larger sizes."""
    rows = [
        {"grid": f"{e.point['grid'][0]} x {e.point['grid'][1]}", "seed": e.seed, **e.values} for e in entries
    ]
    table = [
        [row["grid"], f"{row['seconds']:.3f}"]
        + [f"{row[key]:.1e}" for key in ("error", "eigenvalues", "vectors")]
        for row in rows
    ]
    headers = ["rows x columns", "product: s", "product", "eigenvalues", "1 - cosine"]
    lines = [
        "Vectors divided over a grid of ranks, beside rank 0 alone: relative differences",
        format_table(headers, table),
        "",
        costs_of(case["costs"]),
    ]
    checks = [
        Check(f"{row['grid']} ranks: {what}", row[name], case[bound])
        for row in rows
        for name, what, bound in (
            ("error", "difference of products", "max_error"),
            ("vectors", "1 - cosine of eigenvectors", "max_error"),
        )
    ]
    return Summary(rows, lines, checks)


def costs_of(case: Mapping[str, Any]) -> str:
    """Return what `divided_eigenpairs` takes of a rank on several grids, by the formulas of `divided`."""
    size = comb(case["n_inputs"] + case["degree"] - 1, case["degree"])
    n_samples, grids = case["ratio"] * size, [(rows, columns) for rows, columns in case["grids"]]
    sizes = {name: case[name] for name in ("k", "block_size", "max_basis")}
    title = (
        f"A rank at q = {case['degree']}, d = {case['n_inputs']}, D = {size:,}, n = {n_samples:,}:"
        " memory, bytes received in a pass, operations of a pass"
    )
    return f"{title}\n{cost_table(size, n_samples, case['n_inputs'], grids=grids, **sizes)}"


def draw(case: Case, rows: list[dict[str, Any]]) -> Figure:
    """Draw efficiency against the number of ranks."""
    figure = report.plot_efficiency({"table": columns_of(rows)})
    figure.axes[0].set_title(
        f"q = {case['degree']}, d = {case['n_inputs']}, k = {case['k']}, {case['dtype']}", fontsize=10
    )
    return figure


GRID = Grid("mpi", points, compute, summarise, cost)
