"""The spectrum of the moment operator as samples come in: bulk, edges, outliers, beside their predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier import report, theory
from matfree_hier.bench import recovery
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Check, Entry, Grid, Summary, columns_of, run_grid
from matfree_hier.bench.measure import to_json
from matfree_hier.density import spectral_density

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from matfree_hier.bench.experiment import Options
    from matfree_hier.bench.grid import Case, Point, Row

    Array = NDArray[np.float64]

N_GRID = 160


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Estimate the density of one operator; predict bulk, edges and outliers."""
    teacher, C = recovery.draw(point, seed)
    found = spectral_density(C, seed=seed, n_grid=N_GRID, progress=False)
    t, h, norms = recovery.population(teacher, C, seed)
    expected, edges = predicted(t, h, norms, C.n_samples, teacher.n_packed)
    bulk = theory.bulk_density(found.grid, t, C.n_samples, teacher.n_packed, norms)
    return {
        "grid": found.grid,
        "density": found.density,
        "standard_errors": found.standard_errors,
        "edges": found.bulk_edges,
        "outliers": found.outliers,
        "n_passes": found.n_passes,
        "predicted_density": smoothed(bulk, found.grid, found.width),
        "predicted_edges": edges,
        "predicted_outliers": expected,
    }


def predicted(t: Array, h: Array, norms: Array | None, n: int, size: int) -> tuple[Array, Array]:
    """Return the eigenvalue of each feature (K,), NaN if it has none, and the two edges, means over draws.

    Each draw has n samples, if there are as many: where |t| |F|^2 is heavy-tailed the resolvent's edge is
    set by the largest of them, and that of more samples would be beyond any eigenvalue there is.
    """
    starts = range(0, max(1, len(t) - n + 1), n)
    parts = [slice(start, start + n) for start in starts]
    spectra = [
        theory.predict_spectrum(t[part], n, size, h[part], None if norms is None else norms[part])
        for part in parts
    ]
    values = np.array([spectrum.eigenvalues for spectrum in spectra])
    known = np.isfinite(values).sum(axis=0)
    means = np.where(2 * known > len(values), np.nansum(values, axis=0) / np.maximum(known, 1), np.nan)
    return means, np.mean([[s.edge_left, s.edge_right] for s in spectra], axis=0)


def smoothed(density: Array, grid: Array, width: float) -> Array:
    """Return a density smoothed as the estimate is, by a Gaussian of standard deviation ``width``."""
    kernel = np.exp(-0.5 * ((grid[:, None] - grid) / width) ** 2)
    return np.asarray(kernel @ density * (grid[1] - grid[0]) / (width * np.sqrt(2 * np.pi)))


def matched(outliers: Array, expected: Array) -> Array:
    """Return, for each eigenvalue expected, the one found of its rank and sign; NaN if none."""
    nearest = np.full(len(expected), np.nan)
    for sign in (1, -1):
        places = np.flatnonzero(sign * expected > 0)  # NaN, a feature below threshold, is in neither
        places = places[np.argsort(-sign * expected[places], kind="stable")]
        found = np.sort(sign * outliers[sign * outliers > 0])[::-1]
        count = min(len(places), len(found))
        nearest[places[:count]] = sign * found[:count]
    return nearest


class Comparison:
    """What was found in one entry, beside what theory says.

    Outliers that are no feature's are `tails`: eigenvalues of few samples of large |t| |F|^2, which theory
    counts as the bulk's. The `reach`, both ends of bulk and tails, is what its edges are compared with.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.edges, self.expected_edges = values["edges"], values["predicted_edges"]
        self.expected = values["predicted_outliers"]
        self.features = matched(values["outliers"], self.expected)
        self.tails = np.setdiff1d(values["outliers"], self.features)
        self.reach = np.array([min([self.edges[0], *self.tails]), max([self.edges[1], *self.tails])])

    @property
    def edge_distance(self) -> float:
        """The larger distance of an end of bulk and tails from its prediction, over half the width."""
        half = 0.5 * (self.expected_edges[1] - self.expected_edges[0])
        return float(np.abs(self.reach - self.expected_edges).max() / half)

    @property
    def outlier_distance(self) -> float:
        """The largest relative distance of a feature's eigenvalue to its prediction; 0 if none has both."""
        return float(np.nanmax(np.abs(self.features / self.expected - 1.0), initial=0.0))


