"""Data that cannot be used are refused in one sentence, never with a library's own exception."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from matfree_hier.sources import open_source
from matfree_hier.status import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.random.default_rng(8).normal(size=(12, 3))
Y = np.arange(12.0)
NAN_X, INF_Y = X.copy(), Y.copy()
NAN_X[7, 1] = np.nan
INF_Y[9] = -np.inf


RESHAPE = "Reshape your data: X.reshape(-1, 1) for one input, X.reshape(1, -1) for one sample."
REFUSED = "is not a finite number (NaN, inf and missing values are refused)."


def save(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def save_npz(path: Path, *, compressed: bool = False, **arrays: Any) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def save_hdf5(path: Path, *, chunks: Any = None, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, chunks=chunks if np.ndim(array) == 2 else None)
    return path


def save_parquet(path: Path, **columns: Any) -> Path:
    pytest.importorskip("pyarrow")
    pd.DataFrame(columns).to_parquet(path)
    return path


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def truncate(path: Path, share: float = 0.6) -> Path:
    os.truncate(path, int(share * path.stat().st_size))
    return path


def damage(path: Path, part: bytes = b"PK", at: float = 0.5) -> Path:
    """Overwrite a part in the middle."""
    content = bytearray(path.read_bytes())
    middle = int(len(content) * at)
    content[middle : middle + 40] = part * (40 // len(part))
    path.write_bytes(content)
    return path


def use(data: Any, target: Any = None, **options: Any) -> None:
    """Open and read everything, as an operator does."""
    source = open_source(data, target, cache_bytes=0, **options)
    source.validate()
    source.labels()


ARRAYS: dict[str, tuple[Callable[[], None], str]] = {
    "complex": (lambda: use(X + 1j, Y), "Complex data not supported: `X` has dtype complex128."),
    "complex labels": (lambda: use(X, Y + 1j), "Complex data not supported: `y` has dtype complex128."),
    "objects": (lambda: use(X.astype(object), Y), "`X` must hold real numbers, got dtype object."),
    "text": (lambda: use([["1", "b"]], [1.0]), "`X` must hold real numbers, got dtype <U1."),
    "dates": (lambda: use(X, np.zeros(12, "M8[s]")), "`y` must hold real numbers, got dtype datetime64[s]."),
    "text labels": (lambda: use(X, ["yes"] * 12), "`y` must hold real numbers, got dtype <U3."),
    "ragged": (
        lambda: use([[1, 2], [3, 4], [5]], [1, 2, 3]),
        "`X` must be a rectangular array: row 2 (counted from 0) has 1 entries where row 0 has 2.",
    ),
    "sparse": (
        lambda: use(sparse.csr_array(X), Y),
        "Sparse data are not supported: `X` is a csr_array; pass a dense array.",
    ),
    "masked": (
        lambda: use(np.ma.masked_greater(X, 0.5), Y),
        "`X` has masked entries: missing values are refused.",
    ),
    "one axis": (
        lambda: use(Y, Y),
        f"`X` must have two axes, samples and inputs, got shape (12,). {RESHAPE}",
    ),
    "no samples": (
        lambda: use(X[:0], Y[:0]),
        "`X` has 0 sample(s) (shape=(0, 3)) while a minimum of 1 is required.",
    ),
    "no inputs": (
        lambda: use(X[:, :0], Y),
        "`X` has 0 feature(s) (shape=(12, 0)) while a minimum of 1 is required.",
    ),
    "lengths": (lambda: use(X, Y[:-1]), "`y` has 11 rows where `X` has 12."),
    "two targets": (lambda: use(X, X), "`y` must have shape (n,), got (12, 3)."),
    "scalar": (
        lambda: use(3.0, Y),
        f"`X` must have two axes, samples and inputs, got shape (). {RESHAPE}",
    ),
    "nan": (
        lambda: use(NAN_X, Y),
        f"`X`, row 7 (counted from 0), column `x1`: nan {REFUSED}",
    ),
    "inf in labels": (
        lambda: use(X, INF_Y),
        f"`y`, row 9 (counted from 0): -inf {REFUSED}",
    ),
    "nan in a slice": (
        lambda: open_source(NAN_X, Y).slice(3).slice(1, 8).validate(),
        f"`X`, row 7 (counted from 0), column `x1`: nan {REFUSED}",
    ),
    "nan hidden by a function": (
        lambda: open_source(NAN_X, Y).transformed(np.zeros_like).validate(),
        f"`X`, row 7 (counted from 0), column `x1`: nan {REFUSED}",
    ),
    "inf made by a function": (
        lambda: open_source(X, Y).transformed(lambda A: np.where(np.isin(A, X[4, 2]), np.inf, A)).validate(),
        f"`X` after its transformation, row 4 (counted from 0), column `x2`: inf {REFUSED}",
    ),
    "nan in new labels": (
        lambda: open_source(X, Y).with_labels(INF_Y, "height").validate(),
        f"Target `height`, row 9 (counted from 0): -inf {REFUSED}",
    ),
    "names": (lambda: use(X, Y, inputs=["a"]), "`X` has 3 columns, and 1 names of inputs were given."),
    "named column of an array": (
        lambda: use(X, "height"),
        "`X` is an array without column names, so it has no column `height`; pass a column number.",
    ),
    "column number": (lambda: use(X, 3), "`X` has 3 columns, so no target column 3."),
    "true": (lambda: use(X, True), "`target` must be a column, an array, False or None, got True."),
    "pair and target": (lambda: use((X, Y), Y), "`target` must be None when `data` is a pair (X, y)."),
    "frame column": (
        lambda: use(pd.DataFrame(X, columns=list("abc")), "d"),
        "The data frame has no column `d`; its columns are a, b, c.",
    ),
    "frame text": (
        lambda: use(pd.DataFrame({"a": ["u", "v"], "b": [1, 2]})),
        "Column `a` must hold real numbers, got dtype ",
    ),
    "frame twice": (
        lambda: use(pd.DataFrame(X, columns=["a", "b", "a"])),
        "The data frame has more than one column `a`.",
    ),
    "frame target among inputs": (
        lambda: use(pd.DataFrame(X, columns=list("abc")), "b", inputs=["a", "b"]),
        "The data frame: the target `b` is among the inputs asked for.",
    ),
    "frame of one column": (
        lambda: use(pd.DataFrame({"a": Y})),
        "`X` has 0 feature(s) (shape=(12, 0)) while a minimum of 1 is required.",
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_cannot_be_used_are_refused(case: str) -> None:
    act, sentence = ARRAYS[case]
    with pytest.raises(InputError, match=re.escape(sentence)):
        act()


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "folder": (lambda p: p, "PATH is a folder, not a file."),
    "folder.csv": (lambda p: (p / "a.csv").mkdir() or p / "a.csv", "PATH is a folder, not a file."),
    "empty": (lambda p: write(p / "a.csv", ""), "PATH is empty."),
    "extension": (
        lambda p: write(p / "a.xyz", "1"),
        "PATH has no known extension; those read are .csv, .tsv, .npy, .npz, .h5, .hdf5, .parquet.",
    ),
    "empty npy": (lambda p: write(p / "a.npy", ""), "PATH is empty."),
    "no npy": (
        lambda p: (write(p / "a.npy", "a,b\n1,2\n"), Y),
        "PATH cannot be read as a NumPy file, it may be truncated or damaged: ",
    ),
    "short npy header": (
        lambda p: (truncate(save(p / "a.npy", X), 0.2), Y),
        "PATH cannot be read as a NumPy file, it may be truncated or damaged: ",
    ),
    "short npy": (
        lambda p: (truncate(save(p / "a.npy", X)), Y),
        "PATH is truncated: its array ends at byte 416, the file at byte 249; rows 5 to 11 (counted from 0)",
    ),
    "npy of objects": (
        lambda p: (save(p / "a.npy", X.astype(object)), Y),
        "PATH must hold real numbers, got dtype object.",
    ),
    "npy of records": (
        lambda p: (save(p / "a.npy", np.zeros(3, [("é", "f8")])), Y),
        "PATH must hold real numbers, got dtype ",
    ),
    "npy without samples": (
        lambda p: (save(p / "a.npy", X[:0]), Y[:0]),
        "PATH has 0 sample(s) (shape=(0, 3)) while a minimum of 1 is required.",
    ),
    "npy without target": (
        lambda p: save(p / "a.npy", X),
        "PATH holds one array and no names, so the target must be given: another `.npy` file, or the number",
    ),
    "npy nan": (
        lambda p: (save(p / "a.npy", NAN_X), Y),
        "PATH, row 7 (counted from 0), column `x1`: nan is not a finite number",
    ),
    "labels in a text file": (
        lambda p: (save(p / "a.npy", X), p / "y.csv"),
        "Labels beside inputs must be an array or a `.npy` file, got ",
    ),
    "no npz": (
        lambda p: write(p / "a.npz", "nothing"),
        "PATH cannot be read as a NumPy archive, it may be truncated or damaged: File is not a zip file.",
    ),
    "short npz": (
        lambda p: truncate(save_npz(p / "a.npz", X=X, y=Y)),
        "PATH cannot be read as a NumPy archive, it may be truncated or damaged: File is not a zip file.",
    ),
    "damaged npz": (
        lambda p: damage(save_npz(p / "a.npz", compressed=True, X=np.tile(X, (99, 1)), y=np.tile(Y, 99))),
        "PATH cannot be read as a NumPy archive, it may be truncated or damaged: ",
    ),
    "npz in Fortran order": (
        lambda p: save_npz(p / "a.npz", compressed=True, X=np.asfortranarray(X), y=Y),
        "PATH, array `X` is compressed in Fortran order and cannot be read by rows; save it in C order.",
    ),
    "npz without y": (
        lambda p: save_npz(p / "a.npz", X=X),
        "PATH has no array `y` (the target, a vector); it holds `X` (12, 3).",
    ),
    "npz without X": (
        lambda p: save_npz(p / "a.npz", A=X, B=X, y=Y),
        "PATH has no array `X` (the inputs, a matrix); it holds `A` (12, 3), `B` (12, 3), `y` (12,).",
    ),
    "npz with flat X": (
        lambda p: save_npz(p / "a.npz", compressed=True, X=Y, y=Y),
        "PATH, array `X` must have two axes, samples and inputs, got shape (12,). ",
    ),
    "npz lengths": (
        lambda p: save_npz(p / "a.npz", compressed=True, X=X, y=Y[:5]),
        "PATH, array `y` has 5 rows where PATH, array `X` has 12.",
    ),
    "npz nan": (
        lambda p: save_npz(p / "a.npz", compressed=True, X=X, y=INF_Y),
        "PATH, array `y`, row 9 (counted from 0): -inf is not a finite number",
    ),
    "no hdf5": (
        lambda p: write(p / "a.h5", "nothing"),
        "PATH cannot be read as a HDF5 file, it may be truncated or damaged: ",
    ),
    "short hdf5": (
        lambda p: truncate(save_hdf5(p / "a.h5", X=np.tile(X, (99, 1)), y=np.tile(Y, 99))),
        "PATH cannot be read as a HDF5 file, it may be truncated or damaged: ",
    ),
    "empty hdf5": (
        lambda p: save_hdf5(p / "a.hdf5"),
        "PATH has no array `X` (the inputs, a matrix); it holds no array.",
    ),
    "hdf5 without y": (
        lambda p: save_hdf5(p / "a.hdf5", X=X, u=Y, v=Y),
        "PATH has no array `y` (the target, a vector); it holds `X` (12, 3), `u` (12,), `v` (12,).",
    ),
    "hdf5 of text": (
        lambda p: save_hdf5(p / "a.h5", X=X, y=[b"a"] * 12),
        "PATH, dataset `y` must hold real numbers, got dtype ",
    ),
    "hdf5 lengths": (
        lambda p: save_hdf5(p / "a.h5", X=X, y=Y[:5]),
        "PATH, dataset `y` has 5 rows where PATH, dataset `X` has 12.",
    ),
    "hdf5 nan": (
        lambda p: save_hdf5(p / "a.h5", X=NAN_X, y=Y),
        "PATH, dataset `X`, row 7 (counted from 0), column `x1`: nan is not a finite number",
    ),
    "chunked hdf5 inf": (
        lambda p: save_hdf5(p / "a.h5", chunks=(4, 3), X=X, y=INF_Y),
        "PATH, dataset `y`, row 9 (counted from 0): -inf is not a finite number",
    ),
    "no parquet": (
        lambda p: pytest.importorskip("pyarrow") and write(p / "a.parquet", "nothing at all"),
        "PATH cannot be read as a Parquet file, it may be truncated or damaged: ",
    ),
    "short parquet": (
        lambda p: truncate(save_parquet(p / "a.parquet", a=Y, y=Y)),
        "PATH cannot be read as a Parquet file, it may be truncated or damaged: ",
    ),
    "parquet of text": (
        lambda p: save_parquet(p / "a.parquet", a=["u"] * 12, y=Y),
        "PATH, column `a` must hold real numbers, got ",
    ),
    "parquet without rows": (
        lambda p: save_parquet(p / "a.parquet", a=Y[:0], y=Y[:0]),
        "PATH has 0 sample(s) (shape=(0, 1)) while a minimum of 1 is required.",
    ),
    "parquet with a gap": (
        lambda p: save_parquet(p / "a.parquet", a=pd.array([1, 2, None, 4], "Int64"), y=Y[:4]),
        "PATH, row 2 (counted from 0), column `a`: nan is not a finite number",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_used_are_refused(case: str, tmp_path: Path) -> None:
    build, sentence = FILES[case]
    data = build(tmp_path)
    path = data[0] if isinstance(data, tuple) else data
    with pytest.raises(InputError, match=re.escape(sentence.replace("PATH", str(path)))) as caught:
        use(data)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "a.npz", "a.h5", "a.parquet", "a.xyz"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(FileNotFoundError, match=re.escape(f"There is no file {path}.")):
        use(path, False)


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "a.npz", "a.h5", "a.parquet"])
def test_a_file_that_may_not_be_read_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / name, "a,b\n1,2\n")

    def refuse(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)  # the superuser may read everything
    with pytest.raises(PermissionError, match=re.escape(f"{path} cannot be read: permission denied.")):
        use(path, False)


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "s.npz", "c.npz", "m.h5", "c.h5", "a.parquet"])
def test_a_file_changed_while_in_use_is_noticed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    big, labels = np.tile(X, (9, 1)), np.tile(Y, 9)
    if name.endswith(".csv"):
        pd.DataFrame(big).assign(y=labels).to_csv(path, index=False)
    elif name.endswith(".npy"):
        save(path, big)
    elif name.endswith(".npz"):
        save_npz(path, compressed=name == "c.npz", X=big, y=labels)
    elif name.endswith(".h5"):
        save_hdf5(path, chunks=(10, 3) if name == "c.h5" else None, X=big, y=labels)
    else:
        pytest.importorskip("pyarrow")
        pd.DataFrame(big).rename(columns=str).assign(y=labels).to_parquet(path)
    source = open_source(path, labels if name == "a.npy" else None, cache_bytes=0)
    source.validate()
    truncate(path, 0.9)
    with pytest.raises(InputError, match=re.escape(f"{path} was changed from ")) as caught:
        list(source.chunks())
    assert re.search(r" bytes while it was in use, noticed at rows \d+ to \d+\.$", str(caught.value))


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "a.npz", X=X, y=Y)
    content = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = content.find(mark)
        while at >= 0:
            content[at + flags] |= 1
            at = content.find(mark, at + 1)
    path.write_bytes(content)
    assert zipfile.is_zipfile(path)
    with pytest.raises(InputError, match=r"cannot be read as a NumPy archive, .* encrypted"):
        use(path)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", "nothing")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    sentence = f"{path}: reading Parquet needs pyarrow; install it with: pip install 'matfree-hier[files]'."
    with pytest.raises(InputError, match=re.escape(sentence)):
        use(path)


def test_ranges_and_rows_out_of_bounds_are_refused_before_reading() -> None:
    source = open_source(X, Y)
    for start, stop in ((-1, 3), (5, 4), (0, 13)):
        sentence = f"`start` and `stop` must satisfy 0 <= start <= stop <= 12, got {start}, {stop}."
        for call in (source.chunks, source.slice, source.inputs):
            with pytest.raises(ValueError, match=re.escape(sentence)):
                call(start, stop)
    with pytest.raises(ValueError, match="`rows` must be at least 1, got 0"):
        source.chunks(rows=0)


def test_functions_that_do_not_act_by_rows_are_refused() -> None:
    source = open_source(X, Y).transformed(lambda A: A[:1])
    with pytest.raises(ValueError, match=r"must return 12 rows of 3 inputs .* got inputs of shape"):
        list(source.chunks())
    source = open_source(X, Y).transformed(labels_fn=lambda A, b: b[1:])
    with pytest.raises(ValueError, match=r"as many labels here, got inputs of shape \(12, 3\) and 11 labels"):
        list(source.chunks())
    with pytest.raises(ValueError, match="`dtype` must be float32 or float64, got int64"):
        open_source(X, Y).transformed(dtype="int64")
    with pytest.raises(InputError, match="`labels_fn` needs labels, and `X` has no target"):
        open_source(X).transformed(labels_fn=lambda A, b: b)
