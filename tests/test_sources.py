"""Every kind of source gives the samples of the arrays it was made from, however it is cut."""

from __future__ import annotations

import tracemalloc
import zipfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matfree_hier.model import HierarchicalModel
from matfree_hier.sources import Chunk, SampleSource, TeacherSource, open_source
from matfree_hier.sources.stored import StoredArray
from matfree_hier.status import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N, D = 203, 4
NAMES = tuple("abcd")


def samples(dtype: Any = np.float64, n: int = N, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2605)
    X = rng.normal(size=(n, d)).astype(dtype)
    return X, rng.normal(size=n)


def table() -> pd.DataFrame:
    X, y = samples()
    return pd.DataFrame(X, columns=list(NAMES)).assign(target=y)


def write_hdf5(path: Path, X: np.ndarray, y: np.ndarray, **layout: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, **layout)
        file["y"] = y
    return path


def _arrays(folder: Path) -> SampleSource:
    return open_source(*samples())


def _fortran(folder: Path) -> SampleSource:
    X, y = samples()
    return open_source((np.asfortranarray(X), y))


def _strided(folder: Path) -> SampleSource:
    X, y = samples()
    return open_source(np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3], np.repeat(y, 2)[::2])


def _big_endian(folder: Path) -> SampleSource:
    X, y = samples()
    return open_source(X.astype(">f8"), y.astype(">f8"))


def _lists(folder: Path) -> SampleSource:
    X, y = samples()
    return open_source(X.tolist(), y.tolist())


def _last_column(folder: Path) -> SampleSource:
    X, y = samples()
    return open_source(np.column_stack([X, y]), -1)


def _inner_column(folder: Path) -> SampleSource:
    X, y = samples()
    return open_source(np.insert(X, 2, y, axis=1), 2)


def _frame(folder: Path) -> SampleSource:
    return open_source(table())


def _frame_named(folder: Path) -> SampleSource:
    return open_source(table()[["target", *NAMES]], "target")


def _frame_and_series(folder: Path) -> SampleSource:
    return open_source(table()[list(NAMES)], table()["target"])


def _npy_pair(folder: Path) -> SampleSource:
    X, y = samples()
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return open_source((str(folder / "X.npy"), folder / "y.npy"))


def _npy_and_array(folder: Path) -> SampleSource:
    X, y = samples()
    np.save(folder / "X.npy", np.asfortranarray(X))
    return open_source(folder / "X.npy", y)


def _npy_column(folder: Path) -> SampleSource:
    X, y = samples()
    np.save(folder / "A.npy", np.column_stack([X, y]))
    return open_source(folder / "A.npy", "-1")


def _npz_stored(folder: Path) -> SampleSource:
    X, y = samples()
    np.savez(folder / "s.npz", X=X, y=y)
    return open_source(folder / "s.npz")


def _npz_compressed(folder: Path) -> SampleSource:
    X, y = samples()
    np.savez_compressed(folder / "c.npz", X=X, y=y)
    return open_source(folder / "c.npz", cache_bytes=0)


def _npz_cached(folder: Path) -> SampleSource:
    X, y = samples()
    np.savez_compressed(folder / "c.npz", X=X, y=y)
    return open_source(folder / "c.npz")


def _hdf5_contiguous(folder: Path) -> SampleSource:
    return open_source(write_hdf5(folder / "a.h5", *samples()))


def _hdf5_chunked(folder: Path) -> SampleSource:
    path = write_hdf5(folder / "c.hdf5", *samples(), chunks=(37, 3), compression="gzip")
    return open_source(path, cache_bytes=0)


def _hdf5_userblock(folder: Path) -> SampleSource:
    X, y = samples()
    with h5py.File(folder / "u.h5", "w", userblock_size=512) as file:
        file["X"], file["y"] = X, y[:, np.newaxis]
    return open_source(folder / "u.h5", cache_bytes=0)


