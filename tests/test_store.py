"""Runs: the file and its twin in memory do the same."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import h5py
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stored import BASIS, MAPPING, VALUES, assert_same

from matfree_hier.status import RunFileError
from matfree_hier.store import Checkpoint, MemoryRun, RunFile


class FileRuns:
    """Opens runs of one file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.h5"

    def __call__(self, name: str = "run", mode: str = "a") -> RunFile:
        return RunFile(self.path, name, mode)


class MemoryRuns:
    """Opens runs of one dict."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, dict[str, Any]] = {}

    def __call__(self, name: str = "run", mode: str = "a") -> MemoryRun:
        return MemoryRun(self.files, name, mode)


@pytest.fixture(params=[FileRuns, MemoryRuns])
def runs(request, tmp_path):
    return request.param(tmp_path)


@pytest.mark.parametrize("key", VALUES)
def test_a_value_comes_back_with_its_bits_type_and_memory_order(runs, key):
    with runs() as run:
        run.save("group", {key: VALUES[key]})
        assert_same(run.load("group"), {key: VALUES[key]})  # staged
    with runs(mode="r") as run:
        assert_same(run.load("group"), {key: VALUES[key]})  # committed


def test_a_generator_goes_on_where_it_was(runs, tmp_path):
    rng = np.random.default_rng(77)
    rng.standard_normal(5)
    checkpoint = Checkpoint(tmp_path / "state")
    states = []
    for bits in (rng.bit_generator, np.random.Philox(5)):
        checkpoint.save(bits.state)
        states.append(checkpoint.load())
        with runs() as run:
            run.save("generator", bits.state)
            assert_same(run.load("generator"), states[-1])
    again = np.random.default_rng(3)
    again.bit_generator.state = states[0]
    assert again.standard_normal() == rng.standard_normal()


def test_order_of_keys_survives_a_commit_of_another_group(runs):
    keys = [f"column {i}" for i in (9, 2, 30, 1)]
    with runs() as run:
        run.save("a", dict.fromkeys(keys, 1.0))
    with runs() as run:
        run.save("b", {"x": 1})
    with runs("other") as run:
        run.save("c", {"x": 1})
    with runs() as run:
        assert list(run.load("a")) == keys


def test_what_was_given_or_loaded_can_change_without_changing_the_run(runs):
    with runs() as run:
        values = np.arange(4.0)
        row = np.zeros(2)
        run.save("a", {"values": values, "deep": {"values": values}})
        run.append("s", {"row": row})
        values[:] = row[:] = 9
        run.load("a")["values"][:] = 7
        run.load("a")["deep"]["values"][:] = 7
        run.load("s")["row"][:] = 7
        assert_same(run.load("a")["deep"], {"values": np.arange(4.0)})
        assert_same(run.load("a")["values"], np.arange(4.0))
        assert_same(run.load("s"), {"row": np.zeros((1, 2))})


def test_a_non_contiguous_array_comes_back_in_c_order(runs):
    with runs() as run:
        run.save("a", {"x": np.arange(24.0).reshape(4, 6)[::2, ::3]})
    with runs(mode="r") as run:
        assert_same(run.load("a")["x"], np.array([[0.0, 3.0], [12.0, 15.0]]))


def test_a_series_grows_over_commits_and_reopenings(runs):
    ritz = np.random.default_rng(20240517).standard_normal((7, 4))
    with runs() as run:
        for i in range(3):
            run.append("history", {"ritz_values": ritz[i], "passes": float(i)})
        run.commit()
        run.append("history", {"ritz_values": ritz[3], "passes": 3.0})
    with runs() as run:
        for i in range(4, 7):
            run.append("history", {"passes": np.float64(i), "ritz_values": ritz[i]})
            assert len(run.load("history")["passes"]) == i + 1
    with runs(mode="r") as run:
        assert_same(run.load("history"), {"ritz_values": ritz, "passes": np.arange(7.0)})


def test_a_series_cut_back_on_resuming_goes_on_from_the_cut(runs):
    with runs() as run:
        run.save_series("history", {"passes": np.arange(5.0), "residuals": np.ones((5, 2), np.float32)})
    with runs() as run:
        run.save_series("history", {key: column[:2] for key, column in run.load("history").items()})
        run.append("history", {"passes": 9.0, "residuals": np.zeros(2, np.float32)})
    with runs(mode="r") as run:
        assert_same(run.load("history")["passes"], np.array([0.0, 1.0, 9.0]))
        assert run.load("history")["residuals"].dtype == np.float32


@pytest.mark.parametrize("n_rows", [0, 1, 300])
def test_a_series_is_stored_in_chunks_that_can_grow(tmp_path, n_rows):
    with RunFile(tmp_path / "run.h5") as run:
        run.save_series("history", {"ritz_values": np.ones((n_rows, 12)), "none": np.ones((n_rows, 0))})
    with h5py.File(tmp_path / "run.h5") as file:
        dataset = file["run/history/ritz_values"]
        assert dataset.maxshape == (None, 12)
        assert dataset.chunks == (max(n_rows, 16), 12)
        assert dataset.shape == (n_rows, 12)
    with RunFile(tmp_path / "run.h5", mode="r") as run:
        assert_same(run.load("history"), {"ritz_values": np.ones((n_rows, 12)), "none": np.ones((n_rows, 0))})


def test_runs_in_one_file_do_not_touch_each_other(runs):
    with runs("first") as run:
        run.save("a", VALUES)
        run.append("h", {"x": 1.0})
    with runs("second") as run:
        assert run.groups() == []
        assert run.names() == ["first"]
        run.save("b", {"x": 2})
        assert run.names() == ["first", "second"]
    with runs("first", "r") as run:
        assert run.names() == ["first", "second"]
        assert run.groups() == ["a", "h"]
        assert_same(run.load("a"), VALUES)
        assert_same(run.load("h"), {"x": np.ones(1)})


def test_a_block_left_by_an_exception_keeps_the_last_commit(runs):
    with pytest.raises(ZeroDivisionError), runs() as run:  # noqa: PT012
        run.save("a", {"x": 1})
        run.commit()
        run.save("a", {"x": 2})
        raise ZeroDivisionError
    with runs(mode="a") as run:
        assert run.load("a") == {"x": 1}


def test_a_deleted_group_and_a_run_without_groups_are_gone(runs):
    with runs() as run:
        run.save("a", {"x": 1})
        run.delete("never there")
    with runs() as run:
        run.delete("a")
        assert not run.has("a")
        assert run.groups() == run.names() == []
        run.commit()
        run.delete("a")
        with pytest.raises(RunFileError, match=r"has no group `a`; it has \[\]\."):
            run.load("a")
    with runs() as run:
        assert run.groups() == run.names() == []
        run.save("b", {"x": 1})
        assert run.groups() == ["b"]


def test_has_takes_names_not_paths(runs):
    with runs() as run:
        run.save("a", {"x": 1})
        run.commit()
        assert run.has("a")
        assert not any(run.has(name) for name in ("a/x", ".", "", "/run/a", "x"))


@pytest.mark.parametrize("call", ["save", "save_series", "append", "delete", "commit"])
def test_a_run_open_to_read_refuses_changes(runs, call):
    with runs() as run:
        run.save("a", {"x": 1})
    arguments = {"delete": ("a",), "commit": ()}.get(call, ("a", {"x": np.ones(1)}))
    with runs(mode="r") as run, pytest.raises(RunFileError, match="open to read only"):
        getattr(run, call)(*arguments)


def test_a_closed_run_says_so(runs):
    with runs() as run:
        run.save("a", {"x": 1})
    run.close()
    for call in (run.names, run.groups, run.commit, lambda: run.has("a"), lambda: run.load("a")):
        with pytest.raises(RunFileError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("value", "error", "sentence"),
    [
        (
            object(),
            TypeError,
            "`values['x']` must be an array, a number, a str, a list of str, None or a dict of these, got ",
        ),
        ([1, 2], TypeError, "got list."),
        (1j, TypeError, "got complex."),
        (b"ab", TypeError, "got bytes."),
        (np.array([None, 1]), TypeError, "or fixed-size text, got dtype object."),
        (np.ma.masked_array([1.0], [True]), TypeError, "or fixed-size text, got a masked array."),
        (np.zeros(2, dtype=[]), TypeError, "must have entries of at least one byte, got []."),
        ("a\0b", ValueError, "must be text without NUL characters and lone surrogates, got 'a\\x00b'."),
        (["\ud800"], ValueError, "`values['x'][0]` must be text without NUL"),
        (
            {"a/b": 1},
            ValueError,
            "a key of `values['x']` must be text without `/`, neither empty nor `.`, got 'a/b'.",
        ),
        ({"": 1}, ValueError, "got ''."),
        ({".": 1}, ValueError, "got '.'."),
        ({3: 1}, TypeError, "a key of `values['x']` must be a str, got 3."),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_and_nothing_is_staged(
    runs, tmp_path, value, error, sentence
):
    with runs() as run:
        with pytest.raises(error) as caught:
            run.save("a", {"fine": 1, "x": value})
        assert sentence in str(caught.value)
        assert run.groups() == []
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    with pytest.raises(error):
        checkpoint.save({"x": value})
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    ("row", "error", "sentence"),
    [
        (
            {"x": np.ones(3)},
            ValueError,
            "`row['x']` must be float64 of shape (2,) as in the rows before, got float64 of shape (3,).",
        ),
        ({"x": np.ones(2, np.float32)}, ValueError, "got float32 of shape (2,)."),
        ({}, ValueError, "got nothing."),
        (
            {"x": np.ones(2), "y": 1},
            ValueError,
            "`row` must hold the columns of the rows before it, got 'y' as well.",
        ),
        (
            {"x": "text"},
            TypeError,
            "`row['x']` must be numbers in at least 0 dimensions, got <U4 of shape ().",
        ),
    ],
)
def test_a_row_unlike_those_before_it_is_refused(runs, row, error, sentence):
    with runs() as run:
        run.append("h", {"x": np.zeros(2)})
        run.commit()
        with pytest.raises(error) as caught:
            run.append("h", row)
        assert sentence in str(caught.value)
        assert_same(run.load("h"), {"x": np.zeros((1, 2))})


def test_series_are_checked(runs):
    with runs() as run:
        with pytest.raises(ValueError, match=r"`columns` must have one length, got \{'x': 2, 'y': 3\}\."):
            run.save_series("h", {"x": np.ones(2), "y": np.ones(3)})
        with pytest.raises(TypeError, match="numbers in at least 1 dimensions, got float64 of shape"):
            run.save_series("h", {"x": 1.0})
        run.save("a", {"x": np.ones(2)})
        with pytest.raises(
            TypeError, match="`group` must be a series to append to, and 'a' holds single values"
        ):
            run.append("a", {"x": 1.0})


@pytest.mark.parametrize("name", ["", "a/b", "."])
def test_a_group_or_run_name_is_one_name(runs, name):
    for call in (lambda run: run.save(name, {}), lambda run: run.append(name, {"x": 1})):
        with runs() as run, pytest.raises(ValueError, match="`group` must be text without `/`"):
            call(run)
    with pytest.raises(ValueError, match="`name` must be text without `/`"):
        runs(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.h5", ("run.h5", "run")),
        ("run.h5::deep", ("run.h5", "deep")),
        ("a::b/run.h5::x y", ("a::b/run.h5", "x y")),
        (Path("folder/run.h5"), ("folder/run.h5", "run")),
    ],
)
def test_path_and_name_are_parsed(text, expected):
    assert RunFile.parse(text) == expected


@pytest.mark.parametrize("text", ["", "::x", "run.h5::", "::"])
def test_an_empty_path_or_name_is_refused(text):
    with pytest.raises(ValueError, match="A run is named as PATH or PATH::NAME, got "):
        RunFile.parse(text)


def test_a_run_file_takes_path_and_name_in_one(tmp_path):
    with RunFile(f"{tmp_path / 'run.h5'}::deep") as run:
        run.save("a", {"x": 1})
    with RunFile(tmp_path / "run.h5", mode="r") as run:
        assert run.names() == ["deep"]


def test_mode_is_checked(tmp_path):
    with pytest.raises(ValueError, match=r'`mode` must be "a" or "r", got \'w\'\.'):
        RunFile(tmp_path / "run.h5", mode="w")


def test_a_missing_file_or_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no run file `.*none\.h5`\."):
        RunFile(tmp_path / "none.h5", mode="r")
    with pytest.raises(
        FileNotFoundError, match=r"`path` must lie in an existing folder, got '.*nowhere/run\.h5'\."
    ):
        RunFile(tmp_path / "nowhere" / "run.h5")
    assert os.listdir(tmp_path) == []


def test_opening_without_saving_leaves_nothing(tmp_path):
    with RunFile(tmp_path / "run.h5") as run:
        run.commit()
    assert os.listdir(tmp_path) == []


def test_the_file_is_plain_hdf5_for_others(tmp_path):
    with RunFile(tmp_path / "run.h5") as run:
        run.save("result", {"eigenvectors": np.asfortranarray(BASIS), "status": "CONVERGED", "k": 3})
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs["format_version"] == 1
        np.testing.assert_array_equal(file["run/result/eigenvectors"][...], BASIS.T)
        assert file["run/result/status"].asstr()[()] == "CONVERGED"
        assert file["run/result/k"][()] == 3


def test_a_reader_keeps_its_state_while_a_writer_commits(tmp_path):
    path = tmp_path / "run.h5"
    with RunFile(path) as run:
        run.save("a", {"x": 1})
        run.commit()
        with RunFile(path, mode="r") as reader:
            run.save("a", {"x": 2})
            run.commit()
            assert reader.load("a") == {"x": 1}
        with RunFile(path, mode="r") as reader:
            assert reader.load("a") == {"x": 2}


def test_equal_content_makes_equal_files(tmp_path):
    for name in ("one.h5", "two.h5"):
        with RunFile(tmp_path / name) as run:
            run.save("a", VALUES)
            run.append("h", {"x": 1.0})
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "run.h5").symlink_to(tmp_path / "real" / "run.h5")
    for value in (1, 2):
        with RunFile(tmp_path / "run.h5") as run:
            run.save("a", {"x": value})
    assert (tmp_path / "run.h5").is_symlink()
    assert os.listdir(tmp_path / "real") == ["run.h5"]
    with RunFile(tmp_path / "real" / "run.h5", mode="r") as run:
        assert run.load("a") == {"x": 2}


def test_a_commit_keeps_the_permissions_of_the_file(tmp_path):
    path = tmp_path / "run.h5"
    with RunFile(path) as run:
        run.save("a", {"x": 1})
        run.commit()
        path.chmod(0o600)
        run.save("a", {"x": 2})
    assert path.stat().st_mode & 0o777 == 0o600


GROUP = st.sampled_from(["spectrum", "history", "provenance", "é"])


class RunsAgree(RuleBasedStateMachine):
    """Every call on a run file does what it does on the twin in memory."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.file_runs, self.memory_runs = FileRuns(Path(self.folder.name)), MemoryRuns(Path())
        self.open = False

    @precondition(lambda self: not self.open)
    @rule(name=st.sampled_from(["run", "second", "third"]))
    def open_run(self, name):
        self.file, self.memory = self.file_runs(name), self.memory_runs(name)
        self.open = True

    def both(self, call):
        outcomes = []
        for run in (self.file, self.memory):
            try:
                outcomes.append(call(run))
            except (ValueError, TypeError, RunFileError) as error:
                outcomes.append(type(error))
        assert_same(*outcomes)

    @precondition(lambda self: self.open)
    @rule(group=GROUP, values=MAPPING)
    def save(self, group, values):
        self.both(lambda run: run.save(group, values))

    @precondition(lambda self: self.open)
    @rule(group=GROUP, n_rows=st.integers(0, 3), n_columns=st.integers(0, 2))
    def save_series(self, group, n_rows, n_columns):
        self.both(
            lambda run: run.save_series(group, {"x": np.ones((n_rows, n_columns)), "y": np.arange(n_rows)})
        )

    @precondition(lambda self: self.open)
    @rule(group=GROUP, n_columns=st.integers(0, 2), y=st.one_of(st.integers(0, 9), st.floats(0, 1)))
    def append(self, group, n_columns, y):
        self.both(lambda run: run.append(group, {"x": np.full(n_columns, 2.0), "y": y}))

    @precondition(lambda self: self.open)
    @rule(group=GROUP)
    def delete(self, group):
        self.both(lambda run: run.delete(group))

    @precondition(lambda self: self.open)
    @rule()
    def commit(self):
        self.both(lambda run: run.commit())

    @precondition(lambda self: self.open)
    @rule()
    def close_without_commit(self):
        self.both(lambda run: run.close())
        self.open = False

    @precondition(lambda self: self.open)
    @rule()
    def leave_the_block(self):
        self.both(lambda run: run.__exit__(None, None, None))
        self.open = False

    @invariant()
    def they_hold_the_same(self):
        if self.open:
            self.both(lambda run: (run.names(), run.groups()))
            for group in self.memory.groups():
                self.both(lambda run, group=group: run.load(group))

    def teardown(self):
        if self.open:
            self.file.close()
        self.folder.cleanup()


RunsAgree.TestCase.settings = settings(max_examples=25, stateful_step_count=20)


TestRunsAgree = RunsAgree.TestCase
