from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.bench import recovery
from matfree_hier.bench.experiment import load_scenarios
from matfree_hier.bench.grid import Entry

TINY = {
    "degree": 2,
    "n_inputs": 8,
    "n_features": 2,
    "gamma": 0.4,
    "seeds": 2,
    "ratios": [4, 80],
    "compared_from": 80,
    "label_transform": "normalised",
    "max_distance": 0.2,
    "max_distance_to_law": 0.2,
    "max_disorder": 0.2,
}


@pytest.fixture(scope="module")
def entries():
    return [
        Entry(point, seed, recovery.compute(point, seed))
        for point in recovery.points(TINY)
        for seed in (5, 6)
    ]


def test_points_are_the_ratios_times_the_number_of_features():
    assert [point["n_samples"] for point in recovery.points(TINY)] == [4 * 36, 80 * 36]
    assert recovery.cost(recovery.points(TINY)[1]) == 80 * 36 * 36


def test_overlaps_rise_with_samples_and_theory_is_near_them(entries):
    few, many = entries[0].values, entries[2].values
    assert np.all(many["overlap"] > few["overlap"])
    assert many["overlap"] == pytest.approx(many["predicted"], abs=0.2)
    assert np.abs(many["weight"]) == pytest.approx(np.abs(few["weight"]))


def test_the_summary_has_a_line_for_each_overlap_three_checks_and_a_figure(entries):
    summary = recovery.summarise(TINY, entries)
    assert len(summary.rows) == 2 * 2 * 2
    assert set(summary.rows[0]) == {
        "n", "seed", "feature", "weight", "n_k", "overlap", "predicted", "law"
    }  # fmt: skip
    assert [check.what.partition(",")[0] for check in summary.checks] == [
        "largest |mean overlap - predicted|",
        "largest |mean overlap - law|",
        "largest rise of the mean overlap to a weaker feature",
    ]
    left, right = summary.figures["recovery"].axes
    assert left.get_xlabel() == "samples $n$"
    assert right.get_xlabel() == "samples over threshold at large D, $n / n_k$"


def test_a_scenario_of_one_size_is_one_panel_under_its_parameters(entries):
    figure = recovery.summarise(TINY | {"ratios": [80], "n_inputs": 8}, entries[2:]).figures["recovery"]
    (axes,) = figure.axes
    assert "n / n_k" in axes.get_xlabel()
    assert "q = 2, d = 8" in figure.get_suptitle()


def test_disorder_is_how_far_a_feature_is_above_a_stronger_one():
    found = np.array([[[0.9, 0.7, 0.75], [0.5, 0.6, 0.4]]])
    (check,) = recovery._disorder(TINY, found, np.ones_like(found))
    assert check.value == pytest.approx(0.1)
    assert check.met


def test_order_by_threshold_is_that_of_each_seed():
    found = np.array([[[0.9, 0.2]], [[0.8, 0.6]]])  # (seeds, m, features)
    for n_k, rise in (([[1, 2], [1, 2]], 0.0), ([[2, 1], [1, 2]], 0.25)):
        (check,) = recovery._disorder(TINY | {"order": "threshold"}, found, np.array(n_k)[:, None])
        assert "threshold" in check.what
        assert check.value == pytest.approx(rise)


def test_features_that_are_not_predicted_to_be_found_can_be_left_out():
    mean, predicted = np.array([[0.9, 0.3]]), np.array([[0.8, 0.0]])
    (everything,) = recovery._distances(TINY, "max_distance", "law", mean, predicted)
    case = TINY | {"compared_overlap": 0.25}
    (found,) = recovery._distances(case, "max_distance", "law", mean, predicted)
    assert (everything.value, found.value) == pytest.approx((0.3, 0.1))
    assert "features predicted above 0.25" in found.what


def test_every_scenario_has_points_and_its_presets_exist():
    table = load_scenarios("recovery")
    for case in table["cases"].values():
        assert recovery.points(case)
        assert case["seeds"] >= 1
    for cases in table["presets"].values():
        assert set(cases) <= set(table["cases"])
    assert {"quick", "default", "large"} == set(table["presets"])
