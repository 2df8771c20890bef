import pickle
from itertools import combinations_with_replacement, pairwise
from math import factorial, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import hermite_e
from numpy.testing import assert_allclose

from matfree_hier.model import BLOCK, HierarchicalModel
from matfree_hier.packing import n_packed


def _features(x, q):
    """The packed Hermite features of one sample, from their definition."""
    out = []
    for index in combinations_with_replacement(range(len(x)), q):
        value = 1.0
        for j in set(index):
            m = index.count(j)
            value *= hermite_e.hermeval(x[j], [0.0] * m + [1.0]) / sqrt(factorial(m))
        out.append(value)
    return np.array(out)


@pytest.mark.parametrize(("d", "q", "k"), [(6, 1, 6), (5, 2, 4), (4, 3, 20), (1, 4, 1)])
def test_features_are_orthonormal_rows(d, q, k):
    teacher = HierarchicalModel(d, q, k, seed=7)
    assert teacher.features_.shape == (k, n_packed(d, q)) == (k, teacher.n_packed)
    assert_allclose(teacher.features_ @ teacher.features_.T, np.eye(k), atol=1e-14)


@pytest.mark.parametrize("gamma", [0.0, 0.4, 2.0])
def test_weights_follow_the_power_law_and_have_norm_one(gamma):
    teacher = HierarchicalModel(6, 2, 12, gamma, seed=7)
    assert_allclose(np.linalg.norm(teacher.weights_), 1.0)
    assert_allclose(np.abs(teacher.weights_) / abs(teacher.weights_[0]), np.arange(1.0, 13.0) ** -gamma)
    assert {-1.0, 1.0} == set(np.sign(teacher.weights_))
    assert np.all(HierarchicalModel(6, 2, 12, gamma, signs="positive", seed=7).weights_ > 0.0)


def test_given_weights_are_taken_as_they_are():
    teacher = HierarchicalModel(4, 2, weights=[3.0, -0.5], signs="positive", seed=3)
    assert np.array_equal(teacher.weights_, [3.0, -0.5])
    assert teacher.n_features == 2


def test_given_features_are_orthonormalised_in_their_order():
    rows = np.random.default_rng(5).standard_normal((3, 10))
    teacher = HierarchicalModel(4, 2, features=rows, signs="positive")
    assert_allclose(teacher.features_[0], rows[0] / np.linalg.norm(rows[0]))
    coefficients = rows @ teacher.features_.T  # lower triangular with a positive diagonal
    assert_allclose(coefficients, np.tril(coefficients), atol=1e-13)
    assert np.all(np.diag(coefficients) > 0.0)
    assert_allclose(coefficients @ teacher.features_, rows, atol=1e-13)


@pytest.mark.parametrize("q", [1, 2, 3])
def test_targets_are_the_model_written_out(q):
    teacher = HierarchicalModel(4, q, 3, 0.8, link="tanh", seed=11)
    X, y = teacher.sample(20, seed=13)
    F = np.array([_features(x, q) for x in X])
    h = F @ teacher.features_.T
    h2 = sum(w * (h[:, k] ** 2 - 1.0) for k, w in enumerate(teacher.weights_)) / sqrt(2.0)
    assert_allclose(teacher.latents(X), h, atol=1e-12)
    assert_allclose(y, np.tanh(h2), atol=1e-12)
    assert_allclose(teacher.predict(X), y, atol=1e-12)


def test_inputs_are_standard_normal_and_independent():
    X, _ = HierarchicalModel(5, 1, 2, seed=3).sample(40_000, seed=17)
    assert_allclose(X.mean(axis=0), 0.0, atol=4.0 / 200.0)
    assert_allclose(X.T @ X / len(X), np.eye(5), atol=5.0 / 200.0)
    # No two blocks repeat each other.
    assert_allclose(np.corrcoef(X[:BLOCK, 0], X[BLOCK : 2 * BLOCK, 0])[0, 1], 0.0, atol=4.0 / sqrt(BLOCK))


