"""Small dense algebra of the eigensolvers: ranking, orthonormal blocks, Rayleigh-Ritz, signs.

Everything here is deterministic: the same input gives the same bits with BLAS at one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from matfree_hier.solvers.rows import HERE, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RANK_TOL = 1e-10  # share of a column that must be left for it to count
ROUNDING = 8.0  # residuals below this many eps ||C|| are rounding, in whatever direction
_NOISE = 2.0  # residuals stop falling this far above the error of a product


def ranking(values: Array, which: str, k: int) -> NDArray[np.intp]:
    """Return the order of the values: the k asked for first, as results are sorted, then the next best.

    Parameters
    ----------
    values : ndarray of float64, shape (m,)
        Eigenvalues or Ritz values, in any order.
    which : {"LM", "LA", "SA", "BE"}
        Largest absolute value, largest, smallest, or half of them from each end (the odd one from above),
        descending.
    k : int
        How many are asked for; matters for "BE" only.

    Returns
    -------
    ndarray of intp, shape (m,)
        A permutation.
    """
    if which == "LM":
        return np.argsort(-np.abs(values), kind="stable")
    if which == "SA":
        return np.argsort(values, kind="stable")
    order = np.argsort(-values, kind="stable")
    if which == "LA":
        return order
    k = min(k, len(values))
    n_high = (k + 1) // 2
    high, low = order[:n_high], order[len(order) - (k - n_high) :]
    inner = order[n_high : len(order) - (k - n_high)]
    alternating = np.empty_like(inner)
    half = (len(inner) + 1) // 2
    alternating[0::2], alternating[1::2] = inner[:half], inner[half:][::-1]
    return np.concatenate([high, low, alternating])


def orthonormal(Z: Array, *bases: Array, rank_tol: float = RANK_TOL, rows: Rows = HERE) -> Array:
    """Return an orthonormal basis of the columns of Z off the span of `bases`.

    Columns are scaled to norm 1 first, so those that are small count as much; directions of which less than
    `rank_tol` is left are dropped. Two block Gram-Schmidt passes, a pivoted QR, and both once more.

    Parameters
    ----------
    Z : ndarray of float64, shape (D, b)
        Not written to.
    *bases : ndarray of float64, shape (D, m)
        Orthonormal columns, off each other.
    rank_tol : float
    rows : Rows
        Which rows of all these are here.

    Returns
    -------
    ndarray of float64, shape (D, r), Fortran order
        r <= min(b, D - m) for m columns of the bases. Cost 12 D m b.
    """
    norms = rows.norms(Z)
    Z = np.asfortranarray(Z[:, norms > 0.0] / norms[norms > 0.0])
    room = rows.count(Z) - sum(basis.shape[1] for basis in bases)
    if not Z.shape[1] or not room:
        return np.empty((len(Z), 0), order="F")
    Z = _off(_off(Z, bases, rows), bases, rows)
    Q, diagonal = rows.pivoted_qr(Z)
    rank = min(int((diagonal > rank_tol).sum()), room)
    if not rank:
        return np.empty((len(Z), 0), order="F")
    # What was small has been scaled up, and with it what rounding left of the basis: project again.
    return rows.qr(_off(Q[:, :rank], bases, rows))


def _off(Z: Array, bases: tuple[Array, ...], rows: Rows) -> Array:
    for basis in bases:
        if basis.shape[1]:
            Z = Z - basis @ rows.dot(basis, Z)
    return np.asfortranarray(Z)


def filled(Q: Array, basis: Array, width: int, rng: np.random.Generator, rows: Rows = HERE) -> Array:
    """Return Q widened by random directions to at least `width` orthonormal columns off `basis`.

    Parameters
    ----------
    Q : ndarray of float64, shape (D, b)
        Orthonormal, off `basis`.
    basis : ndarray of float64, shape (D, m)
        Orthonormal.
    width : int
        Columns wanted; fewer are returned where D leaves no room.
    rng : numpy.random.Generator
        Drawn from only if there is something to fill.
    rows : Rows
        Which rows of all these are here.
    """
    width = min(width, rows.count(Q) - basis.shape[1])
    while Q.shape[1] < width:
        drawn = rows.normal(rng, len(Q), width - Q.shape[1])
        Q = np.hstack([Q, orthonormal(drawn, basis, Q, rows=rows)])
    return np.asfortranarray(Q)


def rayleigh_ritz(H: Array, which: str, k: int) -> tuple[Array, Array]:
    """Return the eigenpairs of a projected operator, ranked.

    Parameters
    ----------
    H : ndarray of float64, shape (m, m)
        V^T C V, symmetrised here.
    which, k
        As in `ranking`.

    Returns
    -------
    values : ndarray of float64, shape (m,)
    S : ndarray of float64, shape (m, m)
        Coefficients of the Ritz vectors V S.
    """
    values, S = scipy.linalg.eigh((H + H.T) / 2, driver="evd")
    order = ranking(values, which, k)
    return values[order], np.asfortranarray(S[:, order])


def product_noise(H: Array, size: int) -> float:
    """Estimate the error of a column of C Q from how far H = Q^T C Q is from symmetric.

    An error spread over all D directions shows in H with the root of its share 1/D.

    Parameters
    ----------
    H : ndarray of float64, shape (b, b)
        For orthonormal Q, not symmetrised.
    size : int
        D.
    """
    width = len(H)
    if width < 2:
        return 0.0
    mean_square = float(((H - H.T) ** 2).sum()) / (2 * width * (width - 1))
    return float(np.sqrt(mean_square * size))


def residual_floor(eps: float, noise: float, norm: float) -> float:
    """Return the relative residual that the precision of products does not allow to go below.

    Parameters
    ----------
    eps : float
        Unit of the operator's dtype.
    noise : float
        As from `product_noise`.
    norm : float
        ||C||.
    """
    return max(ROUNDING * eps, _NOISE * noise / norm if norm > 0.0 else 0.0)


def with_positive_peaks(V: Array, rows: Rows = HERE) -> Array:
    """Return the columns with the sign that makes the entry of largest size of each positive."""
    return V * np.where(rows.peaks(V) < 0.0, -1.0, 1.0)
