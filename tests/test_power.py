"""Block power iteration as the paper's authors run it."""

from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.bench.reference import block_power
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.metric import smoothness
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.status import Status


def matrix(values, seed=5):
    """Return a symmetric matrix of these eigenvalues."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return (Q * values) @ Q.T


@pytest.fixture(scope="module")
def A():
    return matrix([5.0, -4.0, 3.0, *np.linspace(-1, 1, 57)])


def projector(V):
    return V @ V.T


def test_with_passes_enough_it_finds_the_pairs(A):
    result = top_eigenpairs(A, 3, method="power", tol=1e-9, max_passes=300)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.eigenvalues, [5.0, -4.0, 3.0], atol=1e-8)
    assert result.n_passes < 300
    residuals = np.linalg.norm(A @ result.eigenvectors - result.eigenvectors * result.eigenvalues, axis=0)
    np.testing.assert_allclose(result.residuals * result.norm, residuals, atol=1e-12)


@pytest.mark.parametrize("n_passes", [2, 5, 16])
def test_it_ends_where_the_plain_loop_ends(A, n_passes):
    start = np.random.default_rng(7).standard_normal((60, 4))
    expected = block_power(A, start, 4, n_passes=n_passes)
    result = top_eigenpairs(
        A, 4, method="power", start=start, block_size=4, max_passes=1 + n_passes, tol=1e-15
    )
    assert result.status is Status.MAX_PASSES
    assert result.n_passes == 1 + n_passes  # one tells whether a matrix is symmetric
    np.testing.assert_allclose(projector(result.eigenvectors), projector(expected.vectors), atol=1e-12)


def test_the_first_columns_do_not_depend_on_the_width_of_the_block(A):
    start = np.linalg.qr(np.random.default_rng(7).standard_normal((60, 2)))[0]
    found = [
        top_eigenpairs(A, 2, method="power", start=start, block_size=width, max_passes=4) for width in (2, 9)
    ]
    np.testing.assert_allclose(found[0].eigenvectors, found[1].eigenvectors, atol=1e-12)
    assert found[0].status is Status.MAX_PASSES


def test_zero_and_low_rank_end_at_once_or_with_zeros():
    zero = top_eigenpairs(np.zeros((20, 20)), 3, method="power")
    assert zero.status is Status.CONVERGED
    assert zero.n_passes == 2
    low = top_eigenpairs(matrix([2.0, 1.0, *np.zeros(18)]), 4, method="power", tol=1e-8)
    assert low.status is Status.CONVERGED
    np.testing.assert_allclose(low.eigenvalues, [2.0, 1.0, 0.0, 0.0], atol=1e-7)


def test_few_passes_leave_a_weak_feature_half_found():
    truth = HierarchicalModel(30, 2, n_features=3, gamma=0.5, seed=5)
    X, y = truth.sample(6000, 6)
    C = MomentOperator(X, y, degree=2, label_transform="clip")
    few, all_of_it = (
        np.sum((truth.features_ @ top_eigenpairs(C, 3, **options).eigenvectors) ** 2)
        for options in ({"method": "power", "max_passes": 4}, {})
    )
    assert few < all_of_it - 0.1


def test_what_it_does_not_do_is_refused(A):
    with pytest.raises(ValueError, match=r'`which` must be "LM" for `method` "power", got \'LA\''):
        top_eigenpairs(A, 2, "LA", "power")
    with pytest.raises(ValueError, match=r'`stop` must be "residual" for `method` "power"'):
        top_eigenpairs(A, 2, method="power", stop="outliers")
    with pytest.raises(ValueError, match="`method` must be"):
        top_eigenpairs(A[:10, :10], 2, method="power", metric=smoothness("path", 1, 1.0, n_inputs=10))
