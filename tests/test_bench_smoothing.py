from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.bench import smoothing
from matfree_hier.bench.experiment import load_scenarios
from matfree_hier.bench.grid import Entry

TINY = {"degree": 1, "inputs": [20, 80], "seeds": 3, "ratios": [0.5, 1, 4], "max_gap": 9, "max_half_width": 9}
RATIOS = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
LIMIT = np.array([0.0, 0.0, 0.0, 0.5, 0.75])


@pytest.fixture(scope="module")
def entries():
    return [
        Entry(point, seed, smoothing.compute(point, seed))
        for point in smoothing.points(TINY)
        for seed in (5, 6, 7)
    ]


def test_the_limit_has_its_kink_at_the_threshold():
    threshold, overlaps = smoothing.limit(1, 20, (0.9, 1.0, 1.1, 4.0))
    assert 0.7 < threshold < 0.9
    assert overlaps[0] == 0.0
    assert overlaps[1] == pytest.approx(smoothing.VISIBLE, abs=1e-3)
    assert 0.02 < overlaps[2] < 0.1
    assert overlaps[3] == pytest.approx(0.565, abs=0.02)


def test_rounding_is_the_excess_at_the_threshold_and_width_where_it_is_above_half():
    curve = LIMIT + np.array([0.0, 0.0, 0.2, 0.0, 0.0])
    rounding, width = smoothing.measures(RATIOS, curve, LIMIT, 10**9)
    assert rounding == pytest.approx(0.2)
    assert width == pytest.approx(np.log(2.0))
    assert smoothing.width_at_half(np.arange(5.0), [0.1, 0.4, 0.8, 0.6, 0.2]) == pytest.approx(2.5)


@pytest.mark.parametrize("bump", [[0.5, 0.8, 0.1], [0.1, 0.8, 0.5], [0.0, 0.5, 0.8]])
def test_a_width_that_the_ratios_do_not_hold_is_nan(bump):
    assert np.isnan(smoothing.width_at_half(np.arange(3.0), bump))


def test_a_power_law_is_fitted_exactly_and_its_interval_holds_it():
    sizes = np.array([50.0, 100.0, 400.0, 800.0])
    assert smoothing.fit_power(sizes, 3 * sizes**-0.4) == pytest.approx((3.0, -0.4))
    assert np.isnan(smoothing.fit_power(sizes, np.array([1.0, 1.0, -1.0, 1.0]))).all()
    noise = 1 + 0.1 * np.random.default_rng(3).standard_normal((4, 30, 1))
    excess = np.array([0.0, 0.5, 1.0, 0.5, 0.0]) * (2 * sizes**-0.3)[:, None, None] * noise
    curves = LIMIT + excess + 2 / sizes[:, None, None] * (1 - LIMIT)
    laws = smoothing.fitted(RATIOS, curves, np.tile(LIMIT, (4, 1)), sizes, seed=5)
    low, high = laws.intervals[0]
    assert low < laws.fits[0][1] < high
    assert low <= -0.3 <= high
    assert high - low < 0.1
    assert laws.errors.shape == laws.values.shape
    assert np.all(laws.errors < 0.05 * laws.values)


def test_the_summary_says_both_laws_and_draws_them(entries):
    summary = smoothing.summarise(TINY, entries)
    assert len(summary.rows) == 2 * 3
    assert {row["n_packed"] for row in summary.rows} == {20, 80}
    first = [values["overlap"][0] for point, _, values in entries if point["n_inputs"] == 20]
    assert summary.rows[0]["deviation"] == pytest.approx(np.std(first, ddof=1))
    assert sum("theory: -1/3" in line for line in summary.lines) == 2
    assert len(summary.checks) == 4
    left, right = summary.figures["transition"].axes
    assert "threshold" in left.get_xlabel()
    assert "D" in right.get_xlabel()
    named = [text.get_text() for text in right.get_legend().get_texts()]
    assert "$D^{-1/3}$" in named
    assert "exponent" in named[0]


@pytest.mark.parametrize(
    ("interval", "gap", "half_width"),
    [((-0.4, -0.2), 0.0, 0.1), ((-0.25, -0.09), 0.25 - 1 / 3, 0.08), ((-0.58, -0.42), 0.42 - 1 / 3, 0.08)],
)
def test_an_interval_is_judged_by_its_distance_from_theory_and_its_width(interval, gap, half_width):
    distance, width, *_ = smoothing._checks(TINY, [interval, (-0.4, -0.3)])
    assert distance.value == pytest.approx(abs(gap))
    assert width.value == pytest.approx(half_width)


def test_every_scenario_has_points_and_its_presets_exist():
    table = load_scenarios("smoothing")
    assert {"quick", "default", "large"} == set(table["presets"])
    assert {case for cases in table["presets"].values() for case in cases} == set(table["cases"])
    for case in table["cases"].values():
        assert [point["n_inputs"] for point in smoothing.points(case)] == case["inputs"]
        assert 1 in case["ratios"]
