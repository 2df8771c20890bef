from __future__ import annotations

import numpy as np
import pytest

from matfree_hier import theory
from matfree_hier.bench import recovery, spectrum
from matfree_hier.bench.experiment import load_scenarios
from matfree_hier.bench.grid import Entry

TINY = {
    "degree": 1,
    "n_inputs": 60,
    "n_features": 2,
    "gamma": 0.4,
    "seeds": 1,
    "ratios": [2, 40],
    "compared_from": 40,
    "max_edge_distance": 0.25,
    "max_outlier_distance": 0.25,
}


@pytest.fixture(scope="module")
def entries():
    return [Entry(point, 5, spectrum.compute(point, 5)) for point in recovery.points(TINY)]


def test_the_density_found_is_the_one_predicted(entries):
    values = entries[1].values
    step = np.diff(values["grid"])[0]
    difference = np.abs(values["density"] - values["predicted_density"]).sum() * step
    assert difference < 0.25  # of a total of 1, D = 60
    assert values["edges"] == pytest.approx(values["predicted_edges"], rel=0.25)
    assert len(values["outliers"]) == 2


def test_the_summary_has_a_line_for_each_feature_and_a_panel_for_each_number_of_samples(entries):
    summary = spectrum.summarise(TINY, entries)
    assert len(summary.rows) == 2 * 2
    assert summary.rows[-1]["eigenvalue"] == pytest.approx(summary.rows[-1]["predicted"], rel=0.25)
    assert [check.met for check in summary.checks] == [True, True]
    assert len(summary.figures["density"].axes) == 2
    assert len(summary.tables["density"]) == 2 * spectrum.N_GRID
    assert summary.tables["density"][-1]["n"] == 40 * 60


def test_tails_are_a_table_of_their_own_if_there_are_any(entries):
    assert "tails" not in spectrum.summarise(TINY, entries).tables
    values = entries[1].values
    with_tail = values | {"outliers": np.append(values["outliers"], values["edges"][1] * 1.01)}
    (tail,) = spectrum.summarise(TINY, [entries[0], entries[1]._replace(values=with_tail)]).tables["tails"]
    assert tail == {"n": 2400, "seed": 5, "eigenvalue": pytest.approx(values["edges"][1] * 1.01)}


def test_smoothing_keeps_the_mass_and_adds_the_width():
    grid = np.linspace(-4, 4, 401)
    narrow = np.exp(-0.5 * (grid / 0.3) ** 2) / (0.3 * np.sqrt(2 * np.pi))
    wide = spectrum.smoothed(narrow, grid, 0.4)
    assert wide == pytest.approx(np.exp(-0.5 * (grid / 0.5) ** 2) / (0.5 * np.sqrt(2 * np.pi)), abs=1e-4)


def test_outliers_are_matched_by_rank_and_sign_and_those_missing_are_nan():
    found = spectrum.matched(np.array([0.9, 0.5, -0.4]), np.array([0.4, -0.5, np.nan, 0.8, -0.3]))
    assert found[[0, 1, 3]].tolist() == [0.5, -0.4, 0.9]
    assert np.isnan(found[[2, 4]]).all()


VALUES = {
    "edges": np.array([-1.0, 1.2]),
    "predicted_edges": np.array([-1.0, 1.0]),
    "outliers": np.array([2.2, -3.0]),
    "predicted_outliers": np.array([2.0, np.nan, -3.0]),
}


def test_the_distance_is_that_of_the_worst_outlier_and_of_the_worse_edge():
    found = spectrum.Comparison(VALUES)
    assert (found.edge_distance, found.outlier_distance) == pytest.approx((0.2, 0.1))
    assert spectrum.Comparison(VALUES | {"outliers": np.empty(0)}).outlier_distance == 0.0


def test_outliers_of_no_feature_are_tails_and_what_predicted_edges_are_compared_with():
    found = spectrum.Comparison(VALUES | {"outliers": np.array([2.2, 1.6, -3.0])})
    assert found.tails.tolist() == [1.6]
    assert found.reach.tolist() == [-1.0, 1.6]
    assert found.edge_distance == pytest.approx(0.6)


def test_heavy_tailed_edges_are_predicted_from_as_many_samples_as_there_are():
    rng = np.random.default_rng(71)
    t, h = rng.standard_t(2.5, 40_000), rng.standard_normal((40_000, 1))
    values, edges = spectrum.predicted(t, h, None, 2000, 100)
    assert np.isnan(values).all()
    everything = theory.predict_spectrum(t, 2000, 100)
    assert 1.5 * (edges[1] - edges[0]) < everything.edge_right - everything.edge_left


def test_edges_are_compared_only_up_to_where_a_scenario_says(entries):
    low, high = (entries[i].values for i in (0, 1))
    far = [entries[0], entries[1]._replace(values=high | {"edges": 2 * high["edges"]})]
    case = TINY | {"compared_from": 2, "max_edge_distance": 0.5, "max_outlier_distance": 0.5}
    assert spectrum.Comparison(low).edge_distance < 0.5
    assert [check.met for check in spectrum.summarise(case, far).checks] == [False, True]
    until = spectrum.summarise(case | {"edges_compared_until": 2}, far).checks
    assert [check.met for check in until] == [True, True]
    assert until[0].what.endswith("n/D 2 to 2")


def test_every_scenario_has_points_and_its_presets_exist():
    table = load_scenarios("spectrum")
    assert {"quick", "default", "large"} == set(table["presets"])
    assert {case for cases in table["presets"].values() for case in cases} == set(table["cases"])
    assert all(recovery.points(case) for case in table["cases"].values())
