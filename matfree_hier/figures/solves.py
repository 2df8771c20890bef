"""Figures of one solve: its spectrum, how well features were recovered, how it converged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from matfree_hier.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    figure_of,
    new_axes,
    plain_ticks,
    same_length,
    sequence_colours,
    vector,
)
from matfree_hier.figures.transitions import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from matfree_hier.result import History


def plot_spectrum(
    eigenvalues: ArrayLike,
    *,
    predicted: ArrayLike | None = None,
    edges: tuple[float, float] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw |eigenvalue| against its rank on two log axes, where a power law of the weights is a line.

    Parameters
    ----------
    eigenvalues : array_like of float, shape (k,)
        In any order; ranked by absolute value. Signs are told by marker and colour.
    predicted : array_like of float, shape (m,), optional
        Eigenvalues that theory expects outside the bulk; NaN where it expects none. Ranked on their own.
    edges : tuple of float, optional
        Lower and upper edge of the bulk, as signed numbers; what lies between is shaded up to the larger
        absolute value, and each edge is a dashed line in the colour of its sign.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If `eigenvalues` is not a vector of finite numbers, at least one of them not zero.
    """
    values = vector("eigenvalues", eigenvalues)
    values = values[np.argsort(-np.abs(values), kind="stable")]
    if not np.any(values):
        msg = (
            "`eigenvalues` must hold a number other than 0: a logarithmic axis has no place for zeros alone."
        )
        raise ValueError(msg)
    axes = new_axes(axes)
    rank = np.arange(1, len(values) + 1)
    for chosen, marker, colour, label in (
        (values > 0, "o", BLUE, "found, positive"),
        (values < 0, "s", ORANGE, "found, negative"),
    ):
        if chosen.any():
            axes.plot(rank[chosen], np.abs(values[chosen]), marker, color=colour, markersize=6, label=label)
    if predicted is not None:
        expected = vector("predicted", predicted, allow_nan=True)
        expected = np.sort(np.abs(expected[np.isfinite(expected)]))[::-1]
        axes.plot(
            np.arange(1, len(expected) + 1), expected, "x", color="black", markersize=8, label="predicted"
        )
    if edges is not None:
        low, high = edges
        axes.axhspan(0, max(abs(low), abs(high)), color=GREY, alpha=0.15, linewidth=0, label="bulk")
        axes.axhline(abs(high), color=BLUE, linestyle="--", linewidth=1)
        axes.axhline(abs(low), color=ORANGE, linestyle=":", linewidth=1.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    if len(values) <= 10:
        axes.set_xticks(rank)
    axes.set_xlabel("rank")
    axes.set_ylabel("|eigenvalue|")
    axes.set_title("Spectrum")
    axes.legend(frameon=False)
    return figure_of(axes)


def plot_recovery(
    overlaps: ArrayLike,
    *,
    samples_over_threshold: ArrayLike | None = None,
    predicted: ArrayLike | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw the squared overlap of each feature, against n / n_k where that is known, else by feature.

    Parameters
    ----------
    overlaps : array_like of float in [0, 1], shape (K,) or (s, K)
        Squared projection of each true feature on what was found; of s repeats the mean is drawn, with bars
        over their range, from 20 on from 5 to 95 %.
    samples_over_threshold : array_like of float > 0, shape (K,), optional
        n / n_k of each feature. The axis is then logarithmic, with the threshold n = n_k marked and the
        law of large D, 1 - n_k / n, drawn as a line.
    predicted : array_like of float, shape (K,), optional
        Overlap that theory expects of each feature; NaN where it makes no claim.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If lengths differ, an overlap lies outside [0, 1] or a ratio is not positive.
    """
    repeats = np.atleast_2d(np.asarray(overlaps, dtype=np.float64))
    band = Band.of(repeats)
    found = vector("overlaps", band.mean)
    if found.min() < -1e-9 or found.max() > 1 + 1e-9:
        msg = f"`overlaps` must lie in [0, 1], got {found.min():.6g} to {found.max():.6g}."
        raise ValueError(msg)
    axes = new_axes(axes)
    if samples_over_threshold is None:
        x = np.arange(1.0, len(found) + 1)
        axes.set_xlabel("feature k")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    else:
        x = same_length("samples_over_threshold", samples_over_threshold, found)
        if x.min() <= 0:
            msg = f"`samples_over_threshold` must be positive, got {x.min():.6g}."
            raise ValueError(msg)
        law = np.geomspace(1, max(10.0, 1.5 * x.max()), 200)
        axes.plot(law, 1 - 1 / law, color=GREY, linewidth=1.5, label="1 - n_k / n, large D")
        axes.axvline(1, color=GREY, linestyle="--", linewidth=1, label="threshold n = n_k")
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        axes.set_xlabel("samples over threshold, n / n_k")
    if predicted is not None:
        expected = same_length("predicted", predicted, found, allow_nan=True)
        axes.plot(x, expected, "x", color="black", markersize=8, label="predicted")
    if len(repeats) > 1:
        axes.errorbar(x, found, band.reach, fmt="none", ecolor=BLUE, elinewidth=1, capsize=2)
    axes.plot(x, found, "o", color=BLUE, markersize=6, label="measured")
    if samples_over_threshold is not None:
        for k, place in enumerate(zip(x, found, strict=True), start=1):
            axes.annotate(str(k), place, xytext=(6, -10), textcoords="offset points", fontsize=8)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel(f"squared overlap{Band.text(len(repeats))}")
    axes.set_title("Recovery of each feature")
    axes.legend(frameon=False)
    return figure_of(axes)


def plot_history(history: History, *, tol: float | None = None, axes: Axes | None = None) -> Figure:
    """Draw the residual of each pair against the passes over the data, on a log axis.

    Parameters
    ----------
    history : History
        Of a solve, or read back from a run file.
    tol : float, optional
        Drawn as a dashed line.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If the history holds no pass.
    """
    if len(history) == 0:
        msg = "`history` must hold at least one pass, got 0."
        raise ValueError(msg)
    axes = new_axes(axes)
    arrays = history.to_arrays()
    passes, residuals = arrays["passes"], arrays["residuals"]
    shades = sequence_colours(residuals.shape[1])
    for k, (column, shade) in enumerate(zip(residuals.T, shades, strict=True), start=1):
        drawn = np.isfinite(column) & (column > 0)
        ends = k in (1, residuals.shape[1])
        label = f"pair {k}" if ends else None
        axes.plot(passes[drawn], column[drawn], ".-", color=shade, linewidth=1.2, label=label)
    if tol is not None:
        axes.axhline(tol, color=GREY, linestyle="--", linewidth=1, label="tol")
    axes.set_yscale("log")
    axes.set_xlim(left=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("passes over the data")
    axes.set_ylabel("residual / ||C||")
    axes.set_title("Convergence")
    axes.legend(frameon=False)
    return figure_of(axes)
