from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.figures import plot_density, plot_edges, plot_law

N = [100, 1000, 10_000]
EDGES = [[-1.0, 1.0], [-0.5, 0.6], [-0.2, 0.2]]
EIGENVALUES = np.array([[[np.nan, np.nan], [0.7, np.nan], [0.7, -0.3]]])


def named(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plot_density(
            [0, 1, 2], [0.1, 0.5, 0.1], standard_errors=[0.1] * 3, predicted=([0, 2], [0.2, 0.2]),
            edges=(0, 2), measured_edges=(0.1, 1.9), outliers=[3.0], tails=[2.2], expected=[2.9, np.nan],
        ),
        lambda: plot_law([10, 100], [[1.0, 0.1], [1.2, 0.12]], law=lambda x: 10 / x),
        lambda: plot_edges(N, EDGES, EIGENVALUES, predicted_edges=EDGES, predicted=EIGENVALUES),
        lambda: plot_edges(N[:1], EDGES[:1], EIGENVALUES[:, :1]),
    ],
    ids=["density", "law", "edges", "edges at one n"],
)  # fmt: skip
def test_every_figure_names_its_axes_and_what_it_draws(figure, tmp_path):
    drawn = figure()
    axes = drawn.axes[0]
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert named(axes)
    drawn.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_law_has_the_standard_error_of_its_means_or_the_errors_given():
    for errors, half in ((None, 0.5), ([0.2, 0.2], 0.2)):
        figure = plot_law([10, 100], [[1.0, 2.0], [2.0, 3.0]], errors=errors)
        (bar, _) = figure.axes[0].collections[0].get_segments()
        assert bar[:, 1] == pytest.approx([1.5 - half, 1.5 + half])


def test_a_density_leaves_room_for_the_one_predicted_and_names_edges_once():
    axes = plot_density([0, 1], [0.1, 0.2], predicted=([0, 1], [0.5, 0.3]), edges=(0, 1)).axes[0]
    assert axes.get_ylim()[1] > 0.5
    assert named(axes).count("predicted edges") == 1


def test_edges_and_features_of_both_signs_have_ticks_on_both_sides_of_zero():
    ticks = plot_edges(N, EDGES, EIGENVALUES).axes[0].get_yticks()
    assert ticks.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
