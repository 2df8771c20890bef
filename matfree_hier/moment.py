"""What a share of the samples contributes to the moment operator: sums that ranks add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier import kernels
from matfree_hier.labels import Sizes, input_sizes, sized
from matfree_hier.packing import n_packed
from matfree_hier.sources import SampleSource

if TYPE_CHECKING:
    from matfree_hier.sources import Chunk

Labels: TypeAlias = Callable[..., NDArray[np.float64]]

_ROWS = 16_384  # samples a kernel call: enough to amortise a sweep over W, few enough for the caches
_INPUTS = 2**24  # entries of X a kernel call, which bounds the tile when d is huge
_KEPT_LABELS = 2**28  # bytes of transformed labels kept rather than transformed again each pass


class MomentShare:
    """Some of the samples of a moment operator.

    Parameters
    ----------
    source : SampleSource
        n >= 0 samples, with labels.
    degree : int
        q.
    dtype : numpy.dtype
        Of the products.
    label_transform : callable or None
        Fitted to all samples.
    """

    def __init__(
        self, source: SampleSource, degree: int, dtype: np.dtype[Any], label_transform: Labels | None
    ) -> None:
        self.source, self.degree, self.dtype, self.label_transform = source, degree, dtype, label_transform
        self._rows = rows_a_call(source.n_inputs)
        self._weights: NDArray[Any] | None = None
        self._exponent = 0

    def summary(self) -> tuple[float, float, float]:
        """Return the sums of t and of t |F(x)|^2 and the largest |t|, from one cheap pass: no features."""
        total = second = largest = 0.0
        size = n_packed(self.source.n_inputs, self.degree)
        for rows, y, sizes in sized(self.source, self.degree, rows=self._rows):
            t = self._weighed_labels(rows.start, y, sizes)
            with np.errstate(over="ignore", invalid="ignore"):
                total += float(t.sum())
                second += size * float(t @ sizes.norms)
            largest = max(largest, float(np.abs(t).max()))
        return total, second, largest

    def scale(self, exponent: int) -> None:
        """Take weights t / 2**exponent from here on, and keep them if they are few enough."""
        self._exponent = exponent
        if self.label_transform is None or self.source.n_samples * self.dtype.itemsize > _KEPT_LABELS:
            return
        weights = [np.empty(0, self.dtype)]
        for rows, y, sizes in sized(self.source, self.degree, rows=self._rows):
            weights.append(self._scaled(self._weighed_labels(rows.start, y, sizes)))
        self._weights = np.concatenate(weights)

    def product(self, V: NDArray[Any]) -> NDArray[np.float64]:
        """Return Phi^T (t Phi V) / 2**exponent, (D, k), for a C-contiguous block V of `dtype`."""
        total = np.zeros(V.shape)
        for chunk, t in self._weighed():
            U = np.empty((len(t), V.shape[1]), self.dtype)
            kernels.forward(chunk.X, V, self.degree, U)
            U *= t[:, np.newaxis]
            kernels.backward(chunk.X, U, self.degree, total)
        return total

    def matrix(self, size: int) -> NDArray[np.float64]:
        """Return the upper triangle of Phi^T diag(t) Phi / 2**exponent, (D, D), and something below it."""
        total = np.zeros((size, size))
        with np.errstate(over="ignore", invalid="ignore"):
            for chunk, t in self._weighed():
                kernels.moment(chunk.X, t, self.degree, total)
        return total

    def labels(self) -> NDArray[np.float64]:
        """Return t, (n,)."""
        runs = sized(self.source, self.degree)
        return np.concatenate(
            [np.empty(0), *(self._weighed_labels(rows.start, y, sizes) for rows, y, sizes in runs)]
        )

    def sampled(self, offset: int, step: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return t and |F|^2/D of every `step`-th sample of all shares, this one's first being `offset`."""
        labels, norms = [np.empty(0)], [np.empty(0)]
        for rows, y, sizes in sized(self.source, self.degree, step=step, offset=offset):
            labels.append(self._weighed_labels(rows.start, y, sizes))
            norms.append(sizes.norms)
        return np.concatenate(labels), np.concatenate(norms)

    def _weighed(self) -> Iterator[tuple[Chunk, NDArray[Any]]]:
        """Yield chunks and their transformed labels, scaled into (-1, 1) by a power of two; in `dtype`."""
        if self._weights is None:
            for chunk in self.source.chunks(rows=self._rows):
                t = self._scaled(self.weigh(chunk))
                yield chunk._replace(X=np.ascontiguousarray(chunk.X, dtype=self.dtype)), t
            return
        for chunk in self.source.chunks(rows=self._rows, labels=False, dtype=self.dtype):
            yield chunk, self._weights[chunk.start : chunk.start + len(chunk.X)]

    def weigh(self, chunk: Chunk) -> NDArray[np.float64]:
        """Return the labels of a chunk of the samples, as the operator weighs them: shape (m,)."""
        uses_inputs = getattr(self.label_transform, "uses_inputs", False)
        sizes = input_sizes(chunk.X, self.degree) if uses_inputs else None
        return self._weighed_labels(chunk.start, chunk.y, sizes)

    def _scaled(self, t: NDArray[np.float64]) -> NDArray[Any]:
        return np.asarray(np.ldexp(t, -self._exponent).astype(self.dtype))

    def _weighed_labels(
        self, row: int, labels: NDArray[np.float64] | None, sizes: Sizes | None
    ) -> NDArray[np.float64]:
        """Return the labels of samples from a row on, as the operator weighs them."""
        y = np.asarray(labels, dtype=np.float64)
        if self.label_transform is None:
            return y
        uses_inputs = getattr(self.label_transform, "uses_inputs", False)
        t = np.asarray(self.label_transform(y, sizes) if uses_inputs else self.label_transform(y))
        if t.dtype.kind not in "biuf" or t.shape != y.shape:
            msg = f"`label_transform` must map {y.shape} real labels to as many, got {t.shape} of {t.dtype}."
            raise ValueError(msg)
        bad = np.flatnonzero(~np.isfinite(t))
        if len(bad):
            self.source.validate()  # the label or an input may be NaN
            msg = f"`label_transform` must be finite, got {t[bad[0]]} at row {row + int(bad[0])}."
            raise ValueError(msg)
        return t.astype(np.float64, copy=False)


