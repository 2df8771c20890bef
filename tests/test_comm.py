"""Samples divided between MPI ranks: the same answers, the same errors, and no rank left waiting."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ranks
from numpy.testing import assert_allclose, assert_array_equal

import matfree_hier as mh
from matfree_hier.comm import team_of
from matfree_hier.sources import SampleSource, TeacherSource
from matfree_hier.sources.chunks import Chunk

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.skipif(not ranks.available(), reason="mpiexec is not installed")


def _teacher(d=8, n_features=2):
    return mh.HierarchicalModel(d, 2, n_features=n_features, gamma=0.5, seed=1, noise_std=0.1)


def _samples(n=2000, seed=5):
    return TeacherSource(_teacher(), n, seed)


def _own(rank, n=700):
    """Samples that a rank has alone; no two ranks have as many."""
    return _teacher().sample(n + 100 * rank, 20 + rank)


def _block(k=3):
    return np.random.default_rng(0).standard_normal((36, k))


def _raised(call):
    """Return the type and the words of what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


# --- what ranks compute ------------------------------------------------------------------------------------


def _everything(comm):
    """Return what an operator on ranks says, in all the ways it can be asked."""
    C = mh.MomentOperator(_samples(), degree=2, label_transform="clip", comm=comm)
    part = C.restricted(100, 1700)
    found = {
        "product": C @ _block(),
        "vector": C @ _block()[:, 0],
        "tensor": C.tensor() @ np.ones(64),
        "dense": C.to_dense(),
        "labels": C.labels(),
        "trace": C.trace(),
        "part": part @ _block(),
        "sizes": (C.n_samples, C.n_inputs, C.shape, str(C.dtype), part.n_samples),
        "passes": C.n_applied,
    }
    for method in ("krylov", "lobpcg", "dense", "gram"):
        result = mh.top_eigenpairs(C, 2, method=method, tol=1e-12)
        found[f"by {method}"] = (result.eigenvalues, result.eigenvectors, result.status.name)
    density = mh.spectral_density(C, seed=3)
    found["density"] = density.density
    return found


@pytest.fixture(scope="module")
def alone():
    return _everything(None)


@pytest.mark.parametrize("n", [2, 3])
def test_an_operator_on_ranks_is_the_operator_of_all_samples(n, alone):
    by_rank = ranks.run_ranks(n, _everything)
    for found in by_rank:
        for name in ("product", "vector", "tensor", "dense", "labels", "trace", "part"):
            assert_allclose(found[name], alone[name], rtol=0, atol=1e-12, err_msg=name)
        for name in ("krylov", "lobpcg", "dense", "gram"):
            assert found[f"by {name}"][2] == alone[f"by {name}"][2]
            assert_allclose(found[f"by {name}"][0], alone[f"by {name}"][0], rtol=0, atol=1e-12)
            assert_allclose(found[f"by {name}"][1], alone[f"by {name}"][1], rtol=0, atol=1e-10)
        assert_allclose(found["density"], alone["density"], rtol=1e-8, atol=1e-8)
        assert (found["sizes"], found["passes"]) == (alone["sizes"], alone["passes"])
        assert_array_equal(found["product"], by_rank[0]["product"])  # to the last bit on every rank


def _own_samples(comm):
    X, y = _own(comm.Get_rank())
    C = mh.MomentOperator(X, y, degree=2, comm=comm)
    return C @ _block(), C.labels(), C.n_samples


def test_samples_that_differ_between_ranks_are_a_share_each_and_repeat_to_the_last_bit():
    first, again = (ranks.run_ranks(3, _own_samples) for _ in range(2))
    parts = [_own(rank) for rank in range(3)]
    X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    C = mh.MomentOperator(X, y, degree=2)
    for one, two in zip(first, again, strict=True):
        assert_allclose(one[0], C @ _block(), rtol=0, atol=1e-12)
        assert_array_equal(one[1], y)
        assert one[2] == len(y)
        assert_array_equal(one[0], two[0])


OPTIONS = (
    {"estimator": "paper"},
    {"estimator": "spectral", "prepare": "gaussianise", "n_features": 2},
    {"estimator": "spectral", "link": "tanh", "linear": True, "prepare": "whiten"},
    {},
    {"smoothness": 1.0, "estimator": "spectral"},
)


def _double(y):
    return 2.0 * y


