"""Kernel ridge regression and the hierarchical estimators on the same samples.

The target has parts of degree 2, 4, .. 2 q in the inputs. A rotation-invariant kernel learns the low ones and
then stays where it is until n reaches some d^(2q)/(2q)!; the hierarchical estimators need n of order d^q.

All weights have the same sign: the part of degree 2 is then large at any d, most of it along |x|^2, and what
is left when it is learnt stands clear of the error of the mean.
"""

from __future__ import annotations

from math import comb, factorial
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier import report
from matfree_hier.baselines import KERNELS, kernel_ridge, memory_of
from matfree_hier.bench.experiment import format_table, size_text
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Row, Summary, columns_of, run_grid
from matfree_hier.bench.measure import total_memory
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.figures.style import GREY
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import adjoint
from matfree_hier.recovery import overlaps
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from matfree_hier.bench.experiment import Options

DRAWN = {
    "rbf": "kernel ridge, RBF",
    "polynomial": "kernel ridge, polynomial of degree 2q",
    "paper": "paper",
    "spectral": "spectral",
    "refined": "refined",
}
OURS: dict[str, dict[str, Any]] = {
    "paper": {"estimator": "paper"},
    "paper-h2": {"estimator": "paper", "link": "identity"},
    "paper-less-low": {"estimator": "paper", "residualize": True},
    "spectral": {"estimator": "spectral", "link": "identity"},
    "refined": {"estimator": "refined", "link": "identity"},
}
MODELS = (*KERNELS, *OURS)
HIGHEST_DRAWN = 1.3
LOW_ROWS = 400_000  # samples that measure how much of the target has a low degree
ABOUT = (
    "not run: left out of this preset, since a kernel's time grows as n^3",
    "paper fits a link to its h2 = <A2, h h^T - I>, equation (2.14). paper-h2 takes h2 for the prediction:",
    "  it has the scale of the target only where latents are jointly normal, as d grows. paper-less-low is",
    "  paper with the low degrees taken off the labels of its operator, as spectral and refined do: these",
    "  make directions of their own, which take the place of features of small weight. spectral and refined",
    "  also normalise the labels of the operator, centre its trace and keep fewer samples for the readout.",
)


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment."""
    return run_grid(GRID, options)


def points(case: Case) -> list[Point]:
    """Return a point for each model and number of samples, without kernels that memory has no room for."""
    shared = {key: case[key] for key in ("degree", "n_inputs", "n_features", "gamma", "n_test")}
    kernels = [n for n in case["n_kernels"] if memory_of(n) <= _room()]
    return [
        shared | {"model": name, "n": n}
        for name in MODELS
        for n in (kernels if name in KERNELS else case["n"])
    ]


def cost(point: Point) -> float:
    """Return what a fit takes, up to a factor: n^3 for a kernel, n D for ours."""
    n = float(point["n"])
    return 1e9 + (10.0 * n**3 if point["model"] in KERNELS else 1e7 * n)


def teacher(point: Point, seed: int) -> HierarchicalModel:
    """Draw the teacher of a point or scenario."""
    size = (point["n_inputs"], point["degree"], point["n_features"])
    return HierarchicalModel(*size, point["gamma"], signs="positive", seed=seed)


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Fit one model to one number of samples; return its error on new ones and the overlap of features."""
    truth = teacher(point, seed)
    name = str(point["model"])
    X, y = truth.sample(point["n"], seed + 1)
    X_test, y_test = truth.sample(point["n_test"], seed + 2)
    overlap = np.nan
    if name in KERNELS:
        try:
            model: Any = kernel_ridge(X, y, name, degree=truth.degree, seed=seed)
        except MemoryError:  # other processes or a limit take some of what the machine has
            return {"mse": np.nan, "overlap": np.nan}
    else:
        options = OURS[name] | {"random_state": seed}
        model = HierarchicalSpectralRegressor(truth.degree, truth.n_features, **options).fit(X, y)
        overlap = float(np.mean(overlaps(model.features_, truth.features_)))
    errors = y_test - model.predict(X_test)
    return {"mse": float(np.mean(errors**2) / np.var(y_test)), "overlap": overlap}


def share_of_degree(truth: HierarchicalModel, degree: int, seed: int) -> float:
    """Return the share of the target's variance that is of one degree r in the inputs.

    <b, b'> over the variance, b = (1/N) sum y F_r and b' the same of other samples: the norm of one of them
    would have the noise of its entries in it, which is large where y^2 and |F_r|^2 are large together.
    """
    X, y = truth.sample(LOW_ROWS, seed)
    y = y - y.mean()
    half = LOW_ROWS // 2
    parts = [slice(None, half), slice(half, None)]
    b, other = (adjoint(X[part], y[part, None], degree, np.float64)[:, 0] / half for part in parts)
    return max(0.0, float(b @ other)) / float(np.var(y))


