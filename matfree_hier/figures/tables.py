"""Figures of tables of results: which columns each needs, and how its lines become arrays.

A table is a mapping of names to columns of one length, as the bench stores it and writes it as CSV.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from matfree_hier.figures.curves import plot_density, plot_edges
from matfree_hier.figures.solves import plot_recovery
from matfree_hier.figures.style import figure_of
from matfree_hier.figures.transitions import leaves_zero, plot_collapse, plot_smoothing, plot_transition
from matfree_hier.status import RunFileError
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Columns: TypeAlias = Mapping[str, Any]
"""A table: columns by name."""
Scale: TypeAlias = tuple[float, str]
"""A unit of a second axis, and its label."""

_OVERLAPS = "An overlap by samples and seeds"


def has(table: Columns, *columns: str | tuple[str, ...]) -> bool:
    """Whether a table has the columns; of a tuple, any one of them."""
    choices = ((column,) if isinstance(column, str) else column for column in columns)
    return all(any(name in table for name in names) for names in choices)


def required(table: Columns, *names: str, what: str) -> list[NDArray[Any]]:
    """Return columns of a table as arrays.

    Raises
    ------
    RunFileError
        If one of them is missing, or the table's columns differ in length or are no columns.
    """
    for name in names:
        if name not in table:
            msg = f"{what} needs a column `{name}`; this table has {', '.join(table) or 'none'}."
            raise RunFileError(msg)
    for name, column in table.items():
        if np.ndim(column) != 1:
            msg = f"The columns of a table must have one axis, got `{name}` of shape {np.shape(column)}."
            raise RunFileError(msg)
    lengths = {name: np.size(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
        msg = f"The columns of a table must have one length, at least 1, got {sizes}."
        raise RunFileError(msg)
    return [np.asarray(table[name]) for name in names]


def numbers(table: Columns, *names: str, what: str) -> list[Array]:
    """Return columns of a table as arrays of numbers.

    Raises
    ------
    RunFileError
        As `required`; or if one of them holds something else.
    """
    found = []
    for name, column in zip(names, required(table, *names, what=what), strict=True):
        try:
            found.append(column.astype(np.float64))
        except (TypeError, ValueError) as error:
            msg = f"{what} needs numbers in the column `{name}`."
            raise RunFileError(msg) from error
    return found


def grid_of(table: Columns, column: str, *, what: str = "A table by samples and seeds") -> tuple[Any, Any]:
    """Return the numbers of samples (m,) and a column as an array (seeds, m, features).

    Parameters
    ----------
    table : mapping of str to array_like
        Columns ``n``, ``seed``, ``feature`` and others, a line for each combination, in any order.
    column : str
    what : str
        What needs the columns, for the message where one is missing.

    Raises
    ------
    RunFileError
        If a column is missing, or a combination is missing or occurs twice.
    """
    seed, feature = required(table, "seed", "feature", what=what)
    n, found = numbers(table, "n", column, what=what)
    (_, sizes, _), (values,) = _over({"seed": seed, "sample size": n, "feature": feature}, found)
    return sizes, values


def _over(keys: Mapping[str, NDArray[Any]], *columns: Array) -> tuple[list[NDArray[Any]], list[Array]]:
    """Return the values of each key, sorted, and columns as arrays over them; names of keys are nouns.

    Raises
    ------
    RunFileError
        If a combination of keys is missing or occurs twice.
    """
    axes, places = zip(*(np.unique(key, return_inverse=True) for key in keys.values()), strict=True)
    shape = tuple(len(axis) for axis in axes)
    flat = np.ravel_multi_index(tuple(np.asarray(place).reshape(-1) for place in places), shape)
    size = int(np.prod(shape))
    if len(flat) != size or len(np.unique(flat)) != size:
        *most, last = (counted(len(axis), noun) for noun, axis in zip(keys, axes, strict=True))
        msg = (
            f"The table must have one line for each of {', '.join(most)} and {last}, "
            f"got {counted(len(flat), 'line')}."
        )
        raise RunFileError(msg)
    order = np.argsort(flat)
    return list(axes), [column[order].reshape(shape) for column in columns]


# ---- recovery


def recovery(table: Columns, *, scale: Scale | None = None, axes: Axes | None = None) -> Figure:
    """Draw overlaps against the number of samples; at a single one against n / n_k, or by feature."""
    n, overlaps = grid_of(table, "overlap", what=_OVERLAPS)
    predicted = grid_of(table, "predicted")[1] if "predicted" in table else None
    n_k = _thresholds(table) if "n_k" in table else None
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


def _thresholds(table: Columns) -> Array:
    """Return the column ``n_k`` as an array (seeds, m, features), or refuse what is no number of samples."""
    found: Array = grid_of(table, "n_k", what="A collapse of overlaps")[1]
    if (found <= 0.0).any() or np.isinf(found).any():
        msg = f"`n_k` must be finite and above 0, got {found.min():g} to {found.max():g}."
        raise RunFileError(msg)
    return found


def collapse(table: Columns, *, scale: Scale | None = None, axes: Axes | None = None) -> Figure:
    """Draw overlaps against n / n_k, with what is predicted and the law of large D."""
    n, overlaps = grid_of(table, "overlap", what=_OVERLAPS)
    ratios = n[:, None] / _thresholds(table).mean(axis=0)
    predicted = grid_of(table, "predicted")[1].mean(axis=0) if "predicted" in table else None
    return plot_collapse(ratios, overlaps, predicted=predicted, scale=scale, axes=axes)


def paper_scale(table: Columns, unit: float) -> Scale:
    """Return the second axis of a collapse, n lambda_k^2 / d^q: n_k is about the same there for all k."""
    n_k, weights = (grid_of(table, name)[1] for name in ("n_k", "weight"))
    label = "$n \\lambda_k^2 / d^q$, the paper's scale (mean over features)"
    return unit / float(np.mean(n_k * weights**2)), label


def smoothing(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw the mean overlap of one feature at several sizes beside its limit."""
    names = ("n_packed", "ratio", "overlap", "limit", *(["error"] if "error" in table else []))
    size, ratio, *columns = numbers(table, *names, what="A transition by size")
    (sizes, ratios), (means, limits, *errors) = _over({"size": size, "ratio": ratio}, *columns)
    return plot_smoothing(ratios, means, limits, sizes, errors=errors[0] if errors else None, axes=axes)


