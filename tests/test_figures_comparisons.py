from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.figures import Curve, Times, plot_curves, plot_peers, plot_times

N = [100, 200, 400]


def named(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def line(axes, label):
    """Return what is drawn under a label: a line, or points with bars."""
    handles, labels = axes.get_legend_handles_labels()
    found = handles[labels.index(label)]
    return found[0] if isinstance(found, tuple) else found


def test_curves_are_drawn_with_theory_law_and_range(tmp_path):
    paper = Curve("paper", N, [0.9, 0.6, 0.4], [0.1, np.nan, 0.1], [0.8, 0.6, 0.4], (30.0, -0.7, N[1:]))
    figure = plot_curves([paper, Curve("mine", N, [0.5, 0.2, 0.1])], shaded=(200, 400))
    axes = figure.axes[0]
    assert named(axes) == ["paper, theory", "paper", "mine"]
    assert line(axes, "paper").get_color() != line(axes, "mine").get_color()
    assert [text.get_text() for text in axes.texts] == ["-0.70"]
    assert axes.get_xticks().tolist() == N
    figure.savefig(tmp_path / "figure.png")


def test_estimators_look_the_same_whatever_stands_beside_them():
    colours = {
        line(plot_curves([Curve(name, N, N) for name in names]).axes[0], "refined").get_color()
        for names in (["refined"], ["rbf", "refined"], ["paper", "spectral", "refined", "x"])
    }
    assert len(colours) == 1


def test_values_that_a_log_axis_cannot_show_are_said():
    axes = plot_curves([Curve("refined", N, [0.5, 1e-9, 0.0])]).axes[0]
    assert line(axes, "refined").get_ydata().tolist() == [0.5, 1e-4, 1e-4]
    assert "open: below 0.0001" in axes.get_ylabel()
    axes = plot_curves([Curve("refined", N, [-0.5, 0.1, 0.2], [1.0, 1.0, 1.0])]).axes[0]
    assert "not drawn: below 0" in axes.get_ylabel()
    assert axes.get_ylim()[0] > 0.01


def test_overlaps_are_drawn_from_0_to_1():
    axes = plot_curves([Curve("a", N, [0.0, 0.5, 1.0])], log=False).axes[0]
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim() == pytest.approx((-0.03, 1.03))


def test_times_show_their_exponents_fitted_or_given():
    sizes = np.array([10.0, 20.0, 40.0])
    series = [Times("samples n", sizes, 2 * sizes**1.5, sizes**1.5, 3 * sizes**1.5)]
    assert named(plot_times(series).axes[0]) == ["samples n from 10: exponent 1.50"]
    given = plot_times(series, laws={"samples n": (2.0, 1.4)})
    assert named(given.axes[0]) == ["samples n from 10: exponent 1.40"]
    alone = plot_times([Times("k", *np.ones((4, 1)))])
    assert named(alone.axes[0]) == ["k from 1"]


def test_routes_that_were_stopped_are_hatched_and_lower_bounds():
    axes = plot_peers(
        ["ours", "b", "c", "d"],
        [1.0, 4.0, 8.0, np.nan],
        outcomes=["done", "inaccurate", "not reached", "does not fit"],
        at_least=[False, False, True, False],
        times=[1.0, np.nan, 8.0, np.nan],
    ).axes[0]
    assert [bar.get_hatch() for bar in axes.patches] == [None, None, "///"]
    texts = [text.get_text() for text in axes.texts if text.get_text()]
    assert texts == ["1 s", "4 s, inaccurate", "> 8 s, > 8 times ours", "does not fit"]
    assert named(axes) == ["stopped: takes longer"]


def test_routes_of_which_none_has_a_time_are_drawn_too(tmp_path):
    figure = plot_peers(["a", "b"], [np.nan, np.nan], outcomes=["failed", "failed"])
    assert figure.axes[0].get_legend() is None
    figure.savefig(tmp_path / "figure.png")
