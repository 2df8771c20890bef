"""When an iterative solve may stop: rules that turn Ritz pairs into one number a pair, 1 where it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from matfree_hier.solvers.subspace import ranking
from matfree_hier.status import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RitzValues:
    """What a rule sees.

    Attributes
    ----------
    values : ndarray of float64, shape (m,)
        Ritz values, ranked.
    residuals : ndarray of float64, shape (r,)
        Residual norms of the leading ones, over `norm`; r >= min(k, m).
    norm : float
        Largest absolute Ritz value seen.
    k : int
        Pairs asked for.
    which : str
        As in `top_eigenpairs`.
    depth : int
        Products that random directions have had.
    bulk : tuple of float
        Both edges of the bulk as the products tell, NaN where they do not.
    """

    values: Array
    residuals: Array
    norm: float
    k: int
    which: str
    depth: int
    bulk: tuple[float, float]


_LIMIT = 10.0  # residuals this close to the floor are limited by it, whatever else
_TRACY_WIDOM = 2.02 * 0.5  # 99 % of the law, in fluctuations of half a half-width times D^(-2/3)
_WEAKEST = 1.15  # half-widths from the centre at which an outlier is not to be missed
_CLEAR = 1.1  # half-widths from which a feature is mostly signal
_NOISE_SHARE = 0.1  # of the sampling noise, which an eigenvector at the edge is computed to
_CAUTION = 1.5  # by which measured errors exceed those of the semicircle
_EDGE_ERROR = 0.05  # half-widths by which edges may be wrong that the products tell
_SMALLEST = 1e-9  # half-width of a bulk, over the norm


class Rule(Protocol):
    """A stopping rule."""

    reached: Status
    """The status of a run that this rule ended."""
    tol: float

    def ratios(self, ritz: RitzValues) -> Array:
        """Return residuals over what is allowed, shape (min(k, m),)."""
        ...

    def message(self, ritz: RitzValues) -> str:
        """Say what the rule found, if there is something to say."""
        ...


class ResidualRule:
    """Every residual is at most `tol` times the norm of the operator."""

    reached = Status.CONVERGED

    def __init__(self, tol: float) -> None:
        self.tol = tol

    def ratios(self, ritz: RitzValues) -> Array:
        """Return residuals over the tolerance."""
        return ritz.residuals[: ritz.k] / self.tol

    def message(self, ritz: RitzValues) -> str:
        """Return nothing: the status says it."""
        del ritz
        return ""


class OutlierRule:
    """Outliers have eigenvectors within sqrt(tol) of the exact ones, the others are known to be bulk.

    All is measured in half-widths from the centre of the bulk. There a residual r of an outlier at rho
    spreads over a semicircle of eigenvalues x, so the error of its vector is ``r E[(rho - x)^-2]^(1/2)``,
    which is ``r (2 rho/s - 2)^(1/2)`` with ``s = (rho^2 - 1)^(1/2)``. The feature behind it is found to a
    sine of ``1/(rho + s)`` (`theory`): less than a tenth outside the bulk that is mostly sampling noise, and
    a tenth of it will do. A Ritz value within the bulk is told from outliers if its residual does not reach
    out, or after as many products as an outlier at 1.15 needs to come out of a random block: each multiplies
    it by ``rho + s``, starting from sqrt(b/D).

    Parameters
    ----------
    tol : float
        Square of the error of eigenvectors; residuals up to `tol` are good in any case.
    size, block_size : int
        D and b.
    edges : tuple of float, optional
        Edges of the bulk as predicted; those the products tell count where they lie further out, or alone.
    """

    reached = Status.OUTLIERS_RESOLVED

    def __init__(
        self, tol: float, size: int, block_size: int, edges: tuple[float, float] | None = None
    ) -> None:
        self.tol = tol
        self._edges = edges or (np.nan, np.nan)
        self._margin = _TRACY_WIDOM * size ** (-2.0 / 3.0) + (_EDGE_ERROR if edges is None else 0.0)
        start = (block_size / size) ** 0.5
        self._depth = int(np.ceil(np.log(4.0 / start) / np.arccosh(_WEAKEST))) if start < 1.0 else 1

    def _bulk(self, ritz: RitzValues) -> tuple[float, float]:
        low, high = self._edges
        return float(np.fmin(low, ritz.bulk[0])), float(np.fmax(high, ritz.bulk[1]))

    def _scaled(self, ritz: RitzValues) -> tuple[Array, float]:
        """Return the wanted values as half-widths from the centre of the bulk, and the half-width."""
        low, high = self._bulk(ritz)
        half = max((high - low) / 2, _SMALLEST * ritz.norm) or 1.0
        return np.abs(ritz.values[: ritz.k] - (low + high) / 2) / half, half

    def ratios(self, ritz: RitzValues) -> Array:
        """Return residuals over what is allowed; 0 for what is known to be bulk."""
        rho, half = self._scaled(ritz)
        if not np.isfinite(half):  # too early to tell
            return np.full(len(rho), np.inf)
        r = ritz.residuals[: len(rho)] * ritz.norm / half
        outside = rho > 1.0 + self._margin
        s = np.sqrt(np.where(outside, rho**2 - 1.0, 1.0))
        noise = np.where(rho < _CLEAR, _NOISE_SHARE / (rho + s), 0.0)
        allowed = np.maximum(self.tol**0.5, noise) / (
            _CAUTION * np.sqrt(np.maximum(2.0 * rho / s - 2.0, 0.01))
        )
        allowed = np.maximum(allowed, self.tol * ritz.norm / half)
        hidden = np.zeros(len(rho)) if ritz.depth >= self._depth else (rho + r) / (1.0 + self._margin)
        return np.where(outside, r / allowed, np.where(hidden > 1.0, hidden, 0.0))

    def message(self, ritz: RitzValues) -> str:
        """Say how many of the pairs are outliers."""
        low, high = self._bulk(ritz)
        n = int((self._scaled(ritz)[0] > 1.0 + self._margin).sum())
        return f"{n} of {ritz.k} eigenvalues lie outside the bulk, {low:.4g} to {high:.4g}."


def verdict(rule: Rule, ritz: RitzValues, floor: float, dtype: str) -> tuple[Status, str]:
    """Judge recomputed residuals.

    Parameters
    ----------
    rule : Rule
        What was asked for.
    ritz : RitzValues
        The pairs to be returned first, with their residuals.
    floor : float
        Relative residual that precision does not allow to go below.
    dtype : str
        What the operator computes in.

    Returns
    -------
    status : Status
        ``rule.reached``, DTYPE_LIMIT or else MAX_PASSES.
    message : str
        What the status leaves open.
    """
    if ritz.norm == 0.0:
        return Status.CONVERGED, "The operator is zero."
    ratios = rule.ratios(ritz)
    if len(ratios) and (ratios <= 1.0).all():
        reached = (ritz.residuals[: ritz.k] <= rule.tol).all()
        return Status.CONVERGED if reached else rule.reached, rule.message(ritz)
    failing = ritz.residuals[: ritz.k][ratios > 1.0]
    if len(failing) and failing.max() <= _LIMIT * floor:
        return Status.DTYPE_LIMIT, f"Residuals stopped at {failing.max():.1e} of the norm in {dtype}."
    return Status.MAX_PASSES, ""


def may_be_displaced(ritz: RitzValues, slack: float) -> bool:
    """Whether a Ritz pair outside the k asked for might still grow into one of them.

    A Ritz value with residual r has an eigenvalue within r.

    Parameters
    ----------
    ritz : RitzValues
        All ranked pairs.
    slack : float
        Differences of values that do not matter, over `norm`.
    """
    k, n_known = ritz.k, len(ritz.residuals)
    if n_known <= k:
        return False
    wanted, others = ritz.values[:k], ritz.values[k:n_known]
    reach = (ritz.residuals[k:] - slack) * ritz.norm
    for moved in (others + reach, others - reach):
        order = ranking(np.concatenate([wanted, moved]), ritz.which, k)
        if (order[:k] >= k).any():
            return True
    return False
