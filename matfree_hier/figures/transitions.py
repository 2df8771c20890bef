"""Figures of recovery in many runs: overlaps against the number of samples, their collapse, finite sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from matfree_hier.figures.style import (
    GREY,
    above_zero,
    figure_of,
    new_axes,
    plain_ticks,
    sequence_colours,
    ticks_at,
    vector,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

_NAMED = 6  # curves that a legend names one by one; of more, some
_MANY = 20  # repeats, from which quantiles say more than the range


class Band(NamedTuple):
    """Mean over repeats, and the range of most of them: of few all, of 20 and more from 5 to 95 %."""

    mean: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, repeats: ArrayLike) -> Self:
        """Return the band over the first axis."""
        values = np.asarray(repeats, dtype=np.float64)
        low, high = np.quantile(values, (0.05, 0.95) if len(values) >= _MANY else (0.0, 1.0), axis=0)
        return cls(values.mean(axis=0), low, high)

    @property
    def reach(self) -> Array:
        """How far it reaches below and above the mean, (2, ...)."""
        return np.maximum([self.mean - self.low, self.high - self.mean], 0.0)

    @staticmethod
    def text(count: int) -> str:
        """Return what a label says of a band over so many repeats."""
        if count == 1:
            return ""
        return f" (mean, {'5 to 95 %' if count >= _MANY else 'range'} of {count} seeds)"


def plot_transition(
    n: ArrayLike,
    overlaps: ArrayLike,
    *,
    predicted: tuple[ArrayLike, ArrayLike] | None = None,
    thresholds: ArrayLike | None = None,
    expected_thresholds: ArrayLike | None = None,
    scale: tuple[float, str] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the squared overlap of each feature against the number of samples, mean and range over repeats.

    Parameters
    ----------
    n : array_like of float, shape (m,)
        Numbers of samples, increasing.
    overlaps : array_like of float, shape (s, m, K)
        Of s repeats at each n, for K features in their own order. Shaded is their range, from 20 repeats on
        from 5 to 95 %.
    predicted : tuple of array_like, shapes (m',) and (m', K), optional
        Numbers of samples and the overlaps that theory expects there, drawn as dashed lines; as crosses at a
        single one.
    thresholds : array_like of float, shape (K,), optional
        n_k of the law 1 - n_k/n, which holds at large D: marked at the bottom where samples reach them.
    expected_thresholds : array_like of float, shape (K,), optional
        Where the overlaps predicted leave 0, NaN where they do not: triangles at the bottom.
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
    x, values = above_zero("n", n), _repeats(overlaps, len(vector("n", n)))
    axes = new_axes(axes)
    count = values.shape[2]
    band, colours = Band.of(values), sequence_colours(count)
    for k, colour in enumerate(colours):
        label = f"feature {k + 1}" if _is_named(k, count) else None
        axes.plot(x, band.mean[:, k], "o-", color=colour, markersize=3.5, linewidth=1.2, label=label)
        if len(values) > 1:
            axes.fill_between(x, band.low[:, k], band.high[:, k], color=colour, alpha=0.15, linewidth=0)
    if predicted is not None:
        places, curves = vector("predicted", predicted[0]), np.asarray(predicted[1], dtype=np.float64)
        form = "--" if len(places) > 1 else "x"
        for k, colour in enumerate(colours):
            axes.plot(places, curves[:, k], form, color=colour, linewidth=1)
        axes.plot([], [], form, color=GREY, linewidth=1, label="predicted")
    low, high = x[0] / 1.15, x[-1] * 1.15
    for marks, marker, size, label in (
        (thresholds, "|", 14, "$n_k$, the threshold at large D"),
        (expected_thresholds, "^", 4, "threshold predicted at this D"),
    ):
        places = np.array([]) if marks is None else vector("thresholds", marks, allow_nan=True)
        shown = (places > low) & (places < high)
        for k in np.flatnonzero(shown).tolist():
            axes.plot(places[k], -0.01, marker, color=colours[k], markersize=size, markeredgewidth=1.6)
        if shown.any():
            axes.plot([], [], marker, color=GREY, markersize=min(size, 9), linestyle="none", label=label)
    _log_samples(axes, x, scale)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("samples $n$")
    axes.set_ylabel(f"squared overlap{Band.text(len(values))}")
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def plot_collapse(
    ratios: ArrayLike,
    overlaps: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    scale: tuple[float, str] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the squared overlap of every feature against n / n_k: if the law holds, on one curve.

    Parameters
    ----------
    ratios : array_like of float, shape (m, K)
        n / n_k.
    overlaps : array_like of float, shape (s, m, K)
        Of s repeats; bars are the ranges of `plot_transition`.
    predicted : array_like of float, shape (m, K), optional
        Overlaps that theory expects at this size, drawn as dashed lines; as crosses at a single n.
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
    expected = None if predicted is None else np.asarray(predicted, dtype=np.float64)
    form = "--" if len(x) > 1 else "x"
    for k, colour in enumerate(sequence_colours(count)):
        label = f"feature {k + 1}" if _is_named(k, count) else None
        axes.errorbar(
            x[:, k], band.mean[:, k], band.reach[:, :, k], fmt="o", color=colour, markersize=3.5,
            elinewidth=0.8, label=label,
        )  # fmt: skip
        if expected is not None:
            axes.plot(x[:, k], expected[:, k], form, color=colour, linewidth=1)
    if expected is not None:
        axes.plot([], [], form, color=GREY, linewidth=1, label="predicted at this D")
    law = np.geomspace(1, max(10.0, 1.2 * x.max()), 200)
    axes.plot(law, 1 - 1 / law, color="black", linewidth=1.2, label="$1 - n_k / n$, large D")
    axes.axvline(1, color=GREY, linestyle=":", linewidth=1)
    _log_samples(axes, x, scale)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("samples over threshold at large D, $n / n_k$")
    axes.set_ylabel(f"squared overlap{Band.text(len(values))}")
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def plot_smoothing(
    ratios: ArrayLike,
    overlaps: ArrayLike,
    limits: ArrayLike,
    sizes: ArrayLike,
    *,
    errors: ArrayLike | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the transition of one feature at several sizes beside its limit of large size.

    Parameters
    ----------
    ratios : array_like of float, shape (m,)
        Samples over the threshold n*.
    overlaps, limits : array_like of float, shape (s, m)
        Mean squared overlaps at each size, and what they are in the limit.
    sizes : array_like of int, shape (s,)
        D.
    errors : array_like of float, shape (s, m), optional
        Standard errors of the means.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure
    """
    x = above_zero("ratios", ratios)
    means, limit = (np.asarray(values, dtype=np.float64) for values in (overlaps, limits))
    bars = np.full_like(means, np.nan) if errors is None else np.asarray(errors, dtype=np.float64)
    axes = new_axes(axes)
    colours = sequence_colours(len(means))
    for mean, bar, at_infinity, size, colour in zip(
        means, bars, limit, np.asarray(sizes), colours, strict=True
    ):
        axes.errorbar(
            x, mean, np.nan_to_num(bar), fmt="o-", color=colour, markersize=3.5, linewidth=1.2,
            label=f"D = {size:,.0f}",
        )  # fmt: skip
        axes.plot(x, at_infinity, "--", color=colour, linewidth=1)
    axes.plot([], [], "--", color=GREY, linewidth=1, label="limit of large D")
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.set_xlabel("samples over threshold, $n / n_*$")
    axes.set_ylabel("squared overlap, mean" + ("" if errors is None else " and standard error"))
    axes.legend(frameon=False, fontsize=8)
    return figure_of(axes)