@given(
    cuts=st.lists(st.integers(0, 3 * BLOCK + 17), min_size=1, max_size=4),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_samples_do_not_depend_on_how_they_are_cut(cuts, dtype):
    teacher = HierarchicalModel(3, 2, 2, noise_std=0.5, seed=19)
    n = 3 * BLOCK + 17
    X, y = teacher.sample(n, 23, dtype)
    bounds = [0, *sorted(cuts), n]
    parts = [teacher.sample_range(a, b, 23, dtype) for a, b in pairwise(bounds)]
    assert X.dtype == dtype
    assert np.array_equal(np.concatenate([p[0] for p in parts]), X)
    assert np.array_equal(np.concatenate([p[1] for p in parts]), y)


def test_noise_has_its_own_stream_and_size():
    args = (3, 2, 2)
    X, y = HierarchicalModel(*args, seed=29).sample(20_000, seed=31)
    X_noisy, y_noisy = HierarchicalModel(*args, noise_std=0.5, seed=29).sample(20_000, seed=31)
    assert np.array_equal(X, X_noisy)
    noise = (y_noisy - y) / 0.5
    assert_allclose([noise.mean(), noise.std()], [0.0, 1.0], atol=4.0 / sqrt(20_000))
    assert np.abs(np.corrcoef(noise, X[:, 0])[0, 1]) < 4.0 / sqrt(20_000)


def test_float32_inputs_are_the_rounded_ones_and_labels_belong_to_them():
    teacher = HierarchicalModel(4, 2, 3, seed=37)
    X, _ = teacher.sample(50, 41)
    X_32, y32 = teacher.sample(50, 41, np.float32)
    assert np.array_equal(X_32, X.astype(np.float32))
    assert_allclose(y32, teacher.predict(X_32.astype(np.float64)), atol=1e-13)


def test_seeds_matter_and_the_same_seed_repeats():
    teacher = HierarchicalModel(3, 2, 2, seed=43)
    assert np.array_equal(teacher.features_, HierarchicalModel(3, 2, 2, seed=43).features_)
    assert not np.allclose(teacher.features_, HierarchicalModel(3, 2, 2, seed=44).features_)
    assert not np.allclose(teacher.sample(5, 3)[0], teacher.sample(5, 4)[0])


def test_label_variance_is_that_of_finite_dimension():
    # Var y = 1 + (8 + 4 (sum lambda)^2)/d on average over features (q = 2).
    d, k = 30, 5
    teacher = HierarchicalModel(d, 2, k, 1.0, signs="positive", seed=47)
    _, y = teacher.sample(60_000, 53)
    assert_allclose(y.var(), 1.0 + (8.0 + 4.0 * teacher.weights_.sum() ** 2) / d, rtol=0.08)
    assert abs(y.mean()) < 0.03


def test_a_teacher_pickles():
    teacher = HierarchicalModel(3, 2, 2, link="tanh", seed=59)
    copy = pickle.loads(pickle.dumps(teacher))
    assert np.array_equal(copy.sample(9, 3)[1], teacher.sample(9, 3)[1])


def test_no_samples_are_a_valid_request():
    X, y = HierarchicalModel(3, 2, 2, seed=61).sample(0, 5)
    assert X.shape == (0, 3)
    assert y.shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n_inputs": 0, "degree": 2, "n_features": 1}, "`n_inputs` must be at least 1, got 0"),
        ({"n_inputs": 3, "degree": 9, "n_features": 1}, r"`degree` must be in 1\.\.8, got 9"),
        ({"n_inputs": 3, "degree": 2, "n_features": 7}, r"`n_features` must be in 1\.\.6, got 7"),
        ({"n_inputs": 3, "degree": 2}, "`n_features` must be given when neither"),
        (
            {"n_inputs": 3, "degree": 2, "n_features": 2, "weights": [1.0]},
            "must agree with the arrays given, got 2 by `n_features`, 1 by `weights`",
        ),
        ({"n_inputs": 3, "degree": 2, "weights": []}, r"`n_features` must be in 1\.\.6, got 0"),
        ({"n_inputs": 3, "degree": 2, "weights": [[1.0]]}, r"`weights` must have 1 dimension, got shape"),
        ({"n_inputs": 3, "degree": 2, "weights": [np.nan]}, "`weights` must be finite, got nan"),
        ({"n_inputs": 3, "degree": 2, "features": np.ones((1, 5))}, "`features` must have 6 columns, got 5"),
        ({"n_inputs": 3, "degree": 2, "features": np.ones((2, 6))}, "independent: row 1 is in the span"),
        ({"n_inputs": 3, "degree": 2, "n_features": 1, "gamma": -1}, "`gamma` must be finite and at least 0"),
        ({"n_inputs": 3, "degree": 2, "n_features": 1, "noise_std": np.inf}, "`noise_std` must be finite"),
        ({"n_inputs": 3, "degree": 2, "n_features": 1, "signs": "both"}, '`signs` must be "random" or'),
        ({"n_inputs": 3, "degree": 2, "n_features": 1, "seed": -3}, "`seed` must be at least 0, got -3"),
        ({"n_inputs": 3, "degree": 2, "n_features": 1, "seed": None}, "`seed` must be given when"),
        ({"n_inputs": 3, "degree": 2, "n_features": 1, "link": "cosine"}, "`link` must be one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        HierarchicalModel(**{"seed": 5, **arguments})


def test_sizes_past_memory_are_refused_before_anything_is_drawn():
    with pytest.raises(MemoryError):
        HierarchicalModel(1000, 3, 100_000, seed=5)
    with pytest.raises(MemoryError):
        HierarchicalModel(3, 1, 1, seed=5).sample(10**15, 7)


def test_bad_samples_are_refused():
    teacher = HierarchicalModel(3, 2, 2, seed=5)
    with pytest.raises(ValueError, match=r"`X` must have shape \(n, 3\), got \(2, 4\)"):
        teacher.predict(np.ones((2, 4)))
    with pytest.raises(ValueError, match="`X` must be finite, got a value that is not in row 1"):
        teacher.latents([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]])
    with pytest.raises(ValueError, match="`stop` must be at least 4, got 3"):
        teacher.sample_range(4, 3, 5)
    with pytest.raises(ValueError, match="`dtype` must be float32 or float64, got int64"):
        teacher.sample(4, 5, np.int64)
    with pytest.raises(TypeError, match=r"`n` must be an integer at least 0, got 2\.5"):
        teacher.sample(2.5, 5)
