"""A share of the samples in a refinement: labels, latents and predictions, which stay where the samples are.

Each method is a loop over the samples of a share; ranks add up what they return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier import kernels
from matfree_hier.moment import rows_a_call
from matfree_hier.packing import check_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matfree_hier.links import AnyLink
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

_BLOCK = 4096  # rows of latents taken at once: they stay in the cache


def weighted_products(U: NDArray[Any], V: NDArray[Any], signs: Array) -> Array:
    """Return sum_k signs_k u_k v_k of each row, (m,)."""
    return np.asarray(np.einsum("ik,ik->i", U * signs.astype(U.dtype), V), dtype=np.float64)


class SampleShare:
    """Samples of some sources one after the other: labels in memory, inputs read in chunks.

    Parameters
    ----------
    parts : sequence of SampleSource
        With labels.
    starts : sequence of int
        The number of the first sample of each part, among those of all shares.
    degree : int
        Of the features.
    dtype : dtype
        Of the products.
    origin, unit : float
        Labels are (y - origin) / unit.
    """

    def __init__(
        self,
        parts: Sequence[SampleSource],
        starts: Sequence[int],
        degree: int,
        dtype: np.dtype[Any],
        origin: float,
        unit: float,
    ) -> None:
        self.parts, self.starts, self.degree, self.dtype = parts, starts, degree, dtype
        self.y = (np.concatenate([part.labels() for part in parts]) - origin) / unit
        self._rows = rows_a_call(parts[0].n_inputs)

    def inputs(self) -> Iterator[tuple[slice, int, NDArray[Any]]]:
        """Yield the rows of a chunk in this share, the number of the first among all, and its inputs."""
        row = 0
        for part, start in zip(self.parts, self.starts, strict=True):
            for first, X, _ in part.chunks(rows=self._rows, labels=False, dtype=self.dtype):
                yield slice(row, row + len(X)), start + first, X
                row += len(X)

    def forward(self, X: NDArray[Any], B: NDArray[Any]) -> NDArray[Any]:
        """Return F(x)^T B of a chunk, (m, k); B of `dtype` and in C order."""
        U = np.empty((len(X), B.shape[1]), self.dtype)
        if U.size:
            kernels.forward(X, B, self.degree, U)
        return U

    def latents(self, B: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the rows of a chunk and their latents F(x)^T B."""
        for rows, _, X in self.inputs():
            yield rows, self.forward(X, B)

    def combined(self, B: NDArray[Any], signs: Array) -> list[Array]:
        """Return h = sum_k signs_k u_k^2 of the samples of each part."""
        h = np.empty(len(self.y))
        for rows, U in self.latents(B):
            h[rows] = weighted_products(U, U, signs)
        return self._by_part(h)

    def labels(self) -> list[Array]:
        """Return the labels of the samples of each part."""
        return self._by_part(self.y)

    def _by_part(self, values: Array) -> list[Array]:
        return np.split(values, np.cumsum([part.n_samples for part in self.parts])[:-1])

    def errors_by_count(
        self, B: NDArray[Any], signs: Array, sizes: Array, shift: float, link: AnyLink
    ) -> Array:
        """Return the sums of squared errors of the first 0, 1, ..., K columns, (K + 1,)."""
        errors = np.zeros(len(sizes) + 1)
        for rows, U in self.latents(B):
            parts = U.astype(np.float64) ** 2 * signs - sizes
            h = np.cumsum(np.hstack([np.full((len(U), 1), shift + sizes.sum()), parts]), axis=1)
            errors += np.sum((link(h) - self.y[rows, np.newaxis]) ** 2, axis=0)
        return errors