def leaves_zero(n: ArrayLike, curves: ArrayLike) -> Array:
    """Return where curves of overlaps leave 0, which between the n of a table nothing says exactly.

    Overlaps are 1 - n*/n to first order, a line in 1/n: the line through the first two that are above 0, kept
    between that n and the one before it.

    Parameters
    ----------
    n : array_like of float, shape (m,)
        Increasing.
    curves : array_like of float, shape (s, m, K)
        Of s repeats.

    Returns
    -------
    ndarray of float, shape (K,)
        Geometric mean over repeats; NaN for a feature that in one of them stays 0, or never is.
    """
    x = above_zero("n", n)
    places = np.array(
        [[_leaves_zero(x, curve) for curve in repeat.T] for repeat in np.asarray(curves, dtype=np.float64)]
    )
    return np.asarray(np.exp(np.log(places).mean(axis=0)))


def _leaves_zero(x: Array, curve: Array) -> float:
    above = np.flatnonzero(curve > 0)
    if not above.size or above[0] == 0:
        return np.nan
    first = int(above[0])
    after = (1.0 / x[first + 1], curve[first + 1]) if first + 1 < len(x) else (0.0, 1.0)
    slope = (after[1] - curve[first]) / (after[0] - 1.0 / x[first])
    inverse = 1.0 / x[first] - curve[first] / slope if slope < 0 else 1.0 / x[first - 1]
    return float(1.0 / np.clip(inverse, 1.0 / x[first], 1.0 / x[first - 1]))


def _log_samples(axes: Axes, places: Array, scale: tuple[float, str] | None) -> None:
    axes.set_xscale("log")
    if places.max() > 2 * places.min():
        plain_ticks(axes.xaxis)
    else:
        ticks_at(axes.xaxis, places)
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


def _is_named(k: int, count: int) -> bool:
    """Whether the legend names curve k: all of few, else about five with the first and the last."""
    return count <= _NAMED or k in set(np.linspace(0, count - 1, 5).round().astype(int))
