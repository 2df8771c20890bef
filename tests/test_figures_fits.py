import numpy as np
import pytest
from matplotlib.figure import Figure

from matfree_hier.figures import plot_fit
from matfree_hier.recovery import Forecast, PowerLaw, Quality, Recovery

QUALITY = Quality(
    np.array([0.9, 0.4, np.nan]),
    np.array([[0.8, 0.95], [0.1, 0.7], [np.nan, np.nan]]),
    np.array([True, False, False]),
    np.array([-0.6, 0.2, np.nan]),
    np.array([0.01, 0.05, np.nan]),
)
NOTHING = Recovery(
    Quality.unknown(0), PowerLaw(), Forecast(np.array([2.0, 10.0, 100.0]), np.full(3, np.nan), np.nan)
)


LAW = PowerLaw(0.7, 0.6, (0.5, 0.9))


def recovery(law=LAW):
    return Recovery(QUALITY, law, Forecast(np.array([2e3, 1e4, 1e5]), np.array([0.3, 0.1, 0.02]), 1500.0))


def test_the_figure_of_a_fit_shows_overlaps_weights_and_errors(tmp_path):
    figure = plot_fit(recovery(), 1000, 0.4)
    left, middle, right = figure.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["clearly there", "in doubt"]
    assert np.asarray(middle.lines[0].get_xydata()).tolist() == [[1.0, 0.6]]
    assert {line.get_label() for line in right.lines} == {"this fit", "expected", "next feature"}
    assert all(axes.get_xlabel() and axes.get_ylabel() and axes.get_title() for axes in figure.axes)
    figure.savefig(tmp_path / "fit.png")


@pytest.mark.parametrize(("report", "error"), [(NOTHING, 1.0), (NOTHING, 0.0), (recovery(PowerLaw()), 0.0)])
def test_fits_of_which_little_is_known_are_drawn_too(report, error, tmp_path):
    figure = Figure()
    assert plot_fit(report, 1000, error, figure=figure) is figure
    figure.savefig(tmp_path / "fit.png")


def test_what_a_report_says_comes_back_from_what_is_stored():
    again = Recovery.from_values(recovery().to_values())
    assert again.lines() == recovery().lines()
    assert again.law == recovery().law
    assert again.count == 1
    assert "gamma = 0.70 (0.50 to 0.90)" in again.lines()[1]
    assert NOTHING.lines() == ["0 of 0 features clearly there"]
