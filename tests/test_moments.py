import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge

from matfree_hier.fitting.moments import (
    BLOCK,
    N_FOLDS,
    FoldedMoments,
    Moments,
    choose_columns,
    fit_ridge,
    is_better,
    refit,
    shuffled_ranks,
)


def folded(rows, seed=7, step=300):
    moments = FoldedMoments(rows.shape[1], len(rows), seed)
    for start in range(0, len(rows), step):
        moments.add(start, rows[start : start + step])
    return moments


def regression(n=1500, d=5, noise=1.0, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.logspace(-2, 2, d) + 50
    y = X @ (np.arange(1, d + 1) / np.logspace(-2, 2, d)) + noise * rng.standard_normal(n)
    return X, y


@given(n=st.integers(1, 2500), cut=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
def test_ranks_are_the_same_for_every_chunking_and_permute_each_block(n, cut, seed):
    ranks, sizes = shuffled_ranks(0, n, n, seed)
    middle = int(cut * n)
    parts = [shuffled_ranks(0, middle, n, seed)[0], shuffled_ranks(middle, n, n, seed)[0]]
    np.testing.assert_array_equal(np.concatenate(parts), ranks)
    for first in range(0, n, BLOCK):
        block = ranks[first : first + BLOCK]
        np.testing.assert_array_equal(np.sort(block), np.arange(len(block)))
        assert (sizes[first : first + BLOCK] == len(block)).all()


def test_ranks_differ_between_blocks_and_between_seeds():
    a, b = shuffled_ranks(0, 2048, 2048, 3)[0], shuffled_ranks(0, 2048, 2048, 4)[0]
    assert (a[:1024] != a[1024:]).any()
    assert (a != b).any()


@given(cut=st.integers(0, 200))
def test_moments_of_pieces_are_those_of_the_whole(cut):
    rows = np.random.default_rng(11).standard_normal((200, 3)) + np.array([1e6, 0, -3])
    moments = Moments.zero(3)
    moments.add(rows[:cut])
    moments.add(rows[cut:])
    assert moments.count == 200
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(moments.covariance(), np.cov(rows.T, bias=True), rtol=1e-8, atol=1e-9)


def test_squared_error_is_that_of_the_rows():
    X, y = regression()
    moments = Moments.zero(6)
    moments.add(np.column_stack([X, y]))
    coefficients = np.array([0.5, -1, 0, 2, 3])
    expected = np.mean((y - X @ coefficients - 4) ** 2)
    assert moments.squared_error(coefficients, 4.0) == pytest.approx(expected, rel=1e-10)


def test_ridge_of_weak_penalty_is_least_squares():
    X, y = regression(noise=0.01)
    fit = fit_ridge(folded(np.column_stack([X, y])))
    exact = LinearRegression().fit(X, y)
    np.testing.assert_allclose(fit.coefficients, exact.coef_, rtol=1e-3)
    np.testing.assert_allclose(X @ fit.coefficients + fit.intercept, exact.predict(X), atol=1e-2)
    assert fit.helps


def test_ridge_is_scikit_learns_at_the_strength_chosen():
    X, y = regression(n=40, d=30, noise=30.0)
    fit = fit_ridge(folded(np.column_stack([X, y])))
    assert 1e-6 < fit.strength < 1e3  # a real compromise, or the test says nothing
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    twin = Ridge(alpha=fit.strength * len(X)).fit(Z, y)
    np.testing.assert_allclose(X @ fit.coefficients + fit.intercept, twin.predict(Z), rtol=1e-8)
    fold = shuffled_ranks(0, 40, 40, 7)[0] % N_FOLDS
    errors = []
    for i in range(N_FOLDS):
        A, B = X[fold != i], X[fold == i]
        centre, scale = A.mean(axis=0), A.std(axis=0)
        model = Ridge(fit.strength * len(A)).fit((A - centre) / scale, y[fold != i])
        errors.append(np.mean((y[fold == i] - model.predict((B - centre) / scale)) ** 2))
    np.testing.assert_allclose(fit.errors, errors, rtol=1e-8)


def test_ridge_does_not_claim_to_help_on_noise():
    rng = np.random.default_rng(5)
    helped = [fit_ridge(folded(rng.standard_normal((200, 11)), seed=s)).helps for s in range(20)]
    assert sum(helped) <= 4


def test_constant_and_repeated_columns_do_no_harm():
    X, y = regression()
    X = np.column_stack([X, np.full(len(X), 0.1), X[:, 0], np.full(len(X), 1e9)])
    fit = fit_ridge(folded(np.column_stack([X, y])))
    assert fit.coefficients[5] == fit.coefficients[7] == 0.0
    residual = y - X @ fit.coefficients - fit.intercept
    assert np.var(residual) < 1.05 * 1.0


def test_least_squares_keeps_the_columns_that_help():
    rng = np.random.default_rng(9)
    Z = rng.standard_normal((3000, 4))
    y = 2 * Z[:, 0] - Z[:, 1] + 0.5 * rng.standard_normal(3000) + 7
    choices = [np.arange(k) for k in range(5)]
    choice, fit = choose_columns(folded(np.column_stack([Z, y])), choices)
    assert choice >= 2
    np.testing.assert_allclose(fit.coefficients[:2], [2, -1], atol=0.03)
    assert fit.intercept == pytest.approx(7, abs=0.03)
    assert fit.errors.mean() == pytest.approx(0.25, rel=0.1)
    assert fit.r2 == pytest.approx(1 - 0.25 / 5.25, abs=0.02)


def test_least_squares_keeps_nothing_on_noise():
    rng = np.random.default_rng(9)
    kept = 0
    for seed in range(20):
        rows = rng.standard_normal((300, 5))
        choice, fit = choose_columns(folded(rows, seed), [np.arange(0), np.arange(2), np.arange(4)])
        kept += choice
        assert choice or not fit.coefficients.any()
    assert kept <= 2


def test_one_row_is_no_evidence():
    fit = fit_ridge(folded(np.array([[1.0, 2.0]])))
    assert not fit.helps
    assert fit.intercept == 2.0
    assert fit.r2 == 0.0


def test_more_rows_decide_the_coefficients_where_these_predict_better():
    rng = np.random.default_rng(19)
    Z = rng.standard_normal((2400, 40))
    y = Z @ rng.standard_normal(40) + 8.0 * rng.standard_normal(2400)
    rows = np.column_stack([Z, y])
    few, columns = folded(rows[:200]), np.arange(40)
    fit = choose_columns(few, [columns])[1]
    more = Moments.zero(41)
    more.add(rows[200:])
    better = refit(few, more, columns, fit)
    twin = Ridge(better.strength * 2400).fit((Z - Z.mean(axis=0)) / Z.std(axis=0), y)
    np.testing.assert_allclose(better.coefficients, twin.coef_ / Z.std(axis=0), rtol=1e-8)
    assert better.errors.mean() < 0.9 * fit.errors.mean()
    flattered = Moments.zero(41)  # rows in which the columns seem to tell what they do not
    flattered.add(np.column_stack([Z[200:], 5.0 * Z[200:].sum(axis=1)]))
    assert refit(few, flattered, columns, fit) is fit


def test_one_fold_with_most_of_the_variance_does_not_hide_what_all_folds_say() -> None:
    baseline = np.array([1.0, 1.2, 0.9, 250.0, 1.1, 0.8, 1.0, 1.3, 0.9, 1.0])
    assert is_better(0.1 * baseline, baseline, by=2.5)
    assert not is_better(baseline, baseline, by=0.0)
    mixed = baseline * np.array([0.5, 1.5, 0.6, 0.9, 1.4, 0.7, 1.6, 0.5, 1.5, 1.3])
    assert mixed.mean() < baseline.mean()
    assert not is_better(mixed, baseline)


def test_no_error_on_either_side_is_no_gain() -> None:
    assert not is_better(np.zeros(10), np.zeros(10))
