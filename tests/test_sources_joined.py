from itertools import pairwise

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from matfree_hier.operator import MomentOperator
from matfree_hier.sources import open_source
from matfree_hier.status import InputError

RNG = np.random.default_rng(2605)
X, Y = RNG.standard_normal((500, 3)), RNG.standard_normal(500)
CUTS = [0, 120, 121, 400, 500]
PARTS = [slice(a, b) for a, b in pairwise(CUTS)]


def written(folder, kind, part, number):
    path = folder / f"part-{number}.{kind}"
    if kind == "npy":
        np.save(path, X[part])
        np.save(folder / f"y-{number}.npy", Y[part])
    elif kind == "npz":
        np.savez(path, X=X[part], y=Y[part])
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["X"], file["y"] = X[part], Y[part]
    else:
        frame = pd.DataFrame(X[part], columns=["a", "b", "c"]).assign(target=Y[part])
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "h5", "csv", "parquet"])
@pytest.mark.parametrize("as_list", [True, False])
def test_files_named_by_a_list_or_a_pattern_are_one_source(kind, as_list, tmp_path):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    paths = [written(tmp_path, kind, part, i) for i, part in enumerate(PARTS)]
    data = paths if as_list else tmp_path / f"part-*.{kind}"
    target = str(tmp_path / "y-*.npy") if kind == "npy" else None
    source = open_source(data, target)
    assert_array_equal(source.inputs(), X)
    assert_array_equal(source.labels(), Y)
    assert source.fingerprint() == open_source((X, Y)).fingerprint()
    source.validate()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 500), length=st.integers(0, 500), rows=st.integers(1, 200))
def test_any_range_and_chunk_size_gives_the_rows_of_the_whole(joined, start, length, rows):
    stop = min(start + length, 500)
    chunks = list(joined.chunks(start, stop, rows=rows))
    assert_array_equal(np.concatenate([np.empty((0, 3)), *[chunk.X for chunk in chunks]]), X[start:stop])
    assert_array_equal(np.concatenate([np.empty(0), *[chunk.y for chunk in chunks]]), Y[start:stop])
    assert [chunk.start for chunk in chunks] == list(range(start, stop, rows))


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return open_source([written(folder, "h5", part, i) for i, part in enumerate(PARTS)])


def test_the_operator_of_parts_is_that_of_the_whole(joined):
    V = RNG.standard_normal((6, 2))
    whole = MomentOperator(X, Y, degree=2)
    assert_array_equal(MomentOperator(joined, degree=2) @ V, whole @ V)


def test_labels_may_stand_in_one_array_for_all_parts(tmp_path):
    paths = [written(tmp_path, "npy", part, i) for i, part in enumerate(PARTS)]
    np.save(tmp_path / "all.npy", Y)
    for labels in (Y, str(tmp_path / "all.npy")):
        source = open_source(paths, labels)
        assert_array_equal(source.labels(), Y)
        assert_array_equal(source.inputs(), X)
    assert_array_equal(open_source((paths, Y)).labels(), Y)


def test_parts_of_different_dtypes_meet_in_the_wider_one(tmp_path):
    np.save(tmp_path / "a.npy", X[:9].astype(np.float32))
    np.save(tmp_path / "b.npy", X[9:20])
    source = open_source([tmp_path / "a.npy", tmp_path / "b.npy"], -1)
    assert source.dtype == np.float64
    assert_array_equal(source.inputs()[:9], X[:9, :2].astype(np.float32))
    assert_array_equal(source.inputs()[9:], X[9:20, :2])


def test_a_bad_value_is_named_with_its_part(tmp_path):
    paths = [written(tmp_path, "h5", part, i) for i, part in enumerate(PARTS)]
    with h5py.File(paths[2], "r+") as file:
        file["X"][7, 1] = np.nan
    source = open_source(paths)
    with pytest.raises(InputError, match=r"part-2\.h5.*row 7 \(counted from 0\), column `x1`: nan"):
        source.validate()
    assert "part-2.h5" in source.where(121 + 7, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda frame: frame.assign(d=1.0)[["d", *frame]],
            r"part-1\.csv has 4 inputs where .*part-0\.csv has 3",
        ),
        (lambda frame: frame.rename(columns={"b": "z"}), r"has the column `z` where .* has `b`"),
        (lambda frame: frame.rename(columns={"target": "t"}), r"has the target `t` where .* has `target`"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message, tmp_path):
    paths = [written(tmp_path, "csv", part, i) for i, part in enumerate(PARTS[:2])]
    change(pd.read_csv(paths[1])).to_csv(paths[1], index=False)
    with pytest.raises(InputError, match=message):
        open_source(paths)


def test_a_part_without_labels_is_refused_beside_one_with(tmp_path):
    a, b = open_source((X[:5], Y[:5])), open_source(X[5:9])
    from matfree_hier.sources.joined import JoinedSource

    with pytest.raises(InputError, match="has the target none where"):
        JoinedSource([a, b])


def test_missing_and_truncated_parts_are_named(tmp_path):
    paths = [written(tmp_path, "npy", part, i) for i, part in enumerate(PARTS)]
    with pytest.raises(FileNotFoundError, match=r"part-9\.npy"):
        open_source([*paths, tmp_path / "part-9.npy"], -1)
    with pytest.raises(FileNotFoundError, match=r"none-\*\.npy"):
        open_source(str(tmp_path / "none-*.npy"), -1)
    with pytest.raises(InputError, match="`target` names 2 files, and there are 4 of inputs"):
        open_source(paths, [tmp_path / "y-0.npy", tmp_path / "y-1.npy"])
    source = open_source(paths, -1)
    paths[3].unlink()
    with pytest.raises(
        FileNotFoundError, match=r"part-3\.npy was removed while it was in use, noticed at row"
    ):
        source.inputs()
    paths[2].write_bytes(paths[2].read_bytes()[:-8])
    with pytest.raises(InputError, match=r"part-2\.npy is truncated"):
        open_source(paths[:3], -1)


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path):
    np.savez(tmp_path / "a[0].npz", X=X, y=Y)
    assert_array_equal(open_source(tmp_path / "a[0].npz").inputs(), X)
