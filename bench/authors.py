"""The runs that the authors recorded beside ours, and what else is found in the same samples.

Their task: q = 2, d = 120, 11 features of weights +-d_1^(2 gamma - 1) k^-gamma with random signs, gamma = .4,
a tanh link, standardised labels. Their figures are means over 10 seeds of the mean squared overlap.

What we take for their protocol, and what each part of it does:

* n samples find the features; others read them out.
* Features are the first 11 columns of a block after 15 rounds of product and QR, not eigenvectors: near the
  edge of the bulk 15 rounds do not separate them. At n = 157,744 the seed 2605147 has .34 after 15 rounds,
  .39 after 20, and theory has .51 for eigenvectors (`theory.predict_spectrum`). Over the first ten seeds
  theory has .06 .20 .41 .62 .72 .83 at the six n, where the record is .06 .17 .28 .48 .67 .80.
* The operator is not trace-centred, so that features of the rarer sign are lost where its identity shift is
  large: at n = 157,744 theory's ten seeds run from .32 to .51, and means over two of them say little. The
  first seed has signs in balance, and lies by theory .06 to .09 above the mean of the ten at n = 254,608 and
  above.
* The overlap is the squared projection of each feature on the span of the 11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier import report
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Summary, columns_of, run_grid
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.model import HierarchicalModel
from matfree_hier.recovery import overlaps
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from matfree_hier.bench.experiment import Options

ROUNDS = 15  # products of the authors' power iteration
N_RECORDED = 10  # seeds of the record
TOLERANCE = 0.05  # on a mean of overlaps, or
N_DEVIATIONS = 2.5  # standard errors of the difference of the means

# Each finds features from n samples. The paper's estimator reads them out on n others, refinement uses none.
VARIANTS: dict[str, str] = {
    "paper": 'estimator="paper" with method="power": 15 products, and one for eigenvalues and residuals',
    "krylov": "the same operator and as many passes of block Krylov: eigenvectors",
    "centred": "the same with center_trace=True",
    "clipped": 'the same with label_transform="clip" too',
    "refined": 'estimator="refined" from n samples in all, readout and refinement included',
}
PAPER = {"estimator": "paper", "max_passes": ROUNDS + 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": PAPER | {"method": "power"},
    "krylov": PAPER,
    "centred": PAPER | {"center_trace": True},
    "clipped": PAPER | {"center_trace": True, "label_transform": "clip"},
    "refined": {"estimator": "refined"},
}


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment."""
    return run_grid(GRID, options)


def points(case: Case) -> list[Point]:
    """Return a point for each number of samples and what is fitted to it."""
    shared = {key: case[key] for key in ("degree", "n_inputs", "n_features", "gamma", "n_test")}
    return [shared | {"n": n, "variant": name} for n in case["n"] for name in case["variants"]]


def cost(point: Point) -> float:
    """Return what a point takes, up to a factor."""
    return float(point["n"]) * {"refined": 3.0}.get(point["variant"], 1.0)


def teacher(point: Point, seed: int) -> HierarchicalModel:
    """Draw the authors' teacher: h2 = sum b_k (h_k^2 - 1), b_k = +-d_1^(2 gamma - 1) k^-gamma."""
    d_1, gamma = int(point["n_features"]), float(point["gamma"])
    signs = np.random.default_rng([seed, d_1]).choice([-1.0, 1.0], d_1)
    b = signs * d_1 ** (2.0 * gamma - 1.0) * np.arange(1.0, d_1 + 1.0) ** -gamma
    # Ours has a factor 1/sqrt 2 before the sum.
    return HierarchicalModel(
        point["n_inputs"], point["degree"], weights=np.sqrt(2.0) * b, link="tanh", seed=seed
    )


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Return the squared overlap of each feature and the error on new samples."""
    truth = teacher(point, seed)
    n, variant = int(point["n"]), str(point["variant"])
    X, y = truth.sample(n if variant == "refined" else 2 * n, seed + 1, np.float32)
    model = HierarchicalSpectralRegressor(
        truth.degree, truth.n_features, random_state=seed + 2, **OPTIONS[variant]
    ).fit(X, y)
    X_test, y_test = truth.sample(point["n_test"], seed + 3)
    return {
        "overlaps": overlaps(model.features_, truth.features_),
        "mse": float(1.0 - model.score(X_test, y_test)),
    }


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return overlaps beside the record, and check those of "paper"."""
    rows = []
    for name in case["variants"]:
        for n, recorded, deviation in zip(case["n"], case["recorded"], case["recorded_sd"], strict=True):
            chosen = [e.values for e in entries if (e.point["n"], e.point["variant"]) == (n, name)]
            means = np.array([np.mean(values["overlaps"]) for values in chosen])
            rows.append(
                {
                    "variant": name,
                    "n": n,
                    "overlap": float(means.mean()),
                    "overlap_sd": float(means.std(ddof=1)) if len(means) > 1 else np.nan,
                    "gain": _gain(entries, n, chosen),
                    "recorded": recorded,
                    "recorded_sd": deviation,
                    "allowed": allowed(deviation, len(means)),
                    "relative_mse": float(np.mean([values["mse"] for values in chosen])),
                }
            )
    keys = ("overlap", "overlap_sd", "gain", "recorded", "recorded_sd", "relative_mse")
    table = [[row["variant"], f"{row['n']:,}", *(f"{row[key]:.3f}" for key in keys)] for row in rows]
    lines = [
        format_table(["", "n", "overlap^2", "s.d.", "over paper", "recorded", "s.d.", "error"], table),
        "",
        *(f"{name}: {VARIANTS[name]}" for name in case["variants"]),
        "overlap^2: mean over features and seeds; over paper: mean difference to paper on the same samples;",
        "error: 1 - R^2 on new samples.",
    ]
    checks = [
        Check(
            f"{row['variant']}, n = {row['n']:,}: distance to the record",
            abs(row["overlap"] - row["recorded"]),
            round(row["allowed"], 4),
        )
        for row in rows
        if row["variant"] == "paper"
    ]
    figures = {"overlaps": draw(case, rows)} if len(case["n"]) > 1 else {}
    return Summary(rows, lines, checks, figures)


def _gain(entries: list[Entry], n: int, chosen: list[dict[str, Any]]) -> float:
    """Return by how much mean overlaps are above those of "paper" at n, seed by seed; NaN without it."""
    paper = [e.values for e in entries if (e.point["n"], e.point["variant"]) == (n, "paper")]
    if not paper:
        return np.nan
    pairs = zip(chosen, paper, strict=True)
    return float(np.mean([np.mean(ours["overlaps"]) - np.mean(base["overlaps"]) for ours, base in pairs]))


def allowed(deviation: float, seeds: int) -> float:
    """Return how far two means may lie apart: `TOLERANCE`, or `N_DEVIATIONS` standard errors."""
    return max(TOLERANCE, N_DEVIATIONS * deviation * float(np.sqrt(1.0 / N_RECORDED + 1.0 / seeds)))


def draw(case: Case, rows: list[dict[str, Any]]) -> Figure:
    """Draw mean overlap against n, with the record."""
    figure = report.plot_overlaps({"table": columns_of(rows)})
    (axes,) = figure.axes
    axes.set_xlabel("samples that find the features, n")
    axes.set_title(
        f"q = {case['degree']}, d = {case['n_inputs']}, {counted(case['n_features'], 'feature')}, tanh link;"
        f" {counted(case['seeds'], 'seed')}\nrecorded: by the authors, {counted(N_RECORDED, 'seed')}",
        fontsize=10,
    )
    return figure


GRID = Grid("authors", points, compute, summarise, cost)
