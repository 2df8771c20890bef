"""Sums and copies between ranks: the right values, the same bits on all, in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matfree_hier import buffers
from tests.ranks import available, run_ranks

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.skipif(not available(), reason="needs mpiexec beside the interpreter")


def part(rank: int, entries: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([31, rank]).standard_normal(entries)


def exchanged(comm: Any, entries: int) -> dict[str, Any]:
    buffers.PIECE_BYTES = 8 * 100  # many pieces, the last one short
    rank, size = comm.Get_rank(), comm.Get_size()
    copy, summed, to_last = (part(rank, entries) for _ in range(3))
    buffers.broadcast(comm, copy, size - 1)
    buffers.sum_on_all(comm, summed)
    buffers.sum_to(comm, to_last, size - 1)
    passed = part(rank, entries)
    if rank == 0 and size > 1:
        buffers.send(comm, passed, 1)
    elif rank == 1:
        buffers.receive(comm, passed, 0)
    return {"copy": copy, "summed": summed, "to_last": to_last, "passed": passed}


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ranks_get_copies_and_the_same_sums(n: int) -> None:
    entries = 1234
    results = run_ranks(n, exchanged, entries)
    exact = np.sum([part(rank, entries) for rank in range(n)], axis=0)
    for result in results:
        np.testing.assert_array_equal(result["copy"], part(n - 1, entries))
        np.testing.assert_array_equal(result["summed"], results[0]["summed"])
        np.testing.assert_allclose(result["summed"], exact, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(results[-1]["to_last"], exact, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(results[min(1, n - 1)]["passed"], part(0, entries))


def raises(comm: Any) -> None:
    if comm.Get_rank() == 1:
        msg = "rank 1 is broken"
        raise ValueError(msg)
    comm.Barrier()


def test_an_exception_on_a_rank_fails_the_call_with_its_traceback() -> None:
    with pytest.raises(AssertionError, match="rank 1 is broken"):
        run_ranks(2, raises)


def test_arrays_that_are_not_contiguous_are_refused() -> None:
    from mpi4py import MPI

    with pytest.raises(ValueError, match="must be C-contiguous"):
        buffers.broadcast(MPI.COMM_SELF, np.zeros((4, 4))[:, :2])
