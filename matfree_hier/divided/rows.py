"""Vectors whose rows are divided between ranks: inner products, QR and random rows of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from matfree_hier import buffers
from matfree_hier.solvers.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_DRAWN = 4096  # rows that one generator draws
_qr: Any = scipy.linalg.qr  # its type depends on `pivoting` in a way the checker does not follow


class DividedRows(Rows):
    """The rows lo..hi-1 of D are here; every method but the first two is a call that all ranks make.

    What steers a solver comes from rank 0 or is a sum in fixed order, so that it has the same bits on all
    ranks and none branches apart from the others.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks that have the D rows, each once.
    size : int
        D.
    lo, hi : int
        lo < hi.
    """

    def __init__(self, comm: Any, size: int, lo: int, hi: int) -> None:
        self.comm, self.size, self.lo, self.hi = comm, size, lo, hi

    def here(self, size: int) -> int:
        """Return how many rows are here."""
        del size
        return self.hi - self.lo

    def count(self, V: Array) -> int:
        """Return D."""
        del V
        return self.size

    def dot(self, V: Array, W: Array) -> Array:
        """Return V^T W."""
        total = np.ascontiguousarray(V.T @ W)
        buffers.sum_on_all(self.comm, total)
        return total

    def norms(self, V: Array) -> Array:
        """Return the norms of columns."""
        squares = np.array([column @ column for column in V.T])  # without a copy of V
        buffers.sum_on_all(self.comm, squares)
        return np.asarray(np.sqrt(squares))

    def qr(self, V: Array) -> Array:
        """Return the rows here of Q of V = Q R for independent columns."""
        return self._tall_qr(V, pivoting=False)[0]

    def pivoted_qr(self, V: Array) -> tuple[Array, Array]:
        """Return the rows here of Q, and |diag R|, of V P = Q R."""
        return self._tall_qr(V, pivoting=True)

    def _tall_qr(self, V: Array, *, pivoting: bool) -> tuple[Array, Array]:
        """QR of each rank's rows, then on rank 0 of the triangles, one below the other.

        As accurate as Householder QR of all rows: J. Demmel, L. Grigori, M. Hoemmen, J. Langou, SIAM J. Sci.
        Comput. 34 (2012), doi:10.1137/080731992. Rank 0 takes 8 P b^2 bytes for P ranks.
        """
        width, n_ranks = V.shape[1], self.comm.Get_size()
        Q, R = np.linalg.qr(V)
        triangle = np.zeros((width, width))
        triangle[: len(R)] = R
        stack = np.empty((n_ranks, width, width) if self.comm.Get_rank() == 0 else (0,))
        self.comm.Gather(triangle, stack)
        factors, diagonal = stack, np.empty(width)
        if self.comm.Get_rank() == 0:
            below, mode = stack.reshape(-1, width), "economic"
            # NaN must not end rank 0 alone.
            joint, R = _qr(below, mode=mode, pivoting=pivoting, check_finite=False)[:2]
            factors, diagonal = np.ascontiguousarray(joint), np.abs(np.diag(R))
        self.comm.Scatter(factors, triangle)
        buffers.broadcast(self.comm, diagonal)
        return np.asfortranarray(Q @ triangle[: Q.shape[1]]), diagonal

    def normal(self, rng: np.random.Generator, n_rows: int, n_columns: int) -> Array:
        """Return standard normal numbers that depend on the number of the row and not on who has it."""
        del n_rows
        key = int(rng.integers(2**63))
        drawn = np.empty((self.hi - self.lo, n_columns))
        for block in range(self.lo // _DRAWN, -(-self.hi // _DRAWN)):
            start = block * _DRAWN
            numbers = np.random.default_rng([key, block]).standard_normal((_DRAWN, n_columns))
            a, b = max(self.lo, start), min(self.hi, start + _DRAWN)
            drawn[a - self.lo : b - self.lo] = numbers[a - start : b - start]
        return drawn

    def peaks(self, V: Array) -> Array:
        """Return the entry of largest size in each column; of several the one of the lowest rank."""
        mine = super().peaks(V)
        heard = np.empty((self.comm.Get_size(), len(mine)))
        self.comm.Allgather(np.ascontiguousarray(mine), heard)
        return Rows.peaks(self, heard)

    def agreed(self, values: Array) -> Array:
        """Return rank 0's values."""
        shared = np.array(values, order="C")
        buffers.broadcast(self.comm, shared)
        return np.asfortranarray(shared)
