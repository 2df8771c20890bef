from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.baselines import kernel_ridge, median_distance


@pytest.fixture
def sample():
    rng = np.random.default_rng(11)
    X = rng.standard_normal((300, 3))
    return X, X[:, 0] * X[:, 1] + 5.0


@pytest.mark.parametrize("kernel", ["rbf", "polynomial"])
def test_a_kernel_learns_a_low_degree(sample, kernel):
    X, y = sample
    fitted = kernel_ridge(X[:200], y[:200], kernel)
    error = np.mean((fitted.predict(X[200:]) - y[200:]) ** 2) / np.var(y[200:])
    assert error < 0.1


def test_the_polynomial_kernel_has_the_degree_of_the_target(sample):
    X, y = sample
    fitted = kernel_ridge(X, y, "polynomial", degree=3, alphas=[1e-3])
    assert fitted.best_estimator_.regressor_.degree == 6
    assert fitted.best_params_ == {"regressor__alpha": 1e-3}


def test_the_polynomial_kernel_is_exact_once_samples_determine_the_target(sample):
    X, y = sample
    fitted = kernel_ridge(X[:100], y[:100], "polynomial")  # C(7, 4) = 35 polynomials
    assert np.mean((fitted.predict(X[100:]) - y[100:]) ** 2) < 1e-6


@pytest.mark.parametrize("kernel", ["rbf", "polynomial"])
def test_a_ridge_means_the_same_to_both_kernels(kernel):
    """Both kernels are about 1 at x = x', so that one list of ridges does for both."""
    X = np.random.default_rng(14).standard_normal((40, 400))
    model = kernel_ridge(X, X[:, 0], kernel, alphas=[1e-3]).best_estimator_.regressor_
    assert np.diag(model._get_kernel(X)) == pytest.approx(1.0, abs=0.5)


def test_noise_asks_for_more_ridge(sample):
    X, y = sample
    noisy = np.random.default_rng(12).standard_normal(len(y))
    best = [kernel_ridge(X, t, "rbf").best_params_["regressor__alpha"] for t in (y, noisy)]
    assert best[0] < best[1]


def test_the_median_distance_is_that_of_scipy():
    from scipy.spatial.distance import pdist

    X = np.random.default_rng(13).standard_normal((50, 4))
    assert median_distance(X) == pytest.approx(np.median(pdist(X)))


def test_bad_arguments_are_named(sample):
    X, y = sample
    with pytest.raises(ValueError, match="`kernel` must be one of rbf, polynomial, got 'linear'"):
        kernel_ridge(X, y, "linear")
    with pytest.raises(ValueError, match="`X` must have at least 3 samples, got 2"):
        kernel_ridge(X[:2], y[:2], "rbf")
    with pytest.raises(MemoryError, match="The kernel matrix of 2000000 samples"):
        kernel_ridge(np.zeros((2_000_000, 1)), np.zeros(2_000_000), "rbf")
