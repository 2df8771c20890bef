from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from matfree_hier.sources import stored
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
