"""Figures of many runs: recovery against the number of samples, its collapse, densities, power laws."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from matfree_hier.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    error_bars,
    figure_of,
    new_axes,
    plain_ticks,
    sequence_colours,
    vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

_NAMED = 6  # curves that a legend names one by one; of more, some


class Band(NamedTuple):
    """Mean and standard deviation over repeats."""

    mean: Array
    deviation: Array

    @classmethod
    def of(cls, repeats: ArrayLike) -> Self:
        """Return the band over the first axis; one repeat has deviation 0."""
        values = np.asarray(repeats, dtype=np.float64)
        deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])
        return cls(values.mean(axis=0), deviation)


def plot_transition(
    n: ArrayLike,
    overlaps: ArrayLike,
    *,
    predicted: tuple[ArrayLike, ArrayLike] | None = None,
    thresholds: ArrayLike | None = None,
    scale: tuple[float, str] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the squared overlap of each feature against the number of samples, mean and band over repeats.

    Parameters
    ----------
    n : array_like of float, shape (m,)
        Numbers of samples, increasing.
    overlaps : array_like of float, shape (s, m, K)
        Of s repeats at each n, for K features in their own order.
    predicted : tuple of array_like, shapes (m',) and (m', K), optional
        Numbers of samples and the overlaps that theory expects there, drawn as dashed lines.
    thresholds : array_like of float, shape (K,), optional
        n_k, marked at the bottom.
    scale : tuple of float and str, optional
        A second axis above, n over this number, and its label.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    x, values = vector("n", n), _repeats(overlaps, len(vector("n", n)))
    axes = new_axes(axes)
    count = values.shape[2]
    band, colours = Band.of(values), sequence_colours(count)
    for k, colour in enumerate(colours):
        mean, deviation = band.mean[:, k], band.deviation[:, k]
        axes.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.18, linewidth=0)
        label = f"feature {k + 1}" if _is_named(k, count) else None
        axes.plot(x, mean, "o-", color=colour, markersize=3.5, linewidth=1.2, label=label)
    if predicted is not None:
        places, curves = vector("predicted", predicted[0]), np.asarray(predicted[1], dtype=np.float64)
        for k, colour in enumerate(colours):
            axes.plot(places, curves[:, k], "--", color=colour, linewidth=1)
        axes.plot([], [], "--", color=GREY, linewidth=1, label="predicted")
    if thresholds is not None:
        low, high = x[0] / 1.15, x[-1] * 1.15
        for place, colour in zip(vector("thresholds", thresholds), colours, strict=True):
            if low < place < high:
                axes.plot([place, place], [-0.03, 0.04], color=colour, linewidth=1.8)
        axes.plot([], [], color=GREY, marker="|", linestyle="none", markersize=9, label="threshold $n_k$")
    _log_samples(axes, scale)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("samples $n$")
    axes.set_ylabel(f"squared overlap{_repeats_text(len(values))}")
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def plot_collapse(
    ratios: ArrayLike,
    overlaps: ArrayLike,
    *,
    scale: tuple[float, str] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the squared overlap of every feature against n / n_k: if the law holds, on one curve.

    Parameters
    ----------
    ratios : array_like of float, shape (m, K)
        n / n_k.
    overlaps : array_like of float, shape (s, m, K)
        Of s repeats.
    scale : tuple of float and str, optional
        A second axis above, n / n_k over this number, and its label.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    x = np.asarray(ratios, dtype=np.float64)
    values = _repeats(overlaps, len(x))
    if x.shape != values.shape[1:]:
        msg = f"`ratios` must have shape {values.shape[1:]}, got {x.shape}."
        raise ValueError(msg)
    axes = new_axes(axes)
    band, count = Band.of(values), values.shape[2]
    for k, colour in enumerate(sequence_colours(count)):
        label = f"feature {k + 1}" if _is_named(k, count) else None
        axes.errorbar(
            x[:, k], band.mean[:, k], band.deviation[:, k], fmt="o", color=colour, markersize=3.5,
            elinewidth=0.8, label=label,
        )  # fmt: skip
    law = np.geomspace(1, max(10.0, 1.2 * x.max()), 200)
    axes.plot(law, 1 - 1 / law, color="black", linewidth=1.2, label="$1 - n_k / n$")
    axes.axvline(1, color=GREY, linestyle=":", linewidth=1)
    _log_samples(axes, scale)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("samples over threshold, $n / n_k$")
    axes.set_ylabel(f"squared overlap{_repeats_text(len(values))}")
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


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


def plot_law(
    x: ArrayLike,
    repeats: ArrayLike,
    *,
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
        Values of s repeats at each place; mean and standard error of the mean are drawn.
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
    band = Band.of(repeats)
    error = band.deviation / np.sqrt(len(np.asarray(repeats)))
    axes = new_axes(axes)
    error_bars(axes, places, band.mean, error, marker, colour, label)
    if law is not None:
        line = np.geomspace(places.min(), places.max(), 100)
        axes.plot(line, law(line), color=colour, linewidth=1.2, linestyle="--", label=law_label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_within_two_decades(axes.xaxis, places)
    _plain_within_two_decades(axes.yaxis, band.mean)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def _plain_within_two_decades(axis: Axis, values: Array) -> None:
    positive = values[values > 0]
    if positive.size and positive.max() < 100 * positive.min():
        plain_ticks(axis)


def _log_samples(axes: Axes, scale: tuple[float, str] | None) -> None:
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    if scale is not None:
        unit, label = scale
        above = axes.secondary_xaxis(
            "top", functions=(lambda n: np.asarray(n) / unit, lambda r: np.asarray(r) * unit)
        )
        plain_ticks(above.xaxis)
        above.set_xlabel(label)


def _repeats(overlaps: ArrayLike, count: int) -> Array:
    values = np.asarray(overlaps, dtype=np.float64)
    if values.ndim != 3 or values.shape[1] != count:
        msg = f"`overlaps` must have shape (repeats, {count}, features), got {values.shape}."
        raise ValueError(msg)
    return values


def _repeats_text(count: int) -> str:
    return f" (mean, s.d. over {count} seeds)" if count > 1 else ""


def _is_named(k: int, count: int) -> bool:
    """Whether the legend names curve k: all of few, else about five with the first and the last."""
    return count <= _NAMED or k in set(np.linspace(0, count - 1, 5).round().astype(int))
