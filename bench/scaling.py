"""How the error falls with the number of samples, for the paper's estimator and for ours, beside theory.

The error is 1 - R^2 on new samples. At degree 1 the features are exactly Gaussian: there the error of the
paper's estimator has to follow theory with its finite number of features, readout included, and not only its
asymptotic law.
"""

from __future__ import annotations

from math import ceil, comb
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.stats import rankdata

from matfree_hier import report, theory
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Case, Check, Entry, Grid, Point, Summary, columns_of, run_grid
from matfree_hier.bench.laws import PowerLaw, fit_power_law
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.model import HierarchicalModel
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from matfree_hier.bench.experiment import Options

    Array: TypeAlias = NDArray[np.float64]

ESTIMATORS = ("paper", "spectral", "refined")
N_SIMULATED = 100_000  # labels whose means stand for expectations in theory
FEWEST_FOUND = 4  # features found where fits of exponents begin
LEFT_OVER = 4  # times as many as are found there must be where they end
FEWEST_POINTS = 3  # that an exponent is fitted to
SAME_EXPONENT = 0.1  # difference of exponents of the paper's estimator and of theory's curve that is allowed
NO_LAW = PowerLaw(np.nan, np.nan, np.nan, np.nan)


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
    """Return what theory says of the error; NaN for refinement, of which it says nothing at finite d_1.

    The K features found make up sum_k lambda_k^2 (1 - o_k^2) of the error, for "spectral" with the overlaps
    of ranks, which its labels are at large d. The paper's readout, equations (2.12) and (2.13), adds the
    variance of its K x K matrix, E[y^2 |h h^T - I|^2]/2 less the square of its mean, over its samples.
    """
    if point["estimator"] == "refined":
        return float("nan")
    size, wanted = n_packed(point), n_wanted(point)
    n = operator_ratio(point) * size
    weights = power_law_weights(point) * np.where(np.arange(point["n_features"]) % 2, -1.0, 1.0)
    y, h = theory.simulate_labels(weights, round(min(n, N_SIMULATED)), seed)
    h = h[:, :wanted]
    t = y if point["estimator"] == "paper" else 2.0 * rankdata(y) / len(y) - 1.0
    o = theory.predict_spectrum(t, n, size, h).overlaps
    explained = float(np.sum((weights[:wanted] * o) ** 2))
    if point["estimator"] == "spectral":
        return 1.0 - explained
    z = np.random.default_rng([seed, wanted]).standard_normal((len(h), wanted))
    found = np.sqrt(o) * h + np.sqrt(1.0 - o) * z
    squares = np.sum(found**2, axis=1)
    second = np.mean(y**2 * (squares**2 - 2.0 * squares + wanted)) / 2.0
    return 1.0 - explained + float(second - explained) / (float(point["ratio"]) * size - n)


def is_fitted(point: Point) -> bool:
    """Whether the point counts for an exponent: 4 <= K <= d_1/4 features, all above the spurious bulk.

    What the law asks for, 1 << K << d_1, no point here has: the exponent of theory's curve over the same
    points says what is left of it. Refinement has no threshold in theory: half of the components asked for
    count as found. The bulk is that of degree 2; at degree 1 there is none.
    """
    weights = power_law_weights(point)
    count = n_wanted(point) // (2 if point["estimator"] == "refined" else 1)
    highest = float(point["n_features"]) / LEFT_OVER
    if point["degree"] > 1:
        corrections = theory.finite_size(weights, point["n_inputs"])
        highest = min(highest, float(np.sum(corrections.theta > corrections.spurious_bulk[1])))
    return FEWEST_FOUND <= count <= highest


# ---- what the entries show


