"""Counts, sums and exact quantiles of numbers that may be spread over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Reduce: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]

_TAIL = 0.005  # the share of numbers at either end that the robust scale does not follow


class Summary:
    """Counts, sums and exact order statistics of labels that may be spread over processes."""

    def __init__(self, y: Array, reduce: Reduce | None) -> None:
        self.sorted: Array = np.sort(y) + 0.0  # adding zero turns -0.0 into 0.0
        self.reduce = reduce
        self.count = int(self._total(np.array([len(y)]))[0])
        if self.count == 0:
            msg = "`labels` must hold at least one label, got none."
            raise ValueError(msg)
        self.low, self.high = (float(v) for v in self.order([0, self.count - 1]))
        self.median = float(self.quantile([0.5])[0])

    def _total(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self.reduce is None else np.asarray(self.reduce(values))

    def average(self, local_sum: Array) -> Array:
        """Return the mean over all samples from the sum over those of this process."""
        return np.asarray(self._total(local_sum) / self.count)

    def mean(self, values: Array) -> float:
        """Return the mean over all samples of ``values``, one a label of this process."""
        return float(self.average(np.array([values.sum()]))[0])

    def order(self, ranks: ArrayLike) -> Array:
        """Return the order statistics of the given ranks, 0-based."""
        ranks = np.asarray(ranks, dtype=np.int64)
        if self.reduce is None:
            return np.asarray(self.sorted[ranks])
        # Bisection over the 2^64 float64 bit patterns, made monotone: all ranks at once, exact.
        flip = np.int64(2**63 - 1)
        bits = self.sorted.view(np.int64)
        keys = bits ^ ((bits >> 63) & flip)
        low = np.full(ranks.shape, np.iinfo(np.int64).min)
        high = np.full(ranks.shape, np.iinfo(np.int64).max)
        for _ in range(64):
            middle = (low & high) + ((low ^ high) >> 1)
            enough = self._total(np.searchsorted(keys, middle, side="right")) > ranks
            high = np.where(enough, middle, high)
            low = np.where(enough, low, middle + 1)
        return np.asarray(low ^ ((low >> 63) & flip)).view(np.float64)

    def quantile(self, levels: ArrayLike) -> Array:
        """Return quantiles, linear between order statistics."""
        at = np.asarray(levels, dtype=np.float64) * (self.count - 1)
        below = np.floor(at).astype(np.int64)
        a, b = self.order(below), self.order(np.minimum(below + 1, self.count - 1))
        share = at - below
        return np.asarray(a * (1.0 - share) + b * share)

    def scale(self) -> float:
        """Return the winsorised standard deviation; that of all labels when most are equal; 1 if all are."""
        if self.low == self.high:
            return 1.0
        low, high = self.quantile([_TAIL, 1.0 - _TAIL])
        return self._deviation(low, high) or self._deviation(self.low, self.high) or 1.0

    def _deviation(self, low: float, high: float) -> float:
        # In units of half the range, so that no square overflows.
        half = high / 2.0 - low / 2.0
        if half == 0.0:
            return 0.0
        y = (np.clip(self.sorted, low, high) - low) / half
        mean = self.mean(y)
        return float(half * np.sqrt(self.mean((y - mean) ** 2)))
