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
_CLEAR = 1.1  # half-widths from which an outlier is clear and its feature mostly signal
_NOISE_SHARE = 0.1  # of the sampling noise, which an eigenvector at the edge is computed to
_CAUTION = 1.5  # by which measured errors exceed those of the semicircle
_EDGE_ERROR = 0.05  # half-widths by which edges may be wrong that the products tell
_SMALLEST = 1e-9  # half-width of a bulk, over the norm
_SAME = 1e-9  # half-widths between eigenvalues that count as one


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

    All is measured in half-widths from the centre of the bulk, where an outlier is clear from 1.1 on. With g
    the distance from a clear one to where the eigenvalues that are not clear reach, and residuals r, its
    vector has an error of at most ``r_i/g`` off the basis and of ``r_i r_j/(g |w_i - w_j|)`` along another
    clear one (first and second order of perturbation). Nearer to the edge a residual r at rho spreads over a
    semicircle of eigenvalues x, so the error is about ``r E[(rho - x)^-2]^(1/2)``, which is ``r (2 rho/s -
    2)^(1/2)`` with ``s = (rho^2 - 1)^(1/2)``; the feature behind it is found to a sine of ``1/(rho + s)``
    (`theory`), mostly sampling noise, and a tenth of it will do: these are named in the message and not
    called resolved. A Ritz value within the bulk is told from outliers if its residual does not reach out, or
    after as many products as an outlier at 1.15 needs to come out of a random block: each multiplies it by
    ``rho + s``, starting from sqrt(b/D).

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
        """Return values of known residual as half-widths from the centre of the bulk, and the half-width."""
        low, high = self._bulk(ritz)
        half = max((high - low) / 2, _SMALLEST * ritz.norm) or 1.0
        return (ritz.values[: len(ritz.residuals)] - (low + high) / 2) / half, half

    def ratios(self, ritz: RitzValues) -> Array:
        """Return residuals over what is allowed; 0 for what is known to be bulk."""
        x, half = self._scaled(ritz)
        k = min(ritz.k, len(x))
        if not np.isfinite(half):  # too early to tell
            return np.full(k, np.inf)
        rho, r = np.abs(x), ritz.residuals * ritz.norm / half
        within = rho[:k] <= 1.0 + self._margin
        s = np.sqrt(np.where(within, 1.0, rho[:k] ** 2 - 1.0))
        noise = np.maximum(self.tol**0.5, _NOISE_SHARE / (rho[:k] + s))
        spread = r[:k] * np.sqrt(np.maximum(2.0 * rho[:k] / s - 2.0, 0.01))
        clear = self._clear(x)
        errors = np.where(clear[:k], self._errors(x, r, clear)[:k] / self.tol**0.5, _CAUTION * spread / noise)
        errors = np.minimum(errors, ritz.residuals[:k] / self.tol)
        hidden = np.zeros(k) if ritz.depth >= self._depth else (rho + r)[:k] / (1.0 + self._margin)
        return np.where(within, np.where(hidden > 1.0, hidden, 0.0), errors)

    def _clear(self, x: Array) -> NDArray[np.bool_]:
        return np.asarray(np.abs(x) > max(_CLEAR, 1.0 + self._margin))

    def _errors(self, x: Array, r: Array, clear: NDArray[np.bool_]) -> Array:
        """Bound the errors of the vectors of what is clear; the rest is not looked at."""
        reach = [np.max((np.abs(x) + r)[~clear & (x * end > 0.0)], initial=1.0) for end in (-1.0, 1.0)]
        gap = np.maximum(np.abs(x) - np.where(x > 0.0, reach[1], reach[0]), _SAME)
        apart = np.maximum(np.abs(x[:, None] - x), _SAME) + np.where(np.eye(len(x)) + ~clear, np.inf, 0.0)
        mixing = np.linalg.norm(r / apart, axis=1)
        bound: Array = r / gap * np.hypot(1.0, mixing)
        return bound

    def message(self, ritz: RitzValues) -> str:
        """Say how many of the pairs are outliers, and which are too close to the edge to be told."""
        low, high = self._bulk(ritz)
        x = self._scaled(ritz)[0][: ritz.k]
        clear = self._clear(x)
        near = ~clear & (np.abs(x) > 1.0 + self._margin)
        text = f"{int(clear.sum())} of {ritz.k} eigenvalues lie outside the bulk, {low:.4g} to {high:.4g}."
        if not near.any():
            return text
        values = ", ".join(f"{value:.4g}" for value in ritz.values[: ritz.k][near])
        return f"{text} At its edge, and not resolved to `tol`: {values}."


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
