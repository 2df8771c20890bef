"""Factors of low-rank quadratic models, and the samples they are fitted to or judged on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier import kernels
from matfree_hier.links import AnyLink
from matfree_hier.packing import check_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

_ROWS = 16_384  # samples a kernel call
_INPUTS = 2**24  # entries of X a kernel call, which bounds it when d is huge


@dataclass(frozen=True, eq=False)
class Factor:
    """y = link(shift + h), h = sum_k signs_k u_k^2, u = F(x)^T W: h = <W diag(signs) W^T, F F^T>.

    Attributes
    ----------
    W : ndarray of float64, shape (D, K)
    signs : ndarray of float64, shape (K,)
        +-1.
    shift : float
    link : Link or FittedLink
    """

    W: Array
    signs: Array
    shift: float
    link: AnyLink

    @property
    def sizes(self) -> Array:
        """The signed squares of the lengths of the columns, (K,): E h is their sum for standard normal x."""
        return np.asarray(self.signs * np.sum(self.W**2, axis=0))

    def diagonalised(self) -> Factor:
        """Return the same model with orthogonal columns, the longest first."""
        Q, R = np.linalg.qr(self.W)
        values, V = np.linalg.eigh((R * self.signs) @ R.T)
        order = np.argsort(-np.abs(values), kind="stable")[: len(self.signs)]
        values = values[order]
        W = (Q @ V[:, order]) * np.sqrt(np.abs(values))
        return replace(self, W=W, signs=np.where(values < 0.0, -1.0, 1.0))

    def leading(self, count: int) -> Factor:
        """Return the model of the first columns; the others give way to their expectation."""
        rest = float(self.sizes[count:].sum())
        return replace(self, W=self.W[:, :count], signs=self.signs[:count], shift=self.shift + rest)

    def scaled(self, scale: float) -> Factor:
        """Return the factor whose h is `scale` times as large; the shift stays."""
        return replace(self, W=self.W * np.sqrt(scale))

    def combine(self, U: NDArray[Any]) -> Array:
        """Return h from latents, (m, K) -> (m,)."""
        return weighted_products(U, U, self.signs)


def weighted_products(U: NDArray[Any], V: NDArray[Any], signs: Array) -> Array:
    """Return sum_k signs_k u_k v_k of each row, (m,)."""
    return np.asarray(np.einsum("ik,ik->i", U * signs.astype(U.dtype), V), dtype=np.float64)


class Work:
    """Samples that went through a product with the features, forward or backward."""

    def __init__(self, n_samples: int) -> None:
        self.n_samples, self.products = n_samples, 0

    @property
    def passes(self) -> float:
        """One forward and one backward product over all samples are a pass."""
        return self.products / (2.0 * self.n_samples)


class Samples:
    """The samples of some sources one after the other: labels in memory, inputs read in chunks.

    Parameters
    ----------
    parts : sequence of SampleSource
        With labels.
    degree : int
        Of the features.
    dtype : dtype
        Of the products.
    origin, unit : float
        Labels are (y - origin) / unit.
    work : Work
        Where products are counted.
    """

    def __init__(
        self,
        parts: Sequence[SampleSource],
        degree: int,
        dtype: np.dtype[Any],
        origin: float,
        unit: float,
        work: Work,
    ) -> None:
        self.parts, self.degree, self.dtype, self.work = parts, degree, dtype, work
        self.y = (np.concatenate([part.labels() for part in parts]) - origin) / unit
        self.n = len(self.y)
        self.n_packed = check_size(parts[0].n_inputs, degree)
        self._rows = max(1, min(_ROWS, _INPUTS // parts[0].n_inputs))

    def inputs(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows of a chunk and its inputs."""
        row = 0
        for part in self.parts:
            for chunk in part.chunks(rows=self._rows, labels=False):
                yield slice(row, row + len(chunk.X)), np.ascontiguousarray(chunk.X, dtype=self.dtype)
                row += len(chunk.X)

    def forward(self, X: NDArray[Any], B: NDArray[Any]) -> NDArray[Any]:
        """Return F(x)^T B of a chunk, (m, k); B of `dtype` and in C order."""
        U = np.empty((len(X), B.shape[1]), self.dtype)
        if U.size:
            kernels.forward(X, B, self.degree, U)
            self.work.products += len(X)
        return U

    def backward(self, X: NDArray[Any], G: NDArray[Any], total: Array) -> None:
        """Add Phi^T G of a chunk, G of `dtype` and in C order, to `total` (D, k)."""
        kernels.backward(X, G, self.degree, total)
        self.work.products += len(X)

    def latents(self, B: Array) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows of a chunk and their latents F(x)^T B."""
        B = np.ascontiguousarray(B, dtype=self.dtype)
        for rows, X in self.inputs():
            yield rows, self.forward(X, B)

    def combined(self, factor: Factor) -> Array:
        """Return h of all samples, (n,): one forward product."""
        h = np.empty(self.n)
        for rows, U in self.latents(factor.W):
            h[rows] = factor.combine(U)
        return h

    def errors_by_count(self, factor: Factor) -> Array:
        """Return the mean squared errors of the first 0, 1, ..., K columns, (K + 1,): one forward product."""
        sizes = factor.sizes
        errors = np.zeros(len(sizes) + 1)
        for rows, U in self.latents(factor.W):
            parts = U.astype(np.float64) ** 2 * factor.signs - sizes
            h = np.cumsum(np.hstack([np.full((len(U), 1), factor.shift + sizes.sum()), parts]), axis=1)
            errors += np.sum((factor.link(h) - self.y[rows, np.newaxis]) ** 2, axis=0)
        return errors / self.n
