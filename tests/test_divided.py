"""Vectors divided between ranks: the products and pairs of one process, on every grid."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from math import comb
from typing import Any

import numpy as np
import pytest

from matfree_hier import moment
from matfree_hier.divided import DividedOperator, costs, divided_eigenpairs
from matfree_hier.divided.rows import DividedRows
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.operator import MomentOperator
from matfree_hier.result import EigenResult
from matfree_hier.solvers import subspace
from matfree_hier.status import Status
from tests.ranks import available, run_ranks

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.skipif(not available(), reason="needs mpiexec beside the interpreter")

Array = Any
GRIDS = [(2, 2), (1, 2), (2, 1), (1, 3)]
SIZES = [(12, 2, 700), (7, 3, 500)]  # d, q, n
EXACT = {"k": 3, "tol": 1e-12, "block_size": 8}
NARROW = {"k": 3, "which": "LA", "tol": 1e-12, "block_size": 4, "max_basis": 16, "seed": 9}


def samples(d: int, n: int, dtype: str = "float64") -> tuple[Array, Array]:
    rng = np.random.default_rng([41, d])
    X = rng.standard_normal((n, d))
    y = 3.0 * X[:, 0] * X[:, 1] - 2.0 * X[:, 2] ** 2 + rng.standard_normal(n)
    return X.astype(dtype), y**2  # whose features stand out


def share(comm: Any, grid: tuple[int, int], arrays: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the samples of this rank's row; rows have different numbers of them."""
    n, row = len(arrays[1]), comm.Get_rank() // grid[1]
    cuts = [0, *(n * (3 * r + 2) // (3 * grid[0] + 2) for r in range(1, grid[0])), n]
    return tuple(a[cuts[row] : cuts[row + 1]] for a in arrays)


def clip(y: Array) -> Array:
    return np.minimum(y, 20.0)


def operator(
    comm: Any, grid: tuple[int, int], d: int, q: int, n: int, dtype: str = "float64", **options: Any
) -> DividedOperator:
    X, y = samples(d, n, dtype) if comm is None else share(comm, grid, samples(d, n, dtype))
    return DividedOperator(X, y, degree=q, comm=comm, grid=grid, **options)


def block(size: int, k: int) -> Array:
    V = np.random.default_rng(42).standard_normal((size, k))
    return V * 10.0 ** np.arange(-k, k, 2)  # columns of different scale


@pytest.fixture(autouse=True, scope="module")
def compiled_kernels() -> None:
    """Fill the cache of compiled kernels, which otherwise every rank would compile."""
    d, q, n = SIZES[0]
    for dtype in ("float64", "float32"):
        X, y = samples(d, n, dtype)
        MomentOperator(X, y, degree=q) @ np.ones((78, 5))


@cache
def solved(grid: tuple[int, int]) -> list[dict[str, Any]]:
    """Return what tests look at from each rank: starting ranks is what takes time."""
    return run_ranks(grid[0] * grid[1], everything, grid, timeout=120)


def everything(comm: Any, grid: tuple[int, int]) -> dict[str, Any]:
    return {
        "products": products(comm, grid, 5),
        "pairs": pairs(comm, grid, EXACT),
        "narrow": [pairs(comm, grid, NARROW, SIZES[1:]) for _ in range(2 if grid == GRIDS[0] else 1)],
        "algebra": algebra(comm),
        "counted": counted(comm, grid),
    }


# --- products ----------------------------------------------------------------------------------------------


def products(comm: Any, grid: tuple[int, int], k: int) -> dict[Any, Any]:
    found = {}
    for d, q, n in SIZES:
        for dtype in ("float64", "float32"):
            for transform, centre in ((None, True), (clip, False)):
                C = operator(comm, grid, d, q, n, dtype, label_transform=transform, center_trace=centre)
                W = C.matmat(block(C.shape[0], k)[C.lo : C.hi])
                scalars = C.n_samples, C.label_mean, C.shift, C.trace()
                found[d, q, n, dtype, centre] = C.lo, C.hi, W, scalars
    return found


@pytest.mark.parametrize("grid", GRIDS)
def test_products_are_those_of_one_process(grid: tuple[int, int]) -> None:
    results = [result["products"] for result in solved(grid)]
    for key in results[0]:
        d, q, n, dtype, centre = key
        transform = None if centre else clip
        X, y = samples(d, n, dtype)
        C = MomentOperator(X, y, degree=q, label_transform=transform, center_trace=centre)
        exact = C @ block(C.shape[0], 5)
        together = np.full(exact.shape, np.nan, dtype)
        for lo, hi, W, scalars in (result[key] for result in results):
            assert np.isnan(together[lo:hi]).all()
            assert W.dtype == dtype
            together[lo:hi] = W
            assert scalars == results[0][key][3]
            np.testing.assert_allclose(scalars, (n, C.label_mean, C.shift, C.trace()), rtol=1e-12)
        error = np.abs(together - exact).max(axis=0) / np.abs(exact).max(axis=0)
        assert error.max() < (1e-12 if dtype == "float64" else 1e-5)


# --- pairs -------------------------------------------------------------------------------------------------


def pairs(comm: Any, grid: tuple[int, int], options: dict[str, Any], sizes: Any = SIZES) -> list[Any]:
    found = []
    for d, q, n in sizes:
        result = divided_eigenpairs(operator(comm, grid, d, q, n, label_transform=clip), **options)
        assert result.pairs.eigenvectors.shape == (result.hi - result.lo, options["k"])
        whole = result.gather(root=comm.Get_size() - 1)
        found.append((result.pairs, whole, (result.lo, result.hi)))
    return found


def one_process(d: int, q: int, n: int, which: str = "LM") -> EigenResult:
    X, y = samples(d, n)
    return top_eigenpairs(MomentOperator(X, y, degree=q, label_transform=clip), 3, which, method="dense")


@pytest.mark.parametrize("grid", GRIDS)
def test_pairs_are_those_of_one_process(grid: tuple[int, int]) -> None:
    results = [result["pairs"] for result in solved(grid)]
    for i, sizes in enumerate(SIZES):
        exact, first, whole = one_process(*sizes), results[0][i][0], results[-1][i][1]
        assert first.status in (Status.CONVERGED, Status.DTYPE_LIMIT)
        assert first.residuals.max() < 1e-11
        np.testing.assert_allclose(whole.eigenvalues, exact.eigenvalues, rtol=1e-10)
        np.testing.assert_allclose(whole.eigenvectors, exact.eigenvectors, atol=1e-10)
        np.testing.assert_allclose(whole.eigenvectors.T @ whole.eigenvectors, np.eye(3), atol=1e-13)
        for local, gathered, _ in (result[i] for result in results):
            np.testing.assert_array_equal(local.eigenvalues, first.eigenvalues)
            np.testing.assert_array_equal(local.residuals, first.residuals)
            assert (local.status, local.n_passes) == (first.status, first.n_passes)
            assert (gathered is None) == (gathered is not whole)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_basis_that_restarts_finds_the_pairs(grid: tuple[int, int]) -> None:
    exact = one_process(*SIZES[1], which="LA")
    for result in solved(grid):
        found, _, rows = result["narrow"][0][0]
        assert found.status is Status.CONVERGED
        np.testing.assert_allclose(found.eigenvalues, exact.eigenvalues, rtol=1e-10)
        np.testing.assert_allclose(found.eigenvectors, exact.eigenvectors[slice(*rows)], atol=1e-10)


def test_two_runs_give_the_same_bits() -> None:
    for result in solved(GRIDS[0]):
        (first, *_), (second, *_) = (run[0] for run in result["narrow"])
        np.testing.assert_array_equal(first.eigenvalues, second.eigenvalues)
        np.testing.assert_array_equal(first.eigenvectors, second.eigenvectors)
        np.testing.assert_array_equal(first.residuals, second.residuals)


def test_grids_draw_the_same_directions() -> None:
    """Passes are as many, and pairs differ by rounding alone, long before they have converged."""
    records = [solved(grid)[0]["pairs"][0][0].history for grid in GRIDS]
    for record in records[1:]:
        np.testing.assert_allclose(record.ritz_values[0], records[0].ritz_values[0], rtol=1e-12)


# --- algebra of divided rows -------------------------------------------------------------------------------


def algebra(comm: Any) -> dict[str, Any]:
    """Return what one rank sees of operations on 30 rows; the last rank has a single one."""
    rank, size = comm.Get_rank(), comm.Get_size()
    lo, hi = 29 * rank // max(size - 1, 1), 29 * (rank + 1) // max(size - 1, 1)
    lo, hi = (lo, hi) if rank < size - 1 else (29, 30)
    rows = DividedRows(comm, 30, lo, hi)
    basis, Z = (np.random.default_rng([43, i]).standard_normal((30, 4)) for i in range(2))
    Z[:, 1] = Z[:, 0] + 1e-13 * Z[:, 1]  # dependent
    Z[:, 3] *= 1e-100
    Q = rows.qr(basis[lo:hi])
    wide = np.random.default_rng(44).standard_normal((30, 40))
    return {
        "range": (lo, hi),
        "dot": rows.dot(basis[lo:hi], Z[lo:hi]),
        "norms": rows.norms(Z[lo:hi]),
        "Q": Q,
        "new": subspace.orthonormal(Z[lo:hi], Q, rows=rows),
        "full": subspace.orthonormal(wide[lo:hi], rows=rows),
        "drawn": rows.normal(np.random.default_rng(45), hi - lo, 3),
        "peaks": rows.peaks(Z[lo:hi]),
        "agreed": rows.agreed(np.arange(3.0) + rank),
    }


@pytest.mark.parametrize("grid", GRIDS)
def test_divided_rows_have_the_algebra_of_whole_ones(grid: tuple[int, int]) -> None:
    results = [result["algebra"] for result in solved(grid)]
    basis, Z = (np.random.default_rng([43, i]).standard_normal((30, 4)) for i in range(2))
    Z[:, 1] = Z[:, 0] + 1e-13 * Z[:, 1]
    Z[:, 3] *= 1e-100
    for result in results:
        np.testing.assert_allclose(result["dot"], basis.T @ Z, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(result["norms"], np.linalg.norm(Z, axis=0), rtol=1e-13)
        np.testing.assert_array_equal(result["peaks"], Z[np.abs(Z).argmax(axis=0), np.arange(4)])
        np.testing.assert_array_equal(result["agreed"], [0.0, 1.0, 2.0])
        for name in ("dot", "norms"):
            np.testing.assert_array_equal(result[name], results[0][name])
    Q, new, full, drawn = (
        np.concatenate([result[name] for result in results]) for name in ("Q", "new", "full", "drawn")
    )
    np.testing.assert_allclose(Q.T @ Q, np.eye(4), atol=1e-14)
    np.testing.assert_allclose(Q @ (Q.T @ basis), basis, atol=1e-13)
    assert new.shape == (30, 3)
    np.testing.assert_allclose(new.T @ np.hstack([new, Q]), np.eye(3, 7), atol=1e-14)
    assert full.shape == (30, 30)
    np.testing.assert_allclose(full.T @ full, np.eye(30), atol=1e-13)
    np.testing.assert_array_equal(drawn, np.concatenate([r["algebra"]["drawn"] for r in solved(GRIDS[0])]))


# --- what it costs -----------------------------------------------------------------------------------------


class Counting:
    """A communicator that counts the bytes it receives."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.received = comm, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Bcast(self, array: Array, root: int) -> None:  # noqa: N802
        self.received += array.nbytes * (self.comm.Get_rank() != root)
        self.comm.Bcast(array, root)

    def Recv(self, array: Array, *arguments: Any) -> None:  # noqa: N802
        self.received += array.nbytes
        self.comm.Recv(array, *arguments)


def counted(comm: Any, grid: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes that a product of this rank receives from its row and its column."""
    d, q, n = SIZES[1]
    X, y = samples(d, n - n % grid[0])
    rows = slice(comm.Get_rank() // grid[1] * len(y) // grid[0], None)
    X, y = X[rows][: len(y) // grid[0]], y[rows][: len(y) // grid[0]]
    C = DividedOperator(X, y, degree=q, comm=comm, grid=grid)
    row, column = Counting(C.grid.along_row), Counting(C.grid.along_column)
    C._share._row, C.grid.along_column = row, column
    C.matmat(block(C.shape[0], 5)[C.lo : C.hi])
    C.grid.along_column = column.comm
    return row.received, column.received


@pytest.mark.parametrize("grid", GRIDS)
def test_messages_are_as_large_as_the_formula_says(grid: tuple[int, int]) -> None:
    d, q, n = SIZES[1]
    sizes = {"k": 5, "block_size": 5, "max_basis": 20, "rows": grid[0], "columns": grid[1]}
    cost = costs(comb(d + q - 1, q), n - n % grid[0], d, dtype="float64", **sizes)
    counts = np.array([result["counted"] for result in solved(grid)])
    in_row, in_column = counts.mean(axis=0)
    assert in_row == pytest.approx(cost.latents_received, abs=1)
    assert in_column == pytest.approx(cost.block_received + cost.sums_received, abs=1)


# --- what goes wrong ---------------------------------------------------------------------------------------


class Failing:
    """A label transform that breaks on one rank, after some calls."""

    def __init__(self, rank: int, where: int, after: int) -> None:
        self.broken, self.left = rank == where, after

    def __call__(self, y: Array) -> Array:
        self.left -= 1
        if self.broken and self.left < 0:
            msg = f"share {y.size} is gone"
            raise OSError(msg)
        return y


def failures(comm: Any) -> list[Any]:
    """Return the errors of calls that go wrong on one rank of 2 x 2, and the seconds all took."""
    started, heard, grid, rank = time.perf_counter(), [], (2, 2), comm.Get_rank()
    d, q, n = SIZES[0]

    def attempt(call: Any) -> None:
        try:
            heard.append(call())
        except Exception as error:
            heard.append((type(error).__name__, str(error)))

    X, y = share(comm, grid, samples(d, n))
    spoilt = X.copy()
    spoilt[13, 4] = np.nan if rank in (2, 3) else spoilt[13, 4]
    moment._KEPT_LABELS = 0  # labels are transformed in every pass
    moment._ROWS = 50  # many chunks
    good = DividedOperator(X, y, degree=q, comm=comm, grid=grid)
    chunks = -(-len(y) // 50)
    V = np.ones((good.hi - good.lo, 2))
    attempt(lambda: operator(comm, grid, d, q + (rank == 3), n))
    attempt(lambda: operator(comm, grid, d, q, n + (rank == 1)))
    attempt(lambda: DividedOperator(spoilt, y, degree=q, comm=comm, grid=grid))
    failing = Failing(rank, 1, chunks + 3)
    late = DividedOperator(X, y, degree=q, comm=comm, grid=grid, label_transform=failing)
    attempt(lambda: late.matmat(V))
    attempt(lambda: good.matmat(V * (np.inf if rank == 2 else 1.0)))
    attempt(lambda: good.matmat(V[:, : 2 - (rank == 1)]))
    attempt(lambda: float(np.abs(good.matmat(V)).max()) > 0.0)  # nothing is left over in the mail
    attempt(lambda: divided_eigenpairs(good, k=2 + (rank == 2)))
    attempt(lambda: divided_eigenpairs(good, k=0))
    gone = Failing(rank, 3, 3 * chunks)
    broken = DividedOperator(X, y, degree=q, comm=comm, grid=grid, label_transform=gone)
    result = divided_eigenpairs(broken, k=2, block_size=2)
    heard.append((result.pairs.status.name, result.pairs.message))
    return [heard, time.perf_counter() - started, failing.left]


def test_what_goes_wrong_on_one_rank_is_raised_on_all() -> None:
    results = run_ranks(4, failures)
    expected = [
        ("ValueError", "`degree` must be the same on all ranks, got 2 on rank 0 and 3 on rank 3."),
        ("ValueError", "The ranks of a row must have the same samples, got 437 with labels"),
        ("InputError", "Rank 2: `X`, row 13 (counted from 0), column `x4`"),
        ("OSError", "Rank 1: share 50 is gone"),
        ("ValueError", "Rank 2: `V` must be finite, got inf at row 0."),
        ("ValueError", "`V` must have as many columns on every rank, got [2, 1, 2, 2]."),
        True,
        ("ValueError", "Arguments must be the same on all ranks, got Options(k=2"),
        ("ValueError", "`k` must be in 1..78, got 0."),
        ("OPERATOR_FAILED", "The operator raised OSError at pass 3: Rank 3: share 50 is gone"),
    ]
    assert results[0][2] == results[1][2] == -1  # the row gave up at the chunk that failed, the fourth
    for heard, seconds, _ in results:
        assert heard == results[0][0]
        assert seconds < 30.0
    for found, wanted in zip(results[0][0], expected, strict=True):
        if wanted is True:
            assert found is True
        else:
            assert found[0] == wanted[0]
            assert found[1].startswith(wanted[1])


def interrupted(comm: Any) -> Any:
    """Solve for what cannot be reached; rank 2 is told to stop after a while."""
    C = operator(comm, (2, 2), *SIZES[0])
    apply, passes = C.matmat, [0]

    def counting(V: Array) -> Array:
        passes[0] += 1
        if passes[0] == 6 and comm.Get_rank() == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return apply(V)

    C.matmat = counting
    result = divided_eigenpairs(C, k=4, tol=1e-300, block_size=4, max_basis=8, max_passes=10_000)
    return result.pairs.status, result.pairs.n_passes, result.pairs.eigenvectors.shape[1]


def test_a_signal_to_one_rank_ends_the_solve_on_all_after_the_pass() -> None:
    assert run_ranks(4, interrupted) == [(Status.INTERRUPTED, 6.0, 4)] * 4


def breaking_off(comm: Any) -> None:
    C = operator(comm, (1, 2), *SIZES[0])
    whole = DividedRows.dot

    def dot(self: DividedRows, V: Array, W: Array) -> Array:
        if comm.Get_rank() == 1:
            msg = "no memory for inner products"
            raise MemoryError(msg)
        return whole(self, V, W)

    DividedRows.dot = dot
    divided_eigenpairs(C, k=2)


def test_an_error_outside_of_products_ends_all_ranks() -> None:
    with pytest.raises(AssertionError, match="no memory for inner products"):
        run_ranks(2, breaking_off, timeout=50)


def test_a_grid_of_one_rank_is_one_process() -> None:
    from mpi4py import MPI

    C = operator(MPI.COMM_SELF, (1, 1), *SIZES[0])
    V = block(C.shape[0], 3)
    X, y = samples(*SIZES[0][::2])
    np.testing.assert_array_equal(C.matmat(V), MomentOperator(X, y, degree=SIZES[0][1]) @ V)
    C.grid.along_row = None
    with pytest.raises(AttributeError), C.grid.team.to_the_end():  # nobody waits for this rank
        C.grid.along_row.Barrier()
    with pytest.raises(ValueError, match="`grid` must have as many places as there are ranks, 1, got 1 x 2"):
        operator(MPI.COMM_SELF, (1, 2), *SIZES[0])
    with pytest.raises(TypeError, match="`comm` must be a communicator of mpi4py, got None"):
        operator(None, (1, 1), *SIZES[0])
