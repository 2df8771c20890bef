"""What a grid of ranks takes: memory, messages and operations of each rank, by formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from matfree_hier import kernels
from matfree_hier.moment import rows_a_call

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_SUMMED = 128  # bytes of a row of W that the kernels add up at a time, at most


@dataclass(frozen=True)
class Costs:
    """Of one rank: bytes of memory, bytes received a pass, operations a pass.

    A sum or copy over s ranks is received by s - 1 of them; bytes are the mean over ranks.

    Attributes
    ----------
    vectors : int
        Memory of the basis V and of C V, float64, of this rank's rows.
    beside : int
        Memory of Ritz vectors, residuals and new directions of this rank's rows, at most.
    block : int
        Memory of a block's and its product's rows in the range of a column, and of copies in the kernels.
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
    beside: int
    block: int
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
        """Bytes of a rank, with the samples as arrays, and of rank 0."""
        return self.vectors + self.beside + self.block + self.panels + self.samples + self.on_root

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
        beside=8 * mine * (2 * (k + 2 * b) + 4 * b),
        block=width * b * (8 + 2 * item) + width * min(b * item, _SUMMED),
        panels=threads * kernels.CACHE_BYTES + chunk * (2 * n_inputs + 2 * b) * item,
        samples=share * (n_inputs * item + 8),
        on_root=8 * (ranks + 1) * b * b if ranks > 1 else 0,
        latents_received=round(2 * others_in_row * (share + n_chunks) * b * item),
        block_received=round(others_in_column * width * b * item),
        sums_received=round(others_in_column * width * b * 8),
        solver_received=round(2 * (ranks - 1) / ranks * inner * 8),
        product_operations=4 * share * width * b,
        solver_operations=mine * (12 * m * b + 4 * m * (k + 2 * b)),
    )
