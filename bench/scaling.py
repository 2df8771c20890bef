"""How the error falls with the number of samples, for the paper's estimator and for ours, beside theory.

The error is 1 - R^2 on new samples. At degree 1 the features are exactly Gaussian: there the error of the
paper's estimator has to follow theory with its finite number of features, readout included, and not only its
asymptotic law.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, comb
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from matfree_hier import theory
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Summary, run_grid
from matfree_hier.bench.laws import PowerLaw, fit_power_law
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.figures.style import BLUE, GREEN, ORANGE, error_bars, plain_ticks
from matfree_hier.model import HierarchicalModel
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from matfree_hier.bench.experiment import Options

    Array: TypeAlias = NDArray[np.float64]

ESTIMATORS = ("paper", "spectral", "refined")
STYLE = {"paper": (BLUE, "o"), "spectral": (ORANGE, "s"), "refined": (GREEN, "^")}
N_SIMULATED = 100_000  # labels whose means stand for expectations in theory
FEWEST_FOUND = 4  # features found where the law begins
LEFT_OVER = 4  # times as many as are found there must be where it ends


def run(options: Options) -> list[str]:
    """Run the scenarios of this experiment."""
    return run_grid(GRID, options)


def points(case: Case) -> list[Point]:
    """Return a point for each gamma, estimator and number of samples."""
    shared = {key: case[key] for key in ("degree", "n_inputs", "n_features", "n_test")}
    return [
        shared | {"gamma": gamma, "estimator": estimator, "ratio": ratio}
        for gamma in case["gammas"]
        for estimator in ESTIMATORS
        for ratio in case[estimator]
    ]


def cost(point: Point) -> float:
    """Return what a fit takes, up to a factor: samples times vectors."""
    times = 3.0 if point["estimator"] == "refined" else 1.0
    return times * float(point["ratio"]) * (16.0 + n_wanted(point))


def n_packed(point: Point) -> int:
    """Return D."""
    return comb(point["n_inputs"] + point["degree"] - 1, point["degree"])


def power_law_weights(point: Point) -> Array:
    """Return |lambda_k|."""
    weights: Array = np.arange(1.0, point["n_features"] + 1.0) ** -float(point["gamma"])
    return weights / np.linalg.norm(weights)


def operator_ratio(point: Point) -> float:
    """Return the samples over D that the operator sees: the paper's estimator keeps half for the readout."""
    return float(point["ratio"]) * (0.5 if point["estimator"] == "paper" else 1.0)


