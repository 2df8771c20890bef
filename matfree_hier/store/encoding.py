"""The values a run can hold: checked and copied, written to HDF5, read back with the same bits."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from matfree_hier.status import RunFileError

Columns: TypeAlias = dict[str, NDArray[Any]]

_CHUNK_BYTES = 1 << 16
_STORABLE = "an array, a number, a str, a list of str, None or a dict of these"


@dataclass
class Series:
    """Columns that grow by rows; rows not yet joined to the columns wait in `rows`."""

    columns: Columns
    rows: list[Columns] = field(default_factory=list)

    def joined(self) -> Columns:
        """Return the columns with every row in them."""
        if self.rows:
            for key, column in self.columns.items():
                self.columns[key] = np.concatenate([column, np.stack([row[key] for row in self.rows])])
            self.rows = []
        return self.columns

    def append(self, row: Columns) -> None:
        """Add a row of the same names, dtypes and shapes as those before it."""
        for key, column in self.columns.items():
            if key not in row or (row[key].dtype, row[key].shape) != (column.dtype, column.shape[1:]):
                got = f"{row[key].dtype} of shape {row[key].shape}" if key in row else "nothing"
                expected = f"{column.dtype} of shape {column.shape[1:]}"
                msg = f"`row[{key!r}]` must be {expected} as in the rows before, got {got}."
                raise ValueError(msg)
        if extra := sorted(row.keys() - self.columns.keys()):
            msg = f"`row` must hold the columns of the rows before it, got {extra[0]!r} as well."
            raise ValueError(msg)
        self.rows.append(row)


def checked_name(what: str, name: object) -> str:
    """Return `name` if HDF5 can hold it as the name of one thing."""
    if not isinstance(name, str):
        msg = f"{what} must be a str, got {name!r}."
        raise TypeError(msg)
    if name in ("", ".") or "/" in name or not _is_text(name):
        msg = f"{what} must be text without `/`, neither empty nor `.`, got {name!r}."
        raise ValueError(msg)
    return name


def _is_text(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _checked_array(where: str, value: NDArray[Any], *, copy: bool) -> NDArray[Any]:
    """Return `value` as a base-class array in C or Fortran order, the one it has (C if it has neither)."""
    if isinstance(value, np.ma.MaskedArray) or value.dtype.kind not in "biufcSUVMm" or value.dtype.hasobject:
        got = "a masked array" if isinstance(value, np.ma.MaskedArray) else f"dtype {value.dtype}"
        msg = f"`{where}` must be an array of numbers, truth values, times or fixed-size text, got {got}."
        raise TypeError(msg)
    if value.dtype.itemsize == 0:
        msg = f"`{where}` must have entries of at least one byte, got {value.dtype}."
        raise TypeError(msg)
    order: Literal["C", "F"] = "F" if is_fortran(value) else "C"
    return np.array(value, order=order, copy=True) if copy else np.asarray(value, order=order)


def is_fortran(value: NDArray[Any]) -> bool:
    """Whether an array is in Fortran order and not in C order too."""
    return bool(value.flags.f_contiguous and not value.flags.c_contiguous)


def checked(where: str, value: Any, *, copy: bool = True) -> Any:
    """Return `value` as what a load gives back: plain types, arrays in C or Fortran order."""
    match value:
        case None | bool():
            return value
        case str():
            if not _is_text(value):
                msg = f"`{where}` must be text without NUL characters and lone surrogates, got {value!r}."
                raise ValueError(msg)
            return str(value)
        case np.generic():
            return _checked_array(where, np.asarray(value), copy=copy)[()]
        case int():
            return int(value)
        case float():
            return float(value)
        case np.ndarray():
            return _checked_array(where, value, copy=copy)
        case Mapping():
            return {
                checked_name(f"a key of `{where}`", key): checked(f"{where}[{key!r}]", entry, copy=copy)
                for key, entry in value.items()
            }
        case list() | tuple() if all(isinstance(entry, str) for entry in value):
            return [checked(f"{where}[{i}]", entry) for i, entry in enumerate(value)]
    msg = f"`{where}` must be {_STORABLE}, got {type(value).__name__}."
    raise TypeError(msg)


def checked_columns(where: str, values: Mapping[str, Any], *, least_dim: int) -> Columns:
    """Return copies of numeric `values` as arrays in C order, of `least_dim` dimensions or more."""
    columns: Columns = {}
    for key, value in values.items():
        here = f"{where}[{key!r}]"
        column = _checked_array(here, np.asarray(value), copy=True)
        if column.dtype.kind not in "biufc" or column.ndim < least_dim:
            got = f"{column.dtype} of shape {column.shape}"
            msg = f"`{here}` must be numbers in at least {least_dim} dimensions, got {got}."
            raise TypeError(msg)
        columns[checked_name(f"a key of `{where}`", key)] = np.asarray(column, order="C")
    return columns


def checked_series(where: str, values: Mapping[str, Any]) -> Series:
    """Return copies of numeric `values` as a series; they must have one length."""
    columns = checked_columns(where, values, least_dim=1)
    if len({len(column) for column in columns.values()}) > 1:
        lengths = {key: len(column) for key, column in columns.items()}
        msg = f"`{where}` must have one length, got {lengths}."
        raise ValueError(msg)
    return Series(columns)


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return `dtype` as text that `dtype_from` reads."""
    return repr(np.lib.format.dtype_to_descr(dtype))


