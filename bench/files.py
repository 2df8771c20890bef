"""Files of samples of a seeded teacher, written a run of rows at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from matfree_hier.model import HierarchicalModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

LAYOUTS = ("npy", "parts", "hdf5", "chunks", "parquet")
PARTS = 7
STEPS = 8.0  # of int8 inputs, a unit
_ROWS = 2**16
_STORAGE_ROWS = 1024  # of a storage chunk of HDF5


def write_samples(
    folder: str, layout: str, dtype: str, *, degree: int, n_inputs: int, n_samples: int, seed: int
) -> list[str]:
    """Write samples and return the paths: one file, or inputs and labels of several parts by turns.

    Parameters
    ----------
    folder : str
        Where; it exists.
    layout : str
        "npy", "parts" (seven `.npy` files), "hdf5" (contiguous), "chunks" (HDF5 in storage chunks) or
        "parquet".
    dtype : str
        "float32", "float16" or "int8" (eighths) of the inputs.
    degree, n_inputs, n_samples, seed
        Of the teacher, which has four features, and of its samples.
    """
    if layout not in LAYOUTS:
        msg = f"`layout` must be one of {', '.join(LAYOUTS)}, got {layout}."
        raise ValueError(msg)
    place = Path(folder)
    teacher = HierarchicalModel(n_inputs, degree, n_features=4, noise_std=0.1, seed=seed)

    def runs(start: int, stop: int) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
        for first in range(start, stop, _ROWS):
            X, y = teacher.sample_range(first, min(first + _ROWS, stop), seed + 1, np.float32)
            yield (np.clip(np.rint(STEPS * X), -127, 127) if dtype == "int8" else X).astype(dtype), y

    if layout in ("npy", "parts"):
        count = PARTS if layout == "parts" else 1
        cuts = [n_samples * part // count for part in range(count + 1)]
        return [
            path
            for part in range(count)
            for path in _write_npy(
                place, part, cuts[part + 1] - cuts[part], n_inputs, dtype, runs(cuts[part], cuts[part + 1])
            )
        ]
    if layout == "parquet":
        return [_write_parquet(place / "samples.parquet", runs(0, n_samples))]
    path = place / "samples.h5"
    with h5py.File(path, "w") as file:
        chunks = (min(_STORAGE_ROWS, n_samples), n_inputs) if layout == "chunks" else None
        X = file.create_dataset("X", (n_samples, n_inputs), dtype, chunks=chunks)
        y = file.create_dataset("y", (n_samples,), "float64")
        first = 0
        for inputs, labels in runs(0, n_samples):
            X[first : first + len(inputs)], y[first : first + len(inputs)] = inputs, labels
            first += len(inputs)
    return [str(path)]


def _write_npy(
    place: Path,
    part: int,
    n_samples: int,
    n_inputs: int,
    dtype: str,
    runs: Iterator[tuple[NDArray[Any], NDArray[np.float64]]],
) -> tuple[str, str]:
    paths = place / f"X{part}.npy", place / f"y{part}.npy"
    with paths[0].open("wb") as X, paths[1].open("wb") as y:
        for file, shape, kind in ((X, (n_samples, n_inputs), dtype), (y, (n_samples,), "float64")):
            header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        for inputs, labels in runs:
            X.write(inputs.tobytes())
            y.write(labels.tobytes())
    return str(paths[0]), str(paths[1])


def _write_parquet(path: Path, runs: Iterator[tuple[NDArray[Any], NDArray[np.float64]]]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    writer = None
    for inputs, labels in runs:
        columns = {f"x{j}": column for j, column in enumerate(inputs.T)} | {"y": labels}
        table = pa.table(columns)
        if writer is None:
            writer = parquet.ParquetWriter(path, table.schema, use_dictionary=False)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return str(path)
