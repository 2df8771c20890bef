"""One solver on one operator, in a process of its own: solve, judge, and time only what is right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.bench.measure import PeakMemory, Spread
from matfree_hier.bench.reference import PowerPairs, apply_in_chunks, block_power, moment_matrix
from matfree_hier.bench.solvers import SOLVERS, Case
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from matfree_hier.result import EigenResult

    Array = NDArray[np.float64]

ENOUGH_SECONDS = 10.0  # of repeated solves
RESTARTED_PASSES = 150  # of the power iteration, ten times what its authors make
EDGE_WIDTHS = 4.0  # Tracy-Widom widths past the edge, which an eigenvalue of the bulk does not reach
EDGE_SHARE = 0.05  # of the spectrum, which shows the shape of its edge


class CountedOperator(MomentOperator):
    """A moment operator that counts the vectors it is applied to."""

    n_vectors = 0

    def _apply(self, V: NDArray[Any]) -> NDArray[Any]:
        self.n_vectors += V.shape[1]
        return super()._apply(V)


def build(case: Case, seed: int) -> CountedOperator:
    """Draw the teacher and its samples; the same seed gives every process the same operator."""
    teacher = HierarchicalModel(case.n_inputs, case.degree, weights=case.weights, seed=seed)
    X, y = teacher.sample(case.n_samples, seed=seed + 1, dtype=case.dtype)
    return CountedOperator(
        X, y, degree=case.degree, dtype=case.dtype, label_transform=case.label_transform or None
    )


# ---- the reference


def write_reference(case: dict[str, Any], seed: int, path: str) -> dict[str, Any]:
    """Form the matrix by NumPy, take all its eigenpairs, and keep them in ``path`` (.npz)."""
    job = Case(**case)
    C = build(job, seed)
    A = moment_matrix(C.source.inputs(), C.labels(), job.degree)
    start = time.perf_counter()
    values, vectors = np.linalg.eigh(A)
    seconds = time.perf_counter() - start
    np.savez(path, A=A, values=values, vectors=vectors)
    top = values[np.argsort(-np.abs(values))[: job.k]]
    return {"eigenvalues": top, "outliers": values[outside_the_bulk(values)], "eigh_seconds": seconds}


def outside_the_bulk(values: Array) -> NDArray[np.bool_]:
    """Say which eigenvalues of a whole spectrum, ascending, stand outside its bulk.

    Near an edge E that ends like a square root the j-th eigenvalue lies about s (3 pi (j - 1/2)/2)^(2/3)
    inside, and the outermost fluctuates by s (Tracy and Widom). E and s are fitted to those further in.
    """
    outside = np.zeros(len(values), bool)
    window = max(12, round(EDGE_SHARE * len(values)))
    depth = (1.5 * np.pi * (np.arange(window) + 0.5)) ** (2 / 3)
    for end in (1, -1):
        inward = end * values[::-end]
        for j in range(len(values) // 10):
            slope, edge = np.polyfit(depth, inward[j + 1 : j + 1 + window], 1)
            if inward[j] <= edge - EDGE_WIDTHS * slope:
                break
            outside[-1 - j if end == 1 else j] = True
    return outside


# ---- one solver


def run_solver(case: dict[str, Any], solver: str, seed: int, reference: str | None) -> dict[str, Any]:
    """Solve, compare with the reference and, if it is accurate, time; called through `run_isolated`."""
    job = Case(**case)
    C = build(job, seed)
    _warm_up(job, solver, seed)
    memory = PeakMemory()
    start = time.perf_counter()
    answer = solve(job, C, solver, seed)
    seconds = [time.perf_counter() - start]
    record: dict[str, Any] = {
        "solver": solver,
        "n_products": C.n_applied,
        "n_vectors": C.n_vectors,
        "n_passes": answer.n_passes,
        "claims": claims(answer),
        "peak_bytes": memory.read(),
    }
    errors = compare(job, C, answer, reference)
    record |= errors | {"shortfall": job.shortfall(errors)}
    if record["shortfall"]:
        return record
    while len(seconds) < job.repeats and sum(seconds) < ENOUGH_SECONDS:
        start = time.perf_counter()
        solve(job, C, solver, seed)
        seconds.append(time.perf_counter() - start)
    return record | {"seconds": Spread.of(seconds)}


def solve(case: Case, C: MomentOperator, solver: str, seed: int) -> EigenResult | PowerPairs:
    """Run one solver as asked."""
    tol = case.tol if case.peer_tol is None or solver == case.solvers[0] else case.peer_tol
    arguments: Mapping[str, Any] = SOLVERS[solver]
    if "method" in arguments:
        options: dict[str, Any] = {"tol": tol, "block_size": case.width, "max_passes": case.max_passes}
        return top_eigenpairs(C, case.k, seed=seed + 2, progress=False, **options | dict(arguments))
    start = np.random.default_rng(seed + 2).standard_normal((C.shape[0], case.width))
    if not arguments["restarted"]:
        return block_power(C, start, case.k)
    return block_power(C, start, case.k, tol=tol, max_passes=RESTARTED_PASSES)


def claims(answer: EigenResult | PowerPairs) -> str:
    """Return what a solver says of its own answer: the name of the status, or nothing."""
    return "" if isinstance(answer, PowerPairs) else answer.status.name


def _warm_up(case: Case, solver: str, seed: int) -> None:
    """Compile, import and touch what the solver uses, on a few samples."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((64, case.degree + 4)).astype(case.dtype)
    C = MomentOperator(X, X[:, 0] ** 2 - 1, degree=case.degree, dtype=case.dtype)
    for width in (1, case.width):
        C @ np.ones((C.shape[0], width), case.dtype)
    small = Case(**{**vars(case), "k": 2, "width": 2, "max_passes": 15})
    solve(small, C, solver, seed)


