"""Figures of tables that set things side by side: errors, overlaps, times, efficiencies, routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from matfree_hier.figures.comparisons import (
    Curve,
    Law,
    Ranges,
    plot_curves,
    plot_efficiency,
    plot_peers,
    plot_times,
)
from matfree_hier.figures.style import error_bars, figure_of, new_axes
from matfree_hier.figures.tables import Columns, numbers, panels_of, required
from matfree_hier.status import RunFileError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

NAMES = ("estimator", "model", "variant")  # columns that say what a line of a comparison is of
PLACES = ("n", "n_over_D")  # and where it stands
VALUES = ("relative_mse", "overlap")  # and what is drawn of it
_SIZES = {"n": "samples n", "D": "coordinates D", "k": "vectors k"}
_EXPLAINED_BELOW = 0.5  # gamma, below which the error falls too slowly to be seen


def errors(table: Columns, *, laws: Columns | None = None, axes: Axes | None = None) -> Figure:
    """Draw the relative error of each estimator against samples, a panel for each gamma, with their laws."""
    names, n, value = _compared(table, "relative_mse", "An error by samples")
    deviations = _deviations(table, "relative_mse")
    (gammas,) = numbers(table, "gamma", what="An error") if "gamma" in table else [np.full(len(n), np.nan)]
    kinds = np.unique(gammas[np.isfinite(value)])
    label = "n / D" if "n_over_D" in table else "samples $n$"
    figure, panels = panels_of(len(kinds), axes, f"gamma; the table has {', '.join(f'{g:g}' for g in kinds)}")
    for gamma, panel in zip(kinds, panels, strict=False):
        here = (gammas == gamma) | np.isnan(gamma)
        explained = bool(gamma < _EXPLAINED_BELOW)
        curves = [
            _curve(table, name, line, n, 1.0 - value if explained else value, deviations, explained)
            for name, line in _lines_of(names, here, value)
        ]
        if laws is not None:
            curves = [curve._replace(law=_law(laws, gamma, curve)) for curve in curves]
        what = "part explained, 1 - error" if explained else "relative error, 1 - R²"
        plot_curves(curves, x_label=label, y_label=what, axes=panel)
        if "gamma" in table:
            panel.set_title(f"gamma = {gamma:g}", fontsize=10)
        legend = panel.get_legend()
        if panel is not panels[0] and laws is None and legend is not None:
            legend.remove()
    if laws is not None and axes is None:
        figure.suptitle("exponents, with 95 % intervals, are fitted to the full marks (dashed)", fontsize=10)
    return figure


def _law(laws: Columns, gamma: float, curve: Curve) -> Law | None:
    """Return the law of a curve, as the bench's table of them has it."""
    columns = ("gamma", "estimator", "exponent", "low", "high", "theory", "law", "note")
    gammas, names, *values, notes = required(laws, *columns, what="A table of laws")
    (lines,) = np.nonzero((gammas == gamma) & (names == curve.name))
    if not len(lines):
        return None
    exponent, low, high, expected, asymptotic = (float(column[lines[0]]) for column in values)
    if np.isnan(exponent):
        nothing = not (np.asarray(curve.values) > 0.0).any()  # of the part explained; no point is drawn
        return Law(exponent, "explains less than nothing" if nothing else str(notes[lines[0]]), expected)
    text = f"{exponent:.2f} [{low:.2f}, {high:.2f}]"
    return Law(exponent, text, expected, asymptotic if curve.name == "paper" else np.nan)


