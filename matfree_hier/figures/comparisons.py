"""Figures that set several things side by side: errors of estimators, times by size, times of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.patches import Patch

from matfree_hier.figures.style import (
    BLUE,
    GREY,
    error_bars,
    figure_of,
    new_axes,
    plain_ticks,
    styles_of,
    ticks_at,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

_LEAST = 1e-4  # of an error that is drawn where it is


class Curve(NamedTuple):
    """One of the things that are compared: values (m,) at places (m,).

    Attributes
    ----------
    name : str
        For the legend; the estimators "paper", "spectral" and "refined" have their own colours.
    x, values : array_like of float, shape (m,)
    spread : array_like of float, shape (m,), optional
        Standard deviation over repeats, NaN where it is not known.
    predicted : array_like of float, shape (m,), optional
        What theory expects: a line.
    law : tuple of float and array_like, optional
        Constant and exponent of a power law that was fitted, and the places it was fitted to: a dashed line.
    """

    name: str
    x: ArrayLike
    values: ArrayLike
    spread: ArrayLike | None = None
    predicted: ArrayLike | None = None
    law: tuple[float, float, ArrayLike] | None = None


def plot_curves(
    curves: Sequence[Curve],
    *,
    log: bool = True,
    joined: bool = True,
    shaded: tuple[float, float] | None = None,
    x_label: str = "samples $n$",
    y_label: str = "relative error, 1 - R²",
    axes: Axes | None = None,
) -> Figure:
    """Draw curves against a number of samples, such as the errors of several estimators.

    Parameters
    ----------
    curves : sequence of Curve
    log : bool
        Whether values are on a log axis, where those below 1e-4 are drawn at 1e-4 and open. Otherwise the
        axis is that of overlaps, 0 to 1.
    joined : bool
        Whether points are joined by lines.
    shaded : tuple of float, optional
        A range of samples to shade.
    x_label, y_label : str
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    axes = new_axes(axes)
    styles = styles_of(curve.name for curve in curves)
    if shaded is not None:
        axes.axvspan(*shaded, color="0.92", zorder=0)
    raised = negative = False
    lowest = np.inf
    for curve in curves:
        colour, marker = styles[curve.name]
        x, values = (np.asarray(part, dtype=np.float64) for part in (curve.x, curve.values))
        spread = np.full(len(x), np.nan) if curve.spread is None else np.asarray(curve.spread)
        if curve.predicted is not None:
            axes.plot(x, curve.predicted, color=colour, linewidth=1.2, label=f"{curve.name}, theory")
        low = (values < _LEAST) & (values >= 0.0) & log
        raised, negative = raised or bool(low.any()), negative or bool((values < 0.0).any())
        drawn = np.where(low, _LEAST, np.where((values < 0.0) & log, np.nan, values))
        form = f"{marker}-" if joined and curve.predicted is None else marker
        error_bars(axes, x, drawn, np.where(low, np.nan, spread), form, colour, curve.name)
        axes.plot(x[low], drawn[low], marker, color=colour, markerfacecolor="white", markersize=5, zorder=3)
        lowest = min(lowest, float(np.nanmin(drawn, initial=np.inf)))
        if curve.law is not None:
            _draw_law(axes, curve.law, colour)
    axes.set_xscale("log")
    ticks_at(axes.xaxis, np.concatenate([np.asarray(curve.x, dtype=np.float64) for curve in curves]))
    if log:
        axes.set_yscale("log", nonpositive="clip")
        if np.isfinite(lowest):  # bars may reach to 0
            axes.set_ylim(bottom=max(axes.get_ylim()[0], lowest / 2.0))
        plain_ticks(axes.yaxis)
        y_label += f" (open: below {_LEAST:g})" if raised else " (not drawn: below 0)" if negative else ""
    else:
        axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def _draw_law(axes: Axes, law: tuple[float, float, ArrayLike], colour: str) -> None:
    """Draw a fitted power law over its range, with its exponent at the end."""
    constant, exponent, places = law
    ends = np.array([np.min(places), np.max(places)])
    line = constant * ends**exponent
    axes.plot(ends, line, "--", color=colour, linewidth=1)
    axes.annotate(
        f"{exponent:.2f}",
        (ends[1], line[1]),
        xytext=(6, -3),
        textcoords="offset points",
        color=colour,
        fontsize=8,
        annotation_clip=False,
    )


