from __future__ import annotations

import numpy as np
import pytest

from matfree_hier import theory
from matfree_hier.bench import scaling
from matfree_hier.bench.grid import Entry

CASE = {
    "degree": 1,
    "n_inputs": 60,
    "n_features": 20,
    "gammas": [0.8],
    "paper": [64, 128],
    "spectral": [64],
    "refined": [64],
    "n_test": 20_000,
    "seeds": 1,
    "within": 0.1,
}


def test_there_is_a_point_for_each_gamma_estimator_and_ratio():
    points = scaling.points(CASE | {"gammas": [0.4, 1.0]})
    assert len(points) == 8
    assert [scaling.operator_ratio(p) for p in points[:3]] == [32, 64, 64]


def test_theory_with_its_readout_meets_the_paper_at_degree_1():
    point = scaling.points(CASE | {"n_inputs": 200, "n_features": 40})[1]
    errors = [scaling.compute(point, seed)["mse"] for seed in (31, 32, 33)]
    assert np.mean(errors) == pytest.approx(scaling.predicted_error(point), rel=0.12)


def test_theory_without_noise_in_the_readout_is_the_error_of_what_is_found():
    point = scaling.points(CASE)[0] | {"ratio": 1e6, "n_features": 3}
    assert scaling.predicted_error(point) < 1e-3
    assert scaling.n_wanted(point) == 3


def test_exponents_are_fitted_between_few_features_and_a_quarter_of_them():
    base = scaling.points(CASE | {"n_features": 100})[0]
    counts, inside = [], []
    for ratio in (2, 8, 32, 128, 512, 2048):
        point = base | {"ratio": ratio}
        counts.append(theory.expected_count(scaling.power_law_weights(point), ratio * 30, 60))
        inside.append(scaling.is_fitted(point))
    assert inside == [4 <= count <= 25 for count in counts]
    assert {True, False} == set(inside)


def test_features_below_the_spurious_bulk_end_the_range_of_a_fit():
    point = scaling.points(CASE | {"n_features": 100, "gammas": [1.0]})[0] | {"ratio": 128}
    assert scaling.is_fitted(point)
    assert not scaling.is_fitted(point | {"degree": 2})


LONG = CASE | {"paper": [64, 128, 256], "refined": [64, 128, 256], "n_features": 300}


def _entries(law, case=LONG):
    return [Entry(p, s, {"mse": law(p) * (1 + 0.001 * s)}) for p in scaling.points(case) for s in (1, 2)]


def test_a_refined_law_that_is_not_steeper_is_missed():
    errors = {"paper": lambda r: r**-0.375, "spectral": lambda r: r**-0.4, "refined": lambda r: r**-0.3}
    summary = scaling.summarise(LONG, _entries(lambda p: errors[p["estimator"]](float(p["ratio"]))))
    steeper = [check for check in summary.checks if "refined" in check.what]
    assert [check.met for check in steeper] == [False]
    assert steeper[0].value == pytest.approx(0.075, abs=0.01)
    assert len(summary.rows) == 7
    assert "gamma 0.8, refined" in summary.lines[2]
    assert f"{1.0015 * 64**-0.3:.3f}" in summary.lines[0]


def test_the_exponents_are_kept_with_their_intervals_beside_those_of_theory():
    summary = scaling.summarise(LONG, _entries(lambda p: float(p["ratio"]) ** -0.375))
    paper, spectral, refined = summary.tables["laws"]
    assert paper["exponent"] == pytest.approx(-0.375, abs=1e-3)
    assert paper["low"] < -0.375 < paper["high"]
    assert (paper["lowest_n_over_D"], paper["highest_n_over_D"], paper["n_points"]) == (64, 256, 3)
    assert paper["law"] == theory.mse_exponent(0.8) == -0.375
    assert -0.6 < paper["theory"] < paper["law"]  # with few features the curve falls faster than the law
    assert np.isnan(refined["theory"])
    assert np.isnan(spectral["exponent"])
    assert spectral["note"] == "no fit: 1 point in the range"


def test_below_one_half_the_part_explained_is_compared_and_one_below_zero_is_said():
    case = LONG | {"gammas": [0.4], "spectral": [32, 64, 128], "refined": []}
    predicted = {p["ratio"]: scaling.predicted_error(p) for p in scaling.points(case)[:3]}
    entries = _entries(
        lambda p: 1 - 1.1 * (1 - predicted[p["ratio"]]) if p["estimator"] == "paper" else 1.0, case
    )
    summary = scaling.summarise(case, entries)
    paper, spectral = summary.tables["laws"]
    distance = next(
        check for check in summary.checks if "largest distance of the part explained" in check.what
    )
    assert distance.value == pytest.approx(paper["largest_distance"])
    assert 0.07 < distance.value < 0.13
    assert paper["quantity"] == "explained"
    assert spectral["note"].startswith("no fit: explains less than nothing in ")
    assert spectral["note"] in summary.lines[2]


def test_theory_for_ranks_meets_the_spectral_estimator_at_degree_1():
    point = scaling.points(CASE | {"n_inputs": 200, "n_features": 40})[2]
    errors = [scaling.compute(point, seed)["mse"] for seed in (31, 32, 33)]
    assert point["estimator"] == "spectral"
    assert np.mean(errors) == pytest.approx(scaling.predicted_error(point), rel=0.12)


def test_the_figure_has_a_panel_a_gamma_and_writes_exponents_in_its_legend():
    case = LONG | {"gammas": [0.6, 0.8]}
    figure = scaling.summarise(case, _entries(lambda p: float(p["ratio"]) ** -0.3, case)).figures["errors"]
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes[:2]]
    assert legends[0][0].startswith("paper: -0.30 [")
    assert "the law, -0.17" in legends[0]
    assert "the law, -0.38" in legends[1]