def table(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a line for each number of samples, seed and feature: its eigenvalue, and the bulk's edges."""
    rows = []
    for point, seed, values in entries:
        found = Comparison(values)
        shared = {
            "n": point["n_samples"],
            "seed": seed,
            "left": float(found.edges[0]),
            "left_with_tails": float(found.reach[0]),
            "predicted_left": float(found.expected_edges[0]),
            "right": float(found.edges[1]),
            "right_with_tails": float(found.reach[1]),
            "predicted_right": float(found.expected_edges[1]),
            "n_tails": len(found.tails),
        }
        rows += [
            shared | {"feature": k + 1, "predicted": float(expected), "eigenvalue": float(place)}
            for k, (place, expected) in enumerate(zip(found.features, found.expected, strict=True))
        ]
    return rows


def tails(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a line for each number of samples, seed and eigenvalue outside the bulk that is no feature's."""
    return [
        {"n": point["n_samples"], "seed": seed, "eigenvalue": float(place)}
        for point, seed, values in entries
        for place in Comparison(values).tails
    ]


def densities(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return the densities of the first seed, a line for each number of samples and point of its grid."""
    columns = ("grid", "density", "standard_errors", "predicted_density")
    return [
        {"n": point["n_samples"]} | dict(zip(("eigenvalue", *columns[1:]), map(float, line), strict=True))
        for point, seed, values in entries
        if seed == entries[0].seed
        for line in zip(*(values[name] for name in columns), strict=True)
    ]


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return edges and outliers beside their predictions, and the densities of the first seed."""
    size = recovery.n_packed(case)
    found = [Comparison(entry.values) for entry in entries]
    headers = [
        "n / D",
        "seed",
        "bulk",
        "with tails",
        "predicted",
        "tails",
        "features",
        "predicted",
        "ends off",
    ]
    headers.append("features off")
    lines = [
        recovery.title(case),
        "",
        format_table(headers, [_line(entry, c, size) for entry, c in zip(entries, found, strict=True)]),
        "",
        "tails are eigenvalues outside the bulk that are no feature's. Theory has them in the bulk: its",
        "edges are compared with the ends of both, off by this share of half the width predicted. The",
        "eigenvalues of features are off by this share of the one predicted, the largest of those both",
        "found and predicted.",
    ]
    if case["degree"] > 1:
        lines += [
            "Features F(x) that are not Gaussian have a bulk of spurious eigenvalues at finite d, which does",
            "not shrink with n and is not predicted: at large n/D the bulk is wider by it.",
        ]
    ratios = np.array([entry.point["n_samples"] / size for entry in entries])
    checks = _checks(case, ratios, found)
    rows, further = table(entries), {"density": densities(entries)}
    if outside := tails(entries):
        further["tails"] = outside
    drawn = {"table": rows} | {f"table-{name}": lines_of for name, lines_of in further.items()}
    return Summary(rows, lines, checks, {"density": _figure(case, drawn)}, further)


def _checks(case: Case, ratios: Array, found: list[Comparison]) -> list[Check]:
    """Return the distances that the scenario bounds, at the ratios n/D it names."""
    lowest, highest = case.get("compared_from", 0.0), case.get("edges_compared_until", np.inf)
    bounds = {
        "max_edge_distance": ("an end of the bulk over the half-width", highest, "edge_distance"),
        "max_outlier_distance": ("an outlier over its size", np.inf, "outlier_distance"),
    }
    checks = []
    for bound, (what, last, name) in bounds.items():
        if bound in case:
            compared = (ratios >= lowest - 1e-9) & (ratios <= last + 1e-9)
            distances = [
                getattr(c, name) for c, is_compared in zip(found, compared, strict=True) if is_compared
            ]
            where = f"n/D >= {lowest:g}" if np.isinf(last) else f"n/D {lowest:g} to {last:g}"
            checks.append(Check(f"largest distance of {what}, {where}", max(distances), case[bound]))
    return checks


def _line(entry: Entry, found: Comparison, size: int) -> list[str]:
    counts = (len(found.tails), np.isfinite(found.features).sum(), np.isfinite(found.expected).sum())
    return [
        f"{entry.point['n_samples'] / size:.3g}",
        str(entry.seed),
        *(_range(ends) for ends in (found.edges, found.reach, found.expected_edges)),
        *(str(int(count)) for count in counts),
        f"{found.edge_distance:.3f}",
        f"{found.outlier_distance:.3f}",
    ]


def _range(edges: Array) -> str:
    return f"{edges[0]:+.3f} to {edges[1]:+.3f}"


def _figure(case: Case, tables: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw the densities of the first seed, one number of samples above the other, on axes of their own."""
    run = {name: columns_of(rows) for name, rows in tables.items()}
    figure = report.plot_density(run | {"about": {"scenario": to_json(case)}})
    figure.suptitle(recovery.title(case), fontsize=10)
    return figure


GRID = Grid("spectrum", recovery.points, compute, summarise, recovery.cost)


def run(options: Options) -> list[str]:
    """Run the scenarios; see `grid.run_grid`."""
    return run_grid(GRID, options)
