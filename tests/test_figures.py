from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from matfree_hier import figures
from matfree_hier.figures import plot_history, plot_recovery, plot_spectrum
from matfree_hier.result import History

EIGENVALUES = [0.5, -0.4, 0.2, -0.1]


def history(n_passes=4):
    records = History()
    for p in range(n_passes):
        records.append(p + 1, [1.0, -0.5], [10.0**-p, 3 * 10.0**-p], seconds=0.1)
    return records


def points(figure, label):
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == label]
    return np.asarray(line.get_xydata())


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plot_spectrum(EIGENVALUES, predicted=[0.5, np.nan], edges=(-0.15, 0.2)),
        lambda: plot_recovery(
            [0.9, 0.5, 0.1], samples_over_threshold=[10, 2, 0.5], predicted=[0.9, 0.5, np.nan]
        ),
        lambda: plot_recovery([0.9, 0.5]),
        lambda: plot_history(history(), tol=1e-2),
    ],
    ids=["spectrum", "recovery", "recovery by feature", "history"],
)
def test_every_figure_names_its_axes_and_what_it_draws(figure, tmp_path):
    drawn = figure()
    assert isinstance(drawn, Figure)
    axes = drawn.axes[0]
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert axes.get_title()
    assert axes.get_legend().get_texts()
    drawn.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_given_axes_draws_there_and_returns_their_figure():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot_spectrum(EIGENVALUES, axes=right) is figure
    assert not left.lines
    assert right.lines


def test_pyplot_and_its_global_state_are_not_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it now fails
    importlib.reload(figures).plot_spectrum(EIGENVALUES)


def test_the_spectrum_is_ranked_by_absolute_value_and_its_signs_kept_apart():
    figure = plot_spectrum([-0.1, 0.2, 0.5, -0.4])
    assert points(figure, "found, positive").tolist() == [[1, 0.5], [3, 0.2]]
    assert points(figure, "found, negative").tolist() == [[2, 0.4], [4, 0.1]]
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_predictions_are_ranked_and_features_without_one_left_out():
    figure = plot_spectrum(EIGENVALUES, predicted=[0.1, np.nan, -0.45])
    assert points(figure, "predicted").tolist() == [[1, 0.45], [2, 0.1]]


def test_recovery_is_drawn_over_the_ratio_on_a_log_axis_with_its_law():
    figure = plot_recovery([0.9, 0.4], samples_over_threshold=[12, 2])
    assert points(figure, "measured").tolist() == [[12, 0.9], [2, 0.4]]
    law = points(figure, "1 - n_k / n, large D")
    np.testing.assert_allclose(law[:, 1], 1 - 1 / law[:, 0])
    assert figure.axes[0].get_xscale() == "log"


def test_repeats_of_an_overlap_are_a_mean_with_its_range():
    figure = plot_recovery([[0.9, 0.2], [0.7, 0.2]])
    assert points(figure, "measured")[:, 1].tolist() == pytest.approx([0.8, 0.2])
    (bar, _) = figure.axes[0].collections[0].get_segments()
    assert bar[:, 1] == pytest.approx([0.7, 0.9])
    assert "range of 2 seeds" in figure.axes[0].get_ylabel()


def test_residuals_are_drawn_by_pass_on_a_log_axis_and_what_is_unknown_left_out():
    records = history()
    records.append(5, [1.0], [1e-9], seconds=0.5)  # one pair fewer: NaN for the second
    figure = plot_history(records, tol=1e-2)
    assert points(figure, "pair 1")[-1].tolist() == [5, 1e-9]
    assert points(figure, "pair 2")[-1].tolist() == [4, 3e-3]
    assert figure.axes[0].get_yscale() == "log"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plot_spectrum([]),
            r"`eigenvalues` must be a vector with at least one number, got shape \(0,\)",
        ),
        (lambda: plot_spectrum(np.eye(2)), r"`eigenvalues` must be a vector .* got shape \(2, 2\)"),
        (lambda: plot_spectrum([1.0, np.nan]), r"`eigenvalues` must be finite, got nan at position 1"),
        (lambda: plot_spectrum([0.0]), r"`eigenvalues` must hold a number other than 0"),
        (lambda: plot_recovery([1.2]), r"`overlaps` must lie in \[0, 1\], got 1.2 to 1.2"),
        (
            lambda: plot_recovery([0.5], samples_over_threshold=[0.0]),
            r"`samples_over_threshold` must be positive, got 0",
        ),
        (
            lambda: plot_recovery([0.5], predicted=[0.5, 0.1]),
            r"`predicted` must have one number for each of the 1 overlaps, got 2",
        ),
        (lambda: plot_history(History()), r"`history` must hold at least one pass, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
