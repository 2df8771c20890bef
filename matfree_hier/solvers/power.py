"""Block power iteration as the paper's authors run it: for comparison, not for speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matfree_hier.solvers.records import Options, Outcome
from matfree_hier.solvers.stopping import ResidualRule, RitzValues, verdict
from matfree_hier.solvers.subspace import (
    filled,
    orthonormal,
    product_noise,
    ranking,
    residual_floor,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from matfree_hier.solvers.products import Products

    Array = NDArray[np.float64]


def solve_power(products: Products, options: Options, start: Array | None = None) -> Outcome:
    """Iterate Q <- qr(C Q) without Rayleigh-Ritz, until the first k columns are eigenvectors or passes end.

    These columns depend on the first k of the start alone: wider blocks change nothing. They stand for
    eigenvectors, their Rayleigh quotients, from the last product, for eigenvalues: m passes iterate m - 1
    times. Column j converges as |w_j / w_{j+1}|, so slowly near the edge of the bulk, where a feature is then
    found in part only. Cost 4 D b^2 operations a pass besides the product of b vectors.

    Parameters
    ----------
    products : Products
        The operator.
    options : Options
        What is asked for; `which` is "LM".
    start : ndarray of float64, shape (D, s), optional
        First columns of the block, made orthonormal.

    References
    ----------
    arXiv 2602.10867, whose estimator arXiv 2605.14567 uses.
    """
    k, rng = options.k, np.random.default_rng(options.seed)
    nothing = np.empty((products.size, 0))
    first = nothing if start is None else orthonormal(start)[:, : options.block_size]
    Q = filled(first, nothing, max(k, options.block_size), rng)
    norm = 0.0
    while True:
        W = products(Q)
        H = Q.T @ W
        values = np.diag(H)[:k]
        norm = max(norm, float(np.abs(values).max()))
        residuals = np.linalg.norm(W[:, :k] - Q[:, :k] * values, axis=0)
        residuals = residuals / norm if norm > 0.0 else residuals
        if (residuals <= options.tol).all() or products.passes + 1.0 > options.max_passes:
            break
        Q = np.linalg.qr(W)[0]
    best = ranking(values, "LM", k)
    ritz = RitzValues(values[best], residuals[best], norm, k, "LM", 0, (np.nan, np.nan))
    floor = residual_floor(products.eps, product_noise(H, products.size), norm)
    status, message = verdict(ResidualRule(options.tol), ritz, floor, products.dtype.name)
    return Outcome(values[best], Q[:, best], residuals[best], norm, status, message)
