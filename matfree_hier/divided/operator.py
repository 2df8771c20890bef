"""The moment operator on vectors that no rank holds whole."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from matfree_hier import buffers, kernels
from matfree_hier.divided.failures import Failures
from matfree_hier.divided.grid import grid_of
from matfree_hier.moment import MomentShare
from matfree_hier.operands import (
    checked_block,
    checked_degree,
    exponents_of,
    open_samples,
    product_dtype,
    require_finite,
)
from matfree_hier.packing import check_memory, check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from matfree_hier.moment import Labels
    from matfree_hier.operands import Samples
    from matfree_hier.sources import SampleSource

_ALIKE = 1e-6  # relative difference of sums over the same samples on machines of different kinds


class _Described(NamedTuple):
    """What ranks tell each other of an operator."""

    degree: int
    n_inputs: int
    dtype: str
    center_trace: bool
    n_samples: int
    sums: tuple[float, float, float]


class DividedOperator:
    r"""C = (1/n) sum_i t_i (F(x_i) F(x_i)^T - I) / sqrt 2, less its trace over D, on vectors in parts.

    Ranks stand in R rows and C columns. A row has a share of the samples, each rank of it the same; a column
    has a range of the D features, each rank of it a part of every vector's range. A product brings the parts
    together to the range within columns, projects each chunk of samples on it and sums along rows, and sums
    the features' parts within columns, at whose owners they stay. Every rank makes every call.

    Parameters
    ----------
    X, y, degree, dtype, center_trace
        As for `MomentOperator`; the samples are those of this rank's row.
    comm : mpi4py.MPI.Comm
        R C ranks.
    grid : (int, int)
        R and C. Rank r C + c stands at row r, column c.
    label_transform : callable, optional
        Maps (m,) float64 labels elementwise, or with the `labels.Sizes` of their inputs where it has an
        attribute ``uses_inputs`` that is true; fitted, so that it does not depend on the share.

    Attributes
    ----------
    shape : (int, int)
        (D, D).
    lo, hi : int
        The features whose entries of vectors this rank holds are lo..hi-1.
    parts : list of (int, int)
        lo and hi of each rank.
    degree, n_samples, n_inputs, dtype, label_mean, shift, center_trace
        As for `MomentOperator`, of all samples.

    Raises
    ------
    TypeError, ValueError
        On every rank, if an argument is out of its range on one, or ranks differ where they must not.
    MemoryError
        If one rank's work arrays for a vector do not fit in its memory.
    """

    def __init__(
        self,
        X: Samples,
        y: ArrayLike | None = None,
        *,
        degree: int,
        comm: Any,
        grid: Sequence[int],
        dtype: DTypeLike | None = None,
        label_transform: Labels | None = None,
        center_trace: bool = True,
    ) -> None:
        self.grid = grid_of(comm, grid)

        def describe() -> _Described:
            self._take(X, y, degree, dtype, label_transform)
            share = self._share
            sums = share.summary()
            require_finite(np.array(sums[:2]), share.source)
            n, d = share.source.n_samples, share.source.n_inputs
            return _Described(share.degree, d, self.dtype.name, bool(center_trace), n, sums)

        found: list[_Described] = self.grid.team.exchange("DividedOperator", describe)
        self._check_alike(found)
        self._summarise(found)

    def _take(
        self,
        X: Samples,
        y: ArrayLike | None,
        degree: int,
        dtype: DTypeLike | None,
        label_transform: Labels | str | None,
    ) -> None:
        """Check this rank's arguments and open its samples."""
        grid, self.degree, source = self.grid, checked_degree(degree), open_samples(X, y)
        if not source.has_target:
            msg = "`y` must be given, or the source must have a target: there are no labels."
            raise ValueError(msg)
        if isinstance(label_transform, str):
            msg = f"`label_transform` must be a callable fitted to all samples, got {label_transform!r}."
            raise TypeError(msg)
        self.n_inputs, self.dtype = source.n_inputs, product_dtype(dtype, source)
        size = check_size(self.n_inputs, self.degree)
        if size < grid.team.size:
            msg = f"`grid` must have no more places than there are features, {size}, got {grid.team.size}."
            raise ValueError(msg)
        self.shape = (size, size)
        columns = [grid.parts(size, column) for column in range(grid.columns)]
        self.parts = [columns[c][r] for r in range(grid.rows) for c in range(grid.columns)]
        self.lo, self.hi = self.parts[grid.team.rank]
        self._column = columns[grid.column]
        first, last = self._column[0][0], self._column[-1][1]
        check_memory((last - first) * (8 + 3 * self.dtype.itemsize), f"Vectors of {last - first} entries")
        self._share = _RowShare(source, self.degree, self.dtype, label_transform, grid.along_row, first)

    def _check_alike(self, found: list[_Described]) -> None:
        """Refuse ranks that differ where all must be the same, or those of a row."""
        columns = self.grid.columns
        for rank, other in enumerate(found):
            for name in ("degree", "n_inputs", "dtype", "center_trace"):
                a, b = getattr(found[0], name), getattr(other, name)
                if a != b:
                    msg = f"`{name}` must be the same on all ranks, got {a} on rank 0 and {b} on rank {rank}."
                    raise ValueError(msg)
            first = rank - rank % columns
            if not self._are_alike(found[first], other):
                msg = (
                    f"The ranks of a row must have the same samples, got {found[first].n_samples} with labels"
                    f" of sum {found[first].sums[0]:.6g} on rank {first} and {other.n_samples} with labels of"
                    f" sum {other.sums[0]:.6g} on rank {rank}."
                )
                raise ValueError(msg)

    def _are_alike(self, first: _Described, other: _Described) -> bool:
        """Whether two ranks seem to have the same samples: as many, with sums that differ by rounding."""
        n, largest = first.n_samples, first.sums[2]
        allowed = _ALIKE * largest * np.array([n, float(n) * self.shape[0], 1.0])
        return other.n_samples == n and bool((np.abs(np.subtract(first.sums, other.sums)) <= allowed).all())

    def _summarise(self, found: list[_Described]) -> None:
        """Add up the rows' shares, in their order: the same bits on every rank."""
        rows = found[:: self.grid.columns]
        self.n_samples = sum(row.n_samples for row in rows)
        total, second = (sum(row.sums[i] for row in rows) for i in (0, 1))
        scale, size = self.n_samples * sqrt(2.0), self.shape[0]
        self.center_trace, self.label_mean = found[0].center_trace, total / self.n_samples
        self._trace: float = (second - size * total) / scale
        self.shift = -second / (scale * size) if self.center_trace else -total / scale
        self._exponent = int(np.frexp(max(row.sums[2] for row in rows))[1])
        self.grid.team.exchange("DividedOperator", lambda: self._share.scale(self._exponent))

    def trace(self) -> float:
        """Return the trace of the operator before centring, (1/n) sum t_i (|F(x_i)|^2 - D) / sqrt 2."""
        return self._trace

    def matmat(self, V: ArrayLike) -> NDArray[Any]:
        """Apply the operator to a block of which each rank has the rows of its own features.

        Parameters
        ----------
        V : array_like, shape (hi - lo, k)
            As many columns on every rank.

        Returns
        -------
        ndarray of `dtype`, shape (hi - lo, k)
            The same rows of the product. Costs a rank 4 n D k / (R C) operations; `costs` says what memory
            and communication.

        Raises
        ------
        Exception
            On every rank what went wrong on one, in seconds: whatever remains of the product is given up.
        """
        given, exponents = self._checked(V)
        if not given.shape[1]:
            return np.zeros(given.shape, self.dtype)
        with self.grid.team.to_the_end():
            block = self._gathered(np.ldexp(given, -exponents))
            total, failures = np.zeros((self._width, given.shape[1])), Failures(self.grid.comm)
            self._share.add_product(block, total, failures)
            product = self._scattered(total)
            failures.attempt(lambda: self._finish(product, given, exponents))
            failure = failures.settled()
        if failure is not None:
            raise failure
        return product.astype(self.dtype, copy=False)

    @property
    def _width(self) -> int:
        return self._column[-1][1] - self._column[0][0]

    def _checked(self, V: ArrayLike) -> tuple[NDArray[Any], NDArray[np.intp]]:
        """Return this rank's rows as a finite block, and the exponents of the columns over all ranks."""

        def check() -> NDArray[np.intp]:
            block = checked_block(V, "V", self.hi - self.lo)
            if block.ndim != 2:
                msg = f"`V` must have shape ({self.hi - self.lo}, k), got {block.shape}."
                raise ValueError(msg)
            if 8 * self._width * block.shape[1] > 2**28:
                n_bytes = self._width * block.shape[1] * (8 + 3 * self.dtype.itemsize)
                check_memory(n_bytes, f"Work arrays for {block.shape[1]} vectors of {self._width} entries")
            given.append(block)
            return exponents_of(block)

        given: list[NDArray[Any]] = []
        heard = self.grid.team.exchange("DividedOperator.matmat", check)
        widths = [len(exponents) for exponents in heard]
        if len(set(widths)) > 1:
            msg = f"`V` must have as many columns on every rank, got {widths}."
            raise ValueError(msg)
        return given[0], np.max(heard, axis=0)

    def _gathered(self, piece: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of the whole range of this column, in the dtype of products."""
        first = self._column[0][0]
        block = np.empty((self._width, piece.shape[1]), self.dtype)
        block[self.lo - first : self.hi - first] = piece
        for row, (lo, hi) in enumerate(self._column):
            buffers.broadcast(self.grid.along_column, block[lo - first : hi - first], row)
        return block

    def _scattered(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over this column of the rows that are this rank's."""
        first = self._column[0][0]
        for row, (lo, hi) in enumerate(self._column):
            buffers.sum_to(self.grid.along_column, total[lo - first : hi - first], row)
        return total[self.lo - first : self.hi - first].copy()

    def _finish(self, total: NDArray[np.float64], V: NDArray[Any], exponents: NDArray[np.intp]) -> None:
        """Bring sums to the scale of the labels and of V, in place, and shift the spectrum."""
        with np.errstate(over="ignore", invalid="ignore"):
            total /= self.n_samples * sqrt(2.0)
            np.ldexp(total, exponents + self._exponent, out=total)
            total += self.shift * V.astype(np.float64, copy=False)
            require_finite(total.astype(self.dtype, copy=False), self._share.source)


class _RowShare(MomentShare):
    """The samples of one row of ranks, on the features of one column.

    Parameters
    ----------
    source, degree, dtype, label_transform
        As for `MomentShare`.
    row : mpi4py.MPI.Comm
        The ranks with these samples.
    first : int
        The feature that blocks begin with.
    """

    def __init__(
        self,
        source: SampleSource,
        degree: int,
        dtype: np.dtype[Any],
        label_transform: Labels | None,
        row: Any,
        first: int,
    ) -> None:
        super().__init__(source, degree, dtype, label_transform)
        self._row, self._first = row, first

    def add_product(self, V: NDArray[Any], total: NDArray[np.float64], failures: Failures) -> None:
        """Add this range's rows of Phi^T (t Phi V) to `total`, Phi V summed over the ranges of the row.

        Each chunk's latents travel with one row more, by which the ranks of a row agree to stop.
        """
        chunks = self._weighed()
        for start in range(0, self.source.n_samples, self._rows):
            m = min(self._rows, self.source.n_samples - start)
            latents = np.zeros((m + 1, V.shape[1]), self.dtype)
            U, agreed = latents[:m], latents[m]
            chunk: list[Any] = []

            def project(U: NDArray[Any] = U, chunk: list[Any] = chunk) -> None:
                (_, X, _), t = next(chunks)
                chunk += [X, t]
                kernels.forward(chunk[0], V, self.degree, U, self._first)

            def collect(U: NDArray[Any] = U, chunk: list[Any] = chunk) -> None:
                np.multiply(U, chunk[1][:, np.newaxis], out=U)
                kernels.backward(chunk[0], U, self.degree, total, self._first)

            failures.attempt(project)
            agreed[:] = failures.anywhere()
            buffers.sum_on_all(self._row, latents)
            if agreed.any():
                return
            failures.attempt(collect)
