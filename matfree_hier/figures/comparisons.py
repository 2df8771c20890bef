"""Figures that set several things side by side: errors of estimators, times by size, times of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.patches import Patch

from matfree_hier.figures.style import (
    BLUE,
    GREY,
    above_zero,
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


class Law(NamedTuple):
    """The power law of a curve.

    Attributes
    ----------
    exponent : float
        Drawn as a dashed line through the middle of the points in use; NaN where none was fitted.
    text : str
        What the legend says of it, or of why there is none.
    theory : float
        Exponent of what theory expects over the same points, for the legend; NaN if there is none.
    asymptotic : float
        Exponent that holds in the limit: a dotted line; NaN if there is none.
    """

    exponent: float
    text: str
    theory: float = np.nan
    asymptotic: float = np.nan


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
    used : array_like of bool, shape (m,), optional
        Which points the law is about; the others are open. All by default.
    law : Law, optional
    """

    name: str
    x: ArrayLike
    values: ArrayLike
    spread: ArrayLike | None = None
    predicted: ArrayLike | None = None
    used: ArrayLike | None = None
    law: Law | None = None


def plot_curves(
    curves: Sequence[Curve],
    *,
    log: bool = True,
    x_label: str = "samples $n$",
    y_label: str = "relative error, 1 - R²",
    axes: Axes | None = None,
) -> Figure:
    """Draw curves against a number of samples, such as the errors of several estimators.

    Points are joined by lines unless theory's curve or a law is drawn.

    Parameters
    ----------
    curves : sequence of Curve
    log : bool
        Whether values are on a log axis, where those below 1e-4 are arrows at 1e-4. Otherwise the axis is
        that of overlaps, 0 to 1.
    x_label, y_label : str
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    places = above_zero("x", np.concatenate([np.asarray(curve.x, dtype=np.float64) for curve in curves]))
    axes = new_axes(axes)
    styles = styles_of(curve.name for curve in curves)
    joined = all(curve.predicted is None and curve.law is None for curve in curves)
    for curve in curves:
        _draw_curve(axes, curve, styles[curve.name], log=log, joined=joined)
    axes.set_xscale("log")
    ticks_at(axes.xaxis, places)
    axes.set_xlabel(x_label)
    notes = _notes(curves, log)
    axes.set_ylabel(f"{y_label}\n({'; '.join(notes)})" if notes else y_label)
    axes.legend(frameon=False, fontsize=8)
    if log:
        _log_values(axes, curves)
    else:
        axes.set_ylim(-0.03, 1.03)
    return figure_of(axes)


def _all_values(curves: Sequence[Curve]) -> Array:
    return np.concatenate([np.asarray(curve.values, dtype=np.float64) for curve in curves])


def _notes(curves: Sequence[Curve], log: bool) -> list[str]:
    """Return what has to be said of how values are drawn."""
    values = _all_values(curves)
    notes = {
        "bars: s.d.": any(curve.spread is not None and np.isfinite(curve.spread).any() for curve in curves),
        f"arrow: below {_LEAST:g}": log and bool(((values >= 0.0) & (values < _LEAST)).any()),
        "not drawn: below 0": log and bool((values < 0.0).any()),
    }
    return [note for note, holds in notes.items() if holds]


def _log_values(axes: Axes, curves: Sequence[Curve]) -> None:
    """Put values on a log axis, with room for the names of laws in the corner that curves stay away from."""
    axes.set_yscale("log", nonpositive="clip")
    theory = [np.asarray(c.predicted, dtype=np.float64) for c in curves if c.predicted is not None]
    drawn = np.concatenate([_all_values(curves), *theory])
    drawn = np.maximum(drawn[drawn > 0.0], _LEAST)
    if drawn.size:
        low, high = float(drawn.min()), float(drawn.max())
        if any(curve.law is not None for curve in curves):
            rising = _rise(curves)
            if rising and theory:  # what starts below a third of theory is noise
                low = max(low, min(expected[0] for expected in theory) / 3.0)
            room = (high / low) ** 0.45
            axes.set_ylim(low / (room if rising else 1.2), high * (1.4 if rising else room))
            axes.legend(frameon=False, fontsize=7, loc="lower right" if rising else "upper right")
        else:
            axes.set_ylim(bottom=max(axes.get_ylim()[0], low / 2.0))  # bars may reach to 0
    plain_ticks(axes.yaxis)


def _rise(curves: Sequence[Curve]) -> bool:
    """Whether more curves rise than fall, by theory where there is any."""
    lines = [np.asarray(c.values if c.predicted is None else c.predicted, dtype=np.float64) for c in curves]
    return bool(sum(np.sign(line[-1] - line[0]) for line in lines if len(line)) > 0)


def _draw_curve(axes: Axes, curve: Curve, style: tuple[str, str], *, log: bool, joined: bool) -> None:
    colour, marker = style
    x, values = (np.asarray(part, dtype=np.float64) for part in (curve.x, curve.values))
    spread = np.full(len(x), np.nan) if curve.spread is None else np.asarray(curve.spread)
    used = np.full(len(x), True) if curve.used is None else np.asarray(curve.used).astype(bool)
    law = curve.law
    low = (values >= 0.0) & (values < _LEAST) & log
    drawn = np.where(low, _LEAST, np.where((values < 0.0) & log, np.nan, values))
    if joined:
        axes.plot(x, drawn, color=colour, linewidth=1.2)
    for chosen, inside in ((used & ~low, colour), (~used & ~low, "white")):
        error_bars(axes, x[chosen], drawn[chosen], spread[chosen], marker, colour, inside=inside)
    axes.plot(x[low], drawn[low], marker=r"$\downarrow$", linestyle="none", color=colour, markersize=9)
    form = (
        f"{marker}-" if joined else f"{marker}--" if law is not None and np.isfinite(law.exponent) else marker
    )
    label = curve.name if law is None else f"{curve.name}: {law.text}"
    axes.plot([], [], form, color=colour, linewidth=1, markersize=5, label=label)
    if curve.predicted is not None:
        slope = f", {law.theory:.2f}" if law is not None and np.isfinite(law.theory) else ""
        axes.plot(x, curve.predicted, color=colour, linewidth=1.1, label=f"{curve.name}, theory{slope}")
    fitted = used & (drawn > 0.0)
    if law is not None and np.isfinite(law.exponent) and fitted.any():
        places, middle = x[fitted], float(np.exp(np.log(drawn[fitted]).mean()))
        ratios = places / np.exp(np.log(places).mean())
        axes.plot(places, middle * ratios**law.exponent, "--", color=colour, linewidth=1)
        if np.isfinite(law.asymptotic):
            label = f"the law, {law.asymptotic:.2f}"
            axes.plot(places, middle * ratios**law.asymptotic, ":", color="black", linewidth=1.3, label=label)


class Ranges(NamedTuple):
    """Values (m,) at sizes (m,), and their ranges over repeats."""

    name: str
    sizes: ArrayLike
    values: ArrayLike
    low: ArrayLike
    high: ArrayLike

    def arrays(self) -> list[Array]:
        """Return sizes, values, and how far the range reaches below and above, (2, m)."""
        sizes, values, low, high = (np.asarray(part, dtype=np.float64) for part in self[1:])
        return [sizes, values, np.maximum([values - low, high - values], 0.0)]


def plot_times(
    series: Sequence[Ranges],
    *,
    laws: Mapping[str, tuple[float, float]] | None = None,
    y_label: str = "seconds",
    axes: Axes | None = None,
) -> Figure:
    """Draw times against each size over the smallest of it, with power laws.

    Parameters
    ----------
    series : sequence of Ranges
        Of seconds.
    laws : mapping of str to tuple of float, optional
        Constant and exponent by name, fitted to all repeats; otherwise fitted here to the values.
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
        sizes, middle, reach = times.arrays()
        ratios = sizes / above_zero(times.name, sizes).min()
        all_ratios.append(ratios)
        label = f"{times.name} from {sizes.min():,.0f}"
        law = (laws or {}).get(times.name) or _fitted(sizes, middle)
        if law is not None:
            constant, exponent = law
            axes.plot(ratios, constant * sizes**exponent, color=colour, linewidth=1)
            label += f": exponent {exponent:.2f}"
        error_bars(axes, ratios, middle, reach, marker, colour, label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks_at(axes.xaxis, np.concatenate(all_ratios).round(2))
    plain_ticks(axes.yaxis)
    axes.set_xlabel("size over the smallest")
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def plot_efficiency(series: Sequence[Ranges], *, axes: Axes | None = None) -> Figure:
    """Draw parallel efficiencies against the number of ranks.

    Parameters
    ----------
    series : sequence of Ranges
        Of efficiencies; 1 is a line.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    axes = new_axes(axes)
    styles = styles_of(each.name for each in series)
    ranks, highest = set(), 1.0
    for each in series:
        colour, marker = styles[each.name]
        sizes, middle, reach = each.arrays()
        error_bars(axes, sizes, middle, reach, marker, colour, each.name)
        ranks |= set(sizes.tolist())
        highest = max(highest, float((middle + reach[1]).max()))
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set_xticks(sorted(ranks))
    axes.set_ylim(0.0, 1.2 * highest)
    axes.set_xlabel("ranks")
    axes.set_ylabel("efficiency")
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