def dtype_from(text: str) -> np.dtype[Any]:
    """Invert `dtype_text`; nothing is executed."""
    return np.lib.format.descr_to_dtype(ast.literal_eval(text))


def bytes_of(value: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the entries of a C-contiguous array as bytes, without a copy."""
    return value.reshape(-1).view(np.uint8)


def encode(parent: h5py.Group, key: str, value: Any) -> None:
    """Write a `checked` value or a `Series` under `key`; the attribute `kind` says what it was."""
    match value:
        case Series() | dict():
            node = parent.create_group(key, track_order=True)
            node.attrs["kind"] = "dict" if isinstance(value, dict) else "series"
            for name, entry in (value if isinstance(value, dict) else value.joined()).items():
                (encode if isinstance(value, dict) else _encode_column)(node, name, entry)
        case np.generic() | np.ndarray():
            _encode_array(parent, key, value)
        case _:
            kind, data = _plain(value)
            dtype = h5py.string_dtype() if isinstance(data, str | list) else None
            data = np.array(data, dtype=object) if isinstance(data, list) else data
            parent.create_dataset(key, data=data, dtype=dtype).attrs["kind"] = kind


def _plain(value: bool | float | str | list[str] | None) -> tuple[str, Any]:
    match value:
        case None:
            return "none", h5py.Empty("u1")
        case bool():
            return "bool", np.bool_(value)
        case int():  # seeds and generator states pass 2**64
            return "int", np.int64(value) if -(2**63) <= value < 2**63 else str(value)
        case float():
            return "float", np.float64(value)
        case str():
            return "str", value
    return "list", value


def _encode_array(parent: h5py.Group, key: str, value: NDArray[Any] | np.generic) -> None:
    array = np.asarray(value)
    attributes: dict[str, Any] = {
        "kind": "scalar" if isinstance(value, np.generic) else "array",
        "order": "C",
    }
    if is_fortran(array):
        array, attributes["order"] = array.T, "F"
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":  # HDF5 has no such type: keep the bytes
        attributes |= {"dtype": dtype_text(array.dtype), "shape": np.array(array.shape, dtype=np.int64)}
        array = bytes_of(array)
    node = parent.create_dataset(key, data=array)
    for name, attribute in attributes.items():
        node.attrs[name] = attribute


def _encode_column(parent: h5py.Group, key: str, column: NDArray[Any]) -> None:
    """Write one column as a dataset that grows by rows, in chunks of about 64 kB, shorter for few rows."""
    row_shape = column.shape[1:]
    row_bytes = column.dtype.itemsize * math.prod(row_shape)
    n_rows = min(max(1, _CHUNK_BYTES // max(1, row_bytes)), max(16, len(column)))
    node = parent.create_dataset(
        key,
        shape=column.shape,
        dtype=column.dtype,
        maxshape=(None, *(size or None for size in row_shape)),  # HDF5 has no chunks of size 0
        chunks=(n_rows, *(size or 1 for size in row_shape)),
    )
    if column.size:
        node[...] = column


def decode(node: h5py.Group | h5py.Dataset) -> Any:
    """Return what `encode` wrote."""
    match node.attrs.get("kind"):
        case "series":
            return Series({name: entry[...] for name, entry in node.items()})
        case "dict":
            return {name: decode(entry) for name, entry in node.items()}
        case "scalar" | "array" as kind:
            array = node[...]
            if "dtype" in node.attrs:
                array = array.view(dtype_from(node.attrs["dtype"])).reshape(node.attrs["shape"])
            array = array.T if node.attrs["order"] == "F" else array
            return array[()] if kind == "scalar" else array
        case "none":
            return None
        case "list":
            return node.asstr()[...].tolist()
        case "bool" | "int" | "float" | "str" as kind:
            plain = {"bool": bool, "int": int, "float": float, "str": str}[kind]
            return plain(node.asstr()[()] if h5py.check_string_dtype(node.dtype) else node[()])
        case kind:
            msg = f"`{node.name}` is of a kind unknown to this matfree_hier: {kind}."
            raise RunFileError(msg)
