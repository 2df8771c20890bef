"""Products that are remembered, so that a solver of another package which is cut short still leaves pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.solvers.products import Products
from matfree_hier.solvers.records import Options, Outcome
from matfree_hier.solvers.space import PLAIN, Space
from matfree_hier.solvers.subspace import rayleigh_ritz

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse.linalg import LinearOperator

    from matfree_hier.status import Status

    Array = NDArray[np.float64]

_RANK_TOL = 1e-6  # directions below this share of the largest are rounding, in products too


class RememberedProducts(Products):
    """Products of an operator, and the best Ritz pairs of all blocks it has been applied to.

    Blocks and products are kept as they come. When they are more than four blocks they are condensed to the
    k + b best Ritz vectors, whose products follow without a pass. Memory is ``16 D (k + 5 b)`` bytes, and a
    block costs some ``20 D (k + 4 b)`` operations a column besides its product.

    Parameters
    ----------
    operator : LinearOperator of shape (D, D)
        As for `Products`.
    options : Options
        What is asked for.
    space : Space
        In which the pairs are orthonormal.
    """

    def __init__(self, operator: LinearOperator[Any], options: Options, space: Space = PLAIN) -> None:
        super().__init__(operator)
        self._options, self._space = options, space
        self._V, self._W = (np.empty((self.size, 0)) for _ in range(2))
        self._new: list[tuple[Array, Array]] = []

    def __call__(self, V: Array) -> Array:
        """Apply the operator to a block, and remember both."""
        W = super().__call__(V)
        self._new.append((np.array(V, dtype=np.float64), W))
        if sum(block.shape[1] for block, _ in self._new) >= 4 * self._options.block_size:
            self._condense(self._options.k + self._options.block_size)
        return W

    def _condense(self, n_kept: int) -> Array:
        """Keep the best Ritz vectors of all that is remembered, and return their values."""
        V = np.hstack([self._V, *(block for block, _ in self._new)])
        W = np.hstack([self._W, *(product for _, product in self._new)])
        norms = np.linalg.norm(V, axis=0)
        V, W = V[:, norms > 0.0] / norms[norms > 0.0], W[:, norms > 0.0] / norms[norms > 0.0]
        Q, sizes, Z = np.linalg.svd(V, full_matrices=False)
        rank = int((sizes > _RANK_TOL * sizes.max(initial=0.0)).sum())
        Q, W = Q[:, :rank], W @ (Z[:rank].T / sizes[:rank])
        root = self._space.inverse_root(Q)
        Q, W = Q @ root, W @ root
        values, S = rayleigh_ritz(Q.T @ W, self._options.which, self._options.k)
        self._V, self._W, self._new = Q @ S[:, :n_kept], W @ S[:, :n_kept], []
        return values[:n_kept]

    def best(self, status: Status, message: str) -> Outcome:
        """Return the best pairs of all products made, with the residuals these give."""
        k = self._options.k
        if not self._V.shape[1] and not self._new:
            empty = np.empty(0)
            return Outcome(empty, np.empty((self.size, 0)), empty, 0.0, status, message)
        values = self._condense(k)
        residuals = np.linalg.norm(self._W - self._space.apply(self._V) * values, axis=0)
        norm = float(np.abs(values).max(initial=0.0))
        return Outcome(values, self._V, residuals / (norm or 1.0), norm, status, message)
