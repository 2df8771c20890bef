"""The transition at growing size: by how much finite D rounds the threshold, and over which range of n.

One feature. In the limit its overlap is 0 up to the threshold n* and rises from there with a kink (the BBP
transition); for degrees above 1 the limit has the labels and norms that the features have at that d. At
finite D the mean overlap is a smooth curve around it. Two numbers measure by how much:

* the rounding, the mean overlap at n = n*, less the 2/D that any two directions have;
* the width, the range of log n where the mean overlap is above its limit by more than half of the most it
  ever is.

Near the threshold eigenvalues fluctuate by D^(-1/3) of the gap (Bloemendal and Virag, doi
10.1007/s00440-012-0443-2), so both should fall as D^(-1/3). They are fitted as c D^a, with an interval from
resampled seeds.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq

from matfree_hier import figures, report, theory
from matfree_hier.bench import recovery
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Check, Entry, Grid, Summary, columns_of, run_grid, solved
from matfree_hier.bench.measure import to_json
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.figures.style import BLUE, GREY, ORANGE
from matfree_hier.labels import fit_label_transform, input_sizes
from matfree_hier.model import HierarchicalModel
from matfree_hier.recovery import overlaps
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from matfree_hier.bench.experiment import Options
    from matfree_hier.bench.grid import Case, Point, Row

    Array = NDArray[np.float64]

LIMIT_SAMPLES = 100_000  # simulated for the limit curve
VISIBLE = 1e-4  # an overlap that tells the threshold from above
RESAMPLES = 400
NAMES = ("rounding", "width")
THEORY = -1 / 3  # exponent of D, of both


def points(case: Case) -> list[Point]:
    """Return a point for each number of inputs; its samples are ``ratios`` of the threshold."""
    return [
        {"degree": case["degree"], "n_inputs": d, "n_features": 1, "gamma": 0.0, "link": "identity",
         "label_transform": "clip", "ratios": list(case["ratios"])}
        for d in case["inputs"]
    ]  # fmt: skip


class Limit(NamedTuple):
    """What theory says of one feature: n*/D, and its overlap at each of the ratios of n*."""

    threshold: float
    overlaps: Array


@cache
def limit(degree: int, n_inputs: int, ratios: tuple[float, ...]) -> Limit:
    """Return the limit, from samples of one teacher, which stands for all of its size."""
    teacher = HierarchicalModel(n_inputs, degree, n_features=1, signs="positive", seed=11)
    X, y = teacher.sample(LIMIT_SAMPLES, seed=11)
    t = np.asarray(fit_label_transform("clip", y)(y))
    h, norms = teacher.latents(X), None if degree == 1 else input_sizes(X, degree).norms

    def overlap(ratio: float) -> float:
        return float(theory.predict_spectrum(t, ratio, 1, h, norms).overlaps[0])

    # Below the threshold the overlap is 0, above it a line to begin with.
    threshold = float(brentq(lambda ratio: overlap(ratio) - VISIBLE, 0.05, 200.0, xtol=1e-3))
    return Limit(threshold, np.array([overlap(ratio * threshold) for ratio in ratios]))


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Return the overlap of the feature with the eigenvectors at both ends, at each number of samples."""
    ratios = np.asarray(point["ratios"])
    threshold, expected = limit(point["degree"], point["n_inputs"], tuple(point["ratios"]))
    unit = threshold * recovery.n_packed(point)
    squared = []
    for ratio in ratios:
        sized = {**point, "n_samples": max(8, round(ratio * unit))}
        teacher, C = recovery.draw(sized, seed)
        found = solved(top_eigenpairs(C, k=2, which="BE", tol=1e-4, seed=seed, progress=False))
        squared.append(float(overlaps(found.eigenvectors.T, teacher.features_)[0]))
    return {"overlap": np.array(squared), "expected": expected, "threshold": threshold}


def cost(point: Point) -> float:
    """Return what is in proportion to the time: n D."""
    return float(recovery.n_packed(point)) ** 2


def measures(ratios: Array, curve: Array, expected: Array, size: int) -> Array:
    """Return rounding and width of a mean curve (m,); NaN for a width that the ratios do not hold."""
    excess = curve - 2.0 / size - expected * (1.0 - 2.0 / size)
    log_n = np.log(ratios)
    return np.array([np.interp(0.0, log_n, excess), width_at_half(log_n, excess)])


def width_at_half(x: Array, bump: Array) -> float:
    """Return the full width at half maximum of a curve through points; NaN if an end is not below half."""
    above = np.asarray(bump) - np.max(bump) / 2.0
    top = int(np.argmax(bump))
    left, right = np.flatnonzero(above[:top] <= 0), top + np.flatnonzero(above[top:] <= 0)
    if not left.size or not right.size:
        return np.nan
    rising, falling = [left[-1], left[-1] + 1], [right[0], right[0] - 1]
    start, end = (float(np.interp(0.0, above[side], x[side])) for side in (rising, falling))
    return end - start


def fit_power(sizes: Array, values: Array) -> tuple[float, float]:
    """Return c and a of values = c sizes^a, least squares of the logarithms; NaN if a value has none."""
    if not np.all(values > 0):
        return np.nan, np.nan
    a, log_c = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(np.exp(log_c)), float(a)


class Laws(NamedTuple):
    """Measures by size (s, 2), their standard errors, and laws (c, a) with an interval of 95 % for a."""

    values: Array
    errors: Array
    fits: list[tuple[float, float]]
    intervals: list[tuple[float, float]]


