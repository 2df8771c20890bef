from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.figures import (
    Curve,
    Law,
    Ranges,
    plot_curves,
    plot_edges,
    plot_efficiency,
    plot_peers,
    plot_smoothing,
    plot_times,
    plot_transition,
)

N = [100, 200, 400]


def named(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def line(axes, label):
    handles, labels = axes.get_legend_handles_labels()
    return handles[labels.index(label)]


def test_curves_are_drawn_with_theory_law_and_open_points_that_it_is_not_about(tmp_path):
    law = Law(-0.7, "-0.70 [-0.8, -0.6]", theory=-0.6, asymptotic=-0.5)
    paper = Curve("paper", N, [0.9, 0.6, 0.4], [0.1, np.nan, 0.1], [0.8, 0.6, 0.4], [0, 1, 1], law)
    unfitted = Curve("mine", N, [0.5, 0.2, 0.1], law=Law(np.nan, "no fit: 2 points in the range"))
    axes = plot_curves([paper, unfitted]).axes[0]
    assert named(axes) == [
        "paper: -0.70 [-0.8, -0.6]", "paper, theory, -0.60", "the law, -0.50",
        "mine: no fit: 2 points in the range",
    ]  # fmt: skip
    (fit,) = [line for line in axes.lines if line.get_linestyle() == "--" and len(line.get_xdata()) == 2]
    assert fit.get_xdata().tolist() == [200, 400]
    assert np.prod(fit.get_ydata()) == pytest.approx(0.6 * 0.4)
    assert np.diff(np.log2(fit.get_ydata())) == pytest.approx(-0.7)
    open_points = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xdata().tolist() for line in open_points if len(line.get_xdata())] == [[100]]
    assert axes.get_xticks().tolist() == N
    axes.get_figure().savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(("values", "place"), [([0.1, 0.2, 0.4], 4), ([0.4, 0.2, 0.1], 1)])
def test_laws_are_named_in_the_corner_that_curves_stay_away_from(values, place):
    unfitted = Law(np.nan, "no fit")
    axes = plot_curves([Curve("paper", N, values, predicted=values, law=unfitted)]).axes[0]
    assert axes.get_legend()._loc == place  # matplotlib's numbers: 1 is the upper right, 4 the lower
    low, high = axes.get_ylim()
    assert (0.1 / low > 1.5) == (place == 4)
    assert (high / 0.4 > 1.5) == (place == 1)


def test_a_law_about_no_point_that_is_drawn_is_only_named():
    law = Law(-0.7, "-0.70", theory=-0.6, asymptotic=-0.5)
    for values, used in (([0.9, 0.6, 0.4], [0, 0, 0]), ([-1.0, -1.0, np.nan], [1, 1, 1])):
        axes = plot_curves([Curve("paper", N, values, used=used, law=law)]).axes[0]
        assert named(axes) == ["paper: -0.70"]
        assert [line for line in axes.lines if line.get_linestyle() == "--" and len(line.get_xdata())] == []


def test_a_place_that_a_log_axis_has_not_is_refused():
    with pytest.raises(ValueError, match="`x` must be above 0 on a log axis, got 0"):
        plot_curves([Curve("a", [0, 1], [0.5, 0.5])])
    with pytest.raises(ValueError, match="`samples n` must be above 0 on a log axis, got -1"):
        plot_times([Ranges("samples n", *np.array([[-1.0, 1.0]] * 4))])
    with pytest.raises(ValueError, match="`n` must be above 0 on a log axis, got 0"):
        plot_transition([0, 1], np.ones((1, 2, 1)))
    with pytest.raises(ValueError, match="`n` must be above 0 on a log axis, got 0"):
        plot_edges([0, 1], np.ones((2, 2)), np.ones((1, 2, 1)))
    with pytest.raises(ValueError, match="`ratios` must be above 0 on a log axis, got 0"):
        plot_smoothing([0, 1], np.ones((1, 2)), np.ones((1, 2)), [10])


def test_estimators_look_the_same_whatever_stands_beside_them():
    colours = {
        line(plot_curves([Curve(name, N, N) for name in names]).axes[0], "refined").get_color()
        for names in (["refined"], ["rbf", "refined"], ["paper", "spectral", "refined", "x"])
    }
    assert len(colours) == 1


def test_values_that_a_log_axis_cannot_show_are_said():
    axes = plot_curves([Curve("refined", N, [0.5, 1e-9, 0.0])]).axes[0]
    (arrows,) = [line for line in axes.lines if line.get_marker() == r"$\downarrow$"]
    assert arrows.get_ydata().tolist() == [1e-4, 1e-4]
    assert "arrow: below 0.0001" in axes.get_ylabel()
    axes = plot_curves([Curve("refined", N, [-0.5, 0.1, 0.2], [1.0, 1.0, 1.0])]).axes[0]
    assert "not drawn: below 0" in axes.get_ylabel()
    assert axes.get_ylim()[0] > 0.01


def test_overlaps_are_drawn_from_0_to_1():
    axes = plot_curves([Curve("a", N, [0.0, 0.5, 1.0])], log=False).axes[0]
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim() == pytest.approx((-0.03, 1.03))


def test_times_show_their_exponents_fitted_or_given():
    sizes = np.array([10.0, 20.0, 40.0])
    series = [Ranges("samples n", sizes, 2 * sizes**1.5, sizes**1.5, 3 * sizes**1.5)]
    assert named(plot_times(series).axes[0]) == ["samples n from 10: exponent 1.50"]
    given = plot_times(series, laws={"samples n": (2.0, 1.4)})
    assert named(given.axes[0]) == ["samples n from 10: exponent 1.40"]
    alone = plot_times([Ranges("k", *np.ones((4, 1)))])
    assert named(alone.axes[0]) == ["k from 1"]


def test_efficiencies_have_a_tick_for_each_number_of_ranks_and_room_above_the_highest():
    axes = plot_efficiency([Ranges("weak", [1, 2], [1.0, 1.4], [0.9, 1.3], [1.0, 1.5])]).axes[0]
    assert axes.get_xticks().tolist() == [1, 2]
    assert axes.get_ylim()[1] > 1.5
    assert named(axes) == ["weak"]


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