def _fits(comm):
    fitted = []
    for options in (*OPTIONS, {"label_transform": lambda y: np.tanh(y), "link": _double}):
        model = mh.HierarchicalSpectralRegressor(2, dtype="float64", comm=comm, **options).fit(_samples())
        X = _teacher().sample(200, 9)[0]
        fitted.append((model.predict(X), str(model.status_), model.report_.n_passes, model.features_.shape))
    return fitted


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.long), 3])
def test_fits_on_ranks_are_fits_of_all_samples(n):
    alone, by_rank = _fits(None), ranks.run_ranks(n, _fits, timeout=120)
    for fits in by_rank:
        for mine, theirs in zip(fits, alone, strict=True):
            # Many steps of a refinement make more of rounding than a product does.
            assert_allclose(mine[0], theirs[0], rtol=0, atol=1e-7)
            assert mine[1:] == theirs[1:]


def _with_few(comm):
    """Fit fewer samples than fill the blocks of every rank, and shares without any."""
    X, y = _teacher().sample(14, 3)
    options = {"estimator": "spectral", "n_features": 1, "dtype": "float64"}
    model = mh.HierarchicalSpectralRegressor(2, comm=comm, **options).fit(X, y)
    C = mh.MomentOperator(X[:2], y[:2], degree=2, comm=comm)
    return model.predict(X), C @ _block(), C.restricted(1, 2) @ _block()


def test_ranks_may_have_no_samples():
    alone = _with_few(None)
    for found in ranks.run_ranks(3, _with_few):
        for mine, theirs in zip(found, alone, strict=True):
            assert_allclose(mine, theirs, rtol=0, atol=1e-9)


def _as_given(comm, path):
    """Use an operator in the ways that are easily forgotten."""
    C = mh.MomentOperator(_samples(), degree=2, label_transform=lambda y: np.tanh(y), comm=comm)
    pairs = mh.top_eigenpairs(C=C, k=2, method="krylov")
    tensor = mh.top_eigenpairs(C.tensor(), k=2, run_file=path)
    part = C.restricted(500, 900)
    applied = C.n_applied  # on all ranks, of solves too
    said = [_raised(lambda: C.source.labels()) if comm.Get_rank() == 0 else None]
    again = []

    def callback(_):
        again.append(_raised(lambda: mh.MomentOperator(*_own(3), degree=2, comm=comm)))

    mh.top_eigenpairs(C, 2, method="krylov", callback=callback)
    other = comm.Dup()
    team_of(other)
    other.Free()
    shape = (C @ _block()).shape
    return pairs.eigenvalues, tensor.eigenvalues, part @ _block(), applied, said, again[:1], shape


def test_operators_on_ranks_are_used_as_others_are(tmp_path):
    by_rank = ranks.run_ranks(2, _as_given, str(tmp_path / "run.h5"))
    for found in by_rank:
        assert_allclose(found[0], found[1], rtol=1e-6)
        assert_array_equal(found[2], by_rank[0][2])
        assert found[3] == by_rank[0][3]
        assert found[6] == (36, 3)
    assert by_rank[0][4][0][0] == "RuntimeError"
    assert "calls that every rank makes" in by_rank[0][4][0][1]
    assert "`comm` must not be given where only rank 0 runs" in by_rank[0][5][0][1]


# --- what goes wrong ---------------------------------------------------------------------------------------


class _Failing:
    """A label transform that fails from some call on, where it is told to."""

    def __init__(self, fails, after):
        self.fails, self.calls, self.after = fails, 0, after

    def __call__(self, y):
        self.calls += 1
        if self.fails and self.calls > self.after:
            msg = "a label too many"
            raise ArithmeticError(msg)
        return y


def _faults(comm, path):
    rank = comm.Get_rank()
    X, y = _own(rank)
    said = {}
    said["missing"] = _raised(lambda: mh.MomentOperator(path if rank else (X, y), degree=2, comm=comm))
    said["degree"] = _raised(lambda: mh.MomentOperator(X, y, degree=9, comm=comm))
    said["columns"] = _raised(lambda: mh.MomentOperator(X[:, : 8 - rank], y, degree=2, comm=comm))
    same = _own(min(rank, 1))
    said["some alike"] = _raised(lambda: mh.MomentOperator(*same, degree=2, comm=comm))
    bad = X.copy()
    if rank == 1:
        bad[700, 3] = np.nan
    said["nan"] = _raised(lambda: mh.MomentOperator(bad, y, degree=2, comm=comm))
    said["nan in a fit"] = _raised(lambda: mh.HierarchicalSpectralRegressor(2, comm=comm).fit(bad, y))
    C = mh.MomentOperator(X, y, degree=2, comm=comm)
    said["block"] = _raised(lambda: C @ np.ones((35, 2)))
    said["other calls"] = _raised(C.to_dense if rank == 1 else C.labels)
    said["afterwards"] = np.isfinite(C @ _block()).all()
    transform = _Failing(rank == 1, after=1)
    said["in the middle"] = _raised(
        lambda: mh.MomentOperator(X, y, degree=2, comm=comm, label_transform=transform)
    )
    said["option"] = _raised(
        lambda: mh.HierarchicalSpectralRegressor(2, tol=1e-4, link="sine" if rank else "tanh", comm=comm).fit(
            X, y
        )
    )
    return said


