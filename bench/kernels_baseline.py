"""Kernel ridge regression and the hierarchical estimators on the same samples.

The target has parts of degree 2, 4, .. 2 q in the inputs. A rotation-invariant kernel learns the low ones and
then stays where it is until n reaches some d^(2q)/(2q)!; the hierarchical estimators need n of order d^q.
"""

from __future__ import annotations

from math import comb, factorial
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier import report
from matfree_hier.baselines import KERNELS, kernel_ridge
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Summary, run_grid
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.figures.style import GREY
from matfree_hier.figures.tables import columns_of
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import adjoint
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from matfree_hier.bench.experiment import Options

MODELS = {
    "rbf": "kernel ridge, RBF",
    "polynomial": "kernel ridge, polynomial of degree 2q",
    "paper": "paper",
    "spectral": "spectral",
    "refined": "refined",
}
LOW_ROWS = 100_000  # samples that measure how much of the target has degree 2


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment."""
    return run_grid(GRID, options)


def points(case: Case) -> list[Point]:
    """Return a point for each model and number of samples."""
    shared = {key: case[key] for key in ("degree", "n_inputs", "n_features", "gamma", "n_test")}
    grid: list[Point] = []
    for name in MODELS:
        grid += [shared | {"model": name, "n": n} for n in case[_sizes(name)]]
    return grid


def _sizes(model: str) -> str:
    """Return the name under which a scenario has a model's numbers of samples."""
    return "n_kernels" if model in KERNELS else "n"


def cost(point: Point) -> float:
    """Return what a fit takes, up to a factor: n^3 for a kernel, n D for ours."""
    n = float(point["n"])
    return 1e9 + (10.0 * n**3 if point["model"] in KERNELS else 1e7 * n)


def teacher(point: Point, seed: int) -> HierarchicalModel:
    """Draw the teacher of a point or scenario."""
    return HierarchicalModel(
        point["n_inputs"], point["degree"], point["n_features"], point["gamma"], seed=seed
    )


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Fit one model to one number of samples; return its error on new ones."""
    truth = teacher(point, seed)
    X, y = truth.sample(point["n"], seed + 1)
    X_test, y_test = truth.sample(point["n_test"], seed + 2)
    if point["model"] in KERNELS:
        model: Any = kernel_ridge(X, y, point["model"], degree=truth.degree, seed=seed)
    else:
        model = HierarchicalSpectralRegressor(
            truth.degree, truth.n_features, point["model"], link="identity", random_state=seed
        ).fit(X, y)
    errors = y_test - model.predict(X_test)
    return {"mse": float(np.mean(errors**2) / np.var(y_test))}


def share_of_degree_2(truth: HierarchicalModel, seed: int) -> float:
    """Return the share of the target's variance that is of degree 2 in the inputs.

    |b|^2 over the variance, b = (1/N) sum y F_2, less what noise adds to it on average.
    """
    X, y = truth.sample(LOW_ROWS, seed)
    y = y - y.mean()
    b = adjoint(X, y[:, None], 2, np.float64)[:, 0] / len(y)
    noise = len(b) * float(np.mean(y**2)) / len(y)
    return max(0.0, float(b @ b) - noise) / float(np.var(y))


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return errors, the level where kernels have to stop, and a figure."""
    seeds = sorted({entry.seed for entry in entries})
    floor = 1.0 - float(np.mean([share_of_degree_2(teacher(case, seed), seed + 3) for seed in seeds]))
    rows = []
    for name in MODELS:
        for n in case[_sizes(name)]:
            errors = [e.values["mse"] for e in entries if (e.point["model"], e.point["n"]) == (name, n)]
            spread = float(np.std(errors, ddof=1)) if len(errors) > 1 else np.nan
            rows.append({"model": name, "n": n, "relative_mse": float(np.mean(errors)), "sd": spread})
    table = [[r["model"], f"{r['n']:,}", f"{r['relative_mse']:.3f}", f"{r['sd']:.3f}"] for r in rows]
    d, q = case["n_inputs"], case["degree"]
    lines = [
        format_table(["", "n", "error", "s.d."], table),
        "",
        f"D = {comb(d + q - 1, q):,}; d^{2 * q}/{2 * q}! = {d ** (2 * q) / factorial(2 * q):,.0f}",
        f"error of the best prediction of degree 2: {floor:.3f}",
    ]
    return Summary(rows, lines, _checks(case, rows, floor), {"errors": draw(case, rows, floor)})


def _checks(case: Case, rows: list[dict[str, Any]], floor: float) -> list[Check]:
    last = {r["model"]: r["relative_mse"] for r in rows}
    checks = [
        Check(
            f"{name}: error less that without the part of degree 2", last[name] - floor, -0.1, at_least=True
        )
        for name in KERNELS
    ]
    return [*checks, Check("refined: error at the largest n", last["refined"], case["refined_error"])]


def draw(case: Case, rows: list[dict[str, Any]], floor: float) -> Figure:
    """Draw error against n for every model."""
    table = columns_of([row | {"model": MODELS[row["model"]]} for row in rows])
    figure = report.plot_errors({"table": table})
    (axes,) = figure.axes
    d, q = case["n_inputs"], case["degree"]
    axes.axhline(floor, color=GREY, linestyle="--", linewidth=1, label="all of degree 2 learnt, no more")
    last = d ** (2 * q) / factorial(2 * q)
    axes.axvline(last, color=GREY, linestyle=":", linewidth=1.5, label=f"n = d^{2 * q}/{2 * q}!")
    axes.set_title(
        f"q = {q}, d = {d}, {counted(case['n_features'], 'feature')}, gamma = {case['gamma']:g};"
        f" {counted(case['seeds'], 'seed')}",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=8)
    return figure


GRID = Grid("kernels-baseline", points, compute, summarise, cost)
