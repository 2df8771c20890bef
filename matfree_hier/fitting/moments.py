"""Means, scatter matrices and cross-validated ridge regression from sums over rows, read once.

Rows belong to folds; one pass adds up each fold's moments, and every ridge strength or choice of columns is
then judged by cross-validation without another look at the rows. Memory does not depend on their number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Array: TypeAlias = NDArray[np.float64]

BLOCK = 1024  # rows whose order is drawn together
N_FOLDS = 10
_ROUNDING = 1e-12  # of the variance of the labels: errors below it are equal
EVIDENCE = 2.5  # standard errors by which columns must beat the first choice: ten folds have fat tails
STRENGTHS = np.concatenate([[1e-10], np.logspace(-6, 3, 28)])  # of ridges, on columns of unit variance


def shuffled_ranks(
    start: int, stop: int, n_rows: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw an order within every block of 1024 rows, the same for every chunking.

    Parameters
    ----------
    start, stop : int
        The rows asked for, 0 <= start <= stop <= n_rows.
    n_rows : int
        Rows in all: the last block may be short.
    seed : int
        Of the order, at least 0.

    Returns
    -------
    ranks, sizes : ndarray of int64, shape (stop - start,)
        The position of each row in its block's drawn order, and the size of that block.
    """
    first, last = start // BLOCK, -(-stop // BLOCK)
    ranks, sizes = [], []
    bits = np.random.Philox(key=seed)
    generator, state = np.random.Generator(bits), bits.state
    for block in range(first, last):
        size = min(BLOCK, n_rows - block * BLOCK)
        state["state"]["counter"][3] = block
        bits.state = state  # that of Philox(key=seed, counter=[0, 0, 0, block]), which asks for entropy
        ranks.append(generator.permutation(size))
        sizes.append(np.full(size, size))
    if not ranks:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    inside = slice(start - first * BLOCK, stop - first * BLOCK)
    return np.concatenate(ranks)[inside].astype(np.int64), np.concatenate(sizes)[inside].astype(np.int64)


@dataclass
class Moments:
    """Count, mean and scatter (sum of centred products) of rows of p columns.

    Attributes
    ----------
    count : int
        Rows so far.
    mean : ndarray of float64, shape (p,)
    scatter : ndarray of float64, shape (p, p)
    """

    count: int
    mean: Array
    scatter: Array

    @classmethod
    def zero(cls, n_columns: int) -> Self:
        """Moments of no rows."""
        return cls(0, np.zeros(n_columns), np.zeros((n_columns, n_columns)))

    def add(self, rows: Array) -> None:
        """Add rows, shape (m, p), float64. O(m p^2)."""
        if len(rows):
            mean = rows.mean(axis=0)
            centred = rows - mean
            self.merge(Moments(len(rows), mean, centred.T @ centred))

    def merge(self, other: Moments) -> None:
        """Add the rows of other moments (Chan, Golub and LeVeque 1983)."""
        if not other.count:
            return
        count = self.count + other.count
        step = other.mean - self.mean
        self.scatter += other.scatter + np.outer(step, step) * (self.count * other.count / count)
        self.mean = self.mean + step * (other.count / count)
        self.count = count

    def covariance(self) -> Array:
        """Scatter / count, shape (p, p)."""
        return self.scatter / max(self.count, 1)

    def squared_error(self, coefficients: Array, intercept: float) -> float:
        """Mean over the rows of (last column - others @ coefficients - intercept)^2."""
        combination = np.append(-coefficients, 1.0)
        bias = float(self.mean @ combination) - intercept
        return float(combination @ self.covariance() @ combination) + bias**2


