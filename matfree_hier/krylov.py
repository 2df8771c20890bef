"""Block Krylov subspaces with thick restart: the extreme eigenpairs in the fewest products.

Basis V and products W = C V are both kept, so that residuals come from true products and not from
recurrences. Each pass applies C to one new block, the residuals of the leading Ritz pairs that have not
converged; in exact arithmetic that is the block Krylov space of the first block. When the basis is full it
is rotated to its best Ritz vectors (thick restart). Converged pairs stay in the basis and are not expanded
any more (soft locking). The last pass recomputes the residuals on C V, which is known without a product and
one step of subspace iteration better than V, so that checking costs nothing.

References
----------
K. Wu, H. Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, SIAM J. Matrix Anal.
Appl. 22 (2000), doi:10.1137/S0895479898334605. A. Stathopoulos, J. McCombs, PRIMME, ACM Trans. Math. Softw.
37 (2010), doi:10.1145/1731022.1731031.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from matfree_hier.products import OperatorFault, Products
from matfree_hier.result import History
from matfree_hier.status import Status
from matfree_hier.stopping import ResidualRule, RitzValues, Rule, may_be_displaced, verdict
from matfree_hier.subspace import ROUNDING, filled, orthonormal, product_noise, rayleigh_ritz, residual_floor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_CONTRACTION_MARGIN = 1.3  # on the guess of what the checking product gains
_EARLY = 0.9  # the checking product is made early if residuals are expected below this share of `tol`
_MAX_FAILED_CHECKS = 2
_ARRAYS = ("_V", "_W", "_H", "_block")
_SCALARS = ("_norm", "_noise", "_n_random", "_depth", "_seconds", "_n_failed_checks", "_is_expanded")
_EXPLORED = 6  # products after which a random block has seen what is extreme


@dataclass(frozen=True)
class Options:
    """What a solve is asked for; see `top_eigenpairs`. Sizes are resolved: no None."""

    k: int
    which: str
    tol: float
    block_size: int
    max_basis: int
    max_passes: float
    seed: int


@dataclass(frozen=True, eq=False)
class Ritz(RitzValues):
    """Ritz pairs of the basis as it is: coefficients S (m, m), residual vectors (D, r)."""

    S: Array
    residual_vectors: Array


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a solve ended: pairs ranked, not yet signed."""

    values: Array
    vectors: Array
    residuals: Array
    norm: float
    status: Status
    message: str