def _hdf5_dataset(folder: Path) -> SampleSource:
    file = h5py.File(write_hdf5(folder / "open.h5", *samples()), "r")
    return open_source(file["X"], file["y"])


def _csv(folder: Path) -> SampleSource:
    table().to_csv(folder / "t.csv", index=False)
    return open_source(folder / "t.csv", cache_bytes=0)


def _csv_cached(folder: Path) -> SampleSource:
    table().to_csv(folder / "t.csv", index=False)
    return open_source(folder / "t.csv")


def _tsv_picked(folder: Path) -> SampleSource:
    frame = table().assign(comment="it's text")[["d", "comment", "target", "b", "a", "c"]]
    frame.to_csv(folder / "t.tsv", index=False, sep="\t")
    return open_source(folder / "t.tsv", "target", inputs=NAMES, cache_bytes=0)


def _parquet(folder: Path) -> SampleSource:
    pytest.importorskip("pyarrow")
    table().to_parquet(folder / "t.parquet", row_group_size=61)
    return open_source(folder / "t.parquet", cache_bytes=0)


def _slice(folder: Path) -> SampleSource:
    X, y = samples()
    padded = np.concatenate([X[:9], X, X[:5]]), np.concatenate([y[:9], y, y[:5]])
    return open_source(*padded).slice(4, N + 12).slice(5, N + 5)


def _transformed(folder: Path) -> SampleSource:
    X, y = samples()
    halved = open_source(X / 2, y / 2)
    return halved.transformed(lambda A: A * 2, labels_fn=lambda A, b: b + b + 0 * A[:, 0])


BUILDERS: list[Callable[[Path], SampleSource]] = [
    _arrays, _fortran, _strided, _big_endian, _lists, _last_column, _inner_column, _frame, _frame_named,
    _frame_and_series, _npy_pair, _npy_and_array, _npy_column, _npz_stored, _npz_compressed, _npz_cached,
    _hdf5_contiguous, _hdf5_chunked, _hdf5_userblock, _hdf5_dataset, _csv, _csv_cached, _tsv_picked, _parquet,
    _slice, _transformed,
]  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SampleSource]:
    opened = {}
    for build in BUILDERS:
        try:
            opened[build.__name__] = build(tmp_path_factory.mktemp("source"))
        except pytest.skip.Exception:
            continue
    return opened


def agree(chunks: list[Chunk], X: np.ndarray, y: np.ndarray, start: int, dtype: Any = np.float64) -> None:
    """The chunks follow one another from `start` on and hold these rows, laid out as promised."""
    for chunk in chunks:
        assert type(chunk.X) is np.ndarray
        assert chunk.X.dtype == dtype
        assert chunk.X.flags.c_contiguous
        assert chunk.X.flags.aligned
        assert chunk.start == start
        stop = start + len(chunk.X)
        assert np.array_equal(chunk.X, X[start:stop])
        assert chunk.y is not None
        assert chunk.y.dtype == np.float64
        assert np.array_equal(chunk.y, y[start:stop])
        start = stop


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_every_source_gives_the_samples_of_the_arrays(build: Any, sources: dict[str, SampleSource]) -> None:
    if build.__name__ not in sources:
        pytest.skip("needs pyarrow")
    source, (X, y) = sources[build.__name__], samples()
    source.validate()
    assert (source.n_samples, source.n_inputs, source.dtype, source.has_target) == (N, D, np.float64, True)
    agree(list(source.chunks()), X, y, 0)
    assert np.array_equal(source.labels(), y)
    assert source.labels().dtype == np.float64
    assert np.array_equal(source.inputs(), X)
    assert np.array_equal(source.inputs(190, 199), X[190:199])
    assert source.fingerprint() == open_source(X, y).fingerprint()


