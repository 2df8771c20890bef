"""Figures of tables of results: which columns each needs, and how its lines become arrays.

A table is a mapping of names to columns of one length, as the bench stores it and writes it as CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from matfree_hier.figures.comparisons import Curve, Times, plot_curves, plot_peers, plot_times
from matfree_hier.figures.curves import plot_edges
from matfree_hier.figures.solves import plot_recovery
from matfree_hier.figures.style import GREY, error_bars, figure_of, new_axes
from matfree_hier.figures.transitions import leaves_zero, plot_collapse, plot_smoothing, plot_transition
from matfree_hier.status import RunFileError
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Columns: TypeAlias = Mapping[str, Any]
"""A table: columns by name."""
Scale: TypeAlias = tuple[float, str]
"""A unit of a second axis, and its label."""

NAMES = ("estimator", "model", "variant")  # columns that say what a line of a comparison is of
PLACES = ("n", "n_over_D")  # and where it stands
_SIZES = {"n": "samples n", "D": "coordinates D", "k": "vectors k"}
_EXPLAINED_BELOW = 0.5  # gamma, below which the error falls too slowly to be seen


def required(table: Columns, *names: str, what: str) -> list[NDArray[Any]]:
    """Return columns of a table as arrays.

    Raises
    ------
    RunFileError
        If one of them is missing, or the table's columns differ in length.
    """
    for name in names:
        if name not in table:
            msg = f"{what} needs a column `{name}`; this table has {', '.join(table) or 'none'}."
            raise RunFileError(msg)
    lengths = {name: np.size(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
        msg = f"The columns of a table must have one length, at least 1, got {sizes}."
        raise RunFileError(msg)
    return [np.asarray(table[name]) for name in names]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return the table of lines with the same keys."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def grid_of(table: Columns, column: str) -> tuple[Any, Any]:
    """Return the numbers of samples (m,) and a column as an array (seeds, m, features).

    Parameters
    ----------
    table : mapping of str to array_like
        Columns ``n``, ``seed``, ``feature`` and others, a line for each combination, in any order.
    column : str

    Raises
    ------
    RunFileError
        If a column is missing, or a combination is missing or occurs twice.
    """
    *keys, found = required(table, "seed", "n", "feature", column, what="An overlap by samples and seeds")
    axes, places = zip(*(np.unique(key, return_inverse=True) for key in keys), strict=True)
    shape = tuple(len(axis) for axis in axes)
    values = np.full(shape, np.nan)
    flat = np.ravel_multi_index(tuple(np.asarray(place).reshape(-1) for place in places), shape)
    if len(flat) != values.size or len(np.unique(flat)) != values.size:
        msg = (
            f"The table must have one line for each of {counted(shape[0], 'seed')}, "
            f"{counted(shape[1], 'number')} of samples and {counted(shape[2], 'feature')}, "
            f"got {counted(len(flat), 'line')}."
        )
        raise RunFileError(msg)
    values.flat[flat] = found.astype(np.float64)
    return axes[1], values


# ---- recovery


def recovery(table: Columns, *, scale: Scale | None = None, axes: Axes | None = None) -> Figure:
    """Draw overlaps against the number of samples; at a single one against n / n_k, or by feature."""
    n, overlaps = grid_of(table, "overlap")
    predicted = grid_of(table, "predicted")[1] if "predicted" in table else None
    n_k = grid_of(table, "n_k")[1] if "n_k" in table else None
    if len(n) == 1:
        ratios = None if n_k is None else n[0] / n_k[:, 0].mean(axis=0)
        expected = None if predicted is None else predicted[:, 0].mean(axis=0)
        return plot_recovery(overlaps[:, 0], samples_over_threshold=ratios, predicted=expected, axes=axes)
    return plot_transition(
        n,
        overlaps,
        predicted=None if predicted is None else (n, predicted.mean(axis=0)),
        thresholds=None if n_k is None else n_k[:, -1].mean(axis=0),  # known best where samples are many
        expected_thresholds=None if predicted is None else leaves_zero(n, predicted),
        scale=scale,
        axes=axes,
    )


def collapse(table: Columns, *, scale: Scale | None = None, axes: Axes | None = None) -> Figure:
    """Draw overlaps against n / n_k, with what is predicted and the law of large D."""
    n, overlaps = grid_of(table, "overlap")
    ratios = n[:, None] / grid_of(table, "n_k")[1].mean(axis=0)
    predicted = grid_of(table, "predicted")[1].mean(axis=0) if "predicted" in table else None
    return plot_collapse(ratios, overlaps, predicted=predicted, scale=scale, axes=axes)


def paper_scale(table: Columns, unit: float) -> Scale:
    """Return the second axis of a collapse, n lambda_k^2 / d^q: n_k is about the same there for all k."""
    n_k, weights = (grid_of(table, name)[1] for name in ("n_k", "weight"))
    label = "$n \\lambda_k^2 / d^q$, the paper's scale (mean over features)"
    return unit / float(np.mean(n_k * weights**2)), label


def smoothing(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw the mean overlap of one feature at several sizes beside its limit."""
    columns = ("n_packed", "ratio", "overlap", "limit")
    size, ratio, overlap, limit = required(table, *columns, what="A transition by size")
    sizes, ratios = np.unique(size), np.unique(ratio)
    order = np.lexsort((ratio, size))
    if len(size) != len(sizes) * len(ratios):
        msg = f"The table must have one line for each of {len(sizes)} sizes and {len(ratios)} ratios."
        raise RunFileError(msg)
    means, limits = (column[order].reshape(len(sizes), -1) for column in (overlap, limit))
    errors = np.asarray(table["error"])[order].reshape(means.shape) if "error" in table else None
    return plot_smoothing(ratios, means, limits, sizes, errors=errors, axes=axes)


