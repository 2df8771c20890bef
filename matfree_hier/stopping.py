"""When an iterative solve may stop: rules that turn Ritz pairs into one number a pair, 1 where it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from matfree_hier.status import Status
from matfree_hier.subspace import ranking

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
    """

    values: Array
    residuals: Array
    norm: float
    k: int
    which: str


_LIMIT = 10.0  # residuals this close to the floor are limited by it, whatever else


class Rule(Protocol):
    """A stopping rule."""

    reached: Status
    """The status of a run that this rule ended."""

    def ratios(self, ritz: RitzValues) -> Array:
        """Return residuals over what is allowed, shape (min(k, m),)."""
        ...


class ResidualRule:
    """Every residual is at most `tol` times the norm of the operator."""

    reached = Status.CONVERGED

    def __init__(self, tol: float) -> None:
        self.tol = tol

    def ratios(self, ritz: RitzValues) -> Array:
        """Return residuals over the tolerance."""
        return ritz.residuals[: ritz.k] / self.tol


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
        return rule.reached, ""
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