class Times(NamedTuple):
    """Seconds (m,) at sizes (m,), and the range over repeats."""

    name: str
    sizes: ArrayLike
    seconds: ArrayLike
    low: ArrayLike
    high: ArrayLike


def plot_times(
    series: Sequence[Times],
    *,
    laws: Mapping[str, tuple[float, float]] | None = None,
    y_label: str = "seconds",
    axes: Axes | None = None,
) -> Figure:
    """Draw times against each size over the smallest of it, with power laws.

    Parameters
    ----------
    series : sequence of Times
    laws : mapping of str to tuple of float, optional
        Constant and exponent by name, fitted to all repeats; otherwise fitted here to `seconds`.
    y_label : str
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    axes = new_axes(axes)
    styles = styles_of(times.name for times in series)
    all_ratios = []
    for times in series:
        colour, marker = styles[times.name]
        sizes, middle, low, high = (np.asarray(values, dtype=np.float64) for values in times[1:])
        ratios = sizes / sizes.min()
        all_ratios.append(ratios)
        label = f"{times.name} from {sizes.min():,.0f}"
        law = (laws or {}).get(times.name) or _fitted(sizes, middle)
        if law is not None:
            constant, exponent = law
            axes.plot(ratios, constant * sizes**exponent, color=colour, linewidth=1)
            label += f": exponent {exponent:.2f}"
        reach = np.maximum([middle - low, high - middle], 0.0)
        error_bars(axes, ratios, middle, reach, marker, colour, label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks_at(axes.xaxis, np.concatenate(all_ratios).round(2))
    plain_ticks(axes.yaxis)
    axes.set_xlabel("size over the smallest")
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def _fitted(x: Array, values: Array) -> tuple[float, float] | None:
    if len(np.unique(x)) < 2 or not (values > 0.0).all():
        return None
    exponent, constant = np.polyfit(np.log(x), np.log(values), 1)
    return float(np.exp(constant)), float(exponent)


def plot_peers(
    names: Sequence[str],
    seconds: ArrayLike,
    *,
    outcomes: Sequence[str] | None = None,
    at_least: ArrayLike | None = None,
    times: ArrayLike | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the seconds of several routes to one result as bars on a log axis.

    Parameters
    ----------
    names : sequence of str
        Of the routes, ours first.
    seconds : array_like of float, shape (r,)
        NaN for a route that has none.
    outcomes : sequence of str, optional
        Shown of a route whose outcome is not "done".
    at_least : array_like of bool, shape (r,), optional
        Whether a route was stopped, so that its seconds are a lower bound: hatched, with an arrow.
    times : array_like of float, shape (r,), optional
        Seconds over ours.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    values = np.asarray(seconds, dtype=np.float64)
    stopped = np.zeros(len(values), bool) if at_least is None else np.asarray(at_least).astype(bool)
    ratios = np.full(len(values), np.nan) if times is None else np.asarray(times, dtype=np.float64)
    said = ["done"] * len(values) if outcomes is None else list(outcomes)
    axes = new_axes(axes)
    known = np.isfinite(values)
    least, most = (values[known].min(), values[known].max()) if known.any() else (1.0, 1.0)
    for place, (value, ratio, was_stopped) in enumerate(zip(values, ratios, stopped, strict=True)):
        end, text = least, said[place]
        if np.isfinite(value):
            end, text = value, f"{'> ' if was_stopped else ''}{value:.3g} s"
            if place > 0 and np.isfinite(ratio):
                text += f", {'> ' if was_stopped else ''}{ratio:.3g} times {names[0]}"
            elif said[place] != "done":
                text += f", {said[place]}"
            colour = BLUE if place == 0 else GREY
            if was_stopped:
                axes.barh(place, value, height=0.6, facecolor="white", edgecolor=colour, hatch="///")
                end = value * 1.25
                axes.annotate(
                    "", (end, place), (value, place), arrowprops={"arrowstyle": "->", "color": colour}
                )
            else:
                axes.barh(place, value, height=0.6, color=colour)
        axes.text(end * 1.1, place, text, va="center", fontsize=8)
    if stopped.any():
        patch = Patch(facecolor="white", edgecolor=GREY, hatch="///", label="stopped: takes longer")
        axes.legend(handles=[patch], frameon=False, fontsize=8, loc="lower right")
    axes.set_yticks(range(len(values)), list(names))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(least / 3, 40 * most)
    plain_ticks(axes.xaxis)
    axes.set_xlabel("seconds")
    return figure_of(axes)