@given(data=st.data(), name=st.sampled_from([build.__name__ for build in BUILDERS]))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_cut_changes_the_samples(data: Any, name: str, sources: dict[str, SampleSource]) -> None:
    if name not in sources:
        return
    X, y = samples()
    start = data.draw(st.integers(0, N), label="start")
    stop = data.draw(st.integers(start, N), label="stop")
    rows = data.draw(st.none() | st.integers(1, N + 9), label="rows")
    chunks = list(sources[name].chunks(start, stop, rows=rows))
    assert sum(len(chunk.X) for chunk in chunks) == stop - start
    agree(chunks, X, y, start)
    if rows is not None and chunks:
        assert {len(chunk.X) for chunk in chunks[:-1]} <= {rows}
        assert len(chunks[-1].X) <= rows
    part = sources[name].slice(start, stop)
    inner = data.draw(st.integers(0, part.n_samples), label="inner")
    assert np.array_equal(part.slice(inner).labels(), y[start + inner : stop])
    agree(list(part.slice(inner).chunks(rows=rows)), X[start + inner :], y[start + inner :], 0)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_labels_can_be_left_out(build: Any, sources: dict[str, SampleSource]) -> None:
    if build.__name__ not in sources:
        pytest.skip("needs pyarrow")
    assert [chunk.y for chunk in sources[build.__name__].chunks(rows=80, labels=False)] == [None] * 3


