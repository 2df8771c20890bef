import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from oracle import features
from strategies import seeds

from matfree_hier.fitting.moments import shuffled_ranks
from matfree_hier.fitting.residualize import FOLDS, low_even_degrees, residualize
from matfree_hier.sources import open_source


def _chaos(X, degree, seed):
    """A random combination of the features of one degree, of variance 1."""
    phi = features(X, degree)
    b = np.random.default_rng(seed).standard_normal(phi.shape[1])
    return phi @ (b / np.linalg.norm(b))


def _inputs(n, d, seed):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_degrees_are_the_even_ones_up_to_that_of_the_features():
    assert [low_even_degrees(q) for q in (1, 2, 3, 4)] == [(), (2,), (2,), (2, 4)]


def test_linear_features_leave_the_labels_as_they_are():
    X = _inputs(50, 3, seed=5)
    result = residualize(open_source((X, X[:, 0] ** 2)), 1)
    assert np.array_equal(result.labels, X[:, 0] ** 2)
    assert (result.gain, result.helps, result.n_passes) == (0.0, False, 0.0)


@given(seeds, st.integers(2, 4), st.sampled_from([3, 8, 37, 2100]))
def test_labels_are_those_less_what_the_other_folds_predict(seed, degree, n):
    X, noise = _inputs(n, 3, seed), np.random.default_rng(seed + 1).standard_normal(n)
    y = 3.0 + 2.0 * _chaos(X, 2, seed) + 0.1 * noise
    result = residualize(open_source((X, y)), degree, seed=seed)
    fold = shuffled_ranks(0, n, n, seed)[0] % FOLDS
    left = y - y.mean()
    for r, scale in zip(result.degrees, result.scales, strict=True):
        phi = features(X, r)
        for i in range(FOLDS):
            others = fold != i
            b = phi[others].T @ (y - y.mean())[others] / others.sum()
            left[~others] -= scale * phi[~others] @ b
    if result.helps:
        assert_allclose(result.labels, y.mean() + left, atol=1e-10 * np.abs(y).max())
    else:
        assert np.array_equal(result.labels, y)
    assert np.all((result.scales >= 0.0) & (result.scales <= 1.0))


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_a_chaos_of_degree_two_goes(degree):
    X = _inputs(4000, 5, seed=7)
    result = residualize(open_source((X, _chaos(X, 2, seed=8))), degree)
    assert result.helps
    assert result.labels.var() < 0.02
    assert result.gain > 0.98
    assert result.scales[0] > 0.95


def test_chaoses_of_degree_two_and_four_go_together():
    X = _inputs(30_000, 3, seed=9)
    y = _chaos(X, 2, seed=10) + _chaos(X, 4, seed=11)
    result = residualize(open_source((X, y)), 4)
    assert result.labels.var() < 0.05 * y.var()
    assert result.n_passes == pytest.approx((6 + 15) / 15)


@pytest.mark.parametrize("seed", [12, 13, 14])
def test_what_carries_the_features_stays(seed):
    X = _inputs(3000, 6, seed)
    y = _chaos(X, 4, seed)
    result = residualize(open_source((X, y)), 2)
    assert result.gain < 0.02
    assert np.corrcoef(result.labels, y)[0, 1] > 0.99


def test_labels_that_are_noise_are_left_alone():
    helped = [
        residualize(open_source((_inputs(400, 8, s), _inputs(400, 1, s + 50)[:, 0])), 2).helps
        for s in range(20, 30)
    ]
    assert sum(helped) <= 3


def test_units_and_chunks_do_not_matter():
    X = _inputs(3000, 5, seed=15)
    y = _chaos(X, 2, seed=16) + _chaos(X, 3, seed=17)
    plain = residualize(open_source((X, y)), 2)
    scaled = residualize(open_source((X, 1e9 * y - 5e9)), 2)
    assert_allclose(scaled.labels, 1e9 * plain.labels - 5e9, atol=1.0)
    single = residualize(open_source((X.astype(np.float32), y)), 2)
    assert_allclose(single.labels, plain.labels, atol=1e-4)


def test_constant_labels_have_no_chaos():
    X = _inputs(100, 3, seed=18)
    result = residualize(open_source((X, np.full(100, 2.5))), 2)
    assert not result.helps
    assert np.array_equal(result.labels, np.full(100, 2.5))


@pytest.mark.parametrize("degree", [0, 9])
def test_a_degree_out_of_bounds_is_refused(degree):
    X = _inputs(10, 2, seed=19)
    with pytest.raises(ValueError, match=rf"^`degree` must be in 1\.\.8, got {degree}\.$"):
        residualize(open_source((X, X[:, 0])), degree)
