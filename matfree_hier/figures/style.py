"""What all figures share: colours, sizes, axes of their own or given, ticks, and checks of what is drawn."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter, NullLocator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from numpy.typing import ArrayLike, NDArray

# Okabe and Ito's colours, told apart by every kind of colour vision; shape or dash repeats what colour says.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6F6F6F"
SIZE = (5.6, 4.0)
_ROOM = 44  # characters of the labels along an axis
_CLOSE = 0.06  # of an axis, between neighbouring labels
# Estimators look the same in all figures; other things take what they leave.
_ESTIMATORS = {"paper": (BLUE, "o"), "spectral": (ORANGE, "s"), "refined": (GREEN, "^")}
_OTHERS = [(GREY, "v"), ("black", "D"), ("#CC79A7", "P"), ("#56B4E9", "X"), ("#E69F00", "<")]


def new_axes(axes: Axes | None) -> Axes:
    """Return the axes given, or those of a new Figure."""
    return Figure(figsize=SIZE, layout="constrained").subplots() if axes is None else axes


def figure_of(axes: Axes) -> Figure:
    """Return the Figure that axes stand in."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # axes here always stand in a figure
    return figure


def error_bars(
    axes: Axes,
    x: ArrayLike,
    values: ArrayLike,
    spread: ArrayLike,
    form: str,
    colour: str,
    label: str | None = None,
    *,
    inside: str | None = None,
) -> None:
    """Draw values with bars of `spread`, no bar where it is NaN; `form` is matplotlib's marker and line.

    `inside` is the colour that fills marks, by default that of all else.
    """
    axes.errorbar(
        x,
        values,
        np.nan_to_num(spread),
        fmt=form,
        color=colour,
        capsize=2,
        markersize=5,
        markerfacecolor=colour if inside is None else inside,
        label=label,
    )


def plain_ticks(axis: Axis) -> None:
    """Write 1, 2, 5, 10 on a log axis instead of powers of ten, which say little within a decade."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())


def signed_ticks(axis: Axis, width: float, largest: float) -> None:
    """Put ticks at 0 and at +-1, 2, 5 of each decade on an asinh axis, linear to +-`width`."""
    powers = 10.0 ** np.arange(np.floor(np.log10(width)), np.ceil(np.log10(largest)) + 1)
    marks = np.outer(powers, [1, 2, 5]).ravel()
    marks = marks[(marks > width) & (marks < largest)]
    axis.set_ticks(np.r_[-marks[::-1], 0.0, marks])
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_locator(NullLocator())


def sequence_colours(count: int) -> list[tuple[float, float, float, float]]:
    """Return colours for things in an order, dark to light, told apart by lightness alone (viridis)."""
    shades = colormaps["viridis"](np.linspace(0, 0.88, max(count, 1)))
    return [(float(r), float(g), float(b), float(a)) for r, g, b, a in shades]


def styles_of(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a marker for each name; estimators have their own."""
    names = list(dict.fromkeys(names))
    free = cycle([style for name, style in _ESTIMATORS.items() if name not in names] + _OTHERS)
    return {name: _ESTIMATORS.get(name) or next(free) for name in names}


def ticks_at(axis: Axis, places: ArrayLike) -> None:
    """Put the ticks of a log axis at the places drawn where there is room for them, else at 1, 2, 5, 10."""
    values = np.unique(np.asarray(places, dtype=np.float64))
    labels = [f"{value:,.0f}" if value >= 100 else f"{value:g}" for value in values]
    steps = np.diff(np.log(values))
    if sum(map(len, labels)) > _ROOM or (len(steps) and steps.min() < _CLOSE * steps.sum()):
        plain_ticks(axis)
        return
    axis.set_ticks(values, labels)
    axis.set_minor_locator(NullLocator())


def vector(name: str, values: ArrayLike, *, allow_nan: bool = False) -> NDArray[np.float64]:
    """Return a vector of finite numbers, NaN among them where that is allowed."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (array.size == 0 and not allow_nan):
        msg = f"`{name}` must be a vector with at least one number, got shape {array.shape}."
        raise ValueError(msg)
    wrong = np.isinf(array) if allow_nan else ~np.isfinite(array)
    if wrong.any():
        msg = f"`{name}` must be finite, got {array[wrong][0]} at position {int(np.argmax(wrong))}."
        raise ValueError(msg)
    return array


def above_zero(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return a vector of finite numbers that a log axis has places for."""
    array = vector(name, values)
    if array.min() <= 0.0:
        msg = f"`{name}` must be above 0 on a log axis, got {array.min():g}."
        raise ValueError(msg)
    return array


def same_length(
    name: str, values: ArrayLike, other: NDArray[np.float64], *, allow_nan: bool = False
) -> NDArray[np.float64]:
    """Return a vector with a number for each of the overlaps."""
    array = vector(name, values, allow_nan=allow_nan)
    if len(array) != len(other):
        msg = f"`{name}` must have one number for each of the {len(other)} overlaps, got {len(array)}."
        raise ValueError(msg)
    return array