def test_an_error_on_one_rank_is_raised_on_all_and_names_the_rank(tmp_path):
    by_rank = ranks.run_ranks(3, _faults, str(tmp_path / "none.npz"))
    nan = "row 700 (counted from 0), column `x3`: nan is not a finite number"
    for said in by_rank:
        assert said["missing"][0] == "FileNotFoundError"
        assert said["missing"][1].startswith("Rank 1: There is no file")
        assert said["degree"] == ("ValueError", "`degree` must be an integer in 1..8, got 9.")
        assert "got n_inputs 8 on rank 0 and 7 on rank 1" in said["columns"][1]
        assert said["some alike"][1].startswith("Ranks 1 and 2 were given the same samples")
        assert said["nan"][1] == f"Rank 1: `X`, {nan} (NaN, inf and missing values are refused)."
        assert said["nan in a fit"][1].startswith("Rank 1: Input X contains NaN")
        assert "`V` must have shape (36,) or (36, k), got (35, 2)" in said["block"][1]
        assert "Every rank must make the same call" in said["other calls"][1]
        assert said["afterwards"]
        assert said["in the middle"] == ("ArithmeticError", "Rank 1: a label too many")
        assert said["option"][1].startswith("Rank 1: `link` must be one of")


class _Unreliable(SampleSource):
    """Samples in memory whose reading fails at some chunk from now on."""

    def __init__(self, X, y):
        super().__init__(len(X), [f"x{j}" for j in range(X.shape[1])], X.dtype, "y")
        self.X, self.y, self.left = X, y, None

    def _blocks(self, start, stop, rows, labels):
        for first in range(start, stop, 200):
            last = min(first + 200, stop)
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    msg = "the disk is gone"
                    raise OSError(msg)
            yield Chunk(first, self.X[first:last], self.y[first:last] if labels else None)


def _fail_at_random(comm, rounds):
    """Return what calls came to, round by round, and whether a product is still what it was."""
    rank, size = comm.Get_rank(), comm.Get_size()
    source = _Unreliable(*_own(rank))
    C = mh.MomentOperator(source, degree=2, comm=comm)
    before, came = C @ _block(), []
    rng = np.random.default_rng(8)  # the same on every rank
    for _ in range(rounds):
        who, at, both, solves = (
            rng.integers(size + 1),
            rng.integers(40),
            rng.random() < 0.2,
            rng.random() < 0.5,
        )
        source.left = int(at) if rank == who or (both and rank == size - 1) else None
        status = []

        def solve(status=status):
            status.append(mh.top_eigenpairs(C, 4, tol=1e-12, block_size=4, method="krylov").status.name)

        raised = _raised(solve if solves else lambda: [C @ _block() for _ in range(4)])
        came.append(status[0] if status else raised)
        source.left = None
    return came, np.array_equal(C @ _block(), before)


def test_faults_at_random_places_leave_ranks_together():
    by_rank = ranks.run_ranks(3, _fail_at_random, 25)
    for came, same in by_rank:
        assert came == by_rank[0][0]
        assert same
    assert {"OPERATOR_FAILED", "CONVERGED", None} <= {c for c in by_rank[0][0] if not isinstance(c, tuple)}
    assert {c for c in by_rank[0][0] if isinstance(c, tuple)} >= {("OSError", "Rank 1: the disk is gone")}


def _killed(comm):
    if comm.Get_rank() == 1:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    C = mh.MomentOperator(_samples(), degree=2, comm=comm)
    while True:
        C @ _block()


def test_a_killed_rank_ends_the_job_with_a_message():
    with pytest.raises(AssertionError, match=r"(?s)BAD TERMINATION.*EXIT CODE: 9"):
        ranks.run_ranks(2, _killed, timeout=30)


