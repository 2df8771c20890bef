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

from matfree_hier import eigen, kernels
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.result import EigenResult
from matfree_hier.solvers.coarse import heavy_samples
from matfree_hier.solvers.krylov import BlockKrylov
from matfree_hier.solvers.products import Products
from matfree_hier.solvers.records import Options, Outcome
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
        V, W, H = (work.state.V, work.state.W, work.state.H)
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
    spaces: list[Array] = []
    work.run(after_pass=lambda work, ritz: spaces.append(work.state.V))
    start = spaces[0]
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
    checkpoint.save(first.state.to_dict())
    products = Products(aslinearoperator(A))
    resumed = BlockKrylov(products, options(), state=checkpoint.load())
    assert_same(resumed.run(), expected)
    assert products.passes == whole.products.passes
    assert resumed.state.history.passes == whole.state.history.passes


def test_every_product_may_be_interrupted_without_a_trace() -> None:
    A = matrix(60)
    expected = solver(A).run()
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
        resumed = BlockKrylov(Products(aslinearoperator(A)), options(), state=work.state.to_dict())
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
    assert len(stopped.history) == 6
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
    assert 0 < C.n_applied <= more.n_passes - few.n_passes


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
    solve(teacher_operator(), run_file=path, callback=lambda result: len(result.history) == 3)
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
from matfree_hier.store import atomic
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
                assert_same_result(solve(A, run_file=path, tol=1e-9, max_basis=60), expected)
                path.unlink()
        nursery.stdin.close()
    assert n_during_write >= 3
    assert_same_result(solve(A, run_file=path, tol=1e-9, max_basis=60), expected)


# --- the heaviest samples first ----------------------------------------------------------------------------


def test_the_coarse_operator_is_that_of_the_heaviest_samples() -> None:
    C = teacher_operator(dtype="float64")
    coarse = heavy_samples(C)
    assert coarse is not None
    n_kept = round(coarse.cost * C.n_samples)
    F = np.empty((C.n_samples, C.shape[0]))
    kernels.features(np.ascontiguousarray(C.source.inputs()), 2, F)
    weights = np.abs(C.labels()) * (F**2).sum(axis=1)
    kept = np.argsort(-weights)[:n_kept]
    expected = F[kept].T @ (F[kept] * C.labels()[kept, None]) / (C.n_samples * 2**0.5)
    expected -= np.eye(len(expected)) * np.trace(expected) / len(expected)  # C has trace 0
    np.testing.assert_allclose(coarse(np.eye(len(expected))), expected, atol=1e-13)
    assert coarse.passes == coarse.cost < 0.11


def test_light_tails_have_no_heavy_samples() -> None:
    X = np.random.default_rng(5).standard_normal((2000, 30))
    for y in (np.sign(X[:, 0]), np.zeros(2000)):
        assert heavy_samples(MomentOperator(X, y, degree=1)) is None


def test_the_heaviest_samples_save_passes_and_change_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    C = teacher_operator(9000, 24, "float64")
    with_coarse = top_eigenpairs(C, 6, method="krylov", tol=1e-8)
    monkeypatch.setattr(eigen, "heavy_samples", lambda C: None)
    without = top_eigenpairs(C, 6, method="krylov", tol=1e-8)
    np.testing.assert_allclose(with_coarse.eigenvalues, without.eigenvalues, rtol=1e-12)
    assert with_coarse.status is without.status is Status.CONVERGED
    assert with_coarse.n_passes < 0.85 * without.n_passes
    assert with_coarse.n_passes % 1 != 0


def test_products_with_the_coarse_operator_may_be_interrupted_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    C = teacher_operator()
    arguments = options(tol=1e-5, block_size=4)

    def fresh() -> BlockKrylov:
        return BlockKrylov(Products(C), arguments, coarse=heavy_samples(C))

    whole = fresh()
    expected = whole.run()
    for at in (1, 4, 9, 15):
        work = fresh()
        assert work.coarse is not None
        real, calls = work.coarse.operator.matmat, iter(range(1, 1000))

        def apply(V: Array, real: Any = real, calls: Any = calls, at: int = at) -> Array:
            if next(calls) == at:
                raise KeyboardInterrupt
            return real(V)

        monkeypatch.setattr(work.coarse.operator, "matmat", apply)
        assert work.run().status is Status.INTERRUPTED
        resumed = BlockKrylov(Products(C), arguments, coarse=heavy_samples(C), state=work.state.to_dict())
        assert_same(resumed.run(), expected)
        assert resumed.products.passes == pytest.approx(whole.products.passes, abs=1e-12)


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


def twelve(label_transform: str | None = None) -> MomentOperator:
    """q = 2, d = 50, n = 20 D, gamma = 1: what the solver is built for."""
    X, y = HierarchicalModel(n_inputs=50, degree=2, n_features=20, gamma=1.0, seed=7).sample(25_500, seed=11)
    return MomentOperator(X, y, degree=2, label_transform=label_transform)


def dense(C: MomentOperator) -> Array:
    """The matrix by two symmetric products, of the positive and the negative labels."""
    F = np.empty((C.n_samples, C.shape[0]))
    kernels.features(np.ascontiguousarray(C.source.inputs()), C.degree, F)
    t = C.labels()
    F *= np.sqrt(np.abs(t) / (len(t) * 2**0.5))[:, None]
    return F[t > 0].T @ F[t > 0] - F[t <= 0].T @ F[t <= 0] + C.shift * np.eye(C.shape[0])


def test_twelve_pairs_take_few_passes() -> None:
    result = top_eigenpairs(twelve(), 12, method="krylov", block_size=16)
    assert result.status is Status.CONVERGED
    assert result.n_passes <= 14.5


@pytest.mark.long
def test_twelve_pairs_agree_with_lapack_in_far_fewer_passes_than_lobpcg() -> None:
    C = twelve()
    w = np.linalg.eigvalsh(dense(C))
    expected = w[np.argsort(-np.abs(w))[:12]]
    passes = {}
    for method in ("krylov", "lobpcg", "arpack"):
        result = top_eigenpairs(C, 12, method=method, max_passes=1000)  # type: ignore[arg-type]
        passes[method] = result.n_passes
        np.testing.assert_allclose(result.eigenvalues, expected, rtol=1e-9)
    assert 5 * passes["krylov"] <= passes["lobpcg"]


@pytest.mark.long
def test_outliers_of_clipped_labels_are_found_to_a_thousandth() -> None:
    C = twelve("clip")
    A = dense(C)
    w, V = np.linalg.eigh(A)
    order = np.argsort(-np.abs(w))
    clear = order[np.abs(w[order]) > 1.15 * np.abs(w[order[12]])]
    assert len(clear) >= 2
    for block_size, passes in ((16, 18), (96, 10), (None, 8)):
        result = top_eigenpairs(C, 12, method="krylov", stop="outliers", block_size=block_size)
        assert result.status.ok  # converged where the blocks span the space
        assert result.n_passes <= passes
        cosines = np.abs(V[:, clear].T @ result.eigenvectors).max(axis=1)
        assert (np.sqrt(1 - np.minimum(cosines, 1) ** 2) <= 1e-3).all()
