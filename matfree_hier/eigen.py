"""Extreme eigenpairs of a symmetric operator: choice of the method, checks before and after."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from matfree_hier.blas import single_threaded_blas
from matfree_hier.comm import collectively
from matfree_hier.interrupts import Interrupts
from matfree_hier.metric import Metric
from matfree_hier.operator import MomentOperator
from matfree_hier.progress import SolveProgress
from matfree_hier.result import EigenResult, History
from matfree_hier.solvers import peers
from matfree_hier.solvers.arguments import (
    as_operator,
    checked_start,
    metric_space,
    probe,
    require_one_of,
    require_symmetric,
    resolved_options,
)
from matfree_hier.solvers.coarse import heavy_samples
from matfree_hier.solvers.krylov import BlockKrylov
from matfree_hier.solvers.power import solve_power
from matfree_hier.solvers.products import OperatorFault, Products
from matfree_hier.solvers.records import Outcome
from matfree_hier.solvers.remembered import RememberedProducts
from matfree_hier.solvers.resume import StoredSolve, digest, fingerprint
from matfree_hier.solvers.space import PLAIN, Space
from matfree_hier.solvers.stopping import OutlierRule, ResidualRule, Rule
from matfree_hier.solvers.subspace import with_positive_peaks
from matfree_hier.status import Status
from matfree_hier.theory import predict_spectrum

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse.linalg import LinearOperator

    from matfree_hier.solvers.records import Options, Ritz

    Array = NDArray[np.float64]

Method: TypeAlias = Literal["auto", "krylov", "lobpcg", "arpack", "dense", "gram", "primme", "power"]
"""The methods by name, for annotations."""

_METHODS = ("auto", "krylov", "lobpcg", "arpack", "dense", "gram", "primme", "power")
_REMEMBERED = ("lobpcg", "arpack", "primme", "power")  # whose best pairs so far are not to be had otherwise
_WHICH = ("LM", "LA", "SA", "BE")
_PATIENCE = 2.0  # times the operations of block Krylov, for the matrix where outliers are wanted
_ZERO = 100.0  # a norm below this many eps of what was subtracted as the shift is rounding


@collectively
def top_eigenpairs(
    C: LinearOperator[Any] | ArrayLike,
    k: int,
    which: str = "LM",
    method: str = "auto",
    tol: float = 1e-6,
    stop: str = "residual",
    block_size: int | None = None,
    max_basis: int | None = None,
    max_passes: float = 100,
    seed: int = 3,
    start: ArrayLike | None = None,
    metric: Metric | None = None,
    preconditioner: str | None = None,
    run_file: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | None = None,
    callback: Callable[[EigenResult], object] | None = None,
) -> EigenResult:
    """Return the k eigenpairs at the end or ends of the spectrum of a symmetric operator.

    A pass is one product of the operator with a block of vectors: over samples, one forward and one backward
    product with all features. Passes are the cost, and `EigenResult.n_passes` counts them, the final check of
    the residuals included. One pass costs ``4 n D b`` operations for a block of b = `block_size` vectors over
    n samples, memory is ``16 D max_basis`` bytes besides. The same seed gives the same bits for every number
    of threads.

    Parameters
    ----------
    C : LinearOperator, sparse matrix or array_like, shape (D, D)
        Real and symmetric. A `MomentOperator` is symmetric by construction; others are probed, in block
        Krylov by its first product, for the other methods by one with two vectors.
    k : int
        Pairs wanted, 1..D.
    which : {"LM", "LA", "SA", "BE"}
        Largest ``|w|``; largest; smallest; half from each end, the odd one from above.
    method : {"auto", "krylov", "lobpcg", "arpack", "dense", "gram", "primme", "power"}
        Block Krylov with thick restart; SciPy's LOBPCG or ARPACK; LAPACK on the matrix; for a
        `MomentOperator`, LAPACK on the span of its samples; PRIMME, if installed; the block power iteration
        of the paper's authors, for comparison and for "LM" only: the first k columns of the block, a product
        and QR a pass and no Rayleigh-Ritz, so that `max_passes` is part of the method. "auto" takes the one
        that needs the fewest operations, for outliers the matrix at up to twice as many: it takes one pass
        and the check, however close to the edge of the bulk they are.
    tol : float
        Largest residual ``||C v - w v||`` over ||C||.
    stop : {"residual", "outliers"}
        Bring every residual to `tol`; or eigenvectors of eigenvalues outside the bulk to an error of
        sqrt(tol), and the others only as far as it takes to know that they are bulk ("krylov" only).
    block_size : int, optional
        Vectors in a block. By default k rounded up to a multiple of 16 in float32, of 8 in float64; for
        outliers of a `MomentOperator` a seventh of D if that is more and at most 256, since no narrower
        blocks bring those close to the edge out in 8 passes. A pass takes time in proportion to the width.
    max_basis : int, optional
        Vectors kept, at least k + `block_size`. By default as many as 40 blocks or 2 GiB hold.
    max_passes : float
        Passes that may be spent.
    seed : int
        Of all that is random.
    start : array_like, shape (D,) or (D, s), optional
        Guesses of eigenvectors, good or not. Never written to.
    metric : Metric, optional
        B, from `metric.smoothness`: C v = w B v is solved in place of C v = w v. Eigenvectors are then
        orthonormal in u^T B v, and residuals are ``||C v - w B v||`` over the largest ``|w|``, which takes
        the place of ||C|| everywhere; within a residual of each w is an eigenvalue, since B is at least the
        identity. For methods "krylov", "lobpcg" and "dense" and residuals only. tau = 0 is the plain problem.
    preconditioner : {"none", "jacobi", "amg", "exact"}, optional
        What stands for the inverse of the metric, see `metric.preconditioner`; by default "exact" where a
        factorisation is small and "amg" beyond. It takes no passes. The plain problem has no use for one:
        there B is the identity, and so is the right preconditioner for both ends of the spectrum.
    run_file : path, optional
        ``PATH`` or ``PATH::NAME``: where state is kept so that a run that was killed goes on.
    checkpoint_seconds : float
        How often to keep it.
    progress : bool, optional
        Show progress on standard error; by default on a terminal only.
    callback : callable, optional
        Called after each pass with the `EigenResult` so far; ends the run if it returns True ("krylov" only).

    Returns
    -------
    EigenResult
        Never silently wrong: residuals are recomputed by a product, and `status` says how the run ended.
        Where a run was interrupted or the operator failed, it holds the best pairs of the products made,
        which may be fewer than k: none by "dense" and "gram", which have none before their end.

    Raises
    ------
    TypeError
        If C or `start` is complex.
    ValueError
        If an argument is out of its bounds, or C is not square, not symmetric or not finite.
    MemoryError
        If the dense matrix was asked for and does not fit in memory.

    Examples
    --------
    >>> import numpy as np
    >>> result = top_eigenpairs(np.diag([3.0, -5.0, 1.0, 0.5]), k=2)
    >>> result.eigenvalues.round(12), result.status.name
    (array([-5.,  3.]), 'CONVERGED')
    """
    linear = as_operator(C)
    size = int(linear.shape[0])
    require_one_of("which", which, _WHICH)
    require_one_of("method", method, _METHODS)
    require_one_of("stop", stop, ("residual", "outliers"))
    options = resolved_options(linear, k, which, tol, block_size, max_basis, max_passes, seed, stop)
    first = None if start is None else checked_start(start, size)
    if method == "gram" and not isinstance(linear, MomentOperator):
        msg = f'`method` "gram" needs a MomentOperator, got {type(C).__name__}.'
        raise ValueError(msg)
    if method == "power" and which != "LM":
        msg = f'`which` must be "LM" for `method` "power", got {which!r}.'
        raise ValueError(msg)
    if stop == "outliers" and method in _REMEMBERED:
        msg = f'`stop` must be "residual" for `method` "{method}", got {stop!r}.'
        raise ValueError(msg)
    space, geometry = metric_space(metric, preconditioner, size, method, stop)
    chosen = _choose(linear, options, stop, space) if method == "auto" else method
    remembers = chosen in _REMEMBERED
    products = RememberedProducts(linear, options, space) if remembers else Products(linear)
    solve = _Solve(products, options, chosen, stop, first, progress, callback, space)
    with single_threaded_blas():
        if run_file is None:
            return solve.run(None)
        try:  # a probe of its own: were it counted, passes would depend on the run file
            operator = fingerprint(linear, lambda: probe(Products(linear), seed)[1])
        except OperatorFault:
            return solve.run(None)
        configuration = solve.configuration(operator) | geometry
        arguments = configuration | {"max_passes": max_passes, "checkpoint_seconds": checkpoint_seconds}
        with StoredSolve(run_file, configuration, arguments, checkpoint_seconds) as stored:
            return stored.result(options.max_passes) or solve.run(stored)


class _Solve:
    """One call of `top_eigenpairs`, its arguments checked."""

    def __init__(
        self,
        products: Products,
        options: Options,
        method: str,
        stop: str,
        start: Array | None,
        progress: bool | None,
        callback: Callable[[EigenResult], object] | None,
        space: Space,
    ) -> None:
        self.space = space
        self.products, self.options, self.method, self.stop = products, options, method, stop
        self.start, self.progress, self.callback = start, progress, callback
        self.stopped_by_caller = False

    def configuration(self, operator: dict[str, Any]) -> dict[str, Any]:
        """Return what decides the result, by name."""
        options = asdict(self.options)
        del options["max_passes"]
        return operator | options | {"method": self.method, "stop": self.stop, "start": digest(self.start)}

    def run(self, stored: StoredSolve | None) -> EigenResult:
        """Solve, and turn whatever ends the run into a result."""
        started = time.perf_counter()
        history = History()
        try:
            with Interrupts(lambda: self.products.running) as interrupts:
                if not isinstance(self.products.operator, MomentOperator):
                    self._require_symmetric()
                if self.method == "krylov":
                    return self._krylov(interrupts, stored)
                outcome = self._in_one_call()
        except KeyboardInterrupt:
            outcome = self._so_far(Status.INTERRUPTED, "")
        except OperatorFault as fault:
            outcome = self._so_far(Status.OPERATOR_FAILED, str(fault))
        history.append(
            self.products.passes,
            outcome.values,
            outcome.residuals,
            seconds=time.perf_counter() - started,
            samples_per_second=self.products.samples_per_second,
        )
        return self._stored(self._result(outcome, history), stored)

    def _so_far(self, status: Status, message: str) -> Outcome:
        """Return what there is of a run cut short."""
        if isinstance(self.products, RememberedProducts):
            return self.products.best(status, message)
        if status is Status.INTERRUPTED:
            message = f'The method "{self.method}" has no pairs before its end.'
        return Outcome(np.empty(0), np.empty((self.products.size, 0)), np.empty(0), 0.0, status, message)

    def _require_symmetric(self) -> None:
        """Probe the operator; block Krylov's first product tells as much."""
        if self.method == "krylov" and self.options.block_size > 1:
            self.products.inspect = lambda V, W: require_symmetric(self.products, V, W)
        else:
            require_symmetric(self.products, *probe(self.products, self.options.seed))

    def _in_one_call(self) -> Outcome:
        if self.method == "dense":
            return peers.solve_dense(self.products, self.options, self.space)
        if self.method == "gram":
            return peers.solve_gram(self.products, self.options)
        if self.method == "lobpcg":
            return peers.solve_lobpcg(self.products, self.options, self.start, self.space)
        solver = {"arpack": peers.solve_arpack, "primme": peers.solve_primme, "power": solve_power}[
            self.method
        ]
        return solver(self.products, self.options, self.start)

    def _krylov(self, interrupts: Interrupts, stored: StoredSolve | None) -> EigenResult:
        operator, options = self.products.operator, self.options
        coarse = None
        if isinstance(operator, MomentOperator) and self.space is PLAIN:
            coarse = heavy_samples(operator)
        rule: Rule = ResidualRule(options.tol)
        if self.stop == "outliers":
            rule = OutlierRule(options.tol, self.products.size, options.block_size, _edges(operator))
        if coarse is not None:
            interrupts.also(lambda: coarse.running)
        state = stored.state() if stored is not None else None
        solver = BlockKrylov(
            self.products, options, rule, start=self.start, coarse=coarse, space=self.space, state=state
        )
        with SolveProgress(self.progress, self.options.max_passes) as bar:

            def after_pass(solver: BlockKrylov, ritz: Ritz) -> None:
                bar.update(self.products.passes, solver.rule.ratios(ritz))
                if stored is not None:
                    stored.save_state(solver.state.to_dict)
                if self.callback is not None:
                    so_far = self._result(solver.so_far(ritz), solver.state.history)
                    self.stopped_by_caller = self.callback(so_far) is True

            outcome = solver.run(
                after_pass=after_pass, should_stop=lambda: interrupts.requested or self.stopped_by_caller
            )
            if stored is not None and not outcome.status.ok:
                stored.save_state(solver.state.to_dict, now=True)
        return self._stored(self._result(outcome, solver.state.history), stored)

    def _stored(self, result: EigenResult, stored: StoredSolve | None) -> EigenResult:
        """Keep a result that ended by itself in the run file, and say what could not be written."""
        if stored is None:
            return result
        if result.status not in (Status.INTERRUPTED, Status.OPERATOR_FAILED):
            stored.save_result(result, self.options.max_passes)
        return replace(result, message=" ".join(filter(None, [result.message, *stored.troubles])))

    def _result(self, outcome: Outcome, history: History) -> EigenResult:
        C = self.products.operator
        plain = self.space is PLAIN
        if (
            plain
            and isinstance(C, MomentOperator)
            and 0.0 < outcome.norm <= _ZERO * self.products.eps * abs(C.shift)
        ):
            # Residuals over the norm would be rounding over rounding.
            message = f"The operator is zero to rounding, {outcome.norm:.1e}."
            zero = np.zeros_like(outcome.residuals)
            outcome = replace(outcome, residuals=zero, status=Status.CONVERGED, message=message)
        message = outcome.message
        if outcome.status is Status.INTERRUPTED and self.stopped_by_caller:
            message = "The callback asked to stop."
        return EigenResult(
            eigenvalues=outcome.values,
            eigenvectors=with_positive_peaks(outcome.vectors),
            residuals=outcome.residuals,
            norm=outcome.norm,
            status=outcome.status,
            n_passes=self.products.passes,
            history=history,
            method=self.method,
            message=message,
        )


def _edges(linear: LinearOperator[Any]) -> tuple[float, float] | None:
    """Return where theory sees the edges of the bulk, from labels and sizes of the samples."""
    if not isinstance(linear, MomentOperator):
        return None
    norms = linear.squared_norms() / linear.shape[0]
    predicted = predict_spectrum(linear.labels(), linear.n_samples, linear.shape[0], norms=norms)
    centre = 0.0 if linear.center_trace else linear.trace() / linear.shape[0]
    return centre + predicted.edge_left, centre + predicted.edge_right


def _choose(linear: LinearOperator[Any], options: Options, stop: str, space: Space) -> str:
    """Return the method that needs the fewest operations.

    Outliers close to the edge take block Krylov many passes, and the matrix shows them all after one: for
    these it may cost more.
    """
    patience = _PATIENCE if stop == "outliers" else 1.0
    work = {
        "krylov": peers.work_krylov(linear, options),
        "dense": peers.work_dense(linear, options) / patience,
        "gram": peers.work_gram(linear, options) if space is PLAIN else np.inf,
    }
    return min(work, key=lambda name: work[name])