def panels_of(count: int, axes: Axes | None, what: str) -> tuple[Figure, list[Axes]]:
    """Return axes for each of some panels, at most three in a row; the ones given have room for one."""
    if axes is not None:
        if count > 1:
            msg = f"`axes` have room for one {what}."
            raise ValueError(msg)
        return figure_of(axes), [axes]
    columns, lines = min(3, count), -(-count // 3)
    size = (4.6 * columns, 3.9 * lines) if count > 1 else (6.0, 4.2)
    figure = Figure(figsize=size, layout="constrained")
    panels = list(np.atleast_1d(figure.subplots(lines, columns)).ravel())
    for panel in panels[count:]:
        panel.set_axis_off()
    return figure, panels


def edges(table: Columns, *, axes: Axes | None = None) -> Figure:
    """Draw the bulk's ends, means over seeds, and the eigenvalues of all features against samples."""
    what = "An edge by samples and seeds"
    n, eigenvalues = grid_of(table, "eigenvalue", what=what)
    found, predicted = (
        np.stack([grid_of(table, name, what=what)[1].mean(axis=(0, 2)) for name in names], axis=1)
        for names in (("left", "right"), ("predicted_left", "predicted_right"))
    )
    return plot_edges(
        n,
        found,
        eigenvalues,
        predicted_edges=predicted,
        predicted=grid_of(table, "predicted", what=what)[1],
        axes=axes,
    )


def densities(
    table: Columns,
    places: Columns | None = None,
    *,
    tails: Columns | None = None,
    n_packed: int | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the density of a spectrum at each number of samples, with the places of edges and features.

    Parameters
    ----------
    table : mapping of str to array_like
        Columns ``n``, ``eigenvalue``, ``density`` and, if known, ``standard_errors``, ``predicted_density``.
    places : mapping of str to array_like, optional
        A table as `edges` takes it; of its first seed.
    tails : mapping of str to array_like, optional
        Columns ``n``, ``seed`` and ``eigenvalue`` of what is outside the bulk and no feature's; of that seed.
    n_packed : int, optional
        D, which panels then have n as a multiple of.
    axes : matplotlib Axes, optional
    """
    n, grid, density = numbers(table, "n", "eigenvalue", "density", what="A density by samples")
    sizes = np.unique(n)
    if axes is None:
        figure = Figure(figsize=(8.0, 2.3 * len(sizes) + 1.0), layout="constrained")
        panels = list(np.atleast_1d(figure.subplots(len(sizes), 1)))
    else:
        figure, panels = panels_of(len(sizes), axes, "density")
    for size, panel in zip(sizes, panels, strict=True):
        here = n == size
        known = {
            name: np.asarray(table[name])[here]
            for name in ("standard_errors", "predicted_density")
            if name in table
        }
        predicted = known.get("predicted_density")
        plot_density(
            grid[here],
            density[here],
            standard_errors=known.get("standard_errors"),
            predicted=None if predicted is None else (grid[here], predicted),
            **({} if places is None else _places(places, tails, size)),
            axes=panel,
        )
        multiple = "" if n_packed is None else f" = {size / n_packed:.3g} D"
        panel.set_ylabel(f"n = {size:,.0f}{multiple}\ndensity")
        if panel is not panels[-1]:
            panel.set_xlabel("")
    if len(panels) > 1:
        _share_legend(figure, panels)
    return figure


def _share_legend(figure: Figure, panels: list[Axes]) -> None:
    """Put one legend of what all panels hold below them."""
    drawn: dict[str, Artist] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        drawn |= dict(zip(labels, handles, strict=True))
        if (legend := panel.get_legend()) is not None:
            legend.remove()
    figure.legend(
        list(drawn.values()), list(drawn), frameon=False, fontsize=8, ncols=4, loc="outside lower center"
    )


def _places(table: Columns, tails: Columns | None, size: float) -> dict[str, Any]:
    """Return edges and eigenvalues of the first seed at a number of samples."""
    names = ("n", "seed", "left", "right", "predicted_left", "predicted_right", "eigenvalue", "predicted")
    n, seed, *columns = numbers(table, *names, what="A density with its edges")
    left, right, low, high, eigenvalues, predicted = (
        column[(n == size) & (seed == seed.min())] for column in columns
    )
    if not len(left):
        return {}
    places = {
        "measured_edges": (left[0], right[0]),
        "edges": (low[0], high[0]),
        "outliers": eigenvalues[np.isfinite(eigenvalues)],
        "expected": predicted,
    }
    if tails is not None:
        sizes, seeds, others = numbers(tails, "n", "seed", "eigenvalue", what="A density with its tails")
        places["tails"] = others[(sizes == size) & (seeds == seed.min())]
    return places
