"""What a grid of ranks takes: memory, messages and operations of each rank, by formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.moment import rows_a_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

_WORKSPACE = 2**21  # bytes of a thread's panels, at most
_SUMMED = 128  # bytes of a row of W that the kernels add up at a time, at most


@dataclass(frozen=True)
class Costs:
    """Of one rank: bytes of memory, bytes received a pass, operations a pass.

    A sum or copy over s ranks is received by s - 1 of them; bytes are the mean over ranks.

    Attributes
    ----------
    vectors : int
        Memory of the basis V and of C V, float64, of this rank's rows.
    solver : int
        Memory beside while the solver makes Ritz vectors, residuals or new directions of this rank's rows.
    product : int
        Memory beside while a product is made: the block's and its product's rows in the range of a column,
        copies in the kernels, and what the solver holds then.
    panels : int
        Memory of the kernels' workspace, and of a chunk of samples with its latents.
    samples : int
        Memory of inputs and labels of a row's share, where they are arrays; a file is read in chunks.
    on_root : int
        Memory of rank 0 beside: the triangles of a QR over all ranks.
    latents_received : int
        A pass, of the latents of the row's samples, summed over its columns and given back.
    block_received : int
        A pass, of the other parts of the column's block.
    sums_received : int
        A pass, of sums over rows for this rank's part of the product.
    solver_received : int
        A pass, of inner products and small factors, at most.
    product_operations : int
        Multiplications and additions of one product of a block.
    solver_operations : int
        Of a pass of the solver beside, at most.
    """

    vectors: int
    solver: int
    product: int
    panels: int
    samples: int
    on_root: int
    latents_received: int
    block_received: int
    sums_received: int
    solver_received: int
    product_operations: int
    solver_operations: int

    @property
    def memory(self) -> int:
        """Most bytes of rank 0, without the interpreter, its libraries, and samples that are arrays."""
        return self.vectors + self.work

    @property
    def work(self) -> int:
        """Most bytes of rank 0 beside the basis and C V, without samples that are arrays."""
        return max(self.solver, self.product) + self.panels + self.on_root

    @property
    def product_received(self) -> int:
        """Bytes received in a product."""
        return self.latents_received + self.block_received + self.sums_received


def costs(
    n_features: int,
    n_samples: int,
    n_inputs: int,
    *,
    k: int,
    block_size: int,
    max_basis: int,
    rows: int,
    columns: int,
    dtype: DTypeLike = "float32",
    threads: int = 1,
) -> Costs:
    """Compute what `divided_eigenpairs` takes on a grid; nothing is measured, and no MPI is needed.

    Parameters
    ----------
    n_features, n_samples, n_inputs : int
        D, n of all rows together, and d.
    k, block_size, max_basis : int
        Pairs wanted, vectors b in a block, and vectors m kept.
    rows, columns : int
        R and C; 1 x 1 is one process.
    dtype : {"float32", "float64"}
        Of inputs and products.
    threads : int
        Of a rank.

    Returns
    -------
    Costs
        Of the rank with the longest range and the largest share.
    """
    ranks, item, b, m = rows * columns, np.dtype(dtype).itemsize, block_size, max_basis
    width = -(-n_features // columns)  # of a column's range
    mine = -(-width // rows)
    share = -(-n_samples // rows)
    chunk = min(share, rows_a_call(n_inputs))
    n_chunks = -(-share // chunk)
    others_in_row, others_in_column = (columns - 1) / columns, (rows - 1) / rows
    inner = (3 * (m + b) + m + 2 * b) * b + m * m  # entries of inner products, of H's eigenvectors, of R
    return Costs(
        vectors=16 * mine * m,
        solver=8 * mine * max(k + 13 * b, 4 * k + 9 * b),
        product=width * (b * (8 + 2 * item) + min(b * item, _SUMMED)) + 8 * mine * (k + 6 * b),
        panels=threads * _WORKSPACE + chunk * (2 * n_inputs + 2 * b) * item,
        samples=share * (n_inputs * item + 8),
        on_root=8 * (ranks + 1) * b * b if ranks > 1 else 0,
        latents_received=round(2 * others_in_row * (share + n_chunks) * b * item),
        block_received=round(others_in_column * width * b * item),
        sums_received=round(others_in_column * width * b * 8),
        solver_received=round(2 * (ranks - 1) / ranks * inner * 8),
        product_operations=4 * share * width * b,
        solver_operations=mine * (12 * m * b + 4 * m * (k + 2 * b)),
    )


def cost_table(
    n_features: int, n_samples: int, n_inputs: int, *, grids: Sequence[tuple[int, int]], **options: Any
) -> str:
    """Return the costs of some grids as a table in Markdown, a row each; `options` as for `costs`.

    Columns: memory of a rank for the basis and C V, for work beside, and in all; of its samples, where they
    are arrays; received a pass as latents, as parts of blocks and sums, and by the solver; operations a pass.
    """
    head = [
        "R x C", "basis and C V", "work", "memory", "samples", "latents", "blocks and sums", "solver",
        "operations",
    ]  # fmt: skip
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for rows, columns in grids:
        cost = costs(n_features, n_samples, n_inputs, rows=rows, columns=columns, **options)
        sizes = [
            cost.vectors, cost.work, cost.memory, cost.samples,
            cost.latents_received, cost.block_received + cost.sums_received, cost.solver_received,
        ]  # fmt: skip
        operations = f"{cost.product_operations + cost.solver_operations:.2g}"
        lines.append(" | ".join([f"{rows} x {columns}", *map(_bytes, sizes), operations]))
    return "\n".join(f"| {line} |" for line in lines)


def _bytes(number: int) -> str:
    """Write a number of bytes with three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
