import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from matfree_hier import theory
from matfree_hier.labels import fit_label_transform
from matfree_hier.recovery import count_features, outliers, overlaps, projections, significance


def _orthonormal(k, D, rng):
    return np.linalg.qr(rng.standard_normal((D, k)))[0].T


@given(seed=st.integers(2, 10_000), k=st.integers(0, 5), scale=st.sampled_from([1e-200, 1.0, 1e200]))
def test_the_span_counts_not_the_rows_that_span_it(seed, k, scale):
    rng = np.random.default_rng(seed)
    true = _orthonormal(4, 20, rng)
    rows = _orthonormal(k, 20, rng)
    expected = np.sum((true @ rows.T) ** 2, axis=1)  # orthonormal rows: the plain formula
    mixed = scale * rng.standard_normal((k + 2, k)) @ rows  # dependent, of any length
    assert_allclose(overlaps(rows, true), expected, atol=1e-12)
    assert_allclose(overlaps(mixed, true), expected, atol=1e-7)
    assert_allclose(overlaps(rows, 3.0 * true), expected, atol=1e-12)
    assert_allclose(projections(rows, true) ** 2, expected, atol=1e-12)


def test_features_inside_the_span_overlap_by_one_and_outside_by_zero():
    unit = np.eye(6)
    assert_allclose(overlaps([unit[0] + unit[1], unit[1]], unit[:3]), [1.0, 1.0, 0.0], atol=1e-15)
    assert_allclose(overlaps([unit[0] + unit[1]], unit[:3]), [0.5, 0.5, 0.0], atol=1e-15)
    assert np.array_equal(overlaps(np.zeros((2, 6)), unit[:2]), [0.0, 0.0])
    assert np.array_equal(overlaps(np.empty((0, 6)), unit[:2]), [0.0, 0.0])
    assert overlaps(unit, np.empty((0, 6))).shape == (0,)


@pytest.mark.parametrize(
    ("features", "true", "sentence"),
    [
        (np.ones((1, 3)), np.ones((1, 4)), "must have equally many columns, got 3 and 4"),
        (np.ones(3), np.ones((1, 3)), r"`features` must be a matrix of one feature a row, got shape \(3,\)"),
        (np.ones((1, 3)), [[1.0, 2.0, np.nan]], "`true` must be finite, got a value that is not in row 0"),
    ],
)
def test_features_that_do_not_fit_are_refused(features, true, sentence):
    with pytest.raises(ValueError, match=sentence):
        overlaps(features, true)


def test_pure_noise_counts_no_feature_and_clear_features_are_counted():
    D, n = 300, 20 * 300
    for seed in (3, 5, 7):
        F = np.random.default_rng(seed).standard_normal((n, D))
        y = (F[:, :4] ** 2 - 1.0) @ [0.6, -0.5, 0.45, -0.4] / np.sqrt(2.0)
        t = fit_label_transform("clip", y)(y)
        permuted = np.random.default_rng(seed + 100).permutation(t)
        for labels, expected in ((t, 4), (permuted, 0)):
            C = (F.T * labels) @ F / (n * np.sqrt(2.0))
            w = np.linalg.eigvalsh(C - np.trace(C) / D * np.eye(D))
            s = theory.predict_spectrum(labels, n, D)
            assert abs(count_features(w, s.edge_left, s.edge_right, D) - expected) <= (
                expected == 0 and seed == 3
            )


def test_the_margin_is_a_fluctuation_of_the_edge():
    # Half-width 2, D = 1000: the margin is 2.02 * (2/2) * 0.01.
    assert count_features([2.0201, -2.0203], -2.0, 2.0, 1000) == 1
    assert outliers([1.0, 2.0203, -2.0201], -2.0, 2.0, 1000).tolist() == [False, True, False]
    assert count_features([2.01, -2.01], -2.0, 2.0, 1000, quantile=0.98) == 2
    assert count_features([], -2.0, 2.0, 1000) == 0


def test_only_features_that_explain_something_new_are_significant():
    rng = np.random.default_rng(11)
    h = rng.standard_normal((4_000, 5))
    mixture = (h[:, 0] + h[:, 1]) / np.sqrt(2.0)  # correlated with the target, but through h_0 and h_1 alone
    y = (h[:, 0] ** 2 - 1.0) * 0.7 - (h[:, 1] ** 2 - 1.0) * 0.1 + 0.3 * rng.standard_normal(4_000)
    z = significance(np.column_stack([h, mixture]), y)
    assert np.all(z[:2] > 5.0)
    assert np.all(z[2:] < 4.0)
    alone = significance(mixture[:, None], y)
    assert alone[0] > 10.0


def test_significance_is_calibrated_when_nothing_is_there():
    rng = np.random.default_rng(13)
    z = np.concatenate(
        [significance(rng.standard_normal((500, 4)), rng.standard_normal(500) ** 3) for _ in range(150)]
    )
    assert 0.02 < np.mean(z > 2.0) < 0.08
    assert np.mean(z > 3.5) < 0.01


def test_significance_does_not_depend_on_units_and_survives_odd_columns():
    rng = np.random.default_rng(17)
    h = rng.standard_normal((300, 3))
    y = h[:, 0] ** 2 + 0.1 * rng.standard_normal(300)
    assert_allclose(significance(1e6 * h, 1e-6 * y), significance(h, y), rtol=1e-6)
    odd = significance(np.column_stack([h[:, 0], h[:, 0], np.ones(300)]), y)
    assert odd[2] == 0.0
    assert_allclose(odd[0], odd[1], rtol=1e-6)
    assert np.all(np.isfinite(significance(h, h[:, 1] ** 2)))
    assert np.array_equal(significance(h, np.ones(300)), np.zeros(3))


@pytest.mark.parametrize(
    ("latents", "y", "sentence"),
    [
        (
            np.ones((4, 2)),
            np.ones(3),
            r"one row a label of `y`, got shapes \(4, 2\) and \(3,\)",
        ),
        (np.ones((3, 2)), np.ones(3), "`y` must hold more than 3 labels to judge 2 features, got 3"),
        (np.ones((5, 1)), np.full(5, np.inf), "`latents` and `y` must be finite"),
    ],
)
def test_samples_that_cannot_judge_are_refused(latents, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        significance(latents, y)


@pytest.mark.parametrize(
    ("eigenvalues", "left", "right", "n_packed", "sentence"),
    [
        ([np.nan], -1.0, 1.0, 9, "`eigenvalues` must be finite, got nan"),
        ([1.0], 1.0, -1.0, 9, "`edge_left` must be at most `edge_right`, got 1.0 and -1.0"),
        ([1.0], -1.0, 1.0, 0, "`n_packed` must be at least 1, got 0"),
    ],
)
def test_bad_spectra_are_refused(eigenvalues, left, right, n_packed, sentence):
    with pytest.raises(ValueError, match=sentence):
        count_features(eigenvalues, left, right, n_packed)
