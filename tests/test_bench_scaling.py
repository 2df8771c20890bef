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


def test_the_law_can_hold_between_few_features_and_a_quarter_of_them():
    base = scaling.points(CASE | {"n_features": 100})[0]
    counts, inside = [], []
    for ratio in (2, 8, 32, 128, 512, 2048):
        point = base | {"ratio": ratio}
        counts.append(theory.expected_count(scaling.power_law_weights(point), ratio * 30, 60))
        inside.append(scaling.holds(point))
    assert inside == [4 <= count <= 25 for count in counts]
    assert {True, False} == set(inside)


def test_features_below_the_spurious_bulk_end_the_law():
    point = scaling.points(CASE | {"n_features": 100, "gammas": [1.0]})[0] | {"ratio": 128}
    assert scaling.holds(point)
    assert not scaling.holds(point | {"degree": 2})


def _entries(law):
    points = scaling.points(CASE | {"paper": [64, 128, 256], "refined": [64, 128, 256], "n_features": 200})
    return [Entry(p, seed, {"mse": law(p) * (1 + 0.001 * seed)}) for p in points for seed in (1, 2)]


def test_a_refined_law_that_is_not_steeper_is_missed():
    case = CASE | {"paper": [64, 128, 256], "refined": [64, 128, 256], "n_features": 200}
    errors = {"paper": lambda r: r**-0.375, "spectral": lambda r: r**-0.4, "refined": lambda r: r**-0.3}
    summary = scaling.summarise(case, _entries(lambda p: errors[p["estimator"]](float(p["ratio"]))))
    steeper = [check for check in summary.checks if "refined" in check.what]
    assert [check.met for check in steeper] == [False]
    assert steeper[0].value == pytest.approx(0.075, abs=0.01)
    assert len(summary.rows) == 7
    assert "gamma 0.8, refined" in summary.lines[0]