class LatentShare:
    """The state of `Sensing` sample by sample.

    Parameters
    ----------
    samples : SampleShare
    signs : ndarray of float64, shape (K,)
        Of the factor.
    width : int
        Columns of latents kept: of the factor, of the last step, of the gradient.
    stride : int
        Latents of every `stride`-th sample of all shares are kept.
    """

    def __init__(self, samples: SampleShare, signs: Array, width: int, stride: int) -> None:
        self.samples, self.signs, self.stride = samples, signs, stride
        n = len(samples.y)
        self.n_kept = sum(
            len(range(-start % stride, part.n_samples, stride))
            for part, start in zip(samples.parts, samples.starts, strict=True)
        )
        widest = max(width, 3 * len(signs))  # what `move` may make of it
        check_memory(
            self.n_kept * widest * samples.dtype.itemsize + 40 * n, f"Latents of {self.n_kept} samples"
        )
        self._memory = np.empty(self.n_kept * widest, samples.dtype)
        self.L = self._shaped(width)
        self.h = np.empty(n)
        self.residuals, self.slopes = np.empty(n), np.empty(n)
        self.a, self.b = np.empty(0), np.empty(0)
        self._kept_slopes = np.empty(self.n_kept)

    # --- products with the features ------------------------------------------------------------------------

    def fill(self, B: NDArray[Any]) -> None:
        """Compute h, and the latents of the factor and of the last step, the columns of B."""
        for rows, kept, inside, X in self._kept():
            U = self.samples.forward(X, B)
            self.L[kept, : B.shape[1]] = U[inside]
            factor = U[:, : len(self.signs)]
            self.h[rows] = weighted_products(factor, factor, self.signs)

    def append(self, G: NDArray[Any]) -> None:
        """Compute the latents of the gradient, the last columns."""
        for _, kept, inside, X in self._kept():
            self.L[kept, -G.shape[1] :] = self.samples.forward(np.ascontiguousarray(X[inside]), G)

    def _kept(self) -> Iterator[tuple[slice, slice, slice, NDArray[Any]]]:
        """Yield the rows of a chunk, where the kept ones of these are, which of the rows they are, and X."""
        at = 0
        for rows, first, X in self.samples.inputs():
            inside = slice(-first % self.stride, None, self.stride)
            count = len(range(-first % self.stride, len(X), self.stride))
            yield rows, slice(at, at + count), inside, X
            at += count

    def gradient(self, W: NDArray[Any]) -> Array:
        """Return Phi^T (g' r u s), (D, K)."""
        signs = self.signs.astype(self.L.dtype)
        weights = (self.slopes * self.residuals).astype(self.L.dtype)[:, np.newaxis]
        G = np.zeros(W.shape)
        for rows, _, X in self.samples.inputs():
            U = self.L[rows, : len(signs)] if self.stride == 1 else self.samples.forward(X, W)
            kernels.backward(X, weights[rows] * U * signs, self.samples.degree, G)
        return G

    # --- sums over latents ---------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any], Array]]:
        """Yield blocks of kept latents, (m, w), of T = 2 g' s u, (m, K), and of slopes g', (m,).

        The prediction changes by T . du when the factor's latents change by du.
        """
        signs = (2.0 * self.signs).astype(self.L.dtype)
        for start in range(0, len(self.L), _BLOCK):
            L, slope = self.L[start : start + _BLOCK], self._kept_slopes[start : start + _BLOCK]
            yield L, L[:, : len(signs)] * signs * slope[:, np.newaxis].astype(L.dtype), slope

    def first_sweep(self) -> tuple[Array, Array, Array]:
        """Return T^T T, (K, K), J^T of the slopes, (w, K), and the sum of their squares, (1,)."""
        k = len(self.signs)
        gram, means, total = np.zeros((k, k)), np.zeros((self.L.shape[1], k)), 0.0
        for L, T, slopes in self._blocks():
            gram += T.T @ T
            means += L.T @ (T * slopes[:, np.newaxis].astype(T.dtype))
            total += float(slopes @ slopes)
        return gram, means, np.array([total])

    def second_derivative(self, A: NDArray[Any]) -> Array:
        """Return J^T J A, shape (w, K)."""
        product = np.zeros(A.shape)
        for L, T, _ in self._blocks():
            change = np.einsum("ik,ik->i", T, L @ A)
            product += L.T @ (T * change[:, np.newaxis])
        return product

    # --- along a direction ---------------------------------------------------------------------------------

    def turn(self, A: NDArray[Any], columns: NDArray[Any]) -> Array:
        """Take h(t) = h + t a + t^2 b along P = B A; return the sums of g'^2 a, g'^2 and b.

        Where not all latents are kept, `columns` are those of the factor and of P.
        """
        self.a, self.b = np.empty(len(self.h)), np.empty(len(self.h))
        for rows, U, V in self._along(A, columns):
            self.a[rows] = 2.0 * weighted_products(U, V, self.signs)
            self.b[rows] = weighted_products(V, V, self.signs)
        squares = self.slopes**2
        return np.array([float(squares @ self.a), float(squares.sum()), float(self.b.sum())])

    def _along(
        self, A: NDArray[Any], columns: NDArray[Any]
    ) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """Yield rows, the factor's latents and those of P = B A."""
        k = A.shape[1]
        if self.stride == 1:
            for start in range(0, len(self.L), _BLOCK):
                L = self.L[start : start + _BLOCK]
                yield slice(start, start + len(L)), L[:, :k], L @ A
        else:
            for rows, U in self.samples.latents(columns):
                yield rows, U[:, :k], U[:, k:]

    def quartic(self, shift: float, mean: float) -> Array:
        """Return the products b b, a b, a a, r b and a r of r + t (a + shift) + t^2 (b - mean), summed."""
        r, a, b = self.residuals, self.a + shift, self.b - mean
        return np.array([float(u @ v) for u, v in ((b, b), (a, b), (a, a), (r, b), (a, r))])

    def loss(self, link: AnyLink, offset: float, shift: float, t: float) -> Array:
        """Return the sum of squared residuals at h(t) + offset + t shift, (1,)."""
        h = self.h + offset
        r = link(h + t * (self.a + shift) + t * t * self.b) - self.samples.y
        return np.array([float(r @ r)])

    def move(self, A: NDArray[Any], t: float) -> None:
        """Go to h(t), and bring the kept latents of the factor and of the last step up to date."""
        self.h += t * self.a + t * t * self.b
        k = A.shape[1]
        old, new = self.L, self._shaped(3 * k)  # in the same memory: the last step may have had other columns
        starts = range(0, len(old), _BLOCK)
        for start in starts if new.shape[1] <= old.shape[1] else reversed(starts):
            rows = slice(start, start + _BLOCK)
            V = old[rows] @ A
            U = old[rows, :k] + old.dtype.type(t) * V
            new[rows, :k], new[rows, k : 2 * k] = U, V
        self.L = new

    def _shaped(self, width: int) -> NDArray[Any]:
        return self._memory[: self.n_kept * width].reshape(self.n_kept, width)

    def rescale(self, scale: float) -> None:
        """Multiply h by a factor."""
        self.h *= scale
        self.L[:, : len(self.signs)] *= self.L.dtype.type(np.sqrt(scale))

    # --- where it stands -----------------------------------------------------------------------------------

    def misfit(self) -> Array:
        """Return the sum of y - h, (1,)."""
        return np.array([float(np.sum(self.samples.y - self.h))])

    def shift_sums(self, link: AnyLink, shift: float) -> Array:
        """Return the sums of r^2, g' r and g'^2 for that shift, (3,)."""
        h = self.h + shift
        r, slopes = link(h) - self.samples.y, link.derivative(h)
        return np.array([float(r @ r), float(slopes @ r), float(slopes @ slopes)])

    def settle(self, link: AnyLink, shift: float) -> Array:
        """Set residuals and slopes for that shift; return the sums of their squares, (2,)."""
        self.residuals = link(self.h + shift) - self.samples.y
        self.slopes = link.derivative(self.h + shift)
        row = 0
        kept = []
        for part, start in zip(self.samples.parts, self.samples.starts, strict=True):
            kept.append(self.slopes[row : row + part.n_samples][-start % self.stride :: self.stride])
            row += part.n_samples
        self._kept_slopes = kept[0] if len(kept) == 1 else np.concatenate(kept)
        return np.array([float(self.residuals @ self.residuals), float(self.slopes @ self.slopes)])

    def combined(self) -> list[Array]:
        """Return h of the samples of each part."""
        return self.samples._by_part(self.h)
