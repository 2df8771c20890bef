"""From what users have to plain real arrays: refusals, dtypes, copies only where the layout asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matfree_hier.kernels import widened
from matfree_hier.status import InputError


def default_names(n_inputs: int) -> tuple[str, ...]:
    """Names for columns that have none: x0, x1, ..."""
    return tuple(f"x{j}" for j in range(n_inputs))


def as_chunk(block: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``block`` itself if it is an aligned, C-contiguous array of ``dtype``, else a copy that is."""
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow to inf is found by `validate`
        return np.asarray(np.require(block, dtype, ["C", "A"]))


def converted(block: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return stored numbers as float32 or float64, as they would be by way of `chunk_dtype`.

    By way of it only where that matters: integers past 2^32 and wider floats are rounded twice.
    """
    if block.dtype == np.float16 and dtype == np.float32 and block.dtype.isnative:
        return widened(np.ascontiguousarray(block))
    if block.dtype.itemsize > 4 and block.dtype.newbyteorder("=") != np.float64:
        block = as_chunk(block, chunk_dtype(block.dtype))
    return as_chunk(block, dtype)


def column_names(names: Sequence[str] | None, n_columns: int, where: str) -> tuple[str, ...]:
    """Names of the columns of an array: those given, one for each, or x0, x1, ..."""
    if names is None:
        return default_names(n_columns)
    if len(names) != n_columns:
        msg = f"{where} has {n_columns} columns, and {len(names)} names of inputs were given."
        raise InputError(msg)
    return tuple(names)


def to_float64(y: Any) -> NDArray[np.float64]:
    """Labels as a plain float64 vector; a view where they are one already."""
    return as_chunk(np.asarray(y).reshape(len(y)), np.dtype(np.float64))


def check_real(dtype: np.dtype[Any], where: str) -> None:
    """Refuse what is not a real number."""
    if dtype.kind == "c":
        msg = f"Complex data not supported: {where} has dtype {dtype}."
        raise InputError(msg)
    if dtype.kind not in "biuf":
        msg = f"{where} must hold real numbers, got dtype {dtype}."
        raise InputError(msg)


def chunk_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the dtype of chunks: float32 for float16 and float32, float64 for every other one."""
    small = dtype.kind == "f" and dtype.itemsize <= 4
    return np.dtype(np.float32 if small else np.float64)


def not_finite(where: str, value: Any) -> str:
    """Word the refusal of a NaN or an infinity."""
    return f"{where}: {float(value)} is not a finite number (NaN, inf and missing values are refused)."


def first_nonfinite(A: NDArray[Any]) -> tuple[int, int] | None:
    """Row and column of the first NaN or infinity of a matrix, or None; one cheap pass if all is well."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(A.sum()):  # NaN and inf survive every sum
            return None
    finite = np.isfinite(A)
    if finite.all():  # the sum itself overflowed
        return None
    row = int(np.argmin(finite.all(axis=1)))
    return row, int(np.argmin(finite[row]))


def to_array(data: Any, where: str) -> Any:
    """Give array-like data as they are if they can be sliced by rows, else as a NumPy array."""
    if hasattr(data, "toarray"):
        msg = f"Sparse data are not supported: {where} is a {type(data).__name__}; pass a dense array."
        raise InputError(msg)
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        msg = f"{where} has masked entries: missing values are refused."
        raise InputError(msg)
    lazy = isinstance(getattr(data, "dtype", None), np.dtype) and hasattr(data, "ndim")
    if lazy and not isinstance(data, np.ndarray) and not hasattr(data, "iloc"):
        return data  # an open HDF5 dataset or the like: only the rows asked for are read
    if _is_extension(data):
        return data.to_numpy(dtype=np.float64, na_value=np.nan)
    try:
        return np.asarray(data)
    except ValueError:
        msg = f"{where} must be a rectangular array: {_ragged_row(data)}."
        raise InputError(msg) from None


def as_labels(y: Any, n_samples: int, where: str, inputs_where: str) -> Any:
    """Check labels to be real numbers of shape (n,) or (n, 1); they are converted when they are read."""
    values = to_array(y, where)
    check_real(values.dtype, where)
    if values.ndim != 1 and not (values.ndim == 2 and values.shape[1] == 1):
        msg = f"{where} must have shape (n,), got {tuple(values.shape)}."
        raise InputError(msg)
    if len(values) != n_samples:
        msg = f"{where} has {len(values)} rows where {inputs_where} has {n_samples}."
        raise InputError(msg)
    return values


def pick_columns(
    columns: Sequence[str], target: str | int | bool | None, inputs: Sequence[str] | None, where: str
) -> tuple[list[int], int | None]:
    """Positions of the inputs and of the target among the named columns of a table.

    ``target`` is a name or position, None for the last column or False for none; ``inputs`` the names
    of the inputs in order, None for every column but the target.
    """
    names = [str(column) for column in columns]
    if len(set(names)) < len(names):
        twice = next(name for j, name in enumerate(names) if name in names[:j])
        msg = f"{where} has more than one column `{twice}`."
        raise InputError(msg)

    def position(name: str) -> int:
        if name not in names:
            known = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            msg = f"{where} has no column `{name}`; its columns are {known}."
            raise InputError(msg)
        return names.index(name)

    chosen: int | None
    if target is False:
        chosen = None
    elif target is None:
        chosen = len(names) - 1
    elif isinstance(target, int) and not isinstance(target, bool) and str(target) not in names:
        chosen = column_position(target, len(names), where)
    else:
        chosen = position(str(target))
    if inputs is None:
        return [j for j in range(len(names)) if j != chosen], chosen
    picked = [position(str(name)) for name in inputs]
    if chosen in picked:
        msg = f"{where}: the target `{names[picked[picked.index(chosen)]]}` is among the inputs asked for."
        raise InputError(msg)
    return picked, chosen


def check_table_size(n_rows: int, n_inputs: int, where: str) -> None:
    """Refuse a table with no row or no input."""
    for size, what in ((n_rows, "sample(s)"), (n_inputs, "feature(s)")):
        if size == 0:
            msg = f"{where} has 0 {what} (shape={(n_rows, n_inputs)}) while a minimum of 1 is required."
            raise InputError(msg)


def column_position(target: int, n_columns: int, where: str) -> int:
    """Turn a column number, negative from the end, into a position."""
    if not -n_columns <= target < n_columns:
        msg = f"{where} has {n_columns} columns, so no target column {target}."
        raise InputError(msg)
    return target % n_columns


def _is_extension(data: Any) -> bool:
    """Whether data are a pandas column of numbers that NumPy does not know (Int64, boolean, Arrow)."""
    dtype = getattr(data, "dtype", None)
    return not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "O") in "biuf" and hasattr(data, "iloc")


def _ragged_row(data: Any) -> str:
    lengths = [len(row) if hasattr(row, "__len__") and not isinstance(row, str) else 0 for row in data]
    row = next((i for i, length in enumerate(lengths) if length != lengths[0]), None)
    if row is None:
        return "its rows are not of one shape"
    return f"row {row} (counted from 0) has {lengths[row]} entries where row 0 has {lengths[0]}"
