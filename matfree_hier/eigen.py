"""Extreme eigenpairs of a symmetric operator: choice of the method, checks before and after."""

from __future__ import annotations

import operator as op
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from matfree_hier import peers
from matfree_hier.coarse import heavy_samples, squared_norms
from matfree_hier.interrupts import Interrupts
from matfree_hier.krylov import BlockKrylov, Options, Outcome, Ritz
from matfree_hier.operator import MomentOperator, single_threaded_blas
from matfree_hier.products import OperatorFault, Products
from matfree_hier.progress import SolveProgress
from matfree_hier.result import EigenResult, History
from matfree_hier.resume import StoredSolve, digest, fingerprint
from matfree_hier.status import Status
from matfree_hier.stopping import OutlierRule, ResidualRule, Rule
from matfree_hier.subspace import Which, with_positive_peaks
from matfree_hier.theory import predict_spectrum

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

Method: TypeAlias = Literal["auto", "krylov", "lobpcg", "arpack", "dense", "gram", "primme"]
Stop: TypeAlias = Literal["residual", "outliers"]

_METHODS = ("auto", "krylov", "lobpcg", "arpack", "dense", "gram", "primme")
_WHICH = ("LM", "LA", "SA", "BE")
_BASIS_BYTES = 2**31  # of V and C V together, by default
_BASIS_BLOCKS = 40  # and no more blocks than this, since Rayleigh-Ritz costs the cube