def n_wanted(point: Point) -> int:
    """Return the number of features to ask for.

    Spectral estimators are asked for those that stand above their threshold, as one would who saw the
    spectrum; the refined one for half as many as n/D, since each has D unknowns.
    """
    if point["estimator"] == "refined":
        return int(min(point["n_features"], max(4, ceil(point["ratio"] / 2))))
    size = n_packed(point)
    return max(1, theory.expected_count(power_law_weights(point), operator_ratio(point) * size, size))


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Fit one estimator to one number of samples of one teacher; return its error."""
    truth = HierarchicalModel(
        point["n_inputs"], point["degree"], point["n_features"], point["gamma"], seed=seed
    )
    X, y = truth.sample(round(point["ratio"] * truth.n_packed), seed + 1_000_000, np.float32)
    model = HierarchicalSpectralRegressor(
        point["degree"],
        n_wanted(point),
        point["estimator"],
        linear=False,
        prepare="none",
        link="identity",
        tol=1e-3,
        random_state=seed,
    ).fit(X, y)
    X_test, y_test = truth.sample(point["n_test"], seed + 2_000_000, np.float32)
    return {
        "mse": float(1.0 - model.score(X_test, y_test)),
        "n_features": len(model.features_),
        "n_passes": float(model.report_.n_passes),
    }


# ---- theory


def predicted_error(point: Point, seed: int = 3) -> float:
    """Return what theory says of the paper's estimator, its readout included.

    The K features found make up sum_k lambda_k^2 (1 - o_k^2) of the error. The readout, equations (2.12) and
    (2.13), adds the variance of its K x K matrix, E[y^2 |h h^T - I|^2]/2 less the square of its mean, over
    the samples of the readout.
    """
    size, wanted = n_packed(point), n_wanted(point)
    n = operator_ratio(point) * size
    weights = power_law_weights(point) * np.where(np.arange(point["n_features"]) % 2, -1.0, 1.0)
    y, h = theory.simulate_labels(weights, round(min(n, N_SIMULATED)), seed)
    o = theory.predict_spectrum(y, n, size, h[:, :wanted]).overlaps
    z = np.random.default_rng([seed, wanted]).standard_normal((len(h), wanted))
    found = np.sqrt(o) * h[:, :wanted] + np.sqrt(1.0 - o) * z
    squares = np.sum(found**2, axis=1)
    second = np.mean(y**2 * (squares**2 - 2.0 * squares + wanted)) / 2.0
    explained = float(np.sum((weights[:wanted] * o) ** 2))
    return 1.0 - explained + float(second - explained) / (float(point["ratio"]) * size - n)


def holds(point: Point) -> bool:
    """Whether 1 << K << d_1 for the features found, and those found stand above the spurious bulk.

    Refinement has no threshold in theory: half of the components asked for count as found.
    """
    weights = power_law_weights(point)
    count = n_wanted(point) // (2 if point["estimator"] == "refined" else 1)
    highest = float(point["n_features"]) / LEFT_OVER
    if point["degree"] > 1:  # at degree 1 there is no such bulk
        corrections = theory.finite_size(weights, point["n_inputs"])
        highest = min(highest, float(np.sum(corrections.theta > corrections.spurious_bulk[1])))
    return FEWEST_FOUND <= count <= highest


# ---- what the entries show


class Curve:
    """One estimator at one gamma: errors of all seeds, (s, m), at the ratios n/D, (m,)."""

    def __init__(self, entries: list[Entry]) -> None:
        ratios = sorted({float(entry.point["ratio"]) for entry in entries})
        seeds = sorted({entry.seed for entry in entries})
        self.points = [next(e.point for e in entries if e.point["ratio"] == ratio) for ratio in ratios]
        self.gamma = float(self.points[0]["gamma"])
        self.estimator = str(self.points[0]["estimator"])
        self.ratios = np.array(ratios)
        self.mse = np.empty((len(seeds), len(ratios)))
        for entry in entries:
            self.mse[seeds.index(entry.seed), ratios.index(entry.point["ratio"])] = entry.values["mse"]
        self.in_law = np.array([holds(point) for point in self.points])

    @property
    def name(self) -> str:
        """Such as "gamma 0.8, paper"."""
        return f"gamma {self.gamma:g}, {self.estimator}"

    def law(self, errors: Array) -> PowerLaw | None:
        """Fit the law to errors (s, m), or for gamma < 1/2 to what is explained, in its range."""
        use = self.in_law
        values = np.atleast_2d(errors)[:, use]
        values = 1.0 - values if self.gamma < 0.5 else values
        if use.sum() < 2 or not (values > 0.0).all():
            return None
        return fit_power_law(self.ratios[use], values)


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return errors, exponents beside theory's, and a figure with a panel a gamma."""
    curves = [
        Curve([e for e in entries if e.point["gamma"] == gamma and e.point["estimator"] == estimator])
        for gamma in case["gammas"]
        for estimator in ESTIMATORS
        if case[estimator]
    ]
    predictions = {
        curve.gamma: np.array([predicted_error(point) for point in curve.points])
        for curve in curves
        if curve.estimator == "paper"
    }
    rows, table = [], []
    for curve in curves:
        rows += _rows(curve, predictions)
        table.append(_exponents(curve, predictions))
    headers = ["", "n/D", "exponent [95 %]", "of theory's curve", "of the law"]
    lines = [format_table(headers, table), "", *_notes(case)]
    return Summary(
        rows, lines, _checks(case, curves, predictions), {"errors": draw(case, curves, predictions)}
    )


def _rows(curve: Curve, predictions: dict[float, Array]) -> list[dict[str, Any]]:
    predicted = predictions[curve.gamma] if curve.estimator == "paper" else np.full(len(curve.ratios), np.nan)
    spread = curve.mse.std(axis=0, ddof=1) if len(curve.mse) > 1 else np.full(len(curve.ratios), np.nan)
    return [
        {
            "gamma": curve.gamma,
            "estimator": curve.estimator,
            "n_over_D": ratio,
            "n_features": n_wanted(point),
            "in_range": int(in_law),
            "relative_mse": float(curve.mse[:, j].mean()),
            "sd": float(spread[j]),
            "theory": float(predicted[j]),
        }
        for j, (ratio, point, in_law) in enumerate(zip(curve.ratios, curve.points, curve.in_law, strict=True))
    ]


def _exponents(curve: Curve, predictions: dict[float, Array]) -> list[str]:
    measured = curve.law(curve.mse)
    used = curve.ratios[curve.in_law]
    span = f"{used.min():g}..{used.max():g}" if len(used) else "-"
    expected = curve.law(predictions[curve.gamma]) if curve.estimator == "paper" else None
    return [
        curve.name,
        span,
        "-" if measured is None else str(measured),
        "-" if expected is None else f"{expected.exponent:.3f}",
        "-" if curve.estimator == "refined" else f"{theory.mse_exponent(curve.gamma):.3f}",
    ]


