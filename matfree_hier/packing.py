"""Packed and tensor coordinates of symmetric tensors: sizes, order, and the isometry between them.

A symmetric tensor of degree q over d inputs has D = C(d + q - 1, q) free entries, one for every
multiset of q indices. The packed coordinates hold them in lexicographic order, that of
``itertools.combinations_with_replacement(range(d), q)``, scaled so that their Euclidean norm is the
Frobenius norm of the tensor: T[i_1, ..., i_q] = v[alpha] sqrt(alpha! / q!), where alpha_j counts
index j and alpha! is the product of the alpha_j!. Sizes are Python integers and never overflow.
"""

from __future__ import annotations

import os
from math import comb, factorial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.checks import integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "available_memory",
    "check_memory",
    "check_size",
    "multi_index",
    "multi_indices",
    "n_packed",
    "pack",
    "position",
    "positions",
    "unpack",
    "unpacking_weights",
]

_LARGEST = 2**63 - 1  # of an index


def n_packed(d: int, q: int) -> int:
    """Count the packed coordinates, D = C(d + q - 1, q), exactly and whatever the size.

    Parameters
    ----------
    d : int
        Number of inputs, at least 1.
    q : int
        Degree, at least 1.

    Returns
    -------
    int
        D, the number of multisets of q out of d indices.

    Raises
    ------
    TypeError, ValueError
        If `d` or `q` is not an integer, or is below 1.
    """
    d, q = integer("d", d, 1), integer("q", q, 1)
    return comb(d + q - 1, q)


def check_size(d: int, q: int, *, tensor: bool = False) -> int:
    """Return the number of packed (or tensor) coordinates if an int64 can index them.

    Parameters
    ----------
    d, q : int
        Number of inputs and degree.
    tensor : bool
        Count the d**q tensor coordinates in place of the packed ones.

    Returns
    -------
    int
        D, or d**q if `tensor`.

    Raises
    ------
    ValueError
        If the size is 2**63 or more; the message states it.
    """
    n = n_packed(d, q)
    if tensor:
        n = int(d) ** int(q)
    if n > _LARGEST:
        kind = "tensor" if tensor else "packed"
        msg = f"`d` = {d} inputs at degree `q` = {q} have {n} {kind} coordinates, more than 2**63 - 1."
        raise ValueError(msg)
    return n


def available_memory() -> int:
    """Return the bytes of memory that this process could still take without swapping.

    The least of what the machine reports as available and what is left in this process's control
    group (a container's limit).
    """
    try:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not POSIX: refuse nothing
        free = _LARGEST
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = min(free, int(line.split()[1]) * 1024)
    return min(free, _group_memory())


def check_memory(n_bytes: int, what: str) -> None:
    """Refuse an allocation of `n_bytes` that this machine has no room for, before it is made.

    Parameters
    ----------
    n_bytes : int
        Size of the allocation.
    what : str
        What it is for: the subject of the message.

    Raises
    ------
    MemoryError
        If `n_bytes` is more than `available_memory`; the message states both in GB (1e9 bytes).
    """
    free = available_memory()
    if n_bytes > free:
        msg = f"{what} would take {n_bytes / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are available."
        raise MemoryError(msg)


def position(index: Sequence[int], d: int) -> int:
    """Rank a multi-index: where it stands in the packed coordinates.

    Parameters
    ----------
    index : sequence of q int
        Indices in 0..d-1, in any order.
    d : int
        Number of inputs.

    Returns
    -------
    int
        Position in 0..D-1. Cost O(q log q + q) big-integer operations, for sizes past 2**63 too.

    Raises
    ------
    TypeError, ValueError
        If `index` is empty, or an entry is not an integer in 0..d-1.
    """
    q = len(index)
    n = n_packed(d, q) if q else 0
    if not n:
        msg = "`index` must hold at least one index, got none."
        raise ValueError(msg)
    ordered = sorted(integer("index", i, 0, d - 1) for i in index)
    # Those behind: with the first r entries the same and entry r larger, for each r.
    return n - 1 - sum(comb(d - 2 - i + q - r, q - r) for r, i in enumerate(ordered) if i < d - 1)