class BlockKrylov:
    """A solve that can be stopped after any pass, stored, and continued to the same bits.

    Parameters
    ----------
    products : Products
        The operator.
    options : Options
        What is asked for.
    rule : Rule, optional
        When to stop; by default on residuals of `options.tol`.
    start : ndarray of float64, shape (D, s), optional
        Guesses of eigenvectors, s <= D; random ones otherwise, and beside them.
    """

    def __init__(
        self, products: Products, options: Options, rule: Rule | None = None, start: Array | None = None
    ) -> None:
        self.products = products
        self.options = options
        self.rule = rule or ResidualRule(options.tol)
        self.rng = np.random.default_rng(options.seed)
        self.history = History()
        self._V = np.empty((products.size, 0), order="F")
        self._W = np.empty((products.size, 0), order="F")
        self._H = np.zeros((0, 0))
        self._norm = 0.0
        self._noise = 0.0
        self._inner = (np.inf, -np.inf)  # range of the Ritz values not asked for
        self._n_random = 0  # random directions put in so far: the most copies of an eigenvalue that show
        self._depth = 0  # products since random directions were last called for
        self._seconds = 0.0
        self._n_failed_checks = 0
        self._block = self._first_block(start)
        self._is_expanded = False  # whether the block has been applied to and is in the basis

    # --- the state -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that it takes to go on: arrays (not copied) in their memory order, and scalars."""
        return {
            "arrays": {name: getattr(self, name) for name in _ARRAYS},
            "scalars": {name: getattr(self, name) for name in _SCALARS},
            "inner": list(map(float.hex, self._inner)),
            "passes": self.products.passes,
            "generator": json.dumps(self.rng.bit_generator.state),
            "history": self.history.to_arrays(),
        }

    @classmethod
    def from_state(
        cls, products: Products, options: Options, state: Mapping[str, Any], rule: Rule | None = None
    ) -> Self:
        """Rebuild a solve from its `state`; it goes on to the bits it would have come to.

        Parameters
        ----------
        products : Products
            The same operator; its count of passes is set to that of the state.
        options : Options
            The same, except for `max_passes`.
        state : mapping
            As from `state`.
        rule : Rule, optional
            The same.
        """
        solver = cls.__new__(cls)
        solver.products, solver.options = products, options
        solver.rule = rule or ResidualRule(options.tol)
        for name in _ARRAYS:
            setattr(solver, name, state["arrays"][name])
        for name in _SCALARS:
            setattr(solver, name, state["scalars"][name])
        low, high = (float.fromhex(text) for text in state["inner"])
        solver._inner = (low, high)
        products.passes = float(state["passes"])
        solver.rng = np.random.default_rng()
        solver.rng.bit_generator.state = json.loads(state["generator"])
        solver.history = History.from_arrays(state["history"])
        return solver

    # --- the loop ------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        after_pass: Callable[[BlockKrylov, Ritz], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Iterate until the rule is met or something ends the run.

        Parameters
        ----------
        after_pass : callable, optional
            Called at the end of each pass, when the state is whole.
        should_stop : callable
            Asked at the end of each pass.

        Returns
        -------
        Outcome
            Cost a pass: one product of width b, 12 D m b + 4 D m (k + b) operations for a basis of m.
        """
        try:
            while True:
                started = time.perf_counter()
                if not self._is_expanded:
                    self._expand()
                ritz = self._ritz()
                outcome = self._finished(ritz)
                if outcome is None:
                    self._prepare_next(ritz)
                self._seconds += time.perf_counter() - started
                self._record(ritz, outcome)
                if outcome is not None:
                    return outcome
                if after_pass is not None:
                    after_pass(self, ritz)
                if should_stop():
                    return self._partial(Status.INTERRUPTED, "")
        except KeyboardInterrupt:
            return self._partial(Status.INTERRUPTED, "")
        except OperatorFault as fault:
            return self._partial(Status.OPERATOR_FAILED, str(fault))

    def _expand(self) -> None:
        """Apply the operator to the new block and project: one pass."""
        Q = self._block
        W = self.products(Q)
        m, width = self._V.shape[1], Q.shape[1]
        V = _appended(self._V, Q)
        H = np.zeros((m + width, m + width))
        H[:m, :m] = self._H
        H[:, m:] = V.T @ W
        self._noise = max(self._noise, product_noise(H[m:, m:], self.products.size))
        H[m:, :m] = H[:m, m:].T
        H[m:, m:] = (H[m:, m:] + H[m:, m:].T) / 2
        # Together, and last, so that an interruption finds the state before or after.
        self._V, self._W, self._H = V, _appended(self._W, W), H
        self._depth += 1
        self._is_expanded = True

    def _ritz(self) -> Ritz:
        """Rayleigh-Ritz on the whole basis, with the residuals of the pairs that matter."""
        options = self.options
        values, S = rayleigh_ritz(self._H, options.which, options.k)
        self._norm = max(self._norm, float(np.abs(values).max()))
        others = values[options.k :]
        if len(others):
            self._inner = (min(self._inner[0], others.min()), max(self._inner[1], others.max()))
        lead = S[:, : options.k + 2 * options.block_size]
        R = self._W @ lead - (self._V @ lead) * values[: lead.shape[1]]
        norms = np.linalg.norm(R, axis=0)
        residuals = norms / self._norm if self._norm > 0.0 else norms
        return Ritz(values, residuals, self._norm, options.k, options.which, S, R)

    # --- what to apply the operator to next ----------------------------------------------------------------

    def _first_block(self, start: Array | None) -> Array:
        """Return the start and a whole block of random directions, which find what the start does not."""
        Q = np.empty((self.products.size, 0), order="F") if start is None else orthonormal(start, self._V)
        return self._filled(Q, Q.shape[1] + self.options.block_size)

    def _filled(self, Q: Array, width: int) -> Array:
        """Widen a block by random directions, and note how many."""
        wide = filled(Q, self._V, width, self.rng)
        self._n_random += wide.shape[1] - Q.shape[1]
        return wide

    def _prepare_next(self, ritz: Ritz) -> None:
        """Choose the next block, and make room for it in the basis."""
        options = self.options
        open_pairs = np.flatnonzero(ritz.residuals > ROUNDING * self.products.eps)[: options.block_size]
        if self._is_done(ritz) and self._lacks_copies(ritz):
            open_pairs, self._depth = open_pairs[:0], 0
        Z = ritz.residual_vectors[:, open_pairs]
        block = self._filled(orthonormal(Z, self._V), options.block_size)
        if self._V.shape[1] + block.shape[1] > options.max_basis:
            self._restart(ritz)
        self._block = block
        self._is_expanded = False

    def _restart(self, ritz: Ritz) -> None:
        """Keep the best Ritz vectors (thick restart); the next block is orthogonal to all that is dropped."""
        options = self.options
        room = options.max_basis - options.block_size
        keep = min(room, max(options.k + options.block_size, options.max_basis // 2))
        S = ritz.S[:, :keep]
        V, W = self._V @ S, self._W @ S
        self._V, self._W, self._H = np.asfortranarray(V), np.asfortranarray(W), np.diag(ritz.values[:keep])

    # --- when to stop --------------------------------------------------------------------------------------

    @property
    def floor(self) -> float:
        """Relative residuals that the operator's precision cannot go below."""
        return residual_floor(self.products.eps, self._noise, self._norm)

    def _ratios(self, ritz: Ritz) -> Array:
        """Residuals of the wanted pairs over what is asked for and can be reached."""
        at_floor = ritz.residuals[: ritz.k] / self.floor
        return np.minimum(self.rule.ratios(ritz), at_floor)

    def _is_done(self, ritz: Ritz) -> bool:
        return len(ritz.values) >= ritz.k and bool((self._ratios(ritz) <= 1.0).all())

    def _finished(self, ritz: Ritz) -> Outcome | None:
        """Decide whether to end; what the checking product then says is the result, if it is good."""
        whole = len(ritz.values) == self.products.size
        is_last = self.products.passes + 2 * self.products.cost > self.options.max_passes
        is_done = self._is_done(ritz)
        may_stop = len(ritz.values) >= ritz.k and not self._may_miss_pairs(ritz)
        if not (whole or is_last or (may_stop and (is_done or self._is_nearly_done(ritz)))):
            return None
        outcome = self._checked(ritz)
        if whole or is_last or outcome.status is not Status.MAX_PASSES:
            return outcome
        self._n_failed_checks += 1
        if is_done and self._n_failed_checks > _MAX_FAILED_CHECKS:
            message = "Residuals recomputed at the end are larger: the operator does not repeat its products."
            return replace(outcome, message=message)
        return None

    def _is_nearly_done(self, ritz: Ritz) -> bool:
        """Whether the step that comes with the check is expected to bring residuals below what is asked."""
        if self._n_failed_checks:
            return False
        return bool((self._ratios(ritz) * self._contraction(ritz) <= _EARLY).all())

    def _may_miss_pairs(self, ritz: Ritz) -> bool:
        """Whether eigenvectors may be missing because nothing in the basis points to them yet.

        A start of exact eigenvectors points to nothing else: random directions must have had some products.
        """
        if len(ritz.values) == self.products.size:
            return False
        if self._depth < 2 or self._lacks_copies(ritz):
            return True
        return self._depth < _EXPLORED and may_be_displaced(ritz, max(self.options.tol, self.floor))

    def _lacks_copies(self, ritz: Ritz) -> bool:
        """Whether there may be more copies of an eigenvalue: r random directions show at most r of them."""
        tolerance = 10.0 * max(self.options.tol**2, self.floor) * ritz.norm
        return _largest_cluster(ritz.values[: ritz.k], tolerance) >= self._n_random

    def _polish(self, ritz: Ritz) -> Array:
        """Return an orthonormal basis of the wanted Ritz vectors after one step V + R/(w - a).

        With a the middle of the unwanted values, the new residual is (C - a) R/(w - a): smaller, since R
        lies where C - a is small. (C - a) V is known, so no product is needed.
        """
        V = self._V @ ritz.S[:, : ritz.k]
        if not self._n_failed_checks:
            V += ritz.residual_vectors[:, : ritz.k] * self._steps(ritz)
        return np.asfortranarray(np.linalg.qr(V)[0])

    def _steps(self, ritz: Ritz) -> Array:
        """Return 1/(w - a) for the pairs asked for, and 0 where w lies among the unwanted values."""
        low, high = self._inner
        distances = ritz.values[: ritz.k] - (low + high) / 2
        safe = np.abs(distances) > max((high - low) / 2, ROUNDING * self.products.eps * ritz.norm)
        return np.divide(1.0, distances, out=np.zeros_like(distances), where=safe & np.isfinite(high - low))

    def _contraction(self, ritz: Ritz) -> Array:
        """Guess the factor by which `_polish` shrinks each residual, from the last block's products."""
        low, high = self._inner
        width = self._block.shape[1]
        growth = np.linalg.norm(self._W[:, -width:] - (low + high) / 2 * self._V[:, -width:]) / width**0.5
        steps = np.abs(self._steps(ritz))
        return np.where(steps > 0.0, np.minimum(_CONTRACTION_MARGIN * growth * steps, 1.0), 1.0)

    def _checked(self, ritz: Ritz) -> Outcome:
        """Recompute residuals by a product with the polished vectors."""
        if self.products.passes + self.products.cost > self.options.max_passes:
            return self._partial(Status.MAX_PASSES, "")
        Q = self._polish(ritz)
        W = self.products(Q)
        values, S = rayleigh_ritz(Q.T @ W, ritz.which, ritz.k)
        vectors = Q @ S
        norm = max(ritz.norm, float(np.abs(values).max()))
        residuals = np.linalg.norm(W @ S - vectors * values, axis=0)
        residuals = residuals / norm if norm > 0.0 else residuals
        everything = np.concatenate([values, ritz.values[ritz.k :]])
        checked = RitzValues(everything, residuals, norm, ritz.k, ritz.which)
        status, message = verdict(self.rule, checked, self.floor, self.products.dtype.name)
        if status.ok and self._may_miss_pairs(ritz):
            status, message = Status.MAX_PASSES, "Better pairs may exist: passes did not suffice to look."
        return Outcome(values, vectors, residuals, norm, status, message)

    def _partial(self, status: Status, message: str) -> Outcome:
        """Return the best pairs of the basis as it is, with residuals from the products made."""
        if not self._V.shape[1]:
            empty = np.empty(0)
            return Outcome(empty, np.empty((self.products.size, 0)), empty, 0.0, status, message)
        return self._outcome(self._ritz(), status, message)

    def so_far(self, ritz: Ritz) -> Outcome:
        """Return the pairs of a pass as the result of a run that would end there."""
        return self._outcome(ritz, Status.CONVERGED if self._is_done(ritz) else Status.MAX_PASSES, "")

    def _outcome(self, ritz: Ritz, status: Status, message: str) -> Outcome:
        k = ritz.k
        vectors = self._V @ ritz.S[:, :k]
        return Outcome(ritz.values[:k], vectors, ritz.residuals[:k], ritz.norm, status, message)

    def _record(self, ritz: Ritz, outcome: Outcome | None) -> None:
        k = ritz.k
        values, residuals = ritz.values[:k], ritz.residuals[:k]
        if outcome is not None and len(outcome.values):
            values, residuals = outcome.values, outcome.residuals
        self.history.append(
            self.products.passes,
            values,
            residuals,
            seconds=self._seconds,
            samples_per_second=self.products.samples_per_second,
        )


def _appended(A: Array, B: Array) -> Array:
    """Return [A, B] in Fortran order, so that bits do not depend on how the columns came together."""
    out = np.empty((len(B), A.shape[1] + B.shape[1]), order="F")
    out[:, : A.shape[1]], out[:, A.shape[1] :] = A, B
    return out


def _largest_cluster(values: Array, tolerance: float) -> int:
    """Return how many of the values, sorted, lie in the longest run of steps within the tolerance."""
    steps = np.diff(np.sort(values)) <= tolerance
    longest = current = 0
    for close in steps:
        current = current + 1 if close else 0
        longest = max(longest, current)
    return longest + 1