def top_eigenpairs(
    C: LinearOperator[Any] | ArrayLike,
    k: int,
    which: Which = "LM",
    method: Method = "auto",
    tol: float = 1e-6,
    stop: Stop = "residual",
    block_size: int | None = None,
    max_basis: int | None = None,
    max_passes: float = 100,
    seed: int = 3,
    start: ArrayLike | None = None,
    metric: Any = None,
    preconditioner: Any = None,
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
        Real and symmetric. A `MomentOperator` is symmetric by construction; others are probed by one product
        with two vectors.
    k : int
        Pairs wanted, 1..D.
    which : {"LM", "LA", "SA", "BE"}
        Largest ``|w|``; largest; smallest; half from each end, the odd one from above.
    method : {"auto", "krylov", "lobpcg", "arpack", "dense", "gram", "primme"}
        Block Krylov with thick restart; SciPy's LOBPCG or ARPACK; LAPACK on the matrix; for a
        `MomentOperator`, LAPACK on the span of its samples; PRIMME, if installed. "auto" takes the one that
        needs the fewest operations.
    tol : float
        Largest residual ``||C v - w v||`` over ||C||.
    stop : {"residual", "outliers"}
        Bring every residual to `tol`; or eigenvectors of eigenvalues outside the bulk to an error of
        sqrt(tol), and the others only as far as it takes to know that they are bulk ("krylov" only).
    block_size : int, optional
        Vectors in a block. By default k rounded up to a multiple of 16 in float32, of 8 in float64.
    max_basis : int, optional
        Vectors kept, at least k + `block_size`. By default as many as 40 blocks or 2 GiB hold.
    max_passes : float
        Passes that may be spent.
    seed : int
        Of all that is random.
    start : array_like, shape (D,) or (D, s), optional
        Guesses of eigenvectors, good or not. Never written to.
    metric, preconditioner : None
        Reserved for generalised problems.
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
        Where a run was interrupted or the operator failed, it may hold fewer than k pairs.

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
    linear = _as_operator(C)
    size = int(linear.shape[0])
    _require_one_of("which", which, _WHICH)
    _require_one_of("method", method, _METHODS)
    _require_one_of("stop", stop, ("residual", "outliers"))
    for name, value in (("metric", metric), ("preconditioner", preconditioner)):
        if value is not None:
            msg = f"`{name}` must be None, got {value!r}: generalised problems are not available."
            raise ValueError(msg)
    options = _options(linear, k, which, tol, block_size, max_basis, max_passes, seed)
    first = None if start is None else _start(start, size)
    if method == "gram" and not isinstance(linear, MomentOperator):
        msg = f'`method` "gram" needs a MomentOperator, got {type(C).__name__}.'
        raise ValueError(msg)
    if stop == "outliers" and method in ("lobpcg", "arpack", "primme"):
        msg = f'`stop` must be "residual" for `method` "{method}", got {stop!r}.'
        raise ValueError(msg)
    chosen = _choose(linear, options) if method == "auto" else method
    solve = _Solve(Products(linear), options, chosen, stop, first, progress, callback)
    with single_threaded_blas():
        if run_file is None:
            return solve.run(None)
        try:  # a probe of its own: were it counted, passes would depend on the run file
            operator = fingerprint(linear, lambda: _probe(Products(linear), seed)[1])
        except OperatorFault:
            return solve.run(None)
        configuration = solve.configuration(operator)
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
    ) -> None:
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
                    _require_symmetric(self.products, self.options.seed)
                if self.method == "krylov":
                    return self._krylov(interrupts, stored)
                outcome = self._in_one_call()
        except KeyboardInterrupt:
            outcome = _nothing(self.products.size, Status.INTERRUPTED, "")
        except OperatorFault as fault:
            outcome = _nothing(self.products.size, Status.OPERATOR_FAILED, str(fault))
        history.append(
            self.products.passes,
            outcome.values,
            outcome.residuals,
            seconds=time.perf_counter() - started,
            samples_per_second=self.products.samples_per_second,
        )
        return self._stored(self._result(outcome, history), stored)

    def _in_one_call(self) -> Outcome:
        if self.method == "dense":
            return peers.solve_dense(self.products, self.options)
        if self.method == "gram":
            return peers.solve_gram(self.products, self.options)
        solver = {
            "lobpcg": peers.solve_lobpcg,
            "arpack": peers.solve_arpack,
            "primme": peers.solve_primme,
        }[self.method]
        return solver(self.products, self.options, self.start)

    def _krylov(self, interrupts: Interrupts, stored: StoredSolve | None) -> EigenResult:
        operator, options = self.products.operator, self.options
        coarse = heavy_samples(operator) if isinstance(operator, MomentOperator) else None
        rule: Rule = ResidualRule(options.tol)
        if self.stop == "outliers":
            rule = OutlierRule(options.tol, self.products.size, options.block_size, _edges(operator))
        if coarse is not None:
            interrupts.also(lambda: coarse.running)
        state = stored.state() if stored is not None else None
        solver = BlockKrylov(self.products, options, rule, start=self.start, coarse=coarse, state=state)
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
    norms = squared_norms(linear) / linear.shape[0]
    predicted = predict_spectrum(linear.labels(), linear.n_samples, linear.shape[0], norms=norms)
    centre = 0.0 if linear.center_trace else linear.trace() / linear.shape[0]
    return centre + predicted.edge_left, centre + predicted.edge_right


def _nothing(size: int, status: Status, message: str) -> Outcome:
    return Outcome(np.empty(0), np.empty((size, 0)), np.empty(0), 0.0, status, message)


# --- arguments ---------------------------------------------------------------------------------------------


def _as_operator(C: Any) -> LinearOperator[Any]:
    if isinstance(C, np.ndarray | list | tuple):
        C = np.asarray(C)
        if C.dtype.kind not in "biufc":
            msg = f"`C` must hold numbers, got dtype {C.dtype}."
            raise TypeError(msg)
        if C.ndim == 2 and C.dtype.kind == "f" and not np.isfinite(C).all():
            row, column = np.argwhere(~np.isfinite(C))[0]
            msg = f"`C` must be finite, got {C[row, column]} at row {row}, column {column}."
            raise ValueError(msg)
    linear = aslinearoperator(C)
    rows, columns = linear.shape
    if rows != columns or rows < 1:
        msg = f"`C` must be square and not empty, got shape {(rows, columns)}."
        raise ValueError(msg)
    if np.dtype(linear.dtype).kind == "c":
        msg = f"`C` must be real, got dtype {linear.dtype}."
        raise TypeError(msg)
    return linear


