"""Eigenpairs by block Krylov with vectors that stay divided between ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from matfree_hier import buffers
from matfree_hier.blas import single_threaded_blas
from matfree_hier.divided.rows import DividedRows
from matfree_hier.interrupts import Interrupts
from matfree_hier.packing import check_memory
from matfree_hier.result import EigenResult
from matfree_hier.solvers.arguments import require_one_of, resolved_options
from matfree_hier.solvers.krylov import BlockKrylov
from matfree_hier.solvers.products import Products
from matfree_hier.solvers.space import Space
from matfree_hier.solvers.subspace import with_positive_peaks

if TYPE_CHECKING:
    from matfree_hier.divided.operator import DividedOperator
    from matfree_hier.solvers.records import Options

_WHICH = ("LM", "LA", "SA", "BE")


@dataclass(frozen=True, eq=False)
class DividedPairs:
    """What a solve returns to each rank.

    Attributes
    ----------
    pairs : EigenResult
        The same on every rank, but for the eigenvectors: this rank's rows, shape (hi - lo, k), and the
        seconds of the history.
    lo, hi : int
        The features of these rows.
    operator : DividedOperator
        What was solved.
    """

    pairs: EigenResult
    lo: int
    hi: int
    operator: DividedOperator

    def gather(self, root: int = 0) -> EigenResult | None:
        """Return the result with whole eigenvectors on one rank, None on the others; every rank calls this.

        Raises
        ------
        MemoryError
            On every rank, if they do not fit in the memory of `root`.
        """
        C, rows = self.operator, self.pairs.eigenvectors
        comm, rank, shape = C.grid.comm, C.grid.team.rank, (C.shape[0], rows.shape[1])

        def fits() -> None:
            if rank == root:
                check_memory(8 * shape[0] * shape[1], f"{shape[1]} vectors of {shape[0]} entries")

        C.grid.team.exchange("DividedPairs.gather", fits)
        if rank != root:
            buffers.send(comm, np.ascontiguousarray(rows), root)
            return None
        whole = np.empty(shape)
        whole[self.lo : self.hi] = rows
        for sender, (lo, hi) in enumerate(C.parts):
            if sender != root:
                buffers.receive(comm, whole[lo:hi], sender)
        return replace(self.pairs, eigenvectors=whole)


def divided_eigenpairs(
    C: DividedOperator,
    k: int,
    which: str = "LM",
    tol: float = 1e-6,
    block_size: int | None = None,
    max_basis: int | None = None,
    max_passes: float = 100,
    seed: int = 3,
) -> DividedPairs:
    """Return the k eigenpairs at the end or ends of the spectrum, their vectors divided as those of C.

    Every rank makes this call with the same arguments. The method is that of `top_eigenpairs` ("krylov",
    stopping on residuals, without a coarse model), where only sums over rows of the vectors and what is as
    small as the basis is wide travel between ranks. Random directions depend on the seed and the feature,
    not on the grid, so that another grid gives the same pairs but for rounding, and the same grid gives the
    same bits. SIGINT or SIGTERM to any rank ends the solve on all at the end of the pass.

    Parameters
    ----------
    C : DividedOperator
    k, which, tol, block_size, max_passes, seed
        As for `top_eigenpairs`.
    max_basis : int, optional
        Vectors kept, at least k + `block_size`; each takes a rank ``16 D / (R C)`` bytes. By default as many
        as 40 blocks or 2 GiB a rank hold, and at least k and four blocks.

    Returns
    -------
    DividedPairs
        Residuals are recomputed by a product, and `status` says how the run ended: an error on any rank is
        `Status.OPERATOR_FAILED` on all, with the message of that rank. An error outside of products, such as
        want of memory, ends all ranks.

    Raises
    ------
    ValueError
        On every rank, if an argument is out of its bounds or not the same on all.
    MemoryError
        If the vectors that one rank keeps do not fit in its memory.
    """
    team, operator = C.grid.team, cast("Any", C)

    def resolve() -> Options:
        require_one_of("which", which, _WHICH)
        resolved = resolved_options(
            operator, k, which, tol, block_size, max_basis, max_passes, seed, share=team.size
        )
        kept = 16 * (C.hi - C.lo) * resolved.max_basis
        check_memory(kept, f"{2 * resolved.max_basis} vectors of {C.hi - C.lo} entries")
        return resolved

    heard: list[Options] = team.exchange("divided_eigenpairs", resolve)
    for rank, other in enumerate(heard):
        if other != heard[0]:
            msg = (
                f"Arguments must be the same on all ranks, got {heard[0]} on rank 0, {other} on rank {rank}."
            )
            raise ValueError(msg)
    rows = DividedRows(C.grid.comm, C.shape[0], C.lo, C.hi)
    with single_threaded_blas(), team.few_threads(), Interrupts() as interrupts, team.to_the_end():
        products = Products(operator)
        solver = BlockKrylov(products, heard[0], space=Space(rows))
        outcome = solver.run(should_stop=lambda: any(C.grid.comm.allgather(interrupts.requested)))
        vectors = with_positive_peaks(outcome.vectors, rows)
    result = EigenResult(
        eigenvalues=outcome.values,
        eigenvectors=vectors,
        residuals=outcome.residuals,
        norm=outcome.norm,
        status=outcome.status,
        n_passes=products.passes,
        history=solver.state.history,
        method="krylov",
        message=outcome.message,
    )
    return DividedPairs(result, C.lo, C.hi, C)
