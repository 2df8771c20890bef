import numpy as np
import pytest
from numpy.testing import assert_allclose

from matfree_hier import theory
from matfree_hier.recovery import PowerLaw, fit_power_law, forecast_refined, forecast_spectral

LAW = 0.6 * np.arange(1.0, 13.0) ** -0.7


def test_an_exact_power_law_is_found_whatever_the_order_and_the_signs():
    order = np.random.default_rng(3).permutation(12)
    law = fit_power_law((LAW * np.tile([1.0, -1.0], 6))[order], np.full(12, 0.01))
    assert_allclose([law.gamma, law.scale], [0.7, 0.6], rtol=1e-10)
    assert law.interval[0] < 0.7 < law.interval[1]


def test_two_features_make_no_power_law():
    law = fit_power_law(LAW[:2], np.full(2, 0.01))
    assert np.isnan([law.gamma, law.scale, *law.interval]).all()


def test_intervals_of_gamma_cover_noisy_weights():
    rng = np.random.default_rng(5)
    covered = []
    for _ in range(200):
        low, high = fit_power_law(LAW * (1.0 + 0.05 * rng.standard_normal(12)), 0.05 * LAW).interval
        covered.append(low <= 0.7 <= high)
    assert 0.8 < np.mean(covered) <= 0.99


def test_the_forecast_of_the_spectral_estimator_is_its_law_further_on():
    weights = LAW / np.linalg.norm(LAW)
    n, D = 3_000, 100
    now = theory.overlap(weights, n, D)
    found = now > 0.3
    law = fit_power_law(weights[found], 0.01 * weights[found])
    error = theory.relative_mse(weights, n, D)
    forecast = forecast_spectral(weights[found], now[found], law, error=error, variance=1.0, n_samples=n)
    assert_allclose(forecast.n_samples, [6_000, 30_000, 300_000])
    expected = [theory.relative_mse(weights, m, D) for m in forecast.n_samples]
    assert_allclose(forecast.relative_mse[:2], expected[:2], rtol=0.35)
    assert np.all(np.diff(forecast.relative_mse) < 0.0)
    hidden = theory.recovery_threshold(weights, D)[~found][0]
    assert_allclose(forecast.next_feature, max(hidden, n), rtol=0.1)


def test_the_forecast_of_refinement_starts_where_it_is_and_ends_at_the_noise():
    weights = LAW[:8] / np.linalg.norm(LAW[:8])
    n, D, noise = 4_000, 100, 0.09
    error = theory.refined_mse(weights, n, D, noise) + noise
    law = fit_power_law(weights, 0.01 * weights)
    forecast = forecast_refined(weights, law, error=error, variance=1.09, n_samples=n, n_packed=D)
    # The ninth feature would have been found: what is left is noise.
    assert forecast.next_feature == np.inf
    assert_allclose(forecast.relative_mse[-1], noise / 1.09, rtol=0.05)
    half = theory.refined_mse(weights, 2 * n, D, noise) + noise
    assert_allclose(forecast.relative_mse[0], half / 1.09, rtol=0.03)


def test_a_feature_too_weak_to_be_seen_is_expected_when_its_threshold_is_passed():
    weights = LAW / np.linalg.norm(LAW)
    n, D = 1_500, 100
    error = theory.refined_mse(weights, n, D, 0.3) + 0.3
    found = theory.overlap(weights, n, D, error) > 0.3
    assert 3 < found.sum() < 12
    law = fit_power_law(weights[found], 0.01 * weights[found])
    forecast = forecast_refined(weights[found], law, error=error, variance=1.3, n_samples=n, n_packed=D)
    assert n <= forecast.next_feature < 20 * n


@pytest.mark.parametrize("law", [PowerLaw(), PowerLaw(0.7, 0.6, (0.6, 0.8))])
def test_without_features_nothing_is_forecast_and_nothing_breaks(law):
    empty = np.empty(0)
    forecast = forecast_spectral(empty, empty, law, error=1.0, variance=1.0, n_samples=100)
    assert np.isnan(forecast.relative_mse).all()
    assert np.isnan(forecast.next_feature)
    refined = forecast_refined(empty, law, error=1.0, variance=1.0, n_samples=100, n_packed=50)
    assert np.all(refined.relative_mse <= 1.0)
