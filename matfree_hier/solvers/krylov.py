"""Block Krylov subspaces with thick restart: the extreme eigenpairs in the fewest products.

Basis V and products W = C V are both kept, so that residuals come from true products and not from
recurrences. Each pass applies C to one new block, the residuals of the leading Ritz pairs that have not
converged; in exact arithmetic that is the block Krylov space of the first block. A cheap stand-in for C,
where there is one, turns each block into a better one before C is spent on it (`coarse`). When the basis is
full it is rotated to its best Ritz vectors (thick restart). Converged pairs stay in the basis and are not
expanded any more (soft locking). The last pass recomputes the residuals on C V, which is known without a
product and one step of subspace iteration better than V, so that checking costs nothing.

References
----------
K. Wu, H. Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, SIAM J. Matrix Anal.
Appl. 22 (2000), doi:10.1137/S0895479898334605. A. Stathopoulos, J. McCombs, PRIMME, ACM Trans. Math. Softw.
37 (2010), doi:10.1145/1731022.1731031.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.solvers.coarse import Model, solve_model
from matfree_hier.solvers.products import OperatorFault, Products
from matfree_hier.solvers.records import Options, Outcome, Ritz, State
from matfree_hier.solvers.space import PLAIN, Space
from matfree_hier.solvers.stopping import ResidualRule, RitzValues, Rule, may_be_displaced, verdict
from matfree_hier.solvers.subspace import (
    ROUNDING,
    product_noise,
    rayleigh_ritz,
    residual_floor,
)
from matfree_hier.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_CONTRACTION_MARGIN = 1.3  # on the guess of what the checking product gains
_MODEL_MARGIN = 1.5  # on the guess of what a step by the coarse model gains
_EARLY = 0.9  # the checking product is made early if residuals are expected below this share of `tol`
_MAX_FAILED_CHECKS = 2
_ROWS = 4096  # of the basis rotated at a time
_BESIDE = 64  # random directions beside a start: with 8, eigenvectors of a bulk passed for the leading ones
_EXPLORED = 6  # products after which a random block has seen what is extreme


class BlockKrylov:
    """A solve that can be stopped after any pass, stored, and continued to the same bits.

    Parameters
    ----------
    products : Products
        The operator; its count of passes is set to that of the state.
    options : Options
        What is asked for.
    rule : Rule, optional
        When to stop; by default on residuals of `options.tol`.
    start : ndarray of float64, shape (D, s), optional
        Guesses of eigenvectors, s <= D; random ones otherwise, and beside them.
    coarse : Products, optional
        A cheap operator close to this one.
    space : Space
        The inner product; V is orthonormal in it, and residuals are C v - w B v.
    state : mapping, optional
        Goes on from what `state.to_dict` returned; `start` is not looked at then.
    """

    def __init__(
        self,
        products: Products,
        options: Options,
        rule: Rule | None = None,
        *,
        start: Array | None = None,
        coarse: Products | None = None,
        space: Space = PLAIN,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.products, self.options, self.coarse, self.space = products, options, coarse, space
        self.rows = space.rows
        self.rule = rule or ResidualRule(options.tol)
        shape = (self.rows.here(products.size), options.max_basis)
        # Memory is taken as columns are written.
        self._V, self._W = np.empty(shape, order="F"), np.empty(shape, order="F")
        if state is not None:
            self.state = State.from_dict(state)
            self.state.V = _extended(self._V, 0, self.state.V)
            self.state.W = _extended(self._W, 0, self.state.W)
            products.passes = self.state.passes
            return
        first = self._V[:, :0] if start is None else space.orthonormal(start)
        self.state = State(self._V[:, :0], self._W[:, :0], np.zeros((0, 0)), first, passes=products.passes)

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
            Cost a pass: one product of width b, 12 D m b + 4 D m (k + 2 b) operations for a basis of m.
        """
        try:
            while True:
                started = time.perf_counter()
                ritz, outcome = self._pass()
                self.state.seconds += time.perf_counter() - started
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
        finally:
            self.products.passes = self.state.passes

    def _pass(self) -> tuple[Ritz, Outcome | None]:
        """Go through the stages of one pass, from where the state is.

        Products may be interrupted, and each stage makes them before it changes the state.
        """
        state = self.state
        if state.stage == "begin":
            self._begin()
            self._enter("expand")
        if state.stage == "expand":
            self._expand()
            self._enter("judge")
        ritz = self._ritz()
        if state.stage == "judge":
            outcome = self._finished(ritz)
            if outcome is not None:
                self._enter("judge")
                return ritz, outcome
            self._enter("prepare")
        self._prepare(ritz)
        self._enter("expand")
        return ritz, None

    def _enter(self, stage: str) -> None:
        self.state.stage, self.state.passes = stage, self.products.passes

    def _expand(self) -> None:
        """Apply the operator to the new block and project."""
        state, Q = self.state, self.state.block
        W = self.products(Q)
        m, width = state.V.shape[1], Q.shape[1]
        state.V, state.W = _extended(self._V, m, Q), _extended(self._W, m, W)
        H = np.zeros((m + width, m + width))
        H[:m, :m] = state.H
        H[:, m:] = self.rows.dot(state.V, W)
        H[m:, :m] = H[:m, m:].T
        noise = product_noise(H[m:, m:], self.products.size)
        H[m:, m:] = (H[m:, m:] + H[m:, m:].T) / 2
        state.H = H
        new = [np.trace(H[m:, m:]) / width, (H[:m, m:] ** 2).sum() / width, noise]
        *row, noise = self.rows.agreed(np.array(new))
        state.coefficients = np.vstack([state.coefficients, row])
        state.noise = max(state.noise, float(noise))
        state.depth += 1

    def _ritz(self) -> Ritz:
        """Rayleigh-Ritz on the whole basis, with the residuals of the pairs that matter."""
        state, options = self.state, self.options
        values, S = self._rayleigh_ritz(state.H)
        state.norm = max(state.norm, float(np.abs(values).max()))
        if len(values) > options.k:
            others = values[options.k :]
            state.low, state.high = min(state.low, others.min()), max(state.high, others.max())
        lead = S[:, : options.k + 2 * options.block_size]
        R = state.W @ lead
        R -= self.space.apply(state.V @ lead) * values[: lead.shape[1]]
        residuals = self.rows.norms(R) / (state.norm or 1.0)
        return Ritz(values, residuals, state.norm, options.k, options.which, state.depth, self._bulk(), S, R)

    def _rayleigh_ritz(self, H: Array) -> tuple[Array, Array]:
        """Return the eigenpairs of H, ranked: the same on all processes that the rows are divided between."""
        values, S = rayleigh_ritz(H, self.options.which, self.options.k)
        return self.rows.agreed(values), self.rows.agreed(S)

    def _bulk(self) -> tuple[float, float]:
        """Return both edges of the bulk, a -+ 2 b for the limits of the Lanczos coefficients a and b.

        Where the blocks have used up a share of all directions, b^2 has shrunk by as much.
        """
        width = self.options.block_size
        known = self.state.coefficients[: max(3, self.products.size // (2 * width))]
        if len(known) < 2 or self.coarse is not None:  # whose blocks are not those of Lanczos
            return np.nan, np.nan
        left = np.maximum(1.0 - np.arange(len(known)) * width / self.products.size, 0.1)
        late = slice(1 + len(known) // 2 if len(known) > 3 else 1, None)
        middle = float(np.median(known[late, 0]))
        half = 2.0 * float(np.median(known[late, 1] / left[late])) ** 0.5
        return middle - half, middle + half

    # --- what to apply the operator to next ----------------------------------------------------------------

    def _begin(self) -> None:
        """Take a start and beside it many random directions, which find what the start does not."""
        state, options = self.state, self.options
        n_given = state.block.shape[1]
        room = options.max_basis - options.block_size - n_given
        beside = max(options.block_size, min(_BESIDE, room) if n_given else 0)
        block, n_random = self._filled(state.block, n_given + beside)
        if self.coarse is not None and not state.block.shape[1]:
            model = self._model(block, None)
            block = model.leaving(state.V, options.block_size, self.products.eps)
        state.block, state.n_random = block, n_random

    def _prepare(self, ritz: Ritz) -> None:
        """Choose the next block, and make room for it in the basis."""
        state, options = self.state, self.options
        open_pairs = np.flatnonzero(ritz.residuals > ROUNDING * self.products.eps)[: options.block_size]
        more_copies = self._is_done(ritz) and self._lacks_copies(ritz)
        R = ritz.R[:, open_pairs[:0] if more_copies else open_pairs]
        block = self.space.orthonormal(self.space.directions(R), state.V)
        if self.coarse is not None and block.shape[1]:
            model = self._model(block, ritz)
            block = model.leaving(state.V, options.block_size, self.products.eps)
        block, n_random = self._filled(block, options.block_size)
        if state.V.shape[1] + block.shape[1] > options.max_basis:
            self._restart(ritz)
        state.block, state.n_random = block, n_random
        state.depth = 0 if more_copies else state.depth
        state.worst = self._worst(ritz)

    def _filled(self, Q: Array, width: int) -> tuple[Array, int]:
        """Widen a block by random directions; return with it how many there have been."""
        rng = np.random.default_rng([self.options.seed, self.state.n_random])
        wide = self.space.filled(Q, self.state.V, width, rng)
        return wide, self.state.n_random + wide.shape[1] - Q.shape[1]

    def _model(self, block: Array, ritz: Ritz | None) -> Model:
        """Ask the coarse operator how to go on; its passes count with the others."""
        assert self.coarse is not None
        options, before = self.options, self.coarse.passes
        values, R = (np.empty(0), block[:, :0]) if ritz is None else (ritz.values[: ritz.R.shape[1]], ritz.R)
        model = solve_model(
            self.coarse, block, self.state.V, values, R,
            k=options.k, width=options.block_size, which=options.which,
        )  # fmt: skip
        self.products.passes += self.coarse.passes - before
        return model

    def _restart(self, ritz: Ritz) -> None:
        """Keep the best Ritz vectors (thick restart); the next block is orthogonal to all that is dropped."""
        state, options = self.state, self.options
        room = options.max_basis - options.block_size
        keep = min(room, max(options.k + options.block_size, options.max_basis // 2))
        for columns in (state.V, state.W):
            for start in range(0, len(columns), _ROWS):
                rows = columns[start : start + _ROWS]
                rows[:, :keep] = rows @ ritz.S[:, :keep]
        state.V, state.W = self._V[:, :keep], self._W[:, :keep]
        state.H = np.diag(ritz.values[:keep])

    # --- when to stop --------------------------------------------------------------------------------------

    @property
    def floor(self) -> float:
        """Relative residuals that the operator's precision cannot go below."""
        floor = residual_floor(self.products.eps, self.state.noise, self.state.norm)
        return max(floor, self.space.rounding)

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
        self.state.n_failed_checks += 1
        if is_done and self.state.n_failed_checks > _MAX_FAILED_CHECKS:
            message = "Residuals recomputed at the end are larger: the operator does not repeat its products."
            return replace(outcome, message=message)
        return None

    def _ratios(self, ritz: Ritz) -> Array:
        """Residuals of the wanted pairs over what is asked for and can be reached."""
        at_floor = ritz.residuals[: ritz.k] / self.floor
        return np.minimum(self.rule.ratios(ritz), at_floor)

    def _is_done(self, ritz: Ritz) -> bool:
        return len(ritz.values) >= ritz.k and bool((self._ratios(ritz) <= 1.0).all())

    def _is_nearly_done(self, ritz: Ritz) -> bool:
        """Whether the step that comes with the check is expected to bring residuals below what is asked."""
        if self.state.n_failed_checks or not self.space.plain:
            return False
        if self.coarse is not None:  # the step is that of a pass, which gains what the last one did
            worst = self._worst(ritz)
            return worst * min(_MODEL_MARGIN * worst / self.state.worst, 1.0) <= _EARLY
        return bool((self._ratios(ritz) * self._contraction(ritz) <= _EARLY).all())

    def _worst(self, ritz: Ritz) -> float:
        return float(self._ratios(ritz).max()) if len(ritz.values) >= ritz.k else np.inf

    def _may_miss_pairs(self, ritz: Ritz) -> bool:
        """Whether eigenvectors may be missing because nothing in the basis points to them yet.

        A start of exact eigenvectors points to nothing else: random directions must have had some products.
        """
        if len(ritz.values) == self.products.size:
            return False
        if self.state.depth < 2 or self._lacks_copies(ritz):
            return True
        return self.state.depth < _EXPLORED and may_be_displaced(ritz, max(self.options.tol, self.floor))

    def _lacks_copies(self, ritz: Ritz) -> bool:
        """Whether there may be more copies of an eigenvalue: r random directions show at most r of them."""
        tolerance = 10.0 * max(self.options.tol**2, self.floor) * ritz.norm
        return _largest_cluster(ritz.values[: ritz.k], tolerance) >= self.state.n_random

    # --- the check at the end ------------------------------------------------------------------------------

    def _polish(self, ritz: Ritz) -> Array:
        """Return an orthonormal basis of the wanted Ritz vectors after one step, V + R/(w - a) or better.

        With a the middle of the unwanted values, the new residual is (C - a) R/(w - a): smaller, since R
        lies where C - a is small. (C - a) V is known, so no product is needed. The eigenvectors of the
        coarse model are a larger step still.
        """
        V = self.state.V @ ritz.S[:, : ritz.k]
        if self.coarse is not None and not self._is_done(ritz):
            model = self._model(self.space.orthonormal(ritz.R[:, : ritz.k], self.state.V), ritz)
            V = model.vectors(self.state.V @ ritz.S[:, : ritz.R.shape[1]])[:, : ritz.k]
        elif not self.state.n_failed_checks and self.space.plain:
            V += ritz.R[:, : ritz.k] * self._steps(ritz)
        return self.space.basis(V)

    def _steps(self, ritz: Ritz) -> Array:
        """Return 1/(w - a) for the pairs asked for, and 0 where w lies among the unwanted values."""
        low, high = self.state.low, self.state.high
        distances = ritz.values[: ritz.k] - (low + high) / 2 if low <= high else np.zeros(ritz.k)
        safe = np.abs(distances) > max((high - low) / 2, ROUNDING * self.products.eps * ritz.norm)
        return np.divide(1.0, distances, out=np.zeros_like(distances), where=safe)

    def _contraction(self, ritz: Ritz) -> Array:
        """Guess the factor by which `_polish` shrinks each residual, from the last block's products."""
        state, width = self.state, self.state.block.shape[1]
        steps = np.abs(self._steps(ritz))
        if not steps.any():
            return np.ones_like(steps)
        last = state.W[:, -width:] - (state.low + state.high) / 2 * state.V[:, -width:]
        mean_square = (self.rows.norms(last) ** 2).mean(keepdims=True)
        growth = self.rows.agreed(np.sqrt(mean_square))
        return np.where(steps > 0.0, np.minimum(_CONTRACTION_MARGIN * growth * steps, 1.0), 1.0)

    def _checked(self, ritz: Ritz) -> Outcome:
        """Recompute residuals by a product with the polished vectors."""
        if self.products.passes + self.products.cost > self.options.max_passes:
            return self._partial(Status.MAX_PASSES, "")
        Q = self._polish(ritz)
        W = self.products(Q)
        values, S = self._rayleigh_ritz(self.rows.dot(Q, W))
        vectors = Q @ S
        norm = max(ritz.norm, float(np.abs(values).max()))
        residuals = self.rows.norms(W @ S - self.space.apply(vectors) * values) / (norm or 1.0)
        everything = np.concatenate([values, ritz.values[ritz.k :]])
        all_residuals = np.concatenate([residuals, ritz.residuals[ritz.k :]])
        checked = RitzValues(everything, all_residuals, norm, ritz.k, ritz.which, ritz.depth, ritz.bulk)
        status, message = verdict(self.rule, checked, self.floor, self.products.dtype.name)
        if status.ok and self._may_miss_pairs(ritz):
            status, message = Status.MAX_PASSES, "Better pairs may exist: passes did not suffice to look."
        return Outcome(values, vectors, residuals, norm, status, message)

    def _partial(self, status: Status, message: str) -> Outcome:
        """Return the best pairs of the basis as it is, with residuals from the products made."""
        if not self.state.V.shape[1]:
            empty = np.empty(0)
            return Outcome(empty, self._V[:, :0], empty, 0.0, status, message)
        return self._outcome(self._ritz(), status, message)

    def so_far(self, ritz: Ritz) -> Outcome:
        """Return the pairs of a pass as the result of a run that would end there."""
        return self._outcome(ritz, Status.CONVERGED if self._is_done(ritz) else Status.MAX_PASSES, "")

    def _outcome(self, ritz: Ritz, status: Status, message: str) -> Outcome:
        k = ritz.k
        vectors = self.state.V @ ritz.S[:, :k]
        return Outcome(ritz.values[:k], vectors, ritz.residuals[:k], ritz.norm, status, message)

    def _record(self, ritz: Ritz, outcome: Outcome | None) -> None:
        k = ritz.k
        values, residuals = ritz.values[:k], ritz.residuals[:k]
        if outcome is not None and len(outcome.values):
            values, residuals = outcome.values, outcome.residuals
        self.state.history.append(
            self.state.passes,
            values,
            residuals,
            seconds=self.state.seconds,
            samples_per_second=self.products.samples_per_second,
        )


def _extended(buffer: Array, m: int, columns: Array) -> Array:
    """Write columns into a buffer after its first m, and return the view of all."""
    buffer[:, m : m + columns.shape[1]] = columns
    return buffer[:, : m + columns.shape[1]]


def _largest_cluster(values: Array, tolerance: float) -> int:
    """Return how many of the values, sorted, lie in the longest run of steps within the tolerance."""
    steps = np.diff(np.sort(values)) <= tolerance
    longest = current = 0
    for close in steps:
        current = current + 1 if close else 0
        longest = max(longest, current)
    return longest + 1