# ---- how right it is


def compare(
    case: Case, C: MomentOperator, answer: EigenResult | PowerPairs, reference: str | None
) -> dict[str, Any]:
    """Return the errors of an answer, by NumPy alone.

    ``residual``: largest ||A v - w v|| over the norm; ``orthogonality``: largest entry of V^T V - I;
    ``value_error``: largest relative error of an eigenvalue; ``vector_error``: largest sine of the angle
    between an eigenvector outside the bulk and the vector nearest to it. The last two need the reference.
    """
    values, V = _pairs(answer)
    if len(values) < case.k:
        return {"n_found": len(values)}
    errors: dict[str, Any] = {
        "n_found": len(values),
        "values": values,
        "orthogonality": np.abs(V.T @ V - np.eye(len(values))).max(),
    }
    V = V / np.linalg.norm(V, axis=0)
    if reference is None:
        t, X = C.labels(), np.asarray(C.source.inputs(), dtype=np.float64)
        product = apply_in_chunks(X, t, V, case.degree, 1024)
        product += (t.mean() / np.sqrt(2) + C.shift) * V  # the trace is centred here
        norm = np.abs(values).max()
    else:
        with np.load(reference) as stored:
            A, exact, vectors = stored["A"], stored["values"], stored["vectors"]
        product, norm = A @ V, np.abs(exact).max()
        top = np.sort(exact[np.argsort(-np.abs(exact))[: case.k]])  # sorted by value: +a and -a cannot swap
        errors["value_error"] = np.max(np.abs(np.sort(values) - top) / np.abs(top))
        errors["vector_error"] = sines(vectors[:, outside_the_bulk(exact)], V).max(initial=0.0)
    errors["residual"] = np.linalg.norm(product - V * values, axis=0).max() / norm
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in errors.items()}


def _pairs(answer: EigenResult | PowerPairs) -> tuple[Array, Array]:
    if isinstance(answer, PowerPairs):
        return answer.values, answer.vectors
    return answer.eigenvalues, answer.eigenvectors


def sines(exact: Array, found: Array) -> Array:
    """Return the sine of the angle between each exact vector and the one found that is nearest to it."""
    cosines = found.T @ exact
    nearest = np.abs(cosines).argmax(axis=0)
    along = cosines[nearest, np.arange(exact.shape[1])]
    sines: Array = np.linalg.norm(exact - found[:, nearest] * along, axis=0)
    return sines