class FoldedMoments:
    """Moments of rows [x, y] by fold; the last column is what least squares predicts from the others.

    Parameters
    ----------
    n_columns : int
        Columns, the target included.
    n_rows : int
        Rows that will be added in all.
    seed : int
        Of the assignment of rows to folds.
    """

    def __init__(self, n_columns: int, n_rows: int, seed: int) -> None:
        self.n_rows, self.seed = n_rows, seed
        self.folds = [Moments.zero(n_columns) for _ in range(min(N_FOLDS, max(n_rows, 1)))]

    def add(self, start: int, rows: Array) -> None:
        """Add consecutive rows, shape (m, p), the first of which is number `start`."""
        fold = shuffled_ranks(start, start + len(rows), self.n_rows, self.seed)[0] % len(self.folds)
        for i, moments in enumerate(self.folds):
            moments.add(rows[fold == i])

    def merge(self, other: FoldedMoments) -> None:
        """Add the rows of others, of the same folds."""
        for moments, more in zip(self.folds, other.folds, strict=True):
            moments.merge(more)

    def total(self, *, without: int | None = None) -> Moments:
        """Moments of all folds, or of all but one."""
        total = Moments.zero(len(self.folds[0].mean))
        for i, moments in enumerate(self.folds):
            if i != without:
                total.merge(moments)
        return total


_M = TypeVar("_M", Moments, FoldedMoments)


def merged(parts: Iterable[_M]) -> _M:
    """Return the moments of the rows of all parts, at least one; the first part becomes that."""
    rest = iter(parts)
    total = next(rest)
    for other in rest:
        total.merge(other)
    return total


@dataclass(frozen=True, eq=False)
class LinearFit:
    """y = x @ coefficients + intercept, and what cross-validation said of it.

    Attributes
    ----------
    coefficients : ndarray of float64, shape (p - 1,)
    intercept : float
    errors, errors_of_mean : ndarray of float64, shape (folds,)
        Mean squared errors of the fit and of the mean alone on each fold, fitted to the others.
    strength : float
        The ridge strength chosen, relative to columns of unit variance.
    """

    coefficients: Array
    intercept: float
    errors: Array
    errors_of_mean: Array
    strength: float

    @property
    def helps(self) -> bool:
        """Whether the fit beats the mean by more than 2.5 standard errors of the difference over folds."""
        return is_better(self.errors, self.errors_of_mean, by=EVIDENCE)

    @property
    def r2(self) -> float:
        """1 - error / error of the mean, 0 where the labels do not vary."""
        baseline = float(self.errors_of_mean.mean())
        return 1.0 - float(self.errors.mean()) / baseline if baseline > 0.0 else 0.0


def fit_ridge(moments: FoldedMoments) -> LinearFit:
    """Ridge regression of the last column on the others, its strength chosen by cross-validation.

    Columns are scaled to unit variance for the penalty, and columns that do not vary get 0. Cost O(p^3) a
    fold, whatever the number of rows.
    """
    return choose_columns(moments, [np.arange(len(moments.folds[0].mean) - 1)])[1]


def choose_columns(moments: FoldedMoments, choices: Sequence[NDArray[np.int64]]) -> tuple[int, LinearFit]:
    """Ridge regression of the last column on the best of several sets of the others, by cross-validation.

    Parameters
    ----------
    moments : FoldedMoments
        Of all columns any choice uses.
    choices : sequence of ndarray of int
        Sets of columns; the first is kept unless another beats it by more than 2.5 standard errors of the
        difference over folds; of those not worse than the best by more than one, the smallest is chosen.
        The empty set is the mean alone.

    Returns
    -------
    index, fit : int and LinearFit
        The choice, and its fit with coefficients for all columns, 0 outside the choice.
    """
    trains = [moments.total(without=i) for i in range(len(moments.folds))]
    judged = [_cross_validate(trains, moments.folds, columns) for columns in choices]
    best = min(range(len(choices)), key=lambda c: float(judged[c][1].mean()))
    if is_better(judged[best][1], judged[0][1], by=EVIDENCE):
        # The fewest columns that are not worse than the best by more than a standard error.
        few = sorted(range(len(choices)), key=lambda c: len(choices[c]))
        best = next(c for c in few if c == best or not is_better(judged[best][1], judged[c][1]))
    else:
        best = 0
    strength, errors = judged[best]
    coefficients, intercept = _ridge_path(moments.total(), choices[best])[strength]
    baseline = _cross_validate(trains, moments.folds, np.arange(0))[1]
    return best, LinearFit(coefficients, intercept, errors, baseline, float(STRENGTHS[strength]))


