import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from matfree_hier import theory
from matfree_hier.recovery import HeldOut, Quality, assess_refined, assess_spectral
from matfree_hier.recovery.quality import _ambiguity, _debiased
from tests.calibration import count_accuracy, coverage, outcome


@given(strength=st.floats(0.01, 10.0), variance=st.floats(1e-6, 4.0), excess=st.floats(1.0, 6.0))
def test_the_debiased_strength_is_the_one_that_explains_what_is_seen(strength, variance, excess):
    weighted = excess * variance
    o = float(theory.overlap(strength, 1.0, 2, variance, weighted))  # D/(2 n) = 1
    lambdas, overlaps = _debiased(np.array([strength * o]), variance, np.array([weighted]))
    assert_allclose(overlaps, o, atol=1e-6)
    if o > 1e-6:
        assert_allclose(lambdas, strength, rtol=1e-5)


def test_nothing_seen_is_no_overlap_and_labels_met_exactly_are_all_of_it():
    assert _debiased(np.array([0.0, -1.0]), 0.5, np.array([0.5, 0.5]))[1].tolist() == [0.0, 0.0]
    strengths, overlaps = _debiased(np.array([0.3]), 0.0, np.array([0.0]))
    assert_allclose([strengths[0], overlaps[0]], [0.3, 1.0], rtol=1e-6)


def test_the_more_components_the_less_is_known_of_each_for_degree_two_alone():
    assert _ambiguity(30, 100, 1, 100) == 1.0
    factors = [_ambiguity(k, 15, 2, 120) for k in (0, 5, 20, 30, 31)]
    assert factors[0] == 1.0
    assert np.all(np.diff(factors[:-1]) > 0.0)
    assert factors[-1] == np.inf  # 31 D - 31 * 30/2 > C(18, 4) + C(16, 2): more unknowns than functions
    known = assess_refined(
        np.ones(31), 1e-3, n_samples=10_000, n_judged=500, n_inputs=15, degree=2, n_packed=120
    )
    assert np.isnan(known.overlaps).all()
    assert not known.resolved.any()


def test_refined_features_are_judged_by_weight_over_noise():
    # sigma^2 = D error/(2 n) = .01: weights of 10, 3 and 1 sigma.
    known = assess_refined(
        np.array([-1.0, 0.3, 0.1]), 1.0, n_samples=5_000, n_judged=500, n_inputs=100, degree=1, n_packed=100
    )
    assert known.resolved.tolist() == [True, True, False]
    assert_allclose(known.overlaps[0], 1.0 - 0.98 * 0.01 / known.weights[0] ** 2, rtol=1e-4)  # two are clear
    assert known.weights[0] < -1.0
    low, high = known.intervals.T
    assert np.all((low < known.overlaps) & (known.overlaps < high))
    wide = assess_refined(
        np.array([-1.0]),
        1.0,
        n_samples=5_000,
        n_judged=500,
        n_inputs=100,
        degree=1,
        n_packed=100,
        settled=False,
    )
    assert wide.intervals[0, 0] < low[0]


def _gaussian(n, seed=5):
    rng = np.random.default_rng(seed)
    h = rng.standard_normal((n, 3))
    y = h[:, 0] ** 2 - 1.0 + 0.5 * rng.standard_normal(n)
    return h, y


def test_spectral_features_without_evidence_are_in_doubt_and_too_few_samples_say_nothing():
    h, y = _gaussian(4_000)
    held_out = HeldOut((h**2 - 1.0) / np.sqrt(2.0), y, np.ones(3))
    t, norms = np.tanh(y), np.ones(len(y))
    known = assess_spectral(held_out, t, norms, variance=0.01, degree=1, n_packed=100)
    assert known.resolved.tolist() == [True, False, False]
    assert known.overlaps[0] > 0.8
    assert np.all(known.overlaps[1:] < 0.4)
    few = HeldOut(held_out.columns[:12], y[:12], np.ones(3))
    assert np.isnan(
        assess_spectral(few, t[:12], norms[:12], variance=0.01, degree=1, n_packed=100).overlaps
    ).all()


def test_two_estimates_that_disagree_widen_the_interval():
    h, y = _gaussian(4_000)
    held_out = HeldOut((h[:, :1] ** 2 - 1.0) / np.sqrt(2.0), y, np.ones(1))
    t = np.tanh(y) - np.tanh(y).mean()
    ends = (
        theory.BulkEnd(t / np.sqrt(2.0), np.ones(4_000), 0.1),
        theory.BulkEnd(-t / np.sqrt(2.0), np.ones(4_000), 0.1),
    )
    expected = theory.predict_spectrum(t, 1_000, 100, h[:, :1])
    shift = t.mean() / np.sqrt(2.0)
    widths = []
    for value in (expected.eigenvalues[0], 0.7 * expected.eigenvalues[0]):
        known = assess_spectral(
            held_out,
            t,
            np.ones(4_000),
            variance=0.05 * np.mean(t**2),
            degree=1,
            n_packed=100,
            eigenvalues=np.array([value + shift]),
            ends=ends,
        )
        low, high = known.intervals[0]
        widths.append(np.log(high / (1 - high)) - np.log(low / (1 - low)))
        if not widths[1:]:
            assert abs(known.overlaps[0] - expected.overlaps[0]) < 0.05
    assert widths[1] > 1.2 * widths[0]


def test_features_that_were_not_assessed_are_unknown():
    known = Quality(
        np.array([0.5]), np.array([[0.4, 0.6]]), np.array([True]), np.array([1.0]), np.array([0.1])
    )
    whole = known.placed(np.array([1]), 3)
    assert whole.resolved.tolist() == [False, True, False]
    assert np.isnan(whole.overlaps[[0, 2]]).all()
    assert whole.taken(whole.resolved).intervals.tolist() == [[0.4, 0.6]]


@pytest.mark.parametrize("estimator", ["spectral", "refined"])
def test_intervals_cover_and_counts_are_right_on_small_teachers(estimator):
    setting = {"degree": 1, "n_inputs": 60, "n": 2_400, "gamma": 0.6, "n_features": 5, "noise_std": 0.3}
    outcomes = [outcome(seed, estimator, setting) for seed in range(1003, 1011)]
    assert sum(len(each.true) for each in outcomes) > 20
    assert coverage(outcomes) > 0.7  # of some 40 features; those of one fit err together
    assert count_accuracy(outcomes) >= 0.75
    weights = np.concatenate([each.weights for each in outcomes])
    assert_allclose(np.median(weights), 1.0, atol=0.12)


@pytest.mark.long
@pytest.mark.parametrize("estimator", ["spectral", "refined"])
def test_intervals_of_fifty_unseen_teachers_cover_nine_in_ten_and_counts_are_right(estimator):
    outcomes = [outcome(seed, estimator) for seed in range(3000, 3050)]
    assert 0.85 <= coverage(outcomes) <= 0.95
    assert 0.85 <= coverage(outcomes, "matched") <= 0.95
    assert count_accuracy(outcomes) >= 0.9
