"""Inner products of features by recurrence, never by features: K_q(x, y) = <F(x), F(y)>."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"})
def kernel_from_products(s, p, d, degree):
    """Return K_degree for <x, y> = s and |x|^2 + |y|^2 = p in d inputs.

    (r+1) K_{r+1} = s K_r + (d - p + 2(r-1)) K_{r-1} + s K_{r-2} - (d + r - 3) K_{r-3}, K_0 = 1, K_{<0} = 0.
    """
    k0, k1, k2, k3 = 1.0, 0.0, 0.0, 0.0  # K_r, K_{r-1}, K_{r-2}, K_{r-3}
    for r in range(degree):
        k0, k1, k2, k3 = (
            (s * k0 + (d - p + 2.0 * (r - 1)) * k1 + s * k2 - (d + r - 3.0) * k3) / (r + 1.0),
            k0,
            k1,
            k2,
        )
    return k0


@njit(cache=True, nogil=True)
def gram_rows(squares_x, squares_y, d, degree, out):
    """Replace the products <x_i, y_j> in `out`, shape (n, m), by K_degree(x_i, y_j)."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = kernel_from_products(out[i, j], squares_x[i] + squares_y[j], d, degree)


@njit(cache=True, nogil=True)
def squared_norm_rows(X, degree, out):
    """out[i] = |F(x_i)|^2, in float64 whatever the dtype of X."""
    for i in range(X.shape[0]):
        s = 0.0
        for j in range(X.shape[1]):
            s += np.float64(X[i, j]) * np.float64(X[i, j])
        out[i] = kernel_from_products(s, 2.0 * s, X.shape[1], degree)