def latents(source: SampleSource, V: NDArray[Any], degree: int, exponents: NDArray[np.intp]) -> NDArray[Any]:
    """Return 2**exponents Phi V, (n, k), for a C-contiguous block V, in its dtype."""
    U = np.empty((source.n_samples, V.shape[1]), V.dtype)
    row = 0
    for chunk in source.chunks(rows=rows_a_call(source.n_inputs), labels=False, dtype=V.dtype):
        kernels.forward(chunk.X, V, degree, U[row : row + len(chunk.X)])
        row += len(chunk.X)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.ldexp(U, exponents, out=U))


def feature_sums(
    source: SampleSource,
    size: int,
    degree: int,
    dtype: np.dtype[Any],
    exponents: NDArray[np.intp],
    G: NDArray[Any],
) -> NDArray[np.float64]:
    """Return Phi^T G, (D, k), for weights G of the samples, |G| < 2**exponents in each column."""
    W = np.zeros((size, G.shape[1]))
    row = 0
    for _, X, _ in source.chunks(rows=rows_a_call(source.n_inputs), labels=False, dtype=dtype):
        weights = np.ldexp(G[row : row + len(X)], -exponents)
        kernels.backward(X, np.ascontiguousarray(weights, dtype=dtype), degree, W)
        row += len(X)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.ldexp(W, exponents, out=W))


def squared_norms(source: SampleSource, degree: int) -> NDArray[np.float64]:
    """Return |F(x)|^2 of every sample, (n,): no features."""
    norms = np.empty(source.n_samples)
    for chunk in source.chunks(labels=False):
        rows = slice(chunk.start, chunk.start + len(chunk.X))
        kernels.squared_norms(np.ascontiguousarray(chunk.X, dtype=np.float64), degree, norms[rows])
    return norms


def rows_a_call(n_inputs: int) -> int:
    """Return how many samples go into one kernel call."""
    return max(1, min(_ROWS, _INPUTS // n_inputs))