class Curve:
    """One estimator at one gamma over m ratios n/D.

    `measured`, shape (s, m), and `predicted`, (m,), hold the quantity that is drawn, fitted and checked: the
    error or, for gamma < 1/2, the part explained. `law` and `expected` are the power laws of the two over the
    points `used`, or say why there is none.
    """

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
        self.theory = np.array([predicted_error(point) for point in self.points])
        self.used = np.array([is_fitted(point) for point in self.points])
        self.measured, self.predicted = self._drawn(self.mse), self._drawn(self.theory)
        self.law, self.expected = self._fit(self.measured), self._fit(self.predicted)

    @property
    def name(self) -> str:
        """Such as "gamma 0.8, paper"."""
        return f"gamma {self.gamma:g}, {self.estimator}"

    @property
    def asymptotic(self) -> float:
        """The exponent of the paper's law; NaN for refinement, which it is not about."""
        return np.nan if self.estimator == "refined" else theory.mse_exponent(self.gamma)

    @property
    def distance(self) -> float:
        """The largest |mean/theory - 1| over the points used; NaN if there is none, or no theory."""
        off = np.abs(self.measured.mean(axis=0) / self.predicted - 1.0)[self.used]
        return float(off.max()) if off.size else np.nan

    def _drawn(self, errors: Array) -> Array:
        return 1.0 - errors if self.gamma < 0.5 else errors

    def _fit(self, values: Array) -> PowerLaw | str:
        values = np.atleast_2d(values)[:, self.used]
        if np.isnan(values).any():
            return "no theory"
        if values.shape[1] < FEWEST_POINTS:
            return f"no fit: {counted(values.shape[1], 'point')} in the range"
        if not (values > 0.0).all():
            return f"no fit: explains less than nothing in {counted(int(np.sum(values <= 0.0)), 'fit')}"
        return fit_power_law(self.ratios[self.used], values)


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return errors, exponents beside theory's, and a figure with a panel a gamma."""
    curves = [
        Curve([e for e in entries if e.point["gamma"] == gamma and e.point["estimator"] == estimator])
        for gamma in case["gammas"]
        for estimator in ESTIMATORS
        if case[estimator]
    ]
    laws = [_law(curve) for curve in curves]
    headers = ["", "n/D", "points", "exponent [95 %]", "of theory's curve", "of the law", "to the curve"]
    table = [_line(curve, law) for curve, law in zip(curves, laws, strict=True)]
    rows = [row for curve in curves for row in _rows(curve)]
    return Summary(
        rows,
        [_errors(curves), "", format_table(headers, table), "", *_notes(case)],
        _checks(case, curves),
        {"errors": draw(case, rows, laws)},
        {"laws": laws},
    )


def _rows(curve: Curve) -> list[dict[str, Any]]:
    spread = curve.mse.std(axis=0, ddof=1) if len(curve.mse) > 1 else np.full(len(curve.ratios), np.nan)
    return [
        {
            "gamma": curve.gamma,
            "estimator": curve.estimator,
            "n_over_D": ratio,
            "n_features": n_wanted(point),
            "in_fit": int(used),
            "relative_mse": float(curve.mse[:, j].mean()),
            "sd": float(spread[j]),
            "theory": float(curve.theory[j]),
        }
        for j, (ratio, point, used) in enumerate(zip(curve.ratios, curve.points, curve.used, strict=True))
    ]


def _law(curve: Curve) -> dict[str, Any]:
    """Return the exponent of a curve with its interval, beside that of theory's curve and that of the law."""
    used = curve.ratios[curve.used]
    law, expected = (fit if isinstance(fit, PowerLaw) else NO_LAW for fit in (curve.law, curve.expected))
    return {
        "gamma": curve.gamma,
        "estimator": curve.estimator,
        "quantity": "explained" if curve.gamma < 0.5 else "error",
        "lowest_n_over_D": float(used.min()) if len(used) else np.nan,
        "highest_n_over_D": float(used.max()) if len(used) else np.nan,
        "n_points": len(used),
        "n_seeds": len(curve.mse),
        "exponent": law.exponent,
        "low": law.low,
        "high": law.high,
        "theory": expected.exponent,
        "law": curve.asymptotic,
        "largest_distance": curve.distance,
        "note": curve.law if isinstance(curve.law, str) else "",
    }


def _errors(curves: list[Curve]) -> str:
    """Return a table of mean errors at each n/D and (what theory says)."""
    ratios = sorted({float(ratio) for curve in curves for ratio in curve.ratios})
    rows = []
    for curve in curves:
        means = dict(zip(curve.ratios, zip(curve.mse.mean(axis=0), curve.theory, strict=True), strict=True))
        cells = [means.get(ratio, (np.nan, np.nan)) for ratio in ratios]
        rows.append([curve.name, *("" if np.isnan(mse) else _beside(mse, said) for mse, said in cells)])
    return format_table(["error (theory), n/D =", *(f"{ratio:g}" for ratio in ratios)], rows)


