import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from matfree_hier.linkfit import fit_link, fit_scale
from matfree_hier.links import link, with_parameters


def _heavy_tailed(n, seed):
    """Standardised h2 of a teacher with strengths 1/k: skewed, with exponential tails."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1.0, 12.0)
    weights /= np.linalg.norm(weights)
    return (rng.standard_normal((n, 11)) ** 2 - 1.0) @ weights / np.sqrt(2.0)


@pytest.mark.parametrize("name", ["identity", "tanh", "relu", "quadratic"])
def test_a_fitted_link_comes_close_to_the_true_one_without_noise(name):
    h = _heavy_tailed(20_000, 5)
    fresh = _heavy_tailed(20_000, 6)
    truth = link(name)
    error = np.mean((fit_link(h, truth(h))(fresh) - truth(fresh)) ** 2) / truth(fresh).var()
    assert error < {"identity": 1e-20, "tanh": 2e-4, "relu": 1e-3, "quadratic": 5e-3}[name]


@pytest.mark.parametrize("name", ["identity", "tanh", "quadratic"])
def test_a_fitted_link_costs_little_more_than_its_degrees_of_freedom_under_noise(name):
    h = _heavy_tailed(2_000, 8)
    truth = link(name)
    y = truth(h) + 0.5 * np.random.default_rng(9).standard_normal(len(h))
    fresh = _heavy_tailed(20_000, 10)
    error = np.mean((fit_link(h, y)(fresh) - truth(fresh)) ** 2)
    bias = 0.03 * truth(fresh).var() if name == "quadratic" else 0.0  # its straight tails
    assert error < bias + 2.0 * 12 * 0.25 / 2_000


def test_a_fitted_derivative_is_the_slope_of_the_fitted_link():
    h = _heavy_tailed(3_000, 12)
    fitted = fit_link(h, np.tanh(h))
    z = np.linspace(-4.0, 9.0, 400)
    step = 1e-6
    assert_allclose(fitted.derivative(z), (fitted(z + step) - fitted(z - step)) / (2 * step), atol=1e-7)


def test_tails_are_straight_lines_and_stay_small():
    h = _heavy_tailed(5_000, 13)
    y = np.tanh(h) + 0.3 * np.random.default_rng(14).standard_normal(len(h))
    fitted = fit_link(h, y)
    far = np.array([40.0, 60.0, 80.0])
    assert abs(np.diff(fitted(far), 2)[0]) < 1e-9
    assert np.all(np.abs(fitted([-20.0, 20.0])) < 10.0)


def test_a_fitted_link_survives_storage():
    h = _heavy_tailed(500, 15)
    fitted = fit_link(h, h**2)
    again = with_parameters(link("identity"), fitted.parameters)
    z = np.linspace(-5.0, 5.0, 31)
    assert np.array_equal(fitted(z), again(z))
    with pytest.raises(ValueError, match="must hold increasing `knots`"):
        with_parameters(link("identity"), {"knots": [1.0, 1.0], "values": [0.0, 2.0]})


@given(
    n=st.integers(1, 60),
    distinct=st.integers(1, 4),
    knots=st.integers(1, 12),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    seed=st.integers(2, 10_000),
)
def test_few_or_repeated_samples_still_give_a_finite_link(n, distinct, knots, scale, seed):
    rng = np.random.default_rng(seed)
    h = scale * rng.integers(0, distinct, n).astype(float)
    y = scale * rng.standard_normal(n)
    fitted = fit_link(h, y, degrees_of_freedom=knots)
    at = fitted(h)
    assert np.all(np.isfinite(at))
    # A fit with a free constant never does worse on its own samples than the mean does.
    assert np.sum((at - y) ** 2) <= np.sum((y - y.mean()) ** 2) * (1 + 1e-6)


@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_the_fit_does_not_depend_on_units(factor):
    h = _heavy_tailed(1_000, 16)
    y = np.tanh(h) + 0.1 * np.random.default_rng(17).standard_normal(len(h))
    z = np.linspace(-3.0, 6.0, 20)
    assert_allclose(fit_link(factor * h, y)(factor * z), fit_link(h, y)(z), rtol=1e-6, atol=1e-8)
    assert_allclose(fit_link(h, factor * y)(z) / factor, fit_link(h, y)(z), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("h", "y", "sentence"),
    [
        ([], [], r"vectors of one length of at least 1, got shapes \(0,\) and \(0,\)"),
        ([1.0, 2.0], [1.0], r"got shapes \(2,\) and \(1,\)"),
        ([1.0, np.nan], [1.0, 2.0], "`h` must be finite, got nan at row 1"),
        ([1.0, 2.0], [np.inf, 2.0], "`y` must be finite, got inf at row 0"),
    ],
)
def test_bad_samples_are_refused_with_their_row(h, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_link(h, y)


def test_a_link_needs_a_degree_of_freedom():
    with pytest.raises(ValueError, match=r"`degrees_of_freedom` must be at least 1, got 0\."):
        fit_link([1.0, 2.0], [1.0, 2.0], degrees_of_freedom=0)


@pytest.mark.parametrize("units", [1.0, 1e6])
def test_a_given_link_takes_the_units_of_labels_and_latents(units):
    h = np.random.default_rng(5).standard_normal(500)
    y = units * (3.0 * np.tanh(1.5 * h + 0.4) - 2.0)
    fitted, factor, shift = fit_scale(link("tanh"), h, y)
    assert_allclose([fitted.scale / units, fitted.offset / units], [3.0, -2.0], rtol=1e-5)
    assert_allclose([factor, shift], [1.5, 0.4], rtol=1e-5)
    z = shift + factor * h
    assert_allclose(fitted(z), y, atol=1e-4 * units)
    assert_allclose(fitted.derivative(z), 3.0 * units * (1.0 - np.tanh(z) ** 2), rtol=1e-4)
    assert fitted.name == "scaled tanh"
    assert fit_scale(fitted, h, y)[0] == fitted
    assert with_parameters(link("tanh"), fitted.parameters) == fitted
    assert pickle.loads(pickle.dumps(fitted)) == fitted
    assert link(fitted) is fitted


def test_a_scale_stays_positive_and_a_constant_is_the_mean():
    h = np.linspace(-2.0, 2.0, 50)
    fitted, factor, _ = fit_scale(link("tanh"), h, -h)
    assert min(fitted.scale, factor) >= 0.0
    assert_allclose(fit_scale(link("gelu"), np.zeros(50), h + 3.0)[0](0.0), 3.0)
    assert_allclose(fit_scale(link("tanh"), h, np.full(50, 4.0))[0](h), 4.0, atol=0.5)