def _require_one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        msg = f"`{name}` must be one of {', '.join(allowed)}, got {value!r}."
        raise ValueError(msg)


def _options(
    linear: LinearOperator[Any],
    k: int,
    which: str,
    tol: float,
    block_size: int | None,
    max_basis: int | None,
    max_passes: float,
    seed: int,
) -> Options:
    size = int(linear.shape[0])
    k = _integer("k", k, 1, size)
    if not 0.0 < tol < 1.0:
        msg = f"`tol` must be above 0 and below 1, got {tol}."
        raise ValueError(msg)
    if not max_passes >= 1:
        msg = f"`max_passes` must be at least 1, got {max_passes}."
        raise ValueError(msg)
    if block_size is None:
        tile = 16 if linear.dtype == np.float32 else 8
        width = min(size, -(-k // tile) * tile)
    else:
        width = min(size, _integer("block_size", block_size, 1))
    least = min(size, k + width)
    if max_basis is None:
        fitting = min(_BASIS_BLOCKS * width, _BASIS_BYTES // (16 * size))
        basis = min(size, max(k + 4 * width, fitting))
    else:
        basis = min(size, _integer("max_basis", max_basis, least))
    return Options(k, which, float(tol), width, basis, float(max_passes), _integer("seed", seed, 0))


def _integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    bound = f"at least {low}" if high is None else f"in {low}..{high}"
    try:
        number = op.index(value)
    except TypeError:
        msg = f"`{name}` must be an integer {bound}, got {value!r}."
        raise TypeError(msg) from None
    if number < low or (high is not None and number > high):
        msg = f"`{name}` must be {bound}, got {number}."
        raise ValueError(msg)
    return number


def _start(start: ArrayLike, size: int) -> Array:
    V = np.asarray(start)
    if V.dtype.kind not in "biuf":
        msg = f"`start` must hold real numbers, got dtype {V.dtype}."
        raise TypeError(msg)
    V = V.reshape(-1, 1) if V.ndim == 1 else V
    if V.ndim != 2 or V.shape[0] != size or not 1 <= V.shape[1] <= size:
        msg = f"`start` must have shape ({size},) or ({size}, s) with s in 1..{size}, got {np.shape(start)}."
        raise ValueError(msg)
    V = V.astype(np.float64)
    bad = np.argwhere(~np.isfinite(V))
    if len(bad):
        msg = f"`start` must be finite, got {V[tuple(bad[0])]} at row {bad[0][0]}, column {bad[0][1]}."
        raise ValueError(msg)
    return V


def _probe(products: Products, seed: int) -> tuple[Array, Array]:
    xy = np.random.default_rng([seed, 2]).standard_normal((products.size, 2))
    return xy, products(xy)


def _require_symmetric(products: Products, seed: int) -> None:
    """Compare x^T C y with y^T C x for two random vectors."""
    xy, W = _probe(products, seed)
    H = xy.T @ W
    scale = float(np.linalg.norm(xy) * np.linalg.norm(W))
    if abs(H[0, 1] - H[1, 0]) > 1e3 * products.eps * scale:
        msg = (
            "`C` must be symmetric; for two random vectors x^T C y and y^T C x differ by"
            f" {abs(H[0, 1] - H[1, 0]):.1e}, got {H[0, 1]:.6g} and {H[1, 0]:.6g}."
        )
        raise ValueError(msg)


def _choose(linear: LinearOperator[Any], options: Options) -> str:
    """Return the method that needs the fewest operations."""
    work = {
        "krylov": peers.work_krylov(linear, options),
        "dense": peers.work_dense(linear, options),
        "gram": peers.work_gram(linear, options),
    }
    return min(work, key=lambda name: work[name])
