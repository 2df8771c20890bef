"""A cheap stand-in for the operator: what it is made of, and how it improves a block before a pass is spent.

C is a sum over samples, weighted by labels; with heavy-tailed labels a few samples make most of it. The
operator T of these samples is within a fraction of C at a small fraction of its cost. It enters only where C
is not known: on the basis V the model M = P T P + C V V^T + V V^T C P, P = I - V V^T, is C itself. Each pass
applies C to the directions in which the eigenvectors of M leave the span of V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from matfree_hier.operator import MomentOperator
from matfree_hier.shares import joined
from matfree_hier.solvers.products import Products
from matfree_hier.solvers.subspace import orthonormal, rayleigh_ritz

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse.linalg import LinearOperator

    from matfree_hier.sources import SampleSource

    Array = NDArray[np.float64]

_MAX_STEPS = 10  # products with the coarse operator for one with the operator
_REDUCTION = 0.1  # of the residual, which the eigenvectors of the model are computed to
_FIRST_RESIDUAL = 0.01  # and relative to its norm where there is no basis yet
_FRACTIONS = (0.02, 0.05, 0.1)  # of the samples, of which the smallest that suffices is taken
_SHARE = 0.7  # of the sum of squares of all terms that suffices (tried: a half does not pay, .6 breaks even)


@dataclass(frozen=True, eq=False)
class Model:
    """The leading eigenvectors of the model M: ``V S y + Q q`` with Ritz vectors V S and Q off V."""

    Q: Array
    """(D, p), orthonormal and off V."""
    y: Array
    """(r, p + r), coefficients by the leading r Ritz vectors."""
    q: Array
    """(p, p + r)."""

    def vectors(self, Y: Array) -> Array:
        """Return the eigenvectors, given the leading r Ritz vectors; they are not orthonormal exactly."""
        return Y @ self.y + self.Q @ self.q

    def leaving(self, V: Array, width: int, eps: float) -> Array:
        """Return an orthonormal basis of the directions off V, of `width` eigenvectors at most."""
        chosen = np.flatnonzero(np.linalg.norm(self.q, axis=0) > 1e3 * eps)[:width]
        return orthonormal(self.Q @ self.q[:, chosen], V)


def solve_model(
    coarse: Products, block: Array, V: Array, values: Array, R: Array, *, k: int, width: int, which: str
) -> Model:
    """Find the leading eigenvectors of the model M by a block Krylov space of T off V.

    Parameters
    ----------
    coarse : Products
        T.
    block : ndarray of float64, shape (D, b)
        Orthonormal, off V: residuals, or a start.
    V : ndarray of float64, shape (D, m)
        The basis, m >= 0.
    values, R : ndarray of float64, shapes (r,) and (D, r)
        Its leading Ritz values and their residual vectors.
    k, width, which
        Pairs wanted, columns of a block, and the end of the spectrum.
    """
    Q, products = block, np.empty((len(block), 0), order="F")
    largest = float(np.linalg.norm(R[:, :k], axis=0).max(initial=0.0))
    for step in range(1, _MAX_STEPS + 1):
        products = np.hstack([products, coarse(Q[:, products.shape[1] :])])
        F = Q.T @ R
        theta, S = rayleigh_ritz(np.block([[np.diag(values), F.T], [F, Q.T @ products]]), which, k)
        y, q = S[: len(values)], S[len(values) :]
        target = _REDUCTION * largest if len(values) else _FIRST_RESIDUAL * float(np.abs(theta).max())
        Z = products @ q[:, :k] + R @ y[:, :k]
        Z -= Q @ (Q.T @ Z)
        Z -= V @ (V.T @ Z)
        norms = np.linalg.norm(Z, axis=0)
        new = orthonormal(Z[:, np.flatnonzero(norms > target)[:width]], V, Q)
        if not new.shape[1] or step == _MAX_STEPS:
            break
        Q = np.asfortranarray(np.hstack([Q, new]))
    return Model(Q, y, q)


class _HeavySamples:
    """The part of a moment operator that its heaviest samples make; the rest counts as a multiple of I."""

    def __init__(self, part: MomentOperator, scale: float, shift: float) -> None:
        self.part, self.scale, self.shift = part, scale, shift
        self.shape, self.dtype, self.n_samples = part.shape, part.dtype, part.n_samples

    def matmat(self, V: NDArray[Any]) -> NDArray[Any]:
        return self.scale * self.part.matmat(V) + self.shift * V


def heavy_samples(C: MomentOperator) -> Products | None:
    """Return the coarse operator of the heaviest samples, or None if no few of them make much of C.

    The weight of a sample is the norm of its term, |t| |F(x)|^2. Costs one reading of the samples, without
    features, and a copy of at most a tenth of them.
    """
    n, size = C.n_samples, C.shape[0]
    labels, norms = C.labels(), C.squared_norms()
    weights = np.abs(labels) * norms
    order = np.argsort(-weights, kind="stable")
    squares = np.cumsum(weights[order] ** 2)
    for fraction in _FRACTIONS:
        m = int(fraction * n)
        if m and squares[m - 1] >= _SHARE * squares[-1] > 0.0:
            break
    else:
        return None
    kept = np.sort(order[:m])
    X = joined(C.source.shares.each(_rows, kept, placed=True))
    part = MomentOperator(X, labels[kept], degree=C.degree, dtype=C.dtype, center_trace=False)
    scale = m / n
    trace = 0.0 if C.center_trace else C.trace()
    shift = (trace - float(labels[kept] @ norms[kept]) / (n * 2.0**0.5)) / size - scale * part.shift
    heavy = cast("LinearOperator[Any]", _HeavySamples(part, scale, shift))
    return Products(heavy, cost=scale)


def _rows(source: SampleSource, offset: int, kept: NDArray[np.intp]) -> NDArray[Any]:
    """Return the inputs of those rows of a share that are kept: sorted numbers, from the first of all."""
    inside = kept[(kept >= offset) & (kept < offset + source.n_samples)] - offset
    X, row = np.empty((len(inside), source.n_inputs), source.dtype), 0
    for chunk in source.chunks(labels=False):
        here = inside[row:][inside[row:] < chunk.start + len(chunk.X)] - chunk.start
        X[row : row + len(here)] = chunk.X[here]
        row += len(here)
    return X