def positions(index: NDArray[np.int64], d: int) -> NDArray[np.int64]:
    """Rank many multi-indices at once.

    Parameters
    ----------
    index : ndarray of int64, shape (m, q)
        Rows i_1 <= ... <= i_q of indices in 0..d-1; neither order nor range is checked.
    d : int
        Number of inputs.

    Returns
    -------
    ndarray of int64, shape (m,)
        Row by row what `position` returns. Cost and memory O(m q).

    Raises
    ------
    ValueError
        If D is past 2**63 - 1.
    """
    q = index.shape[1]
    ranks = np.full(len(index), check_size(d, q) - 1, dtype=np.int64)
    for r in range(q):
        behind = np.array([comb(d - 2 - i + q - r, q - r) if i < d - 1 else 0 for i in range(d)], np.int64)
        ranks -= behind[index[:, r]]
    return ranks


def multi_index(position: int, d: int, q: int) -> tuple[int, ...]:
    """Unrank a packed position: the multi-index that stands there.

    Parameters
    ----------
    position : int
        Packed position, in 0..D-1.
    d, q : int
        Number of inputs and degree.

    Returns
    -------
    tuple of q int
        Indices i_1 <= ... <= i_q. Cost O(q log d) binomials, for sizes past 2**63 too.

    Raises
    ------
    TypeError, ValueError
        If `position` is not an integer in 0..D-1.
    """
    n = n_packed(d, q)
    behind = n - 1 - integer("position", position, 0, n - 1)
    index: list[int] = []
    for m in range(q, 0, -1):
        # j = d-1-i is the largest with C(j + m - 1, m) <= behind; it never grows from one m to the next.
        low, high = 0, d - 1 - (index[-1] if index else 0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if comb(middle + m - 1, m) <= behind else (low, middle - 1)
        behind -= comb(low + m - 1, m)
        index.append(d - 1 - low)
    return tuple(index)


def multi_indices(d: int, q: int) -> NDArray[np.int64]:
    """List all multi-indices in packed order.

    Parameters
    ----------
    d, q : int
        Number of inputs and degree.

    Returns
    -------
    ndarray of int64, shape (D, q)
        Row p is ``multi_index(p, d, q)``. Cost and memory O(D q).

    Raises
    ------
    ValueError
        If D is past 2**63 - 1.
    MemoryError
        If the array is larger than memory.
    """
    n = check_size(d, q)
    check_memory(16 * n * q, f"The list of {n} multi-indices of degree {q}")
    columns = [np.arange(d, dtype=np.int64)]
    for _ in range(q - 1):
        last = columns[-1]
        children = d - last  # a multi-index that ends in i goes on with i..d-1
        first = np.cumsum(children) - children
        rows = np.repeat(np.arange(len(last)), children)
        columns = [column[rows] for column in columns]
        columns.append(columns[-1] + np.arange(len(rows)) - first[rows])
    return np.stack(columns, axis=1)


def unpack(v: ArrayLike, d: int, q: int) -> NDArray[Any]:
    """Map packed coordinates to the full symmetric tensor, T[i_1..i_q] = v[alpha] sqrt(alpha!/q!).

    An isometry onto the symmetric tensors: ``pack(unpack(v, d, q), d, q)`` is `v`.

    Parameters
    ----------
    v : array_like, shape (D,) or (D, k)
        Packed coordinates; float32 stays float32, any other real dtype becomes float64.
    d, q : int
        Number of inputs and degree.

    Returns
    -------
    ndarray, shape (d**q,) or (d**q, k)
        Tensors flattened in C order. Cost O(d**q k); memory below twice the result.

    Raises
    ------
    TypeError, ValueError
        If `v` is not real or not of one of those shapes, or d**q is past 2**63 - 1.
    MemoryError
        If the result is larger than memory.
    """
    n_tensor = check_size(d, q, tensor=True)
    v = coordinates(v, "v", n_packed(d, q))
    check_memory(n_tensor * v.itemsize * (v.size // len(v)), f"A tensor of {n_tensor} entries")
    block = v.reshape(1, len(v), -1) * _column(unpacking_weights(d, q), v.dtype)
    lead = 1
    for r in range(q, 1, -1):  # split the first of r symmetric axes off, then the next
        parents = np.empty(d * n_packed(d, r - 1), dtype=np.int64)
        for source, _ in _removals(d, r):
            parents[source] = np.arange(len(source))
        lead *= d
        block = block[:, parents].reshape(lead, n_packed(d, r - 1), -1)
    result: NDArray[Any] = block.reshape(n_tensor, *v.shape[1:])
    return result


def pack(T: ArrayLike, d: int, q: int) -> NDArray[Any]:
    """Map a tensor to packed coordinates, v[alpha] = sqrt(alpha!/q!) sum of the T[i_1..i_q] of alpha.

    The adjoint of `unpack`, and its inverse on symmetric tensors: ``unpack(pack(T, d, q), d, q)`` is
    the symmetrisation of `T`.

    Parameters
    ----------
    T : array_like, shape (d**q,) or (d**q, k)
        Tensors flattened in C order; float32 stays float32, any other real dtype becomes float64.
    d, q : int
        Number of inputs and degree.

    Returns
    -------
    ndarray, shape (D,) or (D, k)
        Packed coordinates. Cost O(d**q k); memory that of `T`.

    Raises
    ------
    TypeError, ValueError
        If `T` is not real or not of one of those shapes, or d**q is past 2**63 - 1.
    """
    n_tensor = check_size(d, q, tensor=True)
    T = coordinates(T, "T", n_tensor)
    lead = d ** (q - 1)
    block = T.reshape(lead, d, -1)
    for r in range(2, q + 1):  # join the axis before to the r - 1 already packed
        lead //= d
        block = block.reshape(lead, d * n_packed(d, r - 1), -1)
        joined = np.zeros((lead, n_packed(d, r), block.shape[2]), dtype=T.dtype)
        for source, new in _removals(d, r):
            joined[:, new] += block[:, source[new]]
        block = joined
    result: NDArray[Any] = (block * _column(unpacking_weights(d, q), T.dtype)).reshape(
        block.shape[1], *T.shape[1:]
    )
    return result


def _removals(d: int, r: int) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Take each slot s off the multi-indices of degree r.

    The first array says where (i_s, packed rest) lies in d * n_packed(d, r-1); the second whether i_s
    differs from the index before it, so that no such pair counts twice.
    """
    index = multi_indices(d, r)
    n_rest = n_packed(d, r - 1)
    removals = []
    for s in range(r):
        place = positions(np.delete(index, s, axis=1), d)
        new = index[:, s] != index[:, s - 1] if s else np.ones(len(index), dtype=np.bool_)
        removals.append((index[:, s] * n_rest + place, new))
    return removals


def unpacking_weights(d: int, q: int) -> NDArray[np.float64]:
    """Return sqrt(alpha!/q!) for each packed position, shape (D,): what `unpack` multiplies it by."""
    index = multi_indices(d, q)
    run = np.ones(len(index), dtype=np.int64)
    orders = np.ones(len(index))  # alpha! grows by the length of the run of equal indices
    for s in range(1, q):
        run = np.where(index[:, s] == index[:, s - 1], run + 1, 1)
        orders *= run
    return np.sqrt(orders / factorial(q))


def _column(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    return values.astype(dtype)[:, np.newaxis]


def coordinates(v: ArrayLike, name: str, n: int) -> NDArray[Any]:
    """Return `v` as a real floating-point array of n rows."""
    array: NDArray[Any] = np.asarray(v)
    if array.dtype.kind not in "biuf":
        msg = f"`{name}` must be real, got dtype {array.dtype}."
        raise TypeError(msg)
    if array.ndim not in (1, 2) or len(array) != n:
        msg = f"`{name}` must have shape ({n},) or ({n}, k), got {array.shape}."
        raise ValueError(msg)
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def _lines(path: str | Path) -> list[str]:
    """Return the lines of a small system file, none if it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def _group_memory() -> int:
    """Return the bytes left under the memory limit of this process's control group (Linux, version 2)."""
    path = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), "/")
    group = Path("/sys/fs/cgroup") / path.lstrip("/")
    limit, used = _lines(group / "memory.max"), _lines(group / "memory.current")
    if not (limit and used and limit[0].isdigit()):
        return _LARGEST
    stat = dict(line.split() for line in _lines(group / "memory.stat"))
    return int(limit[0]) - int(used[0]) + int(stat.get("inactive_file", 0))  # file cache gives way


def product_text(names: Sequence[str], coefficient: float) -> str:
    """Write a product of Hermite polynomials with its coefficient: ('a', 'a', 'b') is h2(a)*b."""
    factors = []
    for name in dict.fromkeys(names):
        power = names.count(name)
        factors.append(name if power == 1 else f"h{power}({name})")
    return f"{coefficient:+.3f} {'*'.join(factors)}"
