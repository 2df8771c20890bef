from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from matfree_hier.sources import open_source, stored
from matfree_hier.sources.npy import stored_npy
from matfree_hier.status import InputError

COLUMNS = [slice(None), slice(1, None), slice(None, -1), 0, -1, np.array([0, 2])]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_runs_of_rows_and_columns_are_those_of_the_array(tmp_path, data):
    n, d = data.draw(st.tuples(st.integers(1, 40), st.integers(3, 6)))
    dtype = data.draw(st.sampled_from(["f4", "f8", "f2", "i1", ">f8", "u2"]))
    A = np.arange(n * d).reshape(n, d).astype(dtype)
    if data.draw(st.booleans()):
        A = np.asfortranarray(A)
    np.save(tmp_path / "A.npy", A)
    array = stored_npy(tmp_path / "A.npy")
    columns = data.draw(st.sampled_from([None, *COLUMNS]))
    expected = A
    if columns is not None:
        array, expected = array[:, columns], A[:, columns]
    assert (array.shape, array.ndim, array.dtype) == (expected.shape, expected.ndim, expected.dtype)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    for first, last in pairwise([0, *cuts, n]):
        assert_array_equal(array[first:last], expected[first:last])


def test_columns_are_picked_without_holding_the_matrix(tmp_path, monkeypatch):
    A = np.arange(5000.0).reshape(1000, 5)
    np.save(tmp_path / "A.npy", A)
    monkeypatch.setattr(stored, "READ_BYTES", 400)  # 10 rows at a time
    assert_array_equal(stored_npy(tmp_path / "A.npy")[:, 3][:], A[:, 3])


def test_only_runs_of_rows_and_columns_once_can_be_asked_for(tmp_path):
    np.save(tmp_path / "A.npy", np.ones((4, 3)))
    array = stored_npy(tmp_path / "A.npy")
    for key in (slice(0, 4, 2), (slice(0, 2), 1)):
        with pytest.raises(IndexError, match=r"A\.npy"):
            array[key]
    with pytest.raises(IndexError, match="once by columns"):
        array[:, 1:][:, 0]


def test_a_file_cut_after_it_was_opened_is_named(tmp_path):
    path = tmp_path / "A.npy"
    np.save(path, np.ones((1000, 3)))
    array = stored_npy(path)
    path.write_bytes(path.read_bytes()[:5000])
    assert_array_equal(array[:100], np.ones((100, 3)))
    with pytest.raises(InputError, match=r"A\.npy is truncated: its array ends at byte 24128, .* byte 5000"):
        array[100:]


@given(data=st.data())
def test_marked_rows_come_straight_to_their_place(data, tmp_path_factory):
    n, d = data.draw(st.integers(1, 400)), data.draw(st.sampled_from([1, 7, 300]))
    keep = np.zeros(n, bool)
    for _ in range(data.draw(st.integers(0, 5))):
        first = data.draw(st.integers(0, n - 1))
        keep[first : data.draw(st.integers(first, n))] ^= True
    X = (np.arange(n * d) % 100).reshape(n, d).astype(data.draw(st.sampled_from(["<f4", ">f8", "i1", "f2"])))
    path = tmp_path_factory.mktemp("marked") / "X.npy"
    np.save(path, X)
    stored = stored_npy(path)
    assert_array_equal(stored.selected(0, keep), X[keep])
    last = data.draw(st.integers(0, n))
    assert_array_equal(stored.selected(n - last, keep[:last]), X[n - last :][keep[:last]])


def test_a_file_cut_within_marked_rows_is_named_with_the_row(tmp_path):
    np.save(tmp_path / "X.npy", np.zeros((1000, 100)))
    stored = stored_npy(tmp_path / "X.npy")
    with (tmp_path / "X.npy").open("r+b") as file:
        file.truncate(128 + 800 * 700 + 5)
    keep = np.ones(900, bool)
    keep[[100, 101, 500]] = False
    with pytest.raises(InputError, match=r"X\.npy is truncated: .*; rows 700 to 999 \(counted from 0\) are"):
        stored.selected(50, keep)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "u2", "i4", "i8", "u8", "?"])
@pytest.mark.parametrize("asked", ["float32", "float64"])
def test_chunks_of_a_dtype_hold_what_those_of_the_source_do_rounded(dtype, asked, tmp_path):
    bits = np.random.default_rng(5).integers(0, 256, 8 * 3 * 3000, dtype=np.uint8)
    X = bits[: 9000 * np.dtype(dtype).itemsize].view(dtype).reshape(-1, 3)
    if np.dtype(dtype).kind == "f":
        X = np.where(np.isfinite(X), X, np.zeros(1, dtype)).astype(dtype)
    if dtype == "?":
        X = (bits[:9000] % 2).astype(bool).reshape(-1, 3)
    np.save(tmp_path / "X.npy", X)
    source = open_source(tmp_path / "X.npy", False)
    assert source.dtype == ("float32" if dtype in ("f2", "f4", ">f4") else "float64")
    with np.errstate(over="ignore"):
        expected = source.inputs().astype(asked)
    for rows in (None, 700):
        chunks = list(source.chunks(rows=rows, dtype=asked))
        assert {chunk.X.dtype for chunk in chunks} == {np.dtype(asked)}
        assert_array_equal(np.concatenate([chunk.X for chunk in chunks]), expected)
