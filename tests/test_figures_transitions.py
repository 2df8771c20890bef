from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.figures import plot_collapse, plot_smoothing, plot_transition
from matfree_hier.figures.transitions import Band, leaves_zero

N = [100, 1000, 10_000]
OVERLAPS = np.linspace(0, 1, 2 * 3 * 8).reshape(2, 3, 8)
FEW = OVERLAPS[:, :, :2]


def named(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def marks(axes, marker):
    lines = [line for line in axes.lines if line.get_marker() == marker]
    return [float(line.get_xdata()[0]) for line in lines if len(line.get_xdata())]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plot_transition(
            N, OVERLAPS, predicted=(N, OVERLAPS[0]), thresholds=np.full(8, 500.0),
            expected_thresholds=np.full(8, np.nan), scale=(10.0, "$n / d^q$"),
        ),
        lambda: plot_transition(N[:1], OVERLAPS[:, :1], predicted=(N[:1], OVERLAPS[0, :1])),
        lambda: plot_collapse(
            np.outer(N, np.linspace(0.001, 0.01, 8)), OVERLAPS, predicted=OVERLAPS[0], scale=(2.0, "paper")
        ),
        lambda: plot_smoothing([0.5, 1, 2], OVERLAPS[0, :, :3], OVERLAPS[1, :, :3], [10, 20, 30]),
    ],
    ids=["transition", "transition at one n", "collapse", "smoothing"],
)  # fmt: skip
def test_every_figure_names_its_axes_and_what_it_draws(figure, tmp_path):
    drawn = figure()
    axes = drawn.axes[0]
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert named(axes)
    drawn.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_band_is_the_range_of_few_repeats_and_quantiles_of_many():
    band = Band.of([[0.1, 0.2], [0.9, 0.2], [0.2, 0.2]])
    assert band.mean == pytest.approx([0.4, 0.2])
    assert band.reach == pytest.approx(np.array([[0.3, 0.0], [0.5, 0.0]]))
    assert Band.text(3) == " (mean, range of 3 seeds)"
    many = Band.of(np.linspace(0, 1, 101)[:, None])
    assert (many.low[0], many.high[0]) == pytest.approx((0.05, 0.95))
    assert "5 to 95 %" in Band.text(101)
    assert Band.text(1) == ""


def test_bands_and_bars_of_overlaps_stay_between_0_and_1():
    repeats = np.array([[[0.0], [0.0]], [[0.0], [1.0]], [[1.0], [1.0]]])
    (band,) = plot_transition(N[:2], repeats).axes[0].collections
    (bars,) = plot_collapse([[1], [10]], repeats).axes[0].collections
    for points in (*band.get_paths(), *bars.get_paths()):
        assert (points.vertices[:, 1].min(), points.vertices[:, 1].max()) == (0.0, 1.0)


def test_a_transition_draws_the_mean_of_each_feature_and_names_some_of_many():
    axes = plot_transition(N, OVERLAPS).axes[0]
    curves = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(curves) == 8
    assert curves[3].get_ydata() == pytest.approx(OVERLAPS[:, :, 3].mean(axis=0))
    assert named(axes) == [f"feature {k}" for k in (1, 3, 5, 6, 8)]


def test_the_second_axis_is_the_first_over_its_unit():
    figure = plot_transition(N, OVERLAPS, scale=(10.0, "$n / d^q$"))
    figure.draw_without_rendering()
    (above,) = figure.axes[0].child_axes
    assert np.array(above.get_xlim()) * 10 == pytest.approx(np.array(figure.axes[0].get_xlim()))


def test_a_threshold_beyond_the_samples_is_neither_drawn_nor_named():
    axes = plot_transition(N, FEW, thresholds=[500.0, 1e9], expected_thresholds=[2000.0, np.nan]).axes[0]
    assert marks(axes, "|") == [500.0]
    assert marks(axes, "^") == [2000.0]
    assert named(axes)[-2:] == ["$n_k$, the threshold at large D", "threshold predicted at this D"]
    assert named(plot_transition(N, FEW, thresholds=[1e9, 1e9]).axes[0]) == ["feature 1", "feature 2"]


def test_a_prediction_at_one_number_of_samples_is_a_cross():
    single = plot_transition(N[:1], FEW[:, :1], predicted=(N[:1], [[0.3, 0.2]]))
    assert marks(single.axes[0], "x") == [100.0, 100.0]
    assert marks(plot_collapse([[2.0, 1.0]], FEW[:, :1], predicted=[[0.3, 0.2]]).axes[0], "x") == [2.0, 1.0]


def test_where_a_prediction_leaves_zero_is_found_between_the_samples():
    n = np.array([100.0, 200.0, 400.0, 800.0])
    curves = np.maximum(0.0, 1 - np.outer(1 / n, [150.0, 300.0, 500.0, 1000.0, 50.0]))
    found = leaves_zero(n, curves[None])
    assert found[:3] == pytest.approx([150.0, 300.0, 500.0])
    assert np.isnan(found[3:]).all()  # never, and always
    assert leaves_zero(n, [[[0.0], [0.0], [0.1], [0.9]]]) == pytest.approx([1 / (1 / 400 + 0.1 / 640)])
    assert leaves_zero(n, [[[0.0], [0.4], [0.3], [0.9]]]) == pytest.approx([100.0])  # falls: no line


def test_shapes_that_disagree_are_refused():
    with pytest.raises(ValueError, match=r"`overlaps` must have shape \(repeats, 2, features\)"):
        plot_transition(N[:2], OVERLAPS)
    with pytest.raises(ValueError, match=r"`ratios` must have shape \(3, 8\), got \(3, 7\)"):
        plot_collapse(np.ones((3, 7)), OVERLAPS)