def _beside(error: float, predicted: float) -> str:
    return f"{error:.3f}" if np.isnan(predicted) else f"{error:.3f} ({predicted:.3f})"


def _line(curve: Curve, law: dict[str, Any]) -> list[str]:
    span = f"{law['lowest_n_over_D']:g}..{law['highest_n_over_D']:g}" if law["n_points"] else "-"
    distance = "-" if np.isnan(law["largest_distance"]) else f"{law['largest_distance']:.1%}"
    expected, asymptotic = ("-" if np.isnan(law[name]) else f"{law[name]:.3f}" for name in ("theory", "law"))
    return [curve.name, span, str(law["n_points"]), str(curve.law), expected, asymptotic, distance]


def _checks(case: Case, curves: list[Curve]) -> list[Check]:
    """Judge the paper's estimator by theory where that is exact, the refined one by the paper's."""
    if case["degree"] > 1:
        return []
    checks = []
    paper = {curve.gamma: curve.law for curve in curves if curve.estimator == "paper"}
    for curve in curves:
        law, expected, other = curve.law, curve.expected, paper.get(curve.gamma)
        if curve.estimator == "paper" and curve.used.any():
            quantity = "part explained" if curve.gamma < 0.5 else "error"
            what = f"{curve.name}: largest distance of the {quantity} to theory's curve"
            checks.append(Check(what, curve.distance, case["within"]))
            if isinstance(law, PowerLaw) and isinstance(expected, PowerLaw):
                difference = abs(law.exponent - expected.exponent)
                checks.append(
                    Check(f"{curve.name}: exponent less that of the curve", difference, SAME_EXPONENT)
                )
        if curve.estimator != "refined" or curve.gamma < 0.5:
            continue
        if isinstance(law, PowerLaw) and isinstance(other, PowerLaw):
            what = f"{curve.name}: upper end of its exponent less the paper's"
            checks.append(Check(what, law.high - other.exponent, 0.0))
    return checks


def _notes(case: Case) -> list[str]:
    found = f"{FEWEST_FOUND} to d_1/{LEFT_OVER} features"
    notes = [
        f"Exponents are fitted to points with {found} found, if there are {FEWEST_POINTS}.",
        "The law is that of 1 << features found << all; theory's curve has the features that there are, and",
        "its exponent is that over the same points: where it is steeper than the law, these are too few.",
        "For gamma below 1/2 exponents and distances are those of the part explained, 1 - error.",
        "n counts all samples: the paper's estimator, as its curve, finds features on one half and reads",
        "them out on the other.",
    ]
    if case["degree"] > 1:
        notes.append(
            "Points with more features than stand above the bulk of spurious eigenvalues are left out."
        )
        notes.append("Theory's curves take the features F(x) for Gaussian, which they are at degree 1 only.")
    if case["degree"] > 2:
        notes.append(
            "The bulk of spurious eigenvalues is that of degree 2, for lack of a law of it at degree 3."
        )
    return notes


def draw(case: Case, rows: list[dict[str, Any]], laws: list[dict[str, Any]]) -> Figure:
    """Draw error against n/D, a panel a gamma; points that exponents are fitted to are full."""
    figure = report.plot_errors({"table": columns_of(rows), "table-laws": columns_of(laws)})
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.4)  # for a heading of three lines
    bulk = ", above the spurious bulk" if case["degree"] > 1 else ""
    figure.suptitle(
        f"q = {case['degree']}, d = {case['n_inputs']}, {counted(case['n_features'], 'feature')},"
        f" {counted(case['seeds'], 'seed')}\n"
        f"full marks: {FEWEST_FOUND} <= features found <= 1/{LEFT_OVER} of all{bulk}\n"
        "exponents, with 95 % intervals, are fitted to these (dashed)",
        fontsize=10,
    )
    return figure


GRID = Grid("scaling", points, compute, summarise, cost)
