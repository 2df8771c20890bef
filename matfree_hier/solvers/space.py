"""Where a solve takes place: the inner product, and what a residual says about where to look next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matfree_hier.solvers import subspace
from matfree_hier.solvers.rows import HERE, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from matfree_hier.metric import Inverse, Metric

    Array = NDArray[np.float64]


class Space:
    """Vectors with the plain inner product: the problem C v = w v.

    Parameters
    ----------
    rows : Rows
        Which rows of the vectors are here.
    """

    plain = True
    """Whether the inner product is the plain one."""
    rounding = 0.0
    """Residuals over ||C|| that the rounding of `apply` alone makes."""

    def __init__(self, rows: Rows = HERE) -> None:
        self.rows = rows

    def apply(self, V: Array) -> Array:
        """Return B V, B the matrix of the inner product: V itself."""
        return V

    def directions(self, R: Array) -> Array:
        """Return the directions to search in for residuals R, shape (D, b)."""
        return R

    def orthonormal(self, Z: Array, *bases: Array) -> Array:
        """Return an orthonormal basis of the columns of Z off the bases, see `subspace.orthonormal`."""
        return subspace.orthonormal(Z, *bases, rows=self.rows)

    def basis(self, V: Array) -> Array:
        """Return an orthonormal basis of independent columns, in their order and number."""
        return self.rows.qr(V)

    def inverse_root(self, V: Array) -> Array:
        """Return T with V T orthonormal, for V that is in the plain inner product: the identity."""
        return np.eye(V.shape[1])

    def filled(self, Q: Array, basis: Array, width: int, rng: np.random.Generator) -> Array:
        """Return Q widened by random directions, see `subspace.filled`."""
        return subspace.filled(Q, basis, width, rng, self.rows)


PLAIN = Space()


class MetricSpace(Space):
    """Vectors with the inner product u^T B v: the problem C v = w B v.

    The eigenvectors are orthonormal in it, and ``||C v - w B v||`` bounds the distance of w from an
    eigenvalue, since B is at least the identity. A residual is a linear form; an approximate inverse of B
    makes a direction of it. With the exact inverse the directions span the Krylov space of B^-1 C.

    Parameters
    ----------
    metric : Metric
        B.
    inverse : callable
        (D, b) -> (D, b), linear, symmetric and positive: close to the inverse of B, or just the identity.
    """

    plain = False

    def __init__(self, metric: Metric, inverse: Inverse) -> None:
        super().__init__()
        self.metric, self.inverse = metric, inverse
        self.rounding = float(np.finfo(np.float64).eps * abs(metric.matrix).sum(axis=1).max())

    def apply(self, V: Array) -> Array:
        """Return B V."""
        return self.metric.apply(V)

    def directions(self, R: Array) -> Array:
        """Return the inverse, or what stands for it, of R."""
        return self.inverse(R)

    def orthonormal(self, Z: Array, *bases: Array) -> Array:
        """Return a B-orthonormal basis of the columns of Z, B-orthogonal to the bases.

        Rank is decided as in the plain inner product, on what is left of columns of norm 1. The basis so
        found is orthonormal in the plain inner product, so its Gram matrix in B is at worst as
        ill-conditioned as B: its inverse root, taken twice, makes the basis B-orthonormal.
        """
        lengths = self._lengths(Z)
        Z = self._off(self._off(Z[:, lengths > 0.0] / lengths[lengths > 0.0], bases), bases)
        if not Z.shape[1]:
            return np.empty((len(Z), 0), order="F")
        left = self._lengths(Z) > subspace.RANK_TOL
        room = len(Z) - sum(basis.shape[1] for basis in bases)
        Q = subspace.orthonormal(Z[:, left])[:, :room]
        for _ in range(2):
            Q = self.basis(self._off(Q, bases))
        return Q

    def basis(self, V: Array) -> Array:
        """Return V times the inverse root of its Gram matrix in B, twice: once leaves cond(B) eps."""
        for _ in range(2):
            V = V @ self.inverse_root(V)
        return np.asfortranarray(V)

    def inverse_root(self, V: Array) -> Array:
        """Return T with V T about B-orthonormal, for independent columns."""
        values, S = np.linalg.eigh(V.T @ self.apply(V))
        return np.asarray(S / np.sqrt(values))

    def filled(self, Q: Array, basis: Array, width: int, rng: np.random.Generator) -> Array:
        """Return Q widened by random directions, as smooth as the inverse makes them."""
        width = min(width, len(Q) - basis.shape[1])
        while Q.shape[1] < width:
            drawn = self.inverse(rng.standard_normal((len(Q), width - Q.shape[1])))
            Q = np.hstack([Q, self.orthonormal(drawn, basis, Q)])
        return np.asfortranarray(Q)

    def _lengths(self, Z: Array) -> Array:
        return np.asarray(np.sqrt(np.maximum(np.sum(Z * self.apply(Z), axis=0), 0.0)))

    def _off(self, Z: Array, bases: tuple[Array, ...]) -> Array:
        for basis in bases:
            if basis.shape[1] and Z.shape[1]:
                Z = Z - basis @ (basis.T @ self.apply(Z))
        return np.asfortranarray(Z)