def _checks(case: Case, curves: list[Curve], predictions: dict[float, Array]) -> list[Check]:
    """Judge the paper's estimator by theory where that is exact, the refined one by the paper's."""
    if case["degree"] > 1:
        return []
    checks = []
    laws = {(curve.gamma, curve.estimator): curve.law(curve.mse) for curve in curves}
    for curve in curves:
        law = laws[curve.gamma, curve.estimator]
        if curve.estimator == "paper":
            predicted = predictions[curve.gamma]
            off = np.abs(curve.mse.mean(axis=0) / predicted - 1.0)[curve.in_law]
            checks.append(
                Check(
                    f"{curve.name}: largest distance to theory's curve",
                    float(off.max(initial=0.0)),
                    case["within"],
                )
            )
            expected = curve.law(predicted)
            if law is not None and expected is not None:
                difference = abs(law.exponent - expected.exponent)
                checks.append(Check(f"{curve.name}: exponent less that of the curve", difference, 0.1))
        paper = laws.get((curve.gamma, "paper"))
        if curve.estimator == "refined" and curve.gamma > 0.5 and law is not None and paper is not None:
            what = f"{curve.name}: upper end of its exponent less the paper's"
            checks.append(Check(what, law.high - paper.exponent, 0.0))
    return checks


def _notes(case: Case) -> list[str]:
    notes = [
        "Exponents are fitted where the features found are at least "
        f"{FEWEST_FOUND} and at most 1/{LEFT_OVER} of all"
        + (", and stronger than the bulk of spurious population eigenvalues." if case["degree"] > 1 else "."),
        "For gamma below 1/2 they are those of the part explained, 1 - error, which grows.",
        "n counts all samples: the paper's estimator, as its curve, finds features on one half and reads",
        "them out on the other.",
    ]
    if case["degree"] > 1:
        notes.append("Theory's curve takes the features F(x) for Gaussian, which they are at degree 1 only.")
    return notes


def draw(case: Case, curves: list[Curve], predictions: dict[float, Array]) -> Figure:
    """Draw error against n/D, a panel a gamma; the range of the law is shaded."""
    gammas = list(case["gammas"])
    columns = min(3, len(gammas))
    n_rows = -(-len(gammas) // columns)
    figure = Figure(figsize=(4.3 * columns, 3.5 * n_rows), layout="constrained")
    panels = np.atleast_1d(figure.subplots(n_rows, columns)).ravel()
    for panel in panels[len(gammas) :]:
        panel.set_axis_off()
    for gamma, panel in zip(gammas, panels, strict=False):
        _panel(panel, gamma, [curve for curve in curves if curve.gamma == gamma], predictions[gamma])
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"q = {case['degree']}, d = {case['n_inputs']}, {counted(case['n_features'], 'feature')},"
        f" {counted(case['seeds'], 'seed')}\nshaded: where the paper's law can hold",
        fontsize=10,
    )
    return figure


def _panel(axes: Axes, gamma: float, curves: list[Curve], predicted: Array) -> None:
    quantity: Callable[[Array], Array] = (lambda mse: 1.0 - mse) if gamma < 0.5 else (lambda mse: mse)
    for curve in curves:
        colour, marker = STYLE[curve.estimator]
        values = quantity(curve.mse)
        spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        law = curve.law(curve.mse)
        label = curve.estimator
        if curve.estimator == "paper":
            axes.plot(curve.ratios, quantity(predicted), color=colour, linewidth=1.2, label="paper, theory")
            _shade(axes, curve)
        error_bars(axes, curve.ratios, values.mean(axis=0), spread, marker, colour, label)
        if law is not None:
            used = curve.ratios[curve.in_law]
            axes.plot(used, law.constant * used**law.exponent, "--", color=colour, linewidth=1)
            axes.annotate(
                f"{law.exponent:.2f}",
                (used[-1], law.constant * used[-1] ** law.exponent),
                xytext=(6, -3),
                textcoords="offset points",
                color=colour,
                fontsize=8,
            )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("log")
    if gamma < 0.5:  # below that of the theory's first point is noise
        axes.set_ylim(bottom=float(quantity(predicted).min()) / 3.0)
    plain_ticks(axes.yaxis)
    axes.set_title(f"gamma = {gamma:g}", fontsize=10)
    axes.set_xlabel("n / D")
    axes.set_ylabel("part explained, 1 - error" if gamma < 0.5 else "relative error, 1 - R²")


def _shade(axes: Axes, curve: Curve) -> None:
    used = curve.ratios[curve.in_law]
    if len(used):
        axes.axvspan(used.min() / 1.2, used.max() * 1.2, color="0.92", zorder=0)


GRID = Grid("scaling", points, compute, summarise, cost)