# ---- comparisons


def errors(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw the relative error of each estimator against samples, a panel for each gamma."""
    names, n, value = _compared(table, "relative_mse", "An error by samples")
    if "overlap" in table:  # whose standard deviation the table then has
        table = {name: column for name, column in table.items() if name != "sd"}
    gammas = np.asarray(table["gamma"] if "gamma" in table else np.full(len(n), np.nan))
    kinds = np.unique(gammas)
    if axes is not None:
        if len(kinds) > 1:
            msg = f"`axes` have room for one gamma, the table has {', '.join(f'{g:g}' for g in kinds)}."
            raise ValueError(msg)
        panels, figure = [axes], None
    else:
        columns, lines = min(3, len(kinds)), -(-len(kinds) // 3)
        size = (4.4 * columns, 3.6 * lines) if len(kinds) > 1 else (6.0, 4.2)
        figure = Figure(figsize=size, layout="constrained")
        panels = list(np.atleast_1d(figure.subplots(lines, columns)).ravel())
    for panel in panels[len(kinds) :]:
        panel.set_axis_off()
    label = "n / D" if "n_over_D" in table else "samples $n$"
    for gamma, panel in zip(kinds, panels, strict=False):
        here = (gammas == gamma) | np.isnan(gamma)
        explained = bool(gamma < _EXPLAINED_BELOW)
        curves = [
            _curve(table, name, here & (names == name), n, 1.0 - value if explained else value, explained)
            for name in dict.fromkeys(names[here].tolist())
        ]
        drawn = plot_curves(
            curves,
            shaded=_shaded(table, here, n),
            x_label=label,
            y_label="part explained, 1 - error" if explained else "relative error, 1 - R²",
            axes=panel,
        )
        if "gamma" in table:
            panel.set_title(f"gamma = {gamma:g}", fontsize=10)
        legend = panel.get_legend()
        if panel is not panels[0] and legend is not None:
            legend.remove()
    return figure or drawn


def overlaps(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw the mean overlap of each variant against samples, beside what others recorded."""
    names, n, value = _compared(table, "overlap", "An overlap by samples")
    curves = [
        _curve(table, name, names == name, n, value, False, theory="predicted")
        for name in dict.fromkeys(names.tolist())
    ]
    axes = new_axes(axes)
    plot_curves(curves, log=False, y_label="squared overlap, mean over features", axes=axes)
    if "recorded" in table:
        first = np.unique(n, return_index=True)[1]
        recorded = np.asarray(table["recorded"], dtype=np.float64)[first]
        deviation = np.asarray(table.get("recorded_sd", np.full(len(n), np.nan)))[first]
        error_bars(axes, n[first], recorded, deviation, "x-", GREY, "recorded")
        axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def _compared(table: Columns, value: str, what: str) -> tuple[NDArray[Any], Array, Array]:
    """Return what each line is of, its number of samples, and its value."""
    chosen = [next((name for name in names if name in table), names[0]) for names in (NAMES, PLACES)]
    name, n, values = required(table, *chosen, value, what=what)
    return name.astype(str), n.astype(np.float64), values.astype(np.float64)


def _curve(
    table: Columns,
    name: str,
    lines: NDArray[np.bool_],
    n: Array,
    values: Array,
    explained: bool,
    *,
    theory: str = "theory",
) -> Curve:
    order = np.flatnonzero(lines)[np.argsort(n[lines], kind="stable")]
    spread = np.asarray(table["sd"], dtype=np.float64)[order] if "sd" in table else None
    predicted = np.asarray(table[theory], dtype=np.float64)[order] if theory in table else None
    if predicted is not None:
        predicted = 1.0 - predicted if explained else predicted
        predicted = predicted if np.isfinite(predicted).any() else None
    return Curve(name, n[order], values[order], spread, predicted)


def _shaded(table: Columns, here: NDArray[np.bool_], n: Array) -> tuple[float, float] | None:
    """Return the range of samples where the law can hold, of the curve that theory predicts."""
    if not {"in_range", "theory"} <= table.keys():
        return None
    used = n[here & np.asarray(table["in_range"]).astype(bool) & np.isfinite(np.asarray(table["theory"]))]
    return (float(used.min()) / 1.2, float(used.max()) * 1.2) if len(used) else None


def times(
    table: Columns, *, laws: Mapping[str, tuple[float, float]] | None = None, axes: Axes | None = None
) -> Figure:
    """Draw times against each size that was varied."""
    varied, size, seconds = required(table, "varied", "size", "seconds", what="A time by size")
    low, high = (np.asarray(table.get(name, seconds)) for name in ("low", "high"))
    series = [
        Times(_SIZES.get(name, name), *(column[varied == name] for column in (size, seconds, low, high)))
        for name in dict.fromkeys(varied.tolist())
    ]
    named = {_SIZES.get(name, name): law for name, law in (laws or {}).items()}
    return plot_times(series, laws=named, axes=axes)


def peers(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw seconds of routes as bars; those stopped are lower bounds."""
    route, seconds = required(table, "route", "seconds", what="A comparison of routes")
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


def edges(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw the bulk's ends, means over seeds, and the eigenvalues of all features against samples."""
    n, eigenvalues = grid_of(table, "eigenvalue")
    found, predicted = (
        np.stack([grid_of(table, name)[1].mean(axis=(0, 2)) for name in names], axis=1)
        for names in (("left", "right"), ("predicted_left", "predicted_right"))
    )
    return plot_edges(
        n,
        found,
        eigenvalues,
        predicted_edges=predicted,
        predicted=grid_of(table, "predicted")[1],
        axes=axes,
    )


class Kind(NamedTuple):
    """A figure of a table, and the columns by which it is known; of a tuple, any."""

    draw: Callable[[Columns], Figure]
    columns: tuple[str | tuple[str, ...], ...]

    def fits(self, table: Columns) -> bool:
        """Whether the table has the columns."""
        choices = ((column,) if isinstance(column, str) else column for column in self.columns)
        return all(any(name in table for name in names) for names in choices)


KINDS: Mapping[str, Kind] = {
    "errors": Kind(errors, (PLACES, NAMES, "relative_mse")),
    "overlaps": Kind(overlaps, (PLACES, NAMES, "overlap")),
    "times": Kind(times, ("varied", "size", "seconds")),
    "seconds": Kind(peers, ("route", "seconds")),
    "edges": Kind(edges, ("n", "seed", "feature", "left", "right", "predicted", "eigenvalue")),
}


def drawable(table: Columns) -> dict[str, Figure]:
    """Return the figures that need nothing but the columns, those that the table has."""
    return {name: kind.draw(table) for name, kind in KINDS.items() if kind.fits(table)}