def overlaps(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw the mean overlap of each variant against samples, beside what others recorded."""
    names, n, value = _compared(table, "overlap", "An overlap by samples")
    deviations = _deviations(table, "overlap")
    curves = [
        _curve(table, name, line, n, value, deviations)
        for name, line in _lines_of(names, np.full(len(n), True), value)
    ]
    axes = new_axes(axes)
    plot_curves(curves, log=False, y_label="squared overlap, mean over features", axes=axes)
    if "recorded" in table:
        first = np.unique(n, return_index=True)[1]
        recorded = np.asarray(table["recorded"], dtype=np.float64)[first]
        deviation = np.asarray(table.get("recorded_sd", np.full(len(n), np.nan)), dtype=np.float64)[first]
        error_bars(axes, n[first], recorded, deviation, "x--", "black", "recorded")
        axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def _compared(table: Columns, value: str, what: str) -> tuple[NDArray[Any], Array, Array]:
    """Return what each line is of, its number of samples, and its value; one of them at least is known."""
    chosen = [next((name for name in known if name in table), known[0]) for known in (NAMES, PLACES)]
    (names,) = required(table, chosen[0], what=what)
    n, values = numbers(table, chosen[1], value, what=what)
    if not np.isfinite(values).any():
        msg = f"{what} needs a value in the column `{value}`; all are NaN."
        raise RunFileError(msg)
    return names.astype(str), n, values


def _lines_of(
    names: NDArray[Any], here: NDArray[np.bool_], values: Array
) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return each name and which lines are of it, without those that have no value in any."""
    lines = [(name, here & (names == name)) for name in dict.fromkeys(names[here].tolist())]
    return [(name, line) for name, line in lines if np.isfinite(values[line]).any()]


def _deviations(table: Columns, value: str) -> Array | None:
    """Return the standard deviations of a value: a bare ``sd`` is of it where there is no other value."""
    alone = sum(name in table for name in VALUES) == 1
    names = (f"{value}_sd", "sd") if alone else (f"{value}_sd",)
    return next((np.asarray(table[name], dtype=np.float64) for name in names if name in table), None)


def _curve(
    table: Columns,
    name: str,
    lines: NDArray[np.bool_],
    n: Array,
    values: Array,
    deviations: Array | None,
    explained: bool = False,
) -> Curve:
    order = np.flatnonzero(lines)[np.argsort(n[lines], kind="stable")]
    spread = None if deviations is None else deviations[order]
    predicted, used = (
        np.asarray(table[column], dtype=np.float64)[order] if column in table else None
        for column in ("theory", "in_fit")
    )
    if predicted is not None:
        predicted = 1.0 - predicted if explained else predicted
        predicted = predicted if np.isfinite(predicted).any() else None
    return Curve(name, n[order], values[order], spread, predicted, used)


def times(
    table: Columns, *, laws: Mapping[str, tuple[float, float]] | None = None, axes: Axes | None = None
) -> Figure:
    """Draw times against each size that was varied."""
    series = [
        each._replace(name=_SIZES.get(each.name, each.name))
        for each in _ranges(table, "varied", "size", "seconds", what="A time by size")
    ]
    named = {_SIZES.get(name, name): law for name, law in (laws or {}).items()}
    return plot_times(series, laws=named, axes=axes)


def efficiency(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw efficiencies against ranks, weak and strong scaling apart."""
    series = _ranges(table, "mode", "ranks", "efficiency", what="An efficiency by ranks")
    return plot_efficiency([each._replace(name=f"{each.name} scaling") for each in series], axes=axes)


def _ranges(table: Columns, kind: str, size: str, value: str, *, what: str) -> list[Ranges]:
    """Return what was measured of each kind; without columns ``low`` and ``high``, of no extent."""
    (kinds,) = required(table, kind, what=what)
    sizes, values = numbers(table, size, value, what=what)
    low, high = (np.asarray(table.get(name, values)) for name in ("low", "high"))
    names = kinds.astype(str)
    return [
        Ranges(name, *(column[names == name] for column in (sizes, values, low, high)))
        for name in dict.fromkeys(names.tolist())
    ]


def peers(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw seconds of routes as bars; those stopped are lower bounds."""
    what = "A comparison of routes"
    (route,), (seconds,) = required(table, "route", what=what), numbers(table, "seconds", what=what)
    if axes is None:
        axes = Figure(figsize=(7.0, 0.6 * len(route) + 1.4), layout="constrained").subplots()
    return plot_peers(
        route.astype(str).tolist(),
        seconds,
        outcomes=np.asarray(table["outcome"]).astype(str).tolist() if "outcome" in table else None,
        at_least=table.get("at_least"),
        times=table.get("times"),
        axes=axes,
    )