@pytest.mark.parametrize("given_dtype", ["f2", "f4", "f8", "i1", "u2", "i8", "?", ">f4", ">i4", "g"])
@pytest.mark.parametrize("kind", ["array", "npy", "hdf5", "chunked", "npz", "frame", "parquet"])
def test_float16_and_float32_come_as_float32_and_the_rest_as_float64(
    given_dtype: str, kind: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(11)
    X = (rng.normal(size=(60, 3)) * 20).astype(given_dtype)
    y = np.arange(60, dtype="i2")
    if kind == "array":
        source = open_source(X, y)
    elif kind == "npy":
        np.save(tmp_path / "X.npy", X)
        source = open_source((tmp_path / "X.npy", y))
    elif kind in ("hdf5", "chunked"):
        layout = {"chunks": (7, 3)} if kind == "chunked" else {}
        source = open_source(write_hdf5(tmp_path / "a.h5", X, y, **layout), cache_bytes=0)
    elif kind == "npz":
        np.savez_compressed(tmp_path / "a.npz", X=X, y=y)
        source = open_source(tmp_path / "a.npz", cache_bytes=0)
    else:
        if X.dtype.byteorder == ">" or given_dtype == "g":
            pytest.skip("not a column type")
        frame = pd.DataFrame({f"x{j}": X[:, j] for j in range(3)}).assign(y=y)
        source = open_source(frame)
        if kind == "parquet":
            pytest.importorskip("pyarrow")
            frame.to_parquet(tmp_path / "t.parquet")
            source = open_source(tmp_path / "t.parquet", cache_bytes=0)
    expected = np.float32 if given_dtype in ("f2", "f4", ">f4") else np.float64
    assert source.dtype == expected
    agree(list(source.chunks(rows=13)), X.astype(expected), y.astype(float), 0, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_c_ordered_floats_in_memory_are_given_as_views(dtype: Any) -> None:
    X, y = samples(dtype)
    for source in (open_source(X, y), open_source(X, y).slice(3, 190).slice(5)):
        for chunk in source.chunks(rows=100):
            assert np.shares_memory(chunk.X, X)
            assert chunk.y is not None
            assert np.shares_memory(chunk.y, y)
    assert np.shares_memory(open_source(X, y).inputs(5, 77), X)


def test_stored_npz_inputs_are_read_at_their_offset(tmp_path: Path) -> None:
    X, y = samples()
    np.savez(tmp_path / "s.npz", before=np.arange(3), X=X, y=y)
    source: Any = open_source(tmp_path / "s.npz")
    assert isinstance(source.X, StoredArray)
    assert isinstance(source.y, StoredArray)
    assert np.array_equal(source.inputs(7, 91), X[7:91])
    assert np.array_equal(source.labels(), y)


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["npy", "fortran", "npz", "stored", "hdf5", "parquet"])
def test_reading_a_file_takes_far_less_memory_than_the_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matfree_hier.sources.base.BLOCK_BYTES", 2**19)
    X, y = samples(np.float32, n=150_000, d=16)  # 9.6 MB
    if kind in ("npy", "fortran"):
        np.save(tmp_path / "X.npy", X if kind == "npy" else np.asfortranarray(X))
        open_it = lambda: open_source((tmp_path / "X.npy", y))  # noqa: E731
    elif kind in ("npz", "stored"):
        with zipfile.ZipFile(
            tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED if kind == "npz" else 0, compresslevel=1
        ) as archive:
            for name, array in (("X.npy", X), ("y.npy", y)):
                with archive.open(name, "w") as file:
                    np.lib.format.write_array(file, array)
        open_it = lambda: open_source(tmp_path / "a.npz", cache_bytes=0)  # noqa: E731
    elif kind == "hdf5":
        write_hdf5(tmp_path / "a.h5", X, y, chunks=(5000, 16))
        open_it = lambda: open_source(tmp_path / "a.h5", cache_bytes=0)  # noqa: E731
    else:
        pytest.importorskip("pyarrow")
        pd.DataFrame(X).rename(columns=str).assign(y=y).to_parquet(tmp_path / "a.parquet")
        open_it = lambda: open_source(tmp_path / "a.parquet", cache_bytes=0)  # noqa: E731
    total = 0.0

    def read() -> None:
        nonlocal total
        for chunk in open_it().chunks():
            total += chunk.X.sum(dtype=np.float64)

    assert peak(read) < 2.5e6 + y.nbytes
    assert total == pytest.approx(X.sum(dtype=np.float64))


def test_small_decoded_inputs_are_read_once_and_large_ones_are_not_kept(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", *samples(), chunks=(50, 4))
    kept: Any = open_source(path, cache_bytes=N * D * 8)
    first, again = (next(kept.chunks()).X for _ in range(2))
    assert np.shares_memory(first, again)
    streamed = open_source(path, cache_bytes=N * D * 8 - 1)
    first, again = (next(streamed.chunks()).X for _ in range(2))
    assert not np.shares_memory(first, again)


def test_hdf5_is_read_along_its_storage_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hdf5(tmp_path / "a.h5", *samples(), chunks=(45, 4))
    monkeypatch.setattr("matfree_hier.sources.base.MIN_ROWS", 100)
    monkeypatch.setattr("matfree_hier.sources.base.BLOCK_BYTES", 3200)
    source = open_source(path, cache_bytes=0)
    assert [chunk.start for chunk in source.chunks(50)] == [50, 90, 180]
    monkeypatch.setattr("matfree_hier.sources.hdf5.STORAGE_BYTES", 45 * 32 - 1)
    assert [chunk.start for chunk in source.chunks(50)] == [50, 100, 200]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    frame = table()
    frame.to_csv(tmp_path / "t.csv", index=False)
    for data in (frame, tmp_path / "t.csv"):
        source = open_source(data, "b", inputs=["target", "a"])
        assert source.input_names == ("target", "a")
        assert source.target_name == "b"
        assert np.array_equal(source.inputs(), frame[["target", "a"]].to_numpy())
        assert np.array_equal(source.labels(), frame["b"].to_numpy())
        default = open_source(data)
        assert (default.input_names, default.target_name) == (NAMES, "target")


def test_without_a_target_every_column_is_an_input(tmp_path: Path) -> None:
    X, y = samples()
    table().to_csv(tmp_path / "t.csv", index=False)
    np.save(tmp_path / "X.npy", X)
    write_hdf5(tmp_path / "a.h5", X, y)
    for data, d in (
        (table(), 5),
        (tmp_path / "t.csv", 5),
        (X, 4),
        (tmp_path / "X.npy", 4),
        (tmp_path / "a.h5", 4),
    ):
        source = open_source(data, False)
        assert (source.n_inputs, source.has_target, source.target_name) == (d, False, None)
        assert next(source.chunks()).y is None
        with pytest.raises(InputError, match="has no target"):
            source.labels()
    assert not open_source(X).has_target


def test_arrays_are_found_when_their_names_are_others(tmp_path: Path) -> None:
    X, y = samples()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["run/inputs"], file["run/labels"], file["run/sizes"] = X, y, np.arange(3)
        file["link"] = h5py.SoftLink("/run/inputs")
    np.savez(tmp_path / "a.npz", inputs=X, labels=y, more=y)
    for source in (
        open_source(tmp_path / "a.h5"),
        open_source(tmp_path / "a.h5", "run/labels", inputs_name="link"),
        open_source(tmp_path / "a.npz", "labels"),
        open_source(tmp_path / "a.npz", inputs_name="inputs", target_name="more"),
    ):
        assert np.array_equal(source.inputs(), X)
        assert np.array_equal(source.labels(), y)
    assert open_source(tmp_path / "a.h5").target_name == "run/labels"


def test_names_can_be_given_to_the_columns_of_arrays() -> None:
    X, y = samples()
    assert open_source(X, y, inputs=NAMES).input_names == NAMES
    assert open_source(X, y).input_names == ("x0", "x1", "x2", "x3")
    assert open_source(X, pd.Series(y, name="height"), target_name="h").target_name == "h"
    assert open_source(pd.DataFrame(X), pd.Series(y, name="height")).target_name == "height"


def test_pandas_columns_with_missing_value_types_are_numbers() -> None:
    frame = pd.DataFrame(
        {"a": pd.array([1, 2, 3], "Int64"), "b": [True, False, True], "y": pd.array([1, 0, 1], "boolean")}
    )
    source = open_source(frame)
    assert np.array_equal(source.inputs(), [[1, 1], [2, 0], [3, 1]])
    assert np.array_equal(source.labels(), [1, 0, 1])
    frame.loc[1, "a"] = pd.NA
    with pytest.raises(InputError, match=r"row 1 \(counted from 0\), column `a`: nan is not a finite number"):
        open_source(frame).validate()


def test_arrow_tables_and_dotted_names_are_read_like_frames(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a.b": [1, 2, 3], "a": [4.5, 5, 6], "y": [1, 0, 1]})
    frame.to_parquet(tmp_path / "t.parquet")
    for data in (arrow.Table.from_pandas(frame), tmp_path / "t.parquet"):
        source = open_source(data, np.int64(-1), cache_bytes=0)
        assert source.input_names == ("a.b", "a")
        assert np.array_equal(source.inputs(), frame[["a.b", "a"]].to_numpy())
        assert np.array_equal(source.labels(), [1, 0, 1])


def test_a_source_is_given_back_as_it_is_or_with_other_labels() -> None:
    X, y = samples()
    source = open_source(X, y)
    assert open_source(source) is source
    other = open_source(source, 2 * y)
    assert np.array_equal(other.labels(), 2 * y)
    agree(list(other.slice(10, 150).chunks(rows=33)), X[10:], 2 * y[10:], 0)


def test_labels_are_read_only_and_kept() -> None:
    X, y = samples()
    source = open_source(X, y.astype(np.float32))
    assert source.labels() is source.labels()
    with pytest.raises(ValueError, match="read-only"):
        source.labels()[0] = 1.0


def test_a_transformation_may_change_the_number_of_inputs_and_the_dtype() -> None:
    X, y = samples()
    source = open_source(X, y).transformed(lambda A: A[:, :2] ** 2, dtype=np.float32)
    assert (source.n_inputs, source.input_names, source.dtype) == (2, ("x0", "x1"), np.float32)
    agree(list(source.chunks(rows=91)), (X[:, :2] ** 2).astype(np.float32), y, 0, np.float32)
    named = open_source(X, y).transformed(lambda A: A[:, :2], input_names=["p", "q"])
    assert named.input_names == ("p", "q")
    assert np.array_equal(named.slice(7, 9).inputs(), X[7:9, :2])
    same = open_source(X, y, inputs=NAMES).transformed(lambda A: A - 1)
    assert same.input_names == NAMES


def test_labels_without_their_mean_leave_the_inputs_alone() -> None:
    X, y = samples()
    source = open_source(X, y).transformed(labels_fn=lambda A, b: b - A @ np.ones(D))
    assert np.allclose(source.labels(), y - X.sum(axis=1), rtol=1e-15, atol=1e-15)
    assert np.shares_memory(next(source.chunks()).X, X)


def test_fingerprints_tell_contents_apart() -> None:
    X, y = samples()
    changed, labels = X.copy(), y.copy()
    changed[120, 2] += 1e-9
    labels[13] = 0.0
    variants = [
        open_source(X, y), open_source(X), open_source(changed, y), open_source(X, labels),
        open_source(X[:-1], y[:-1]), open_source(X.astype(np.float32), y), open_source(X[::-1], y[::-1]),
        open_source(X.reshape(-1, 2), np.r_[y, y]),
    ]  # fmt: skip
    prints = [source.fingerprint() for source in variants]
    assert len(set(prints)) == len(variants)
    assert all(len(text) == 32 for text in prints)
    assert open_source(X.copy(), y).slice(0, 100).fingerprint() == open_source(X[:100], y[:100]).fingerprint()


def test_fingerprints_of_large_data_are_sampled_alike_in_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matfree_hier.sources.base.HASHED_WHOLE", 1000)
    monkeypatch.setattr("matfree_hier.sources.base.HASHED_PIECE_BYTES", 64)
    X, y = samples()
    np.savez_compressed(tmp_path / "c.npz", X=X, y=y)
    whole, streamed = open_source(X, y), open_source(tmp_path / "c.npz", cache_bytes=0)
    assert whole.fingerprint() == streamed.fingerprint()
    for row, seen in ((0, True), (N - 1, True), (5, False)):
        other = X.copy()
        other[row, 1] += 1.0
        assert (open_source(other, y).fingerprint() != whole.fingerprint()) == seen


def test_validation_happens_once_and_covers_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = samples()
    source = open_source(X, y)
    scans = []
    monkeypatch.setattr(type(source), "_scan", lambda self: scans.append(self), raising=True)
    source.validate()
    source.validate()
    source.slice(5, 50).validate()
    assert scans == [source]


def test_overflow_of_the_check_itself_is_not_an_error() -> None:
    X = np.full((50, 2), 3e38, dtype=np.float32)
    open_source(X, np.full(50, 1e308)).validate()


@given(start=st.integers(0, 2500), length=st.integers(0, 1500), rows=st.none() | st.integers(1, 1100))
@settings(max_examples=20)
def test_a_teacher_draws_the_same_samples_for_every_cut(start: int, length: int, rows: int | None) -> None:
    model = HierarchicalModel(n_inputs=3, degree=2, n_features=2, noise_std=0.5, seed=7)
    source = TeacherSource(model, 4000, 11, dtype=np.float32)
    X, y = model.sample(4000, 11, dtype=np.float32)
    agree(list(source.chunks(start, start + length, rows=rows)), X, y, start, np.float32)


def test_a_teacher_as_a_source() -> None:
    model = HierarchicalModel(n_inputs=3, degree=2, n_features=2, seed=7)
    source = TeacherSource(model, 1500, 11)
    X, y = model.sample(1500, 11)
    assert np.array_equal(source.labels(), y)
    assert np.array_equal(source.slice(1000).inputs(), X[1000:])
    assert source.fingerprint() == TeacherSource(model, 1500, 11).fingerprint()
    assert source.fingerprint() != TeacherSource(model, 1500, 12).fingerprint()
    with pytest.raises(ValueError, match="`n_samples` must be at least 1, got 0"):
        TeacherSource(model, 0, 11)
    with pytest.raises(ValueError, match="`dtype` must be float32 or float64, got int64"):
        TeacherSource(model, 10, 11, dtype="int64")
