"""Killed, full, damaged, locked: the file keeps its last complete state and says what is wrong."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from matfree_hier.status import RunFileError
from matfree_hier.store import Checkpoint, CommitError, RunFile, atomic

ROOT = Path(__file__).parents[1]

# One interpreter imports the package once and forks a child for each line "KIND PATH CALL COUNT": the child
# saves state 1, 2, 3, ... for ever and prints each number once its save has returned. With a CALL it kills
# itself at the COUNT-th time it is about to make, or is halfway through, that call.
NURSERY = """
import os, signal, sys
import numpy as np
from matfree_hier.store import Checkpoint, RunFile, atomic

def die_at(call, count):
    original = getattr(os, call)
    calls = iter(range(1, 10**9))
    def wrapper(*arguments):
        if next(calls) == count:
            if call == "write":
                original(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    setattr(os, call, wrapper)

def state(i):
    return {"number": i, "basis": np.full((20_000, 4), float(i), order="F"), "list": [str(i)] * 5}

def loop(kind, path, first):
    i = first
    if kind == "checkpoint":
        checkpoint = Checkpoint(path)
        while True:
            checkpoint.save(state(i))
            print(i, flush=True)
            i += 1
    with RunFile(path) as run:
        while True:
            run.save("a", state(i))
            run.append("history", {"i": i})
            run.save("b", state(i))
            run.commit()
            print(i, flush=True)
            i += 1

for line in sys.stdin:
    kind, path, first, call, count = line.split()
    child = os.fork()
    if not child:
        if call != "-":
            die_at(call, int(count))
        loop(kind, path, int(first))
    print("child", child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


@pytest.fixture(scope="module")
def nursery():
    process = subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait()


def killed_run(nursery, kind, path, first, call="-", count=0, delay=None):
    """Start a child, kill it after `delay` seconds (or let it kill itself); return its last number."""
    nursery.stdin.write(f"{kind} {path} {first} {call} {count}\n")
    nursery.stdin.flush()
    child, last = None, first - 1
    for line in nursery.stdout:
        match line.split():
            case ["child", number]:
                child = int(number)
            case ["dead"]:
                return last
            case [number]:
                last = int(number)
        if child and delay is not None and last >= first:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            delay = None
    pytest.fail("the interpreter that forks ended")


def complete_state(kind, path):
    """Return the number of the state in the file, after checking that all of it is of that number."""
    if kind == "checkpoint":
        states = [Checkpoint(path).load()]
    else:
        with RunFile(path) as run:
            states = [run.load("a"), run.load("b")]
            np.testing.assert_array_equal(run.load("history")["i"], np.arange(1, states[0]["number"] + 1))
    for state in states:
        assert state["number"] == states[0]["number"]
        assert state["list"] == [str(state["number"])] * 5
        assert state["basis"].flags.f_contiguous
        assert (state["basis"] == state["number"]).all()
    return states[0]["number"]


@pytest.mark.parametrize("kind", ["run", "checkpoint"])
def test_a_writer_killed_at_any_instant_leaves_a_complete_state(nursery, tmp_path, kind):
    path = tmp_path / "run.h5"
    rng = np.random.default_rng(1234)
    number = 0
    for _ in range(8):
        said = killed_run(nursery, kind, path, number + 1, delay=rng.uniform(0, 0.03))
        number = complete_state(kind, path)
        assert said in (number, number - 1)  # what was said to be saved is; one more may be
    assert number >= 8


@pytest.mark.parametrize("kind", ["run", "checkpoint"])
@pytest.mark.parametrize(
    ("call", "count", "is_new"),
    [
        ("write", 1, False),  # halfway through the empty header
        ("write", 2, False),  # halfway through the content
        ("write", 3, False),  # halfway through the header, or the second part of a checkpoint
        ("fsync", 1, False),
        ("replace", 1, False),
        ("fsync", 2, True),  # of the folder, after the rename
    ],
)
def test_a_writer_killed_within_a_save_leaves_a_complete_state(nursery, tmp_path, kind, call, count, is_new):
    path = tmp_path / "run.h5"
    killed_run(nursery, kind, path, 1, delay=0)
    before = complete_state(kind, path)
    assert killed_run(nursery, kind, path, before + 1, call, count) == before  # it never said that it saved
    assert (tmp_path / "run.h5.tmp").exists() == (not is_new)
    assert complete_state(kind, path) == before + is_new
    if kind == "run":  # to open it for changes clears up what the kill left: temporary file and lock
        assert os.listdir(tmp_path) == ["run.h5"]


class Full:
    """A system call that fails at its n-th use, as on a full disk; a write puts half down first."""

    def __init__(self, call, count, code=errno.ENOSPC):
        self.original, self.call, self.left, self.code = getattr(os, call), call, count, code

    def __call__(self, *arguments):
        self.left -= 1
        if self.left == 0:
            if self.call == "write":
                self.original(arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise OSError(self.code, os.strerror(self.code))
        return self.original(*arguments)


FAILURES = [("open", 1), ("write", 1), ("write", 2), ("write", 3), ("fsync", 1), ("close", 1), ("replace", 1)]


@pytest.mark.parametrize(("call", "count"), FAILURES)
def test_a_full_disk_leaves_the_old_file_and_the_staged_state(tmp_path, monkeypatch, call, count):
    path = tmp_path / "run.h5"
    with RunFile(path) as run:
        run.save("a", {"x": np.arange(3)})
        run.commit()
        before = path.read_bytes()
        run.save("a", {"x": np.arange(5)})
        run.append("history", {"i": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, call, Full(call, count))
            with pytest.raises(CommitError) as caught:
                run.commit()
        assert caught.value.errno == errno.ENOSPC
        assert str(caught.value) == (
            f"`{path}` could not be written (No space left on device); it keeps its last complete state."
        )
        assert path.read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["run.h5", "run.h5.lock"]
        run.commit()  # there is room again: nothing was lost
    with RunFile(path, mode="r") as run:
        np.testing.assert_array_equal(run.load("a")["x"], np.arange(5))
        assert run.load("history")["i"] == [1]


@pytest.mark.parametrize(("call", "count"), [*FAILURES, ("write", 4)])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch, call, count):
    checkpoint = Checkpoint(tmp_path / "run.h5.checkpoint")
    checkpoint.save({"x": np.arange(3)})
    monkeypatch.setattr(os, call, Full(call, count, errno.EDQUOT))
    with pytest.raises(CommitError, match="it keeps its last complete state"):
        checkpoint.save({"x": np.arange(5)})
    monkeypatch.undo()
    np.testing.assert_array_equal(checkpoint.load()["x"], np.arange(3))
    assert os.listdir(tmp_path) == ["run.h5.checkpoint"]


def test_a_folder_that_cannot_be_flushed_is_no_error_where_it_need_not_be(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    monkeypatch.setattr(os, "fsync", Full("fsync", 2, errno.EINVAL))
    checkpoint.save({"x": 1})
    monkeypatch.setattr(os, "fsync", Full("fsync", 2, errno.EIO))
    with pytest.raises(CommitError, match="Input/output error"):
        checkpoint.save({"x": 2})
    assert checkpoint.load() == {"x": 2}  # complete, though not known to outlast a power cut


def test_an_interrupt_during_a_commit_leaves_the_old_file(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.save({"x": 1})

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save({"x": 2})
    assert checkpoint.load() == {"x": 1}
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_real_limit_on_the_size_of_files_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.h5"
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunFile(path) as run:
        run.save("a", {"x": np.arange(3)})
        run.commit()
        checkpoint.save({"x": 1})
        run.save("b", {"x": np.zeros(100_000)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(CommitError, match=r"run\.h5` could not be written \(File too large\)"):
                run.commit()
            with pytest.raises(CommitError, match=r"checkpoint` could not be written \(File too large\)"):
                checkpoint.save({"x": np.zeros(100_000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert sorted(os.listdir(tmp_path)) == ["checkpoint", "run.h5", "run.h5.lock"]
        assert checkpoint.load() == {"x": 1}
        with RunFile(path, mode="r") as reader:
            assert reader.groups() == ["a"]
        run.commit()
    with RunFile(path, mode="r") as run:
        assert run.groups() == ["a", "b"]


def test_leaving_the_block_on_a_full_disk_raises_and_gives_the_lock_back(tmp_path, monkeypatch):
    with pytest.raises(CommitError), RunFile(tmp_path / "run.h5") as run:  # noqa: PT012
        run.save("a", {"x": 1})
        monkeypatch.setattr(os, "write", Full("write", 1))
    assert os.listdir(tmp_path) == []


def written(tmp_path, kind):
    """Return the path of a run file or checkpoint, and a function that opens it."""
    path = tmp_path / "run.h5"
    if kind == "checkpoint":
        Checkpoint(path).save({"x": np.arange(100.0), "text": "abc"})
        return path, lambda: Checkpoint(path).load()
    with RunFile(path) as run:
        run.save("a", {"x": np.arange(100.0), "text": "abc"})

    def opened():
        for mode in ("r", "a"):
            RunFile(path, mode=mode).close()

    return path, opened


KINDS = pytest.mark.parametrize("kind", ["run file", "checkpoint"])


@KINDS
def test_a_truncated_file_is_refused(tmp_path, kind):
    path, opened = written(tmp_path, kind)
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) // 2, 513, 512):
        path.write_bytes(content[:length])
        with pytest.raises(
            RunFileError, match=r"`.*run\.h5` is damaged: it should hold \d+ bytes of content, and"
        ):
            opened()
    path.write_bytes(content[:30])
    with pytest.raises(RunFileError, match="is damaged: its header cannot be read"):
        opened()
    path.write_bytes(content + b"x")
    with pytest.raises(RunFileError, match="is damaged: it should hold"):
        opened()
    assert os.listdir(tmp_path) == ["run.h5"]


@KINDS
def test_any_flipped_bit_is_refused(tmp_path, kind):
    path, opened = written(tmp_path, kind)
    content = path.read_bytes()
    opened()
    text_end = content.index(b"\0")
    places = np.random.default_rng(7).integers(512, len(content), 60)
    for place in [*range(text_end + 1), 511, *places]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(place) % 7
        path.write_bytes(damaged)
        with pytest.raises(RunFileError):
            opened()


@KINDS
@pytest.mark.parametrize("content", [b"", b"text, nothing else\n", b"\x89HDF\r\n\x1a\n" + bytes(2000)])
def test_a_foreign_file_is_refused_and_kept(tmp_path, kind, content):
    path, opened = written(tmp_path, kind)
    path.write_bytes(content)
    with pytest.raises(RunFileError, match=rf"`.*run\.h5` is not a matfree_hier {kind}\."):
        opened()
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["run.h5"]


def test_an_hdf5_file_of_others_is_refused_and_kept(tmp_path):
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["X"] = np.ones(3)
    for mode in ("r", "a"):
        with pytest.raises(RunFileError, match=r"data\.h5` is not a matfree_hier run file\."):
            RunFile(path, mode=mode)
    with h5py.File(path) as file:
        assert file["X"][0] == 1


def test_a_run_file_changed_by_another_program_is_refused(tmp_path):
    path, opened = written(tmp_path, "run file")
    with h5py.File(path, "r+") as file:
        file["run/a/x"][3] = 7
    with pytest.raises(RunFileError, match="is damaged: "):
        opened()


def test_a_checkpoint_and_a_run_file_are_not_taken_for_each_other(tmp_path):
    path, _ = written(tmp_path, "run file")
    with pytest.raises(RunFileError, match="is not a matfree_hier checkpoint"):
        Checkpoint(path).load()


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(RunFileError, match=r"` is a folder, not a matfree_hier run file\."):
        RunFile(tmp_path, mode="r")


@KINDS
def test_another_format_version_is_named(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(atomic, "FORMAT_VERSION", 2)
    _, opened = written(tmp_path, kind)
    monkeypatch.undo()
    with pytest.raises(RunFileError, match=r"run\.h5` has format version 2; this matfree_hier reads 1\."):
        opened()


def test_a_value_of_an_unknown_kind_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("matfree_hier.store.encoding._plain", lambda value: ("tensor", np.float64(value)))
    with RunFile(tmp_path / "run.h5") as run:
        run.save("a", {"x": 1.0})
    with (
        RunFile(tmp_path / "run.h5", mode="r") as run,
        pytest.raises(RunFileError, match="`/run/a/x` is of a kind unknown to this matfree_hier: tensor"),
    ):
        run.load("a")


def test_a_second_run_on_one_file_is_told_so(tmp_path):
    path = tmp_path / "run.h5"
    sentence = rf"`.*run\.h5` is in use by another run \(process {os.getpid()}\); wait for it or stop it\."
    with RunFile(path):
        for name in ("run", "second"):
            with pytest.raises(RunFileError, match=sentence):
                RunFile(path, name)
    RunFile(path).close()
    assert os.listdir(tmp_path) == []


def test_a_second_process_on_one_file_is_told_so_and_one_after_a_kill_is_not(nursery, tmp_path):
    path = tmp_path / "run.h5"
    nursery.stdin.write(f"run {path} 1 - 0\n")
    nursery.stdin.flush()
    child = int(nursery.stdout.readline().split()[1])
    assert nursery.stdout.readline() == "1\n"
    with pytest.raises(RunFileError, match=rf"is in use by another run \(process {child}\)"):
        RunFile(path)
    with RunFile(path, mode="r") as run:  # reading needs no lock
        assert run.load("a")["number"] == run.load("b")["number"]
    os.kill(child, signal.SIGKILL)
    while nursery.stdout.readline() != "dead\n":
        pass
    RunFile(path).close()


def test_a_forked_child_does_not_give_the_lock_back(tmp_path, monkeypatch):
    lock = atomic.Lock(tmp_path / "run.h5")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        lock.release()
    assert (tmp_path / "run.h5.lock").exists()


def test_a_lock_file_removed_between_open_and_lock_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    removed = []
    original = atomic.fcntl.flock

    def flock(file, flags):
        if not removed:  # the last holder gives its lock back just now
            removed.append((tmp_path / "run.h5.lock").unlink())
        original(file, flags)

    monkeypatch.setattr(atomic.fcntl, "flock", flock)
    lock = atomic.Lock(tmp_path / "run.h5")
    with pytest.raises(RunFileError, match="is in use by another run"):
        atomic.Lock(tmp_path / "run.h5")
    lock.release()
    lock.release()
    assert os.listdir(tmp_path) == []
