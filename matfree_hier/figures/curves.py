"""Figures of spectra as densities, of their edges as samples come in, and of power laws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matfree_hier.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    above_zero,
    error_bars,
    figure_of,
    new_axes,
    plain_ticks,
    signed_ticks,
    ticks_at,
    vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


def plot_density(
    grid: ArrayLike,
    density: ArrayLike,
    *,
    standard_errors: ArrayLike | None = None,
    predicted: tuple[ArrayLike, ArrayLike] | None = None,
    edges: tuple[float, float] | None = None,
    measured_edges: tuple[float, float] | None = None,
    outliers: ArrayLike = (),
    tails: ArrayLike = (),
    expected: ArrayLike = (),
    axes: Axes | None = None,
) -> Figure:
    """Draw the density of a spectrum with the bulk's edges, and each outlier with its predicted place.

    Parameters
    ----------
    grid, density : array_like of float, shape (m,)
        Points and density there.
    standard_errors : array_like of float, shape (m,), optional
        Of the density, drawn as a band of two of them.
    predicted : tuple of array_like, shapes (m',), optional
        Points and the density that theory expects, drawn as a dashed line.
    edges, measured_edges : tuple of float, optional
        Where theory puts the bulk's ends, and where they are: dashed and solid vertical lines.
    outliers : array_like of float
        Eigenvalues outside the bulk, found.
    tails : array_like of float
        Others outside the bulk that are no feature's.
    expected : array_like of float
        Where theory puts them; NaN is left out.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    x, y = vector("grid", grid), vector("density", density)
    axes = new_axes(axes)
    axes.fill_between(x, y, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(x, y, color=BLUE, linewidth=1.3, label="density of the bulk")
    if standard_errors is not None:
        error = 2 * vector("standard_errors", standard_errors)
        axes.fill_between(x, y - error, y + error, color=BLUE, alpha=0.25, linewidth=0)
    if predicted is not None:
        axes.plot(*(vector("predicted", part) for part in predicted), "k--", linewidth=1, label="predicted")
    height = float(y.max()) if predicted is None else float(max(y.max(), np.max(predicted[1])))
    for ends, style, width, label in (
        (measured_edges, "-", 0.8, "edges of the bulk"),
        (edges, "--", 1.0, "predicted edges"),
    ):
        for i, edge in enumerate(ends or ()):
            axes.axvline(edge, color=GREY, linestyle=style, linewidth=width, label=None if i else label)
    found, places = np.atleast_1d(outliers), np.atleast_1d(np.asarray(expected, dtype=np.float64))
    others = np.atleast_1d(np.asarray(tails, dtype=np.float64))
    if found.size:
        axes.vlines(found, 0, 0.12 * height, color=ORANGE, linewidth=2, label="outliers")
    if others.size:
        axes.vlines(others, 0, 0.06 * height, color=GREEN, linewidth=1.2, label="tails")
    places = places[np.isfinite(places)]
    if places.size:
        axes.plot(places, np.full(len(places), 0.17 * height), "kx", markersize=6, label="predicted outliers")
    axes.set_ylim(0, 1.08 * height)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def plot_edges(
    n: ArrayLike,
    edges: ArrayLike,
    eigenvalues: ArrayLike,
    *,
    predicted_edges: ArrayLike | None = None,
    predicted: ArrayLike | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the ends of a bulk and the eigenvalues of features outside it against the number of samples.

    Parameters
    ----------
    n : array_like of float, shape (m,)
        Numbers of samples, increasing.
    edges, predicted_edges : array_like of float, shape (m, 2)
        Lower and upper end of the bulk: shaded; and where theory puts them, dashed lines.
    eigenvalues, predicted : array_like of float, shape (s, m, K)
        Of each of K features in s repeats, NaN where it has none outside the bulk: points; and as theory has
        them, crosses.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    x, ends = above_zero("n", n), np.asarray(edges, dtype=np.float64)
    axes = new_axes(axes)
    if len(x) > 1:
        axes.fill_between(x, ends[:, 0], ends[:, 1], color=BLUE, alpha=0.2, linewidth=0, label="bulk")
    else:
        axes.vlines(x, ends[:, 0], ends[:, 1], color=BLUE, alpha=0.3, linewidth=6, label="bulk")
    if predicted_edges is not None:
        form = "--" if len(x) > 1 else "_"
        axes.plot(x, predicted_edges, form, color=GREY, linewidth=1.2, label=["edges predicted", None])
    for values, marker, colour, label in (
        (eigenvalues, "o", ORANGE, "features"),
        (predicted, "x", "black", "features predicted"),
    ):
        if values is not None:
            lines = np.moveaxis(np.asarray(values, dtype=np.float64), 1, 0).reshape(len(x), -1)
            size = 4 if marker == "o" else 7
            axes.plot(x, lines[:, :1], marker, color=colour, markersize=size, label=label)
            axes.plot(x, lines[:, 1:], marker, color=colour, markersize=size)
    # In proportion to the eigenvalue where it is large, linear about 0: the bulk narrows by decades.
    width = float(np.abs(ends).min()) or 1.0
    axes.set_yscale("asinh", linear_width=width)
    signed_ticks(axes.yaxis, width, float(np.abs(axes.get_ylim()).max()))
    axes.set_xscale("log")
    ticks_at(axes.xaxis, x)
    axes.set_xlabel("samples $n$")
    axes.set_ylabel("eigenvalue")
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def plot_law(
    x: ArrayLike,
    repeats: ArrayLike,
    *,
    errors: ArrayLike | None = None,
    law: Callable[[Array], Array] | None = None,
    law_label: str = "law",
    label: str = "measured",
    colour: str = BLUE,
    marker: str = "o",
    x_label: str = "x",
    y_label: str = "y",
    axes: Axes | None = None,
) -> Figure:
    """Draw a positive quantity against another on two log axes, with its standard error, and a law.

    Parameters
    ----------
    x : array_like of float > 0, shape (m,)
        Places.
    repeats : array_like of float, shape (s, m)
        Values of s repeats at each place; their mean is drawn.
    errors : array_like of float, shape (m,), optional
        Of the mean; by default its standard error, of one repeat none.
    law : callable, optional
        Places to values, drawn as a line over the range of `x`.
    law_label, label : str
        For the legend.
    colour, marker : str
        Of the measured points; the law has the same colour.
    x_label, y_label : str
        Of the axes, with units.
    axes : matplotlib Axes, optional
        Where to draw, such as those of an earlier call; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    places = vector("x", x)
    values = np.asarray(repeats, dtype=np.float64)
    mean = values.mean(axis=0)
    if errors is None:
        errors = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros(len(mean))
    axes = new_axes(axes)
    error_bars(axes, places, mean, errors, marker, colour, label)
    if law is not None:
        line = np.geomspace(places.min(), places.max(), 100)
        axes.plot(line, law(line), color=colour, linewidth=1.2, linestyle="--", label=law_label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_within_two_decades(axes.xaxis, places)
    _plain_within_two_decades(axes.yaxis, mean[np.isfinite(mean)])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def _plain_within_two_decades(axis: Axis, values: Array) -> None:
    positive = values[values > 0]
    if positive.size and positive.max() < 100 * positive.min():
        plain_ticks(axis)
