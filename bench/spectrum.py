"""The spectrum of the moment operator as samples come in: bulk, edges, outliers, beside their predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from matfree_hier import figures, theory
from matfree_hier.bench import recovery
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Check, Entry, Grid, Summary, run_grid
from matfree_hier.density import spectral_density

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from matfree_hier.bench.experiment import Options
    from matfree_hier.bench.grid import Case, Point

    Array = NDArray[np.float64]

N_GRID = 160


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Estimate the density of one operator; predict bulk, edges and outliers."""
    teacher, C = recovery.draw(point, seed)
    found = spectral_density(C, seed=seed, n_grid=N_GRID, progress=False)
    t, h, norms = recovery.population(teacher, C, seed)
    expected = theory.predict_spectrum(t, C.n_samples, teacher.n_packed, h, norms)
    bulk = theory.bulk_density(found.grid, t, C.n_samples, teacher.n_packed, norms)
    return {
        "grid": found.grid,
        "density": found.density,
        "standard_errors": found.standard_errors,
        "edges": found.bulk_edges,
        "outliers": found.outliers,
        "n_passes": found.n_passes,
        "predicted_density": smoothed(bulk, found.grid, found.width),
        "predicted_edges": np.array([expected.edge_left, expected.edge_right]),
        "predicted_outliers": expected.eigenvalues,
    }


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


def table(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a line for each number of samples, seed and feature: its eigenvalue, and the bulk's edges."""
    rows = []
    for point, seed, values in entries:
        edges, expected_edges = values["edges"], values["predicted_edges"]
        places = matched(values["outliers"], values["predicted_outliers"])
        shared = {
            "n": point["n_samples"],
            "seed": seed,
            "left": float(edges[0]),
            "predicted_left": float(expected_edges[0]),
            "right": float(edges[1]),
            "predicted_right": float(expected_edges[1]),
            "n_outliers": len(values["outliers"]),
        }
        rows += [
            shared | {"feature": k + 1, "predicted": float(expected), "eigenvalue": float(place)}
            for k, (place, expected) in enumerate(zip(places, values["predicted_outliers"], strict=True))
        ]
    return rows


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return edges and outliers beside their predictions, and the densities of the first seed."""
    rows, size = table(entries), recovery.n_packed(case)
    distances = [_distances(entry.values) for entry in entries]
    lines = [
        recovery.title(case),
        "",
        format_table(
            ["n / D", "seed", "bulk", "predicted", "outliers", "predicted", "edges off", "outliers off"],
            [
                [f"{point['n_samples'] / size:.3g}", str(seed), _range(values["edges"]),
                 _range(values["predicted_edges"]), str(len(values["outliers"])),
                 str(int(np.isfinite(values["predicted_outliers"]).sum())), f"{edge:.3f}", f"{outlier:.3f}"]
                for (point, seed, values), (edge, outlier) in zip(entries, distances, strict=True)
            ],
        ),
        "",
        "edges are off by this share of the bulk's half-width, outliers by this share of the one predicted,",
        "the largest of those both found and predicted.",
    ]  # fmt: skip
    far = [
        distance
        for (point, *_), distance in zip(entries, distances, strict=True)
        if point["n_samples"] >= (case.get("compared_from", 0.0) - 1e-9) * size
    ]
    where = f"n/D >= {case.get('compared_from', 0.0):g}"
    checks = [
        Check(f"largest distance of {what}, {where}", max(d[i] for d in far), case[bound])
        for i, (what, bound) in enumerate(
            [
                ("an edge over the half-width", "max_edge_distance"),
                ("an outlier over its size", "max_outlier_distance"),
            ]
        )
        if bound in case
    ]
    return Summary(rows, lines, checks, {"density": _figure(case, entries)})


def _range(edges: Array) -> str:
    return f"{edges[0]:+.3f} to {edges[1]:+.3f}"


def _distances(values: dict[str, Any]) -> tuple[float, float]:
    """Return the largest relative distances of edges and of outliers from their predictions."""
    expected = values["predicted_edges"]
    edge = float(np.abs(values["edges"] - expected).max() / (0.5 * (expected[1] - expected[0])))
    places = values["predicted_outliers"]
    share = np.abs(matched(values["outliers"], places) - places) / np.abs(places)
    return edge, float(np.nanmax(share, initial=0.0))


def _figure(case: Case, entries: list[Entry]) -> Figure:
    """Draw the densities of the first seed, one number of samples above the other."""
    first = [entry for entry in entries if entry.seed == entries[0].seed]
    figure = Figure(figsize=(8.0, 2.0 * len(first) + 0.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(first), 1, sharex=True))
    for panel, (point, _, values) in zip(panels, first, strict=True):
        figures.plot_density(
            values["grid"],
            values["density"],
            standard_errors=values["standard_errors"],
            predicted=(values["grid"], values["predicted_density"]),
            edges=tuple(values["predicted_edges"]),
            outliers=values["outliers"],
            expected=values["predicted_outliers"],
            axes=panel,
        )
        panel.set_ylabel(f"n/D = {point['n_samples'] / recovery.n_packed(point):.3g}\ndensity")
        if panel is not panels[-1]:
            panel.set_xlabel("")
            panel.get_legend().remove()
    figure.suptitle(recovery.title(case), fontsize=10)
    return figure


GRID = Grid("spectrum", recovery.points, compute, summarise, recovery.cost)


def run(options: Options) -> list[str]:
    """Run the scenarios; see `grid.run_grid`."""
    return run_grid(GRID, options)