def fitted(ratios: Array, curves: Array, expected: Array, sizes: Array, seed: int) -> Laws:
    """Measure and fit curves (sizes, seeds, m) beside limits (sizes, m), and again with seeds resampled."""
    rng = np.random.default_rng(seed)
    n_seeds = curves.shape[1]

    def measured(chosen: Any) -> Array:
        return np.array(
            [
                measures(ratios, curve[chosen].mean(axis=0), at_infinity, int(size))
                for curve, at_infinity, size in zip(curves, expected, sizes, strict=True)
            ]
        )

    values = measured(np.arange(n_seeds))
    again = [measured(rng.integers(0, n_seeds, n_seeds)) for _ in range(RESAMPLES)]
    fits, intervals = [], []
    for i in range(len(NAMES)):
        fits.append(fit_power(sizes, values[:, i]))
        low, high = np.nanquantile([fit_power(sizes, v[:, i])[1] for v in again], [0.025, 0.975])
        intervals.append((float(low), float(high)))
    return Laws(values, np.nanstd(again, axis=0), fits, intervals)


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return rounding and width by size, their laws, and the figure."""
    ratios = np.asarray(case["ratios"], dtype=np.float64)
    inputs = np.asarray(case["inputs"])
    sizes = np.array([recovery.n_packed(point) for point in points(case)], dtype=np.float64)
    shape = (len(inputs), -1, len(ratios))
    curves = np.array([values["overlap"] for *_, values in entries]).reshape(shape)
    expected = np.array([values["expected"] for *_, values in entries]).reshape(shape)[:, 0]
    thresholds = [values["threshold"] for _, seed, values in entries if seed == entries[0].seed]
    laws = fitted(ratios, curves, expected, sizes, entries[0].seed)
    spread = curves.std(axis=1, ddof=1) if curves.shape[1] > 1 else np.full_like(expected, np.nan)
    rows = [
        {"n_inputs": int(d), "n_packed": int(size), "ratio": float(ratio), "overlap": float(mean),
         "deviation": float(deviation), "limit": float(at_infinity)}
        for d, size, *columns in zip(inputs, sizes, curves.mean(axis=1), spread, expected, strict=True)
        for ratio, mean, deviation, at_infinity in zip(ratios, *columns, strict=True)
    ]  # fmt: skip
    lines = [
        f"q = {case['degree']}, one feature, clipped labels, {counted(case['seeds'], 'seed')}",
        "",
        format_table(
            ["d", "D", "n* / D", "rounding", "width"],
            [
                [str(d), f"{size:,.0f}", f"{threshold:.3f}", f"{rounding:.3f}", f"{width:.3f}"]
                for d, size, threshold, (rounding, width) in zip(
                    inputs, sizes, thresholds, laws.values, strict=True
                )
            ],
        ),
        "",
        *(
            f"{name} = {c:.3g} D^{a:.3f}, 95 % interval of the exponent {low:.3f} to {high:.3f} "
            "(theory: -1/3)"
            for name, (c, a), (low, high) in zip(NAMES, laws.fits, laws.intervals, strict=True)
        ),
    ]
    figures_by_name = {"transition": _figure(case, rows, sizes, laws)}
    return Summary(rows, lines, _checks(case, laws.intervals), figures_by_name)


def _checks(case: Case, intervals: list[tuple[float, float]]) -> list[Check]:
    """Return what the scenario asks of the intervals of the exponents of rounding and width.

    That they reach to -1/3, but for the corrections of finite D, and that they are narrow enough to tell.
    """
    if "max_half_width" not in case:
        return []
    checks = []
    for name, (low, high) in zip(NAMES, intervals, strict=True):
        gap, half_width = max(low - THEORY, THEORY - high, 0.0), (high - low) / 2
        interval = f"the interval of the {name}'s exponent"
        checks += [
            Check(f"distance of -1/3 from {interval}", gap, case["max_gap"]),
            Check(f"half-width of {interval}", half_width, case["max_half_width"]),
        ]
    return checks


def _figure(case: Case, rows: Sequence[Row], sizes: Array, laws: Laws) -> Figure:
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    run = {"table": columns_of(rows), "about": {"scenario": to_json(case)}}
    report.plot_smoothing(run, axes=left)
    styles = [(BLUE, "o"), (ORANGE, "s")]
    for i, (name, (shade, marker)) in enumerate(zip(NAMES, styles, strict=True)):
        (c, a), (low, high) = laws.fits[i], laws.intervals[i]
        figures.plot_law(
            sizes,
            laws.values[None, :, i],
            errors=laws.errors[:, i],
            law=_power(c, a) if np.isfinite(a) else None,
            law_label=f"{c:.2g} $D^{{{a:.2f}}}$, exponent {low:.2f} to {high:.2f}",
            label=name,
            colour=shade,
            marker=marker,
            x_label="number of features $D$",
            y_label="rounding of the overlap; width in log n",
            axes=right,
        )
        middle = np.exp(np.nanmean(np.log(laws.values[:, i] * sizes**-THEORY)))
        label = "$D^{-1/3}$" if i == 0 else None
        right.plot(sizes, middle * sizes**THEORY, ":", color=GREY, linewidth=1.2, label=label)
    right.legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"q = {case['degree']}: the transition of one feature, clipped labels, "
        f"{counted(case['seeds'], 'seed')}; bars: standard errors, ranges: 95 %",
        fontsize=10,
    )
    return figure


def _power(c: float, a: float) -> Callable[[Array], Array]:
    return lambda sizes: c * sizes**a


GRID = Grid("smoothing", points, compute, summarise, cost)


def run(options: Options) -> list[str]:
    """Run the scenarios; see `grid.run_grid`."""
    return run_grid(GRID, options)