def refit(moments: FoldedMoments, more: Moments, columns: NDArray[np.int64], fit: LinearFit) -> LinearFit:
    """Return the fit with coefficients from more rows if those predict the folds better.

    Parameters
    ----------
    moments : FoldedMoments
        Those of `fit`, from `choose_columns`.
    more : Moments
        Of other rows, which may flatter the columns: the columns may be fitted to them. Coefficients from
        them are judged on the folds, and if better taken from both together.
    columns : ndarray of int
        The choice.
    fit : LinearFit
        To be replaced if its cross-validated error is larger by more than a standard error.
    """
    errors = np.array(
        [[fold.squared_error(*f) for fold in moments.folds] for f in _ridge_path(more, columns)]
    )
    best = int(np.argmin(errors.mean(axis=1)))
    if not is_better(errors[best], fit.errors):
        return fit
    total = moments.total()
    total.merge(more)
    coefficients, intercept = _ridge_path(total, columns)[best]
    return replace(
        fit,
        coefficients=coefficients,
        intercept=intercept,
        errors=errors[best],
        strength=float(STRENGTHS[best]),
    )


def _cross_validate(
    trains: Sequence[Moments], folds: Sequence[Moments], columns: NDArray[np.int64]
) -> tuple[int, Array]:
    """Return the number of the best of `STRENGTHS` and its error on each fold."""
    errors = np.array(
        [
            [fold.squared_error(*fit) for fit in _ridge_path(train, columns)]
            for train, fold in zip(trains, folds, strict=True)
        ]
    )
    # Below this the error of a perfect fit is rounding, and may even come out negative.
    floor = _ROUNDING * max(float(train.covariance()[-1, -1]) for train in trains)
    best = int(np.argmin(errors.mean(axis=0)))
    return best, np.maximum(errors[:, best], floor)


def is_better(errors: Array, baseline: Array, *, by: float = 1.0) -> bool:
    """Whether errors are below the baseline's by more than `by` standard errors of the mean difference.

    Differences are taken relative to the size of the errors of their fold: with heavy-tailed labels one fold
    may hold most of the variance, and its error alone would hide what all folds agree on.

    Parameters
    ----------
    errors, baseline : ndarray of float64, shape (folds,)
        Mean squared errors on each fold.
    by : float
        Standard errors asked for.
    """
    if len(errors) < 2 or not errors.mean() < baseline.mean():
        return False
    gain = (baseline - errors) / np.maximum(baseline + errors, np.finfo(np.float64).tiny)
    return bool(gain.mean() > max(by * gain.std(ddof=1) / np.sqrt(len(gain)), 0.0))


def column_scales(moments: Moments) -> tuple[Array, NDArray[np.bool_]]:
    """Return standard deviations, 1 where a column does not vary beyond rounding, and which columns vary.

    Returns
    -------
    scale : ndarray of float64, shape (p,)
    varies : ndarray of bool, shape (p,)
    """
    variance = np.diag(moments.covariance())
    varies = variance > (1e-12 * moments.mean) ** 2
    return np.sqrt(np.where(varies, variance, 1.0)), varies


def _ridge_path(moments: Moments, columns: NDArray[np.int64]) -> list[tuple[Array, float]]:
    """Coefficients, 0 outside the columns given, and intercept for each of `STRENGTHS`."""
    scale, varies = column_scales(moments)
    columns = columns[varies[columns]]
    scale = scale[columns]
    covariance = moments.covariance()
    values, vectors = np.linalg.eigh(covariance[np.ix_(columns, columns)] / np.outer(scale, scale))
    projected = vectors.T @ (covariance[columns, -1] / scale)
    path = []
    for strength in STRENGTHS:
        coefficients = np.zeros(len(moments.mean) - 1)
        coefficients[columns] = vectors @ (projected / (np.maximum(values, 0.0) + strength)) / scale
        path.append((coefficients, float(moments.mean[-1] - moments.mean[:-1] @ coefficients)))
    return path
