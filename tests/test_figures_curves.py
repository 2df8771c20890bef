from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.figures import Band, plot_collapse, plot_density, plot_law, plot_transition

N = [100, 1000, 10_000]
OVERLAPS = np.linspace(0, 1, 2 * 3 * 8).reshape(2, 3, 8)


def named(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plot_transition(
            N, OVERLAPS, predicted=(N, OVERLAPS[0]), thresholds=np.full(8, 500.0), scale=(10.0, "$n / d^q$")
        ),
        lambda: plot_collapse(np.outer(N, np.linspace(0.001, 0.01, 8)), OVERLAPS, scale=(2.0, "paper")),
        lambda: plot_density(
            [0, 1, 2], [0.1, 0.5, 0.1], standard_errors=[0.1] * 3, predicted=([0, 2], [0.2, 0.2]),
            edges=(0, 2), measured_edges=(0.1, 1.9), outliers=[3.0], tails=[2.2], expected=[2.9, np.nan],
        ),
        lambda: plot_law([10, 100], [[1.0, 0.1], [1.2, 0.12]], law=lambda x: 10 / x),
    ],
    ids=["transition", "collapse", "density", "law"],
)  # fmt: skip
def test_every_figure_names_its_axes_and_what_it_draws(figure, tmp_path):
    drawn = figure()
    axes = drawn.axes[0]
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert named(axes)
    drawn.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_band_is_mean_and_standard_deviation_and_flat_for_one_repeat():
    band = Band.of([[1.0, 2.0], [3.0, 2.0]])
    assert band.mean.tolist() == [2.0, 2.0]
    assert band.deviation == pytest.approx([np.sqrt(2.0), 0.0])
    assert Band.of([[1.0, 2.0]]).deviation.tolist() == [0.0, 0.0]


def test_a_transition_draws_the_mean_of_each_feature_and_names_some_of_many():
    axes = plot_transition(N, OVERLAPS).axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata())]
    assert len(curves) == 8
    assert curves[3].get_ydata() == pytest.approx(OVERLAPS[:, :, 3].mean(axis=0))
    assert named(axes)[0] == "feature 1"
    assert named(axes)[-1] == "feature 8"
    assert len(named(axes)) == 5


def test_the_second_axis_is_the_first_over_its_unit():
    figure = plot_transition(N, OVERLAPS, scale=(10.0, "$n / d^q$"))
    figure.draw_without_rendering()
    (above,) = figure.axes[0].child_axes
    assert np.array(above.get_xlim()) * 10 == pytest.approx(np.array(figure.axes[0].get_xlim()))


def test_a_threshold_beyond_the_samples_is_not_drawn():
    few = OVERLAPS[:, :, :2]
    assert len(plot_transition(N, few, thresholds=[500.0, 1e9]).axes[0].lines) == 4
    assert len(plot_transition(N, few, thresholds=[500.0, 600.0]).axes[0].lines) == 5


def test_a_density_leaves_room_for_the_one_predicted_and_names_edges_once():
    axes = plot_density([0, 1], [0.1, 0.2], predicted=([0, 1], [0.5, 0.3]), edges=(0, 1)).axes[0]
    assert axes.get_ylim()[1] > 0.5
    assert named(axes).count("predicted edges") == 1


def test_shapes_that_disagree_are_refused():
    with pytest.raises(ValueError, match=r"`overlaps` must have shape \(repeats, 2, features\)"):
        plot_transition(N[:2], OVERLAPS)
    with pytest.raises(ValueError, match=r"`ratios` must have shape \(3, 8\), got \(3, 7\)"):
        plot_collapse(np.ones((3, 7)), OVERLAPS)