def _solve(comm, path, stops):
    """Solve with a run file; SIGTERM comes after some passes."""
    C = mh.MomentOperator(_samples(), degree=2, comm=comm)
    passes = []

    def callback(result):  # on rank 0 alone
        passes.append(result.n_passes)
        if stops and len(passes) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    result = mh.top_eigenpairs(
        C,
        6,
        tol=1e-11,
        block_size=6,
        method="krylov",
        run_file=path,
        callback=callback,
        checkpoint_seconds=0.0,
    )
    return result.status.name, result.eigenvalues, result.eigenvectors, len(passes)


def test_sigterm_leaves_a_state_that_another_number_of_ranks_goes_on_from(tmp_path):
    path = str(tmp_path / "run.h5")
    stopped = ranks.run_ranks(2, _solve, path, True)
    assert [result[0] for result in stopped] == ["INTERRUPTED"] * 2
    resumed = ranks.run_ranks(3, _solve, path, False)
    whole = _solve(None, str(tmp_path / "other.h5"), False)
    for result in resumed:
        assert result[0] == "CONVERGED"
        assert_allclose(result[1], whole[1], rtol=0, atol=1e-12)
        assert_allclose(result[2], whole[2], rtol=0, atol=1e-10)
    assert resumed[0][3] < whole[3]


# --- the command line --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    X, y = _teacher().sample(4000, 3)
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, X=X, y=y)
    return path


def _command(*arguments):
    return [sys.executable, "-m", "matfree_hier", *map(str, arguments)]


def test_a_file_is_fitted_by_ranks_from_the_command_line(data, tmp_path):
    runs = []
    for n in (1, 3):
        out = tmp_path / f"{n}.h5"
        ended = ranks.mpiexec(n, _command("fit", data, "--dtype", "float64", "--out", out))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("held out of the fit") == 1  # one rank speaks
        runs.append(mh.HierarchicalSpectralRegressor.load(out))
    X = _teacher().sample(300, 8)[0]
    assert_allclose(runs[0].predict(X), runs[1].predict(X), rtol=0, atol=1e-7)
    shown = ranks.mpiexec(2, _command("inspect", tmp_path / "3.h5"))
    assert shown.returncode == 0
    assert shown.stdout == ranks.mpiexec(1, _command("inspect", tmp_path / "3.h5")).stdout


def test_a_command_that_cannot_be_done_says_so_once(tmp_path):
    ended = ranks.mpiexec(2, _command("fit", tmp_path / "none.npz"))
    assert ended.returncode == 2
    assert ended.stderr.count("There is no file") == 1


@pytest.mark.long
def test_a_fit_that_gets_sigterm_is_gone_on_with_by_another_number_of_ranks(tmp_path):
    X, y = _teacher(20).sample(60_000, 3)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    out = tmp_path / "run.h5"
    command = _command("fit", tmp_path / "data.npz", "--dtype", "float64", "--tol", "1e-10", "--out", out)
    started = [str(ranks.MPIEXEC), "-n", "2", *command]
    job = subprocess.Popen(started, stderr=subprocess.PIPE, text=True, env=ranks.environment())
    checkpoint = out.with_name("run.h5.checkpoint")
    until = time.monotonic() + 60.0
    while not out.exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1.0)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=60.0)
    if job.returncode:  # a fast machine may have been done
        assert job.returncode == 130, errors
        assert errors.count("Interrupted. To resume") == 1
    ended = ranks.mpiexec(3, command)
    assert ended.returncode == 0, ended.stderr
    assert not checkpoint.exists()
    model = mh.HierarchicalSpectralRegressor.load(out)
    assert model.score(*_teacher(20).sample(1000, 8)) > 0.9


# --- teams -------------------------------------------------------------------------------------------------


def _team_of_world(comm):
    team = team_of(comm)
    parts = comm.Split(comm.Get_rank() == 0, 0)
    others = None if comm.Get_rank() == 0 else team_of(parts).size
    return team is team_of(comm), team.size, team.threads, others


def test_a_communicator_has_one_team_whose_ranks_share_the_cores():
    for rank, found in enumerate(ranks.run_ranks(3, _team_of_world)):
        same, size, threads, others = found
        assert same
        assert size == 3
        assert threads == max(1, len(os.sched_getaffinity(0)) // 3)
        assert others == (2 if rank else None)


def test_no_communicator_has_no_team_and_what_is_none_is_refused():
    assert team_of(None) is None
    with pytest.raises(TypeError, match="`comm` must be a communicator of mpi4py or None, got str"):
        team_of("world")
