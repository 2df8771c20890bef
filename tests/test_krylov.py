"""Block Krylov: few passes, and a state that can be stored at any pass and continued to the same bits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

from matfree_hier import kernels
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.krylov import BlockKrylov, Options, Outcome
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.products import Products
from matfree_hier.result import EigenResult
from matfree_hier.status import RunFileError, Status
from matfree_hier.store import Checkpoint, RunFile

Array = Any


def matrix(size: int = 150, seed: int = 5) -> Array:
    A = np.random.default_rng(seed).standard_normal((size, size))
    return A + A.T


def options(**kwargs: Any) -> Options:
    values = {
        "k": 4, "which": "LM", "tol": 1e-8, "block_size": 5, "max_basis": 40, "max_passes": 200.0, "seed": 7,
    }  # fmt: skip
    return Options(**(values | kwargs))


def solver(A: Array, **kwargs: Any) -> BlockKrylov:
    return BlockKrylov(Products(aslinearoperator(A)), options(**kwargs))


def assert_same(first: Outcome, second: Outcome) -> None:
    np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_array_equal(first.vectors, second.vectors)
    np.testing.assert_array_equal(first.residuals, second.residuals)
    assert (first.status, first.norm) == (second.status, second.norm)


# --- the basis ---------------------------------------------------------------------------------------------


def test_the_basis_stays_orthonormal_and_its_products_true_through_restarts() -> None:
    A = matrix()
    work = solver(A)
    sizes = []

    def check(work: BlockKrylov, ritz: Any) -> None:
        V, W, H = (work.state()["arrays"][name] for name in ("_V", "_W", "_H"))
        sizes.append(V.shape[1])
        np.testing.assert_allclose(V.T @ V, np.eye(V.shape[1]), atol=1e-13)
        np.testing.assert_allclose(W, A @ V, atol=1e-12)
        np.testing.assert_allclose(H, V.T @ A @ V, atol=1e-12)
        assert V.shape[1] <= 40

    outcome = work.run(after_pass=check)
    assert outcome.status is Status.CONVERGED
    assert (np.diff(sizes) < 0).sum() >= 2


def test_blocks_are_the_krylov_space_while_the_basis_is_whole() -> None:
    A = matrix()
    work = solver(A, max_basis=150)
    start = work.state()["arrays"]["_block"]
    spaces: list[Array] = []
    work.run(after_pass=lambda work, ritz: spaces.append(work.state()["arrays"]["_V"]))
    krylov = np.hstack([start, A @ start, A @ (A @ start)])
    Q = np.linalg.qr(krylov)[0]
    np.testing.assert_allclose(spaces[2] @ (spaces[2].T @ Q), Q, atol=1e-10)


# --- the state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at", [1, 3, 9, 14])
def test_a_solve_goes_on_from_its_state_to_the_same_bits(stop_at: int, tmp_path: Path) -> None:
    A = matrix()
    whole = solver(A)
    expected = whole.run()
    first = solver(A)
    calls = iter(range(1, 100))
    assert first.run(should_stop=lambda: next(calls) == stop_at).status is Status.INTERRUPTED
    checkpoint = Checkpoint(tmp_path / "state")
    checkpoint.save(first.state())
    products = Products(aslinearoperator(A))
    resumed = BlockKrylov.from_state(products, options(), checkpoint.load())
    assert_same(resumed.run(), expected)
    assert products.passes == whole.products.passes
    assert resumed.history.passes == whole.history.passes


def test_every_product_may_be_interrupted_without_a_trace() -> None:
    A = matrix(60)
    expected = solver(A).run()
    n_products = int(solver(A).products.passes)
    counting = solver(A)
    counting.run()
    n_products = int(counting.products.passes)
    for at in range(1, n_products + 1):
        calls = iter(range(1, 1000))

        def apply(V: Array, calls: Any = calls, at: int = at) -> Array:
            if next(calls) == at:
                raise KeyboardInterrupt
            return A @ V

        work = solver(A)
        work.products.operator = type("Interrupting", (), {"matmat": staticmethod(apply)})()
        assert work.run().status is Status.INTERRUPTED
        resumed = BlockKrylov.from_state(Products(aslinearoperator(A)), options(), work.state())
        assert_same(resumed.run(), expected)


# --- run files ---------------------------------------------------------------------------------------------


def teacher_operator(n: int = 3000, d: int = 14, dtype: str = "float32") -> MomentOperator:
    X, y = HierarchicalModel(n_inputs=d, degree=2, n_features=4, gamma=0.5, seed=7).sample(n, seed=11)
    return MomentOperator(X, y, degree=2, dtype=dtype)


def solve(C: Any, **kwargs: Any) -> EigenResult:
    return top_eigenpairs(C, 4, method="krylov", **({"tol": 1e-5, "block_size": 4} | kwargs))


def assert_same_result(first: EigenResult, second: EigenResult) -> None:
    for name in ("eigenvalues", "eigenvectors", "residuals"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert (first.norm, first.status, first.n_passes) == (second.norm, second.status, second.n_passes)
    assert first.history.passes == second.history.passes
    np.testing.assert_array_equal(first.history.residuals, second.history.residuals)


def test_a_run_file_changes_nothing_and_a_finished_run_costs_no_pass(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    expected = solve(teacher_operator())
    assert_same_result(solve(teacher_operator(), run_file=f"{path}::mine", checkpoint_seconds=0.0), expected)
    C = teacher_operator()
    assert_same_result(solve(C, run_file=f"{path}::mine"), expected)
    assert C.n_applied == 0
    assert not Checkpoint(tmp_path / "run.h5.mine.checkpoint").exists()
    with RunFile(path, "mine", "r") as run:
        assert run.load("spectrum_configuration")["provenance"]["seed"] == 3
        assert run.load("spectrum_history")["residuals"].shape == (len(expected.history), 4)


@pytest.mark.parametrize("method", ["dense", "lobpcg", "gram"])
def test_other_methods_store_their_result_as_well(method: Any, tmp_path: Path) -> None:
    C = teacher_operator(60)
    arguments = {"k": 3, "method": method, "run_file": tmp_path / "run.h5", "max_passes": 500}
    first = top_eigenpairs(C, **arguments)
    before = C.n_applied
    assert_same_result(top_eigenpairs(C, **arguments), first)
    assert C.n_applied == before


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    expected = solve(teacher_operator())
    for n_passes in (2, 1, 3):
        calls = iter(range(1, 100))
        stopped = solve(
            teacher_operator(), run_file=path, callback=lambda r, c=calls, n=n_passes: next(c) == n
        )
        assert stopped.status is Status.INTERRUPTED
    assert stopped.n_passes == 6
    assert_same_result(solve(teacher_operator(), run_file=path), expected)


def test_more_passes_go_on_where_too_few_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    few = solve(teacher_operator(), run_file=path, max_passes=5)
    assert few.status is Status.MAX_PASSES
    C = teacher_operator()
    assert_same_result(solve(C, run_file=path, max_passes=5), few)
    assert C.n_applied == 0
    more = solve(C, run_file=path)
    assert more.status is Status.CONVERGED
    assert C.n_applied == more.n_passes - few.n_passes


def test_another_configuration_or_data_set_is_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    solve(teacher_operator(), run_file=path)
    with pytest.raises(RunFileError, match=r"another configuration: `tol` was 1e-05 and is 0.001\."):
        solve(teacher_operator(), run_file=path, tol=1e-3)
    with pytest.raises(RunFileError, match=r"`block_size` was 4 and is 5; `seed` was 3 and is 4\."):
        solve(teacher_operator(), run_file=path, block_size=5, seed=4)
    with pytest.raises(RunFileError, match=r"`data` was '.*' and is '.*'; `labels` was"):
        solve(teacher_operator(3001), run_file=path)
    with pytest.raises(RunFileError, match=r"`dtype` was 'float32' and is 'float64'"):
        solve(teacher_operator(dtype="float64"), run_file=path)
    assert solve(teacher_operator(), run_file=f"{path}::other", tol=1e-3).status is Status.CONVERGED


def test_a_matrix_is_known_by_its_products(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    A = matrix()
    expected = solve(A)
    assert_same_result(solve(A, run_file=path), expected)
    assert_same_result(solve(A.copy(), run_file=path), expected)
    with pytest.raises(RunFileError, match=r"`operator` was"):
        solve(2 * A, run_file=path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    solve(teacher_operator(), run_file=path, callback=lambda result: result.n_passes == 3)
    checkpoint = tmp_path / "run.h5.checkpoint"
    content = bytearray(checkpoint.read_bytes())
    content[-100] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(RunFileError, match="damaged"):
        solve(teacher_operator(), run_file=path)


def test_the_second_process_on_a_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    with RunFile(path), pytest.raises(RunFileError, match="in use by another run"):
        solve(teacher_operator(), run_file=path)


def test_a_full_disk_does_not_end_the_run_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = solve(teacher_operator())

    def full(descriptor: int, content: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    result = solve(teacher_operator(), run_file=tmp_path / "run.h5", checkpoint_seconds=0.0)
    monkeypatch.undo()
    assert_same_result(result, expected)
    assert "could not be written (No space left on device)" in result.message


_NURSERY = """
import os, sys
sys.path[:0] = [{root!r}, {tests!r}]
from matfree_hier import atomic
from test_krylov import matrix, solve
A = matrix(700)
write = os.write
def dying(descriptor, content):  # in the middle of the n-th large write
    global left
    left -= len(content) > 10000
    if left:
        return write(descriptor, content)
    write(descriptor, content[: len(content) // 2])
    os.kill(os.getpid(), 9)
print("ready", flush=True)
for line in sys.stdin:
    left = int(line)
    pid = os.fork()
    if not pid:
        if left:
            atomic.os.write = dying
        solve(A, run_file={path!r}, checkpoint_seconds=0.0, tol=1e-9, max_basis=60)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""  # importing once and forking is what makes many kills quick


def test_runs_killed_at_any_instant_end_with_the_same_bits(tmp_path: Path) -> None:
    A = matrix(700)
    started = time.perf_counter()
    expected = solve(A, tol=1e-9, max_basis=60)
    duration = time.perf_counter() - started
    path, root = tmp_path / "run.h5", Path(__file__).parent
    code = _NURSERY.format(root=str(root.parent), tests=str(root), path=str(path))
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    rng = np.random.default_rng(19)
    n_killed = n_during_write = 0
    with subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes) as nursery:  # type: ignore[call-overload]
        assert nursery.stdout.readline() == "ready\n"
        while n_killed < 12:
            during_write = n_killed % 3 == 1
            print(rng.integers(1, 6) if during_write else 0, file=nursery.stdin)
            pid = int(nursery.stdout.readline())
            if not during_write:
                time.sleep(rng.uniform(0, duration / 20))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if int(nursery.stdout.readline()) == signal.SIGKILL:
                n_killed += 1
                n_during_write += during_write
            else:  # it came to its end first
                path.unlink()
        nursery.stdin.close()
    assert n_during_write >= 3
    assert_same_result(solve(A, run_file=path, tol=1e-9, max_basis=60), expected)


# --- threads and passes ------------------------------------------------------------------------------------


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    n_threads = numba.get_num_threads()
    expected = solve(teacher_operator())
    try:
        for n in (1, 2):
            numba.set_num_threads(min(n, n_threads))
            assert_same_result(solve(teacher_operator()), expected)
    finally:
        numba.set_num_threads(n_threads)


def test_the_scale_of_twelve_pairs_takes_few_passes() -> None:
    """q = 2, d = 50, n = 20 D, gamma = 1: the number the solver is built for."""
    X, y = HierarchicalModel(n_inputs=50, degree=2, n_features=20, gamma=1.0, seed=7).sample(25_500, seed=11)
    C = MomentOperator(X, y, degree=2)
    result = top_eigenpairs(C, 12, method="krylov", block_size=16)
    assert result.status is Status.CONVERGED
    assert result.n_passes <= 21
    F = np.empty((len(y), C.shape[0]))
    kernels.features(X, 2, F)
    F *= np.sqrt(np.abs(y) / (len(y) * 2**0.5))[:, None]
    P, M = F[y > 0], F[y <= 0]
    w = np.linalg.eigvalsh(P.T @ P - M.T @ M) + C.shift
    expected = w[np.argsort(-np.abs(w))[:12]]
    np.testing.assert_allclose(result.eigenvalues, expected, rtol=1e-9)
