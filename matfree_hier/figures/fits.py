"""The figure of a fit: what the data alone say of its features, and of more samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from matfree_hier.figures.style import BLUE, GREY, ORANGE, SIZE, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from matfree_hier.recovery import Recovery


def plot_fit(
    recovery: Recovery, n_samples: int, relative_mse: float, *, figure: Figure | None = None
) -> Figure:
    """Draw overlaps with intervals, debiased weights with their power law, and the errors to expect.

    Parameters
    ----------
    recovery : Recovery
    n_samples : int
        Of the fit.
    relative_mse : float
        Of the fit, on new samples.
    figure : matplotlib Figure, optional
        An empty one to draw in; a new one otherwise.

    Returns
    -------
    matplotlib Figure
    """
    if figure is None:
        figure = Figure(figsize=(2.5 * SIZE[0], SIZE[1]), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _draw_overlaps(recovery, left)
    _draw_weights(recovery, middle)
    _draw_errors(recovery, n_samples, relative_mse, right)
    return figure


def _draw_overlaps(recovery: Recovery, axes: Axes) -> None:
    quality = recovery.quality
    for chosen, colour, fill, label in (
        (quality.resolved, BLUE, BLUE, "clearly there"),
        (~quality.resolved, ORANGE, "none", "in doubt"),
    ):
        places = np.flatnonzero(chosen & np.isfinite(quality.overlaps))
        if len(places):
            o, (low, high) = quality.overlaps[places], quality.intervals[places].T
            reach = np.maximum([o - low, high - o], 0.0)
            axes.errorbar(
                places, o, reach, fmt="o", color=colour, markerfacecolor=fill, capsize=3, label=label
            )
    axes.set_ylim(-0.03, 1.03)
    if len(quality.overlaps):
        axes.set_xlim(-0.5, len(quality.overlaps) - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    else:
        _say_none(axes)
    axes.set_xlabel("feature")
    axes.set_ylabel("overlap with the true ones")
    axes.set_title("Overlaps, 90 % intervals")
    _legend(axes)


def _draw_weights(recovery: Recovery, axes: Axes) -> None:
    quality, law = recovery.quality, recovery.law
    sizes = np.sort(np.abs(quality.weights[quality.resolved]))[::-1]
    ranks = np.arange(1.0, len(sizes) + 1.0)
    if len(sizes):
        axes.plot(ranks, sizes, "o", color=BLUE, label="debiased")
        axes.set_xscale("log")
        axes.set_yscale("log")
        plain_ticks(axes.xaxis)
        plain_ticks(axes.yaxis)
    else:
        _say_none(axes)
    if np.isfinite(law.gamma):
        label = f"k^-{law.gamma:.2f}"
        axes.plot(ranks, law.scale * ranks**-law.gamma, color=GREY, label=label)
    axes.set_xlabel("rank")
    axes.set_ylabel("|weight|")
    axes.set_title("Weights")
    _legend(axes)


def _draw_errors(recovery: Recovery, n_samples: int, relative_mse: float, axes: Axes) -> None:
    forecast = recovery.forecast
    known = np.isfinite(forecast.relative_mse) & (forecast.relative_mse > 0.0)
    if relative_mse > 0.0:
        axes.plot([n_samples], [relative_mse], "o", color=BLUE, label="this fit")
    if known.any():
        axes.plot(
            forecast.n_samples[known], forecast.relative_mse[known], "s--", color=GREY, label="expected"
        )
    if known.any() or relative_mse > 0.0:
        axes.set_xscale("log")
        axes.set_yscale("log")
    if np.isfinite(forecast.next_feature):
        axes.axvline(forecast.next_feature, color=ORANGE, linestyle=":", label="next feature")
    axes.set_xlabel("samples")
    axes.set_ylabel("error / variance of labels")
    axes.set_title("Error to expect")
    _legend(axes)


def _say_none(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no feature is clearly there", ha="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
