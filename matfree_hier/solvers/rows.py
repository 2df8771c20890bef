"""Where the rows of a solver's vectors are, and the sums over them.

Of the work of a solver only a few kinds mix the D rows of its vectors: inner products, norms, QR, random
rows. All else is row by row, or on matrices as small as the basis is wide. Solvers ask a `Rows` for these
few, so that the same code runs where every process has some of the rows (`divided`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_qr: Any = scipy.linalg.qr  # its type depends on `pivoting` in a way the checker does not follow


class Rows:
    """All rows are here."""

    def here(self, size: int) -> int:
        """Return how many of the D = `size` rows are here."""
        return size

    def count(self, V: Array) -> int:
        """Return D, given the rows here of some vectors."""
        return len(V)

    def dot(self, V: Array, W: Array) -> Array:
        """Return V^T W, shape (a, b)."""
        return np.asarray(V.T @ W)

    def norms(self, V: Array) -> Array:
        """Return the norms of columns, shape (b,)."""
        return np.asarray(np.linalg.norm(V, axis=0))

    def qr(self, V: Array) -> Array:
        """Return the rows here of Q, (D, b), of V = Q R for independent columns."""
        return np.asfortranarray(np.linalg.qr(V)[0])

    def pivoted_qr(self, V: Array) -> tuple[Array, Array]:
        """Return Q and |diag R| of V P = Q R, the diagonal descending."""
        Q, R, _ = _qr(V, mode="economic", pivoting=True)
        return Q, np.abs(np.diag(R))

    def normal(self, rng: np.random.Generator, n_rows: int, n_columns: int) -> Array:
        """Return independent standard normal numbers in `n_rows` rows, those that are here."""
        return rng.standard_normal((n_rows, n_columns))

    def peaks(self, V: Array) -> Array:
        """Return the entry of largest size in each column, the first of several, shape (b,)."""
        return np.asarray(V[np.abs(V).argmax(axis=0), np.arange(V.shape[1])])

    def agreed(self, values: Array) -> Array:
        """Return what counts as `values` on every process, where each has computed them: they steer it."""
        return values


HERE = Rows()
