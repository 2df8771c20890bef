"""Factors of low-rank quadratic models, and the samples they are fitted to or judged on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.fitting.latents import SampleShare, weighted_products
from matfree_hier.links import AnyLink
from matfree_hier.packing import check_size
from matfree_hier.shares import joined, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]


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


class Work:
    """Samples that went through a product with the features, forward or backward."""

    def __init__(self, n_samples: int) -> None:
        self.n_samples, self.products = n_samples, 0

    @property
    def passes(self) -> float:
        """One forward and one backward product over all samples are a pass."""
        return self.products / (2.0 * self.n_samples)


class Samples:
    """The samples of some sources one after the other, wherever they are.

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
        self.shares = together([part.shares for part in parts], SampleShare, degree, dtype, origin, unit)
        self.y = by_part(self.shares.each(SampleShare.labels))
        self.n = len(self.y)
        self.n_packed = check_size(parts[0].n_inputs, degree)

    def columns(self, B: Array) -> NDArray[Any]:
        """Return a block as products take it, and count one forward product with it."""
        if B.shape[1]:
            self.work.products += self.n
        return np.ascontiguousarray(B, dtype=self.dtype)

    def combined(self, factor: Factor) -> Array:
        """Return h of all samples, (n,): one forward product."""
        return by_part(self.shares.each(SampleShare.combined, self.columns(factor.W), factor.signs))

    def errors_by_count(self, factor: Factor) -> Array:
        """Return the mean squared errors of the first 0, 1, ..., K columns, (K + 1,): one forward product."""
        B = self.columns(factor.W)
        errors: Array = self.shares.sum(
            SampleShare.errors_by_count, B, factor.signs, factor.sizes, factor.shift, factor.link
        )
        return errors / self.n


def by_part(shares: list[list[Array]]) -> Array:
    """Return values of all samples, part after part, from those of each share by part."""
    return joined([share[i] for i in range(len(shares[0])) for share in shares])