def floors(case: Case, seeds: list[int]) -> dict[int, float]:
    """Return the error of the best prediction of degree r = 2, 4, .. 2 q - 2, mean over teachers."""
    degrees = range(2, 2 * case["degree"], 2)
    shares = [[share_of_degree(teacher(case, seed), r, seed + 3) for r in degrees] for seed in seeds]
    left = 1.0 - np.cumsum(np.mean(shares, axis=0))
    return dict(zip(degrees, left.tolist(), strict=True))


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return errors, the levels where kernels have to stop, and a figure."""
    floor = floors(case, sorted({entry.seed for entry in entries}))
    sizes = sorted({*case["n_kernels"], *case["n"]})
    rows = [_row(name, n, entries) for name in MODELS for n in sizes]
    rows = [row for row in rows if row["note"] or np.isfinite(row["relative_mse"])]
    cells = {(row["model"], row["n"]): _cell(row) for row in rows}
    table = [[f"{n:,}", *(cells.get((name, n), "") for name in MODELS)] for n in sizes]
    d, q = case["n_inputs"], case["degree"]
    lines = [
        format_table(["n", *MODELS], table),
        "",
        f"error, mean and s.d. over {counted(case['seeds'], 'seed')}, or why a kernel was not fitted",
        f"room in memory for kernels of {_most_samples():,} samples",
        f"D = {comb(d + q - 1, q):,}; d^{2 * q}/{2 * q}! = {_step(case):,.0f}",
        f"polynomials of degree up to {2 * q}: {comb(d + 2 * q, d):,}; as many samples determine the target",
        *(f"error of the best prediction of degree {r}: {left:.3f}" for r, left in floor.items()),
        _recovered(case, entries),
        *ABOUT,
    ]
    return Summary(rows, lines, _checks(case, rows, floor), {"errors": draw(case, rows, floor)})


def _step(case: Case) -> float:
    """Return d^(2q)/(2q)!, the samples from which a kernel learns the last part of the target."""
    return float(case["n_inputs"] ** (2 * case["degree"]) / factorial(2 * case["degree"]))


def _room() -> int:
    """Return the bytes that the machine has, the same at every run; more than any where it does not say."""
    return total_memory() or 2**60


def _most_samples() -> int:
    """Return how many samples a kernel matrix may have that memory has room for, in thousands."""
    return int((_room() / memory_of(1000)) ** 0.5) * 1000


def _row(name: str, n: int, entries: list[Entry]) -> dict[str, Any]:
    """Return a line of the table: of a kernel that was not fitted, why."""
    values = [e.values for e in entries if (e.point["model"], e.point["n"]) == (name, n)]
    errors = [v["mse"] for v in values]
    note = ""
    if name in KERNELS and not np.isfinite(errors).any():
        left_out = not errors and memory_of(n) <= _room()
        note = "not run" if left_out else f"does not fit: {size_text(memory_of(n))}"
    return {
        "model": name,
        "n": n,
        "relative_mse": float(np.mean(errors)) if errors else np.nan,
        "relative_mse_sd": float(np.std(errors, ddof=1)) if len(errors) > 1 else np.nan,
        "overlap": float(np.mean([v["overlap"] for v in values])) if errors else np.nan,
        "note": note,
    }


def _cell(row: Row) -> str:
    return row["note"] or f"{row['relative_mse']:.3f} ({row['relative_mse_sd']:.3f})"


def _recovered(case: Case, entries: list[Entry]) -> str:
    """Return the line of how far each estimator has found the features at the largest n."""
    n = max(case["n"])
    found = {name: _row(name, n, entries)["overlap"] for name in OURS}
    texts = ", ".join(f"{name} {overlap:.2f}" for name, overlap in found.items())
    return f"mean squared overlap with the true features at n = {n:,}: {texts}"


def _checks(case: Case, rows: list[dict[str, Any]], floor: dict[int, float]) -> list[Check]:
    """Ask that kernels stand at the floor where the estimators are past it, and fall where they have to."""
    error = {(r["model"], r["n"]): r["relative_mse"] for r in rows}
    n, level = case["plateau"], floor[2 * case["degree"] - 2]
    best = f"that of the best prediction of degree {2 * case['degree'] - 2}"
    checks = []
    for name in KERNELS:
        what = f"{name}: error at n = {n:,} less {best}"
        checks.append(Check(what, error[name, n] - level, case["above"]))
        checks.append(Check(what, error[name, n] - level, -case["below"], at_least=True))
    checks.append(Check(f"refined: error at n = {n:,}", error["refined", n], case["refined_error"]))
    last = max(case["n"])
    checks += [
        Check(f"{name}: error at n = {last:,} over {best}", error[name, last] / level, case[f"{name}_by"])
        for name in ("paper", "spectral")
    ]
    if "learnt" in case:
        fitted = [r["n"] for r in rows if r["model"] == "polynomial" and not r["note"]]
        n = max(fitted, default=min(case["n_kernels"]))
        checks.append(Check(f"polynomial: error at n = {n:,}", error["polynomial", n], case["learnt"]))
    return checks


def draw(case: Case, rows: list[dict[str, Any]], floor: dict[int, float]) -> Figure:
    """Draw error against n for every model."""
    shown = [
        row | {"model": DRAWN[row["model"]]} for row in rows if row["model"] in DRAWN and not row["note"]
    ]
    figure = report.plot_errors({"table": columns_of(shown)})
    (axes,) = figure.axes
    q = case["degree"]
    for r, left in floor.items():
        label = f"all of degree {r} learnt, no more"
        axes.axhline(left, color=GREY, linestyle=(0, (6, 2 * r)), linewidth=1, label=label)
    axes.axvline(_step(case), color=GREY, linestyle=":", linewidth=1.5, label=f"n = d^{2 * q}/{2 * q}!")
    axes.set_yscale("linear")  # a plateau is seen, not a law
    axes.set_ylim(-0.03, HIGHEST_DRAWN)
    axes.set_title(
        f"q = {q}, d = {case['n_inputs']}, {counted(case['n_features'], 'feature')},"
        f" gamma = {case['gamma']:g}; {counted(case['seeds'], 'seed')}",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=8)
    return figure


GRID = Grid("kernels-baseline", points, compute, summarise, cost)
