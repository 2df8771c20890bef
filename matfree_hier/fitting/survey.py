"""What one reading of the raw samples tells: that they are finite, moments by fold, the shapes of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.fitting.moments import FoldedMoments, Moments

if TYPE_CHECKING:
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

_ROWS = 1024  # taken at a time: their powers stay in the cache


class Survey(NamedTuple):
    """Moments of samples.

    Attributes
    ----------
    rows : FoldedMoments
        Of rows [x, y], or of [y] alone.
    inputs : Moments or None
        Of x, if asked for.
    fourth : ndarray of float64, shape (d,), or None
        Sums of fourth powers of x less its mean, if asked for.
    """

    rows: FoldedMoments
    inputs: Moments | None
    fourth: Array | None


@dataclass
class PowerSums:
    """Count, mean and sums of second to fourth powers about it of each of d columns.

    Attributes
    ----------
    count : int
    mean, second, third, fourth : ndarray of float64, shape (d,)
    """

    count: int
    mean: Array
    second: Array
    third: Array
    fourth: Array

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Self:
        """Return those of some rows, shape (m, d); O(m d)."""
        mean = rows.mean(axis=0, dtype=np.float64)
        centred = rows - mean
        squares = centred * centred
        return cls(
            len(rows),
            mean,
            squares.sum(axis=0),
            np.einsum("ij,ij->j", squares, centred),
            np.einsum("ij,ij->j", squares, squares),
        )

    def merge(self, other: PowerSums) -> None:
        """Add the rows of others (Pebay 2008, doi:10.2172/1028931, equations 2.1, 3.1)."""
        a, b, n = self.count, other.count, self.count + other.count
        if not b:
            return
        step = other.mean - self.mean
        part = step / n
        self.fourth = (
            self.fourth
            + other.fourth
            + step * part**3 * (a * b * (a * a - a * b + b * b))
            + 6.0 * part**2 * (a * a * other.second + b * b * self.second)
            + 4.0 * part * (a * other.third - b * self.third)
        )
        self.third = (
            self.third
            + other.third
            + step * part**2 * (a * b * (a - b))
            + 3.0 * part * (a * other.second - b * self.second)
        )
        self.second = self.second + other.second + step * part * (a * b)
        self.mean = self.mean + part * b
        self.count = n


def survey(source: SampleSource, seed: int, *, linear: bool, shapes: bool) -> Survey:
    """Read the samples once: O(n d^2) time where `linear` or `shapes`, O(d^2) memory.

    Parameters
    ----------
    source : SampleSource
        Samples; labels are not needed for `shapes`.
    seed : int
        Of the folds.
    linear : bool
        Take the moments of inputs and labels together by fold, not of the labels alone.
    shapes : bool
        Take the moments and fourth powers of the inputs.

    Raises
    ------
    InputError
        At the first number that is not finite, unless the source is known to have none.
    """
    parts = source.shares.each(_surveyed, source.n_samples, seed, linear, shapes, placed=True)
    rows, inputs, powers = parts[0]
    for more_rows, more_inputs, more_powers in parts[1:]:
        rows.merge(more_rows)
        if shapes:
            inputs.merge(more_inputs)
            powers.merge(more_powers)
    if not shapes:
        return Survey(rows, None, None)
    if linear:
        total, d = rows.total(), source.n_inputs
        inputs = Moments(total.count, total.mean[:d], total.scatter[:d, :d])
    return Survey(rows, inputs, powers.fourth)


def _surveyed(
    share: SampleSource, offset: int, n_rows: int, seed: int, linear: bool, shapes: bool
) -> tuple[FoldedMoments, Moments, PowerSums]:
    d = share.n_inputs
    folded = FoldedMoments(d * linear + share.has_target, n_rows, seed)
    inputs, powers = Moments.zero(d if shapes and not linear else 0), PowerSums(0, *np.zeros((4, d)))
    for chunk in share.checked():
        y = np.empty((len(chunk.X), 0)) if chunk.y is None else chunk.y[:, np.newaxis]
        folded.add(offset + chunk.start, np.hstack([chunk.X, y]) if linear else y)
        if shapes:
            if not linear:
                inputs.add(np.asarray(chunk.X, dtype=np.float64))
            for first in range(0, len(chunk.X), _ROWS):
                powers.merge(PowerSums.of(chunk.X[first : first + _ROWS]))
    return folded, inputs, powers
