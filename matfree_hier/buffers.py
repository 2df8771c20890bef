"""Arrays between processes: sums and copies in pieces, with the same bits for the same number of ranks.

MPI may add the parts of a sum in another order each time, and counts entries of a message in 32 bits. Sums
here go up a binary tree of ranks, so that their order is that of the ranks; messages are cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PIECE_BYTES = 2**26
"""Bytes a message: far below what MPI can count, and all the memory that a sum takes besides its arrays."""

_TAG = 71


def broadcast(comm: Any, array: NDArray[Any], root: int = 0) -> None:
    """Overwrite `array` on every rank with that of `root`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    array : ndarray, C-contiguous, of the same shape and dtype on every rank
    root : int
    """
    for piece in _pieces(array):
        comm.Bcast(piece, root)


def sum_to(comm: Any, array: NDArray[Any], root: int = 0) -> None:
    """Replace `array` on `root` by its sum over all ranks, in the order of ranks counted from the root.

    Every rank sends at most once and receives at most log2 of the number of ranks times.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    array : ndarray, C-contiguous, of the same shape and dtype on every rank
        On other ranks than `root` it holds a part of the sum afterwards.
    root : int
    """
    size = comm.Get_size()
    place = (comm.Get_rank() - root) % size
    received = np.empty(min(_entries(array.dtype), array.size), array.dtype)
    for piece in _pieces(array):
        step = 1
        while step < size:
            if place & step:
                comm.Send(piece, (place - step + root) % size, _TAG)
                break
            if place + step < size:
                part = received[: len(piece)]
                comm.Recv(part, (place + step + root) % size, _TAG)
                piece += part
            step *= 2


def sum_on_all(comm: Any, array: NDArray[Any]) -> None:
    """Replace `array` on every rank by its sum over all ranks: the same bits on each.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    array : ndarray, C-contiguous, of the same shape and dtype on every rank
    """
    sum_to(comm, array)
    broadcast(comm, array)


def send(comm: Any, array: NDArray[Any], rank: int) -> None:
    """Send a C-contiguous array to a rank that calls `receive` for one of this shape and dtype."""
    for piece in _pieces(array):
        comm.Send(piece, rank, _TAG)


def receive(comm: Any, array: NDArray[Any], rank: int) -> None:
    """Overwrite a C-contiguous array with what a rank gives to `send`."""
    for piece in _pieces(array):
        comm.Recv(piece, rank, _TAG)


def _entries(dtype: np.dtype[Any]) -> int:
    return max(1, PIECE_BYTES // dtype.itemsize)


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield views of consecutive entries that are one message each."""
    if not array.flags.c_contiguous:
        msg = "Arrays between processes must be C-contiguous."
        raise ValueError(msg)
    flat, entries = array.reshape(-1), _entries(array.dtype)
    for start in range(0, flat.size, entries):
        yield flat[start : start + entries]
