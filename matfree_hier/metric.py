"""Smoothness as a metric: I + tau L, L a graph's Laplacian lifted to packed coordinates, and its inverse.

A symmetric matrix A of the d inputs acts on tensors of degree q as A x I x .. + I x A x .. + ..; on packed
coordinates that is its second quantisation. With alpha_j copies of index j in a multiset, the entry at
(alpha, alpha) is sum_j A_jj alpha_j, and moving one copy from j to i gives A_ij sqrt(alpha_j (alpha_i + 1)).
For the Laplacian of a graph, v^T L v is the sum over edges (i, j) and tensor axes of the squared differences
of slices i and j: small where neighbouring inputs act alike.

For the largest eigenvalues of C v = w (I + tau L) v the right preconditioner is the inverse of the metric:
M (C v - w B v) leads into the Krylov space of B^-1 C. For C v = w v it would be the identity, so algebraic
multigrid has no role there. Where the Laplacian of the d inputs is diagonalised, so is L: its eigenvalues are
the sums of q of those of the graph (`Metric.levels`), and in inputs rotated to its eigenvectors the metric is
diagonal and "jacobi" is its exact inverse.

References
----------
P. Vanek, J. Mandel, M. Brezina, Algebraic multigrid by smoothed aggregation, Computing 56 (1996),
doi:10.1007/BF02238511. N. Bell, L. Olson, J. Schroder, PyAMG, J. Open Source Software 7 (2022),
doi:10.21105/joss.04142.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import cg, splu

from matfree_hier.packing import check_memory, check_size, multi_indices, positions, unpacking_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    Inverse: TypeAlias = Callable[[Array], Array]

__all__ = [
    "PRECONDITIONERS",
    "Metric",
    "cycle",
    "graph_weights",
    "grid",
    "laplacian",
    "lift",
    "path",
    "preconditioner",
    "smoothness",
]

PRECONDITIONERS = ("none", "jacobi", "amg", "exact")
FACTORED = 20_000  # coordinates up to which the exact inverse is a sparse factorisation
_SOLVED = 1e-13  # residual of conjugate gradients where it is not
_AMG_SEED = 977
_global_generator = threading.Lock()


# --- graphs of the inputs ----------------------------------------------------------------------------------


def path(n_inputs: int) -> Any:
    """Return the weights of a path: input i beside i + 1. Sparse array, shape (d, d)."""
    beside = np.ones(max(n_inputs - 1, 0))
    return sp.diags_array([beside, beside], offsets=[-1, 1], shape=(n_inputs, n_inputs), format="csr")


def cycle(n_inputs: int) -> Any:
    """Return the weights of a cycle: a path whose ends are neighbours. Sparse array, shape (d, d)."""
    ends = sp.coo_array(([1.0, 1.0], ([0, n_inputs - 1], [n_inputs - 1, 0])), shape=(n_inputs, n_inputs))
    return sp.csr_array(path(n_inputs) + ends) if n_inputs > 2 else path(n_inputs)


def grid(rows: int, columns: int) -> Any:
    """Return the weights of a grid, each cell beside those above, below, left and right.

    Parameters
    ----------
    rows, columns : int
        At least 1. Input ``r * columns + c`` is the cell in row r and column c: that of a raveled image.

    Returns
    -------
    sparse array, shape (rows * columns, rows * columns)
    """
    return sp.csr_array(sp.kronsum(path(columns), path(rows)))


def graph_weights(graph: Any, n_inputs: int | None = None) -> Any:
    """Return the weights of a graph, checked.

    Parameters
    ----------
    graph : str, tuple of int or array_like of shape (d, d)
        "path" or "cycle"; the rows and columns of a grid; or weights of the edges, dense or sparse: symmetric
        and not negative. The diagonal does not matter.
    n_inputs : int, optional
        d; needed for a name.

    Returns
    -------
    sparse array of float64, shape (d, d)

    Raises
    ------
    TypeError, ValueError
        If the graph is none of these, of another size, not symmetric, negative or not finite.
    """
    if isinstance(graph, str):
        if graph not in ("path", "cycle") or n_inputs is None:
            msg = f'`graph` must be "path", "cycle", a shape or a matrix of weights, got {graph!r}.'
            raise ValueError(msg)
        return path(n_inputs) if graph == "path" else cycle(n_inputs)
    if isinstance(graph, tuple) and len(graph) == 2 and all(isinstance(side, int) for side in graph):
        if min(graph) < 1:
            msg = f"`graph` must have at least 1 row and 1 column, got {graph}."
            raise ValueError(msg)
        graph = grid(*graph)
    weights = _matrix(graph)
    if n_inputs is not None and weights.shape != (n_inputs, n_inputs):
        msg = f"`graph` must have shape ({n_inputs}, {n_inputs}), got {weights.shape}."
        raise ValueError(msg)
    if not np.isfinite(weights.data).all():
        msg = f"`graph` must have finite weights, got {weights.data[~np.isfinite(weights.data)][0]}."
        raise ValueError(msg)
    if (weights.data < 0.0).any():
        msg = f"`graph` must have weights of at least 0, got {weights.data.min():g}."
        raise ValueError(msg)
    skew = abs(weights - weights.T)
    if skew.nnz and skew.max() > 1e-12 * weights.max():
        msg = f"`graph` must be symmetric, got weights that differ by {skew.max():g} across the diagonal."
        raise ValueError(msg)
    return weights


def _matrix(graph: Any) -> Any:
    """Return a square sparse array of float64."""
    if not sp.issparse(graph):
        graph = np.asarray(graph)
        if graph.dtype.kind not in "biuf":
            msg = f'`graph` must be "path", "cycle", a shape or a matrix of weights, got dtype {graph.dtype}.'
            raise TypeError(msg)
    if graph.ndim != 2 or graph.shape[0] != graph.shape[1] or graph.shape[0] < 1:
        msg = f"`graph` must be a square matrix of weights, got shape {graph.shape}."
        raise ValueError(msg)
    return sp.csr_array(graph, dtype=np.float64)


def laplacian(weights: Any) -> Any:
    """Return the Laplacian of a graph: degrees on the diagonal, less the weights. Sparse array, (d, d)."""
    off = sp.csr_array(weights - sp.diags_array(weights.diagonal()))
    return sp.csr_array(sp.diags_array(off.sum(axis=1)) - off)


# --- the lift ----------------------------------------------------------------------------------------------


def lift(A: Any, degree: int) -> Any:
    """Lift a symmetric matrix of the inputs to packed coordinates: A x I x .. + I x A x .. + ..

    Parameters
    ----------
    A : sparse array, shape (d, d)
        Symmetric: what is below the diagonal is not looked at.
    degree : int
        q, at least 1.

    Returns
    -------
    sparse array of float64 (CSR), shape (D, D)
        P^T (A x I x .. + ..) P, P the isometry of `packing.unpack`. Made from the multisets, with no object
        of d^q entries: cost and memory O(q D (q + e)), e the edges of A at an input.

    Raises
    ------
    MemoryError
        If it does not fit in memory.
    """
    d = int(A.shape[0])
    size = check_size(d, degree)
    above = sp.csr_array(sp.triu(A, 1))
    check_memory(
        40 * degree * size * (1 + above.nnz // max(d, 1)), f"The lift of {above.nnz} edges to degree {degree}"
    )
    index = multi_indices(d, degree)
    diagonal = np.asarray(A.diagonal())[index].sum(axis=1)
    counts = (index[:, :, np.newaxis] == index[:, np.newaxis, :]).sum(axis=2)  # copies of the index in a slot
    rows, columns, values = [], [], []
    for slot in range(degree):
        moved = index[:, slot]
        # One of several copies is enough.
        origins = np.flatnonzero(moved != index[:, slot - 1]) if slot else np.arange(size)
        first, n_edges = above.indptr[moved[origins]], np.diff(above.indptr)[moved[origins]]
        which = np.repeat(np.arange(len(origins)), n_edges)
        edge = first[which] + np.arange(len(which)) - (np.cumsum(n_edges) - n_edges)[which]
        origin, target = origins[which], above.indices[edge].astype(np.int64)
        new = index[origin]
        already = (new == target[:, np.newaxis]).sum(axis=1)
        new[:, slot] = target
        new.sort(axis=1)
        rows.append(origin)
        columns.append(positions(new, d))
        values.append(above.data[edge] * np.sqrt(counts[origin, slot] * (already + 1.0)))
    entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
    off = sp.csr_array(sp.coo_array(entries, shape=(size, size)))
    return sp.csr_array(off + off.T + sp.diags_array(diagonal))


@dataclass(frozen=True, eq=False)
class Metric:
    """The inner product u^T B v, B = I + tau L, of packed coordinates. Made by `smoothness`.

    Attributes
    ----------
    weights : sparse array, shape (d, d)
        Of the graph's edges.
    degree : int
    tau : float
    matrix : sparse array of float64 (CSR), shape (D, D)
        B, symmetric and at least the identity.
    """

    weights: Any
    degree: int
    tau: float
    matrix: Any

    @property
    def size(self) -> int:
        """D."""
        return int(self.matrix.shape[0])

    def __repr__(self) -> str:
        return f"Metric(n_inputs={self.weights.shape[0]}, degree={self.degree}, tau={self.tau:g})"

    def apply(self, V: Array) -> Array:
        """Return B V, shape (D, b), Fortran order: some (2 q e + 1) D b operations for e edges an input."""
        return np.asfortranarray(self.matrix @ V)

    def levels(self) -> Array:
        """Return the eigenvalues of B in the order of the multisets of graph eigenvalues, shape (D,).

        Cost O(d^3 + q D): those of L are the sums of q eigenvalues of the graph's Laplacian.
        """
        of_graph = np.maximum(np.linalg.eigvalsh(laplacian(self.weights).toarray()), 0.0)
        sums = of_graph[multi_indices(len(of_graph), self.degree)].sum(axis=1)
        return np.asarray(1.0 + self.tau * sums)

    def fingerprint(self) -> str:
        """Return a hash of graph, degree and tau."""
        weights = self.weights
        parts = [weights.indptr.astype(np.int64), weights.indices.astype(np.int64), weights.data]
        text = f"{self.degree} {self.tau!r}".encode()
        return hashlib.sha256(b"".join([text, *(part.tobytes() for part in parts)])).hexdigest()[:32]


def smoothness(graph: Any, degree: int, tau: float, *, n_inputs: int | None = None) -> Metric:
    """Return the metric I + tau L of a graph of the inputs, L its Laplacian lifted to packed coordinates.

    Parameters
    ----------
    graph : str, tuple of int or array_like of shape (d, d)
        As in `graph_weights`; see `path`, `cycle` and `grid`.
    degree : int
        q, at least 1.
    tau : float
        Finite and at least 0; 0 is the plain inner product.
    n_inputs : int, optional
        d; needed for a graph given by name.

    Returns
    -------
    Metric

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its bounds.
    MemoryError
        If the lift does not fit in memory.

    Examples
    --------
    >>> metric = smoothness("path", degree=2, tau=10.0, n_inputs=4)
    >>> metric.matrix.shape, metric.levels().min().round(12)
    ((10, 10), 1.0)
    """
    tau = float(tau)
    if not 0.0 <= tau < np.inf:
        msg = f"`tau` must be finite and at least 0, got {tau}."
        raise ValueError(msg)
    weights = graph_weights(graph, n_inputs)
    L = lift(laplacian(weights), degree)
    matrix = sp.csr_array(sp.eye_array(L.shape[0]) + tau * L)
    matrix.eliminate_zeros()
    return Metric(weights, int(degree), tau, matrix)


# --- its inverse, more or less -----------------------------------------------------------------------------


def preconditioner(metric: Metric, kind: str) -> Inverse:
    """Return a map (D, b) -> (D, b) that stands for the inverse of the metric: symmetric and positive.

    Parameters
    ----------
    metric : Metric
    kind : {"none", "jacobi", "amg", "exact"}
        The identity; the inverse of the diagonal; one symmetric V-cycle of smoothed aggregation (pyamg); the
        inverse, by a sparse factorisation for at most `FACTORED` coordinates and by conjugate gradients with
        multigrid above.

    Raises
    ------
    ValueError
        If `kind` is none of these.
    """
    if kind == "none":
        return lambda R: R
    if kind == "jacobi":
        inverse = 1.0 / metric.matrix.diagonal()[:, np.newaxis]
        return lambda R: R * inverse
    if kind == "amg":
        cycle_once = _multigrid(metric)
        return lambda R: _by_columns(cycle_once.matvec, R)
    if kind == "exact":
        return _exact(metric)
    msg = f"`preconditioner` must be one of {', '.join(PRECONDITIONERS)}, got {kind!r}."
    raise ValueError(msg)


def _exact(metric: Metric) -> Inverse:
    if metric.size <= FACTORED:
        factors = splu(
            sp.csc_array(metric.matrix), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}
        )
        return lambda R: np.asfortranarray(factors.solve(np.asarray(R, dtype=np.float64)))
    multigrid = _multigrid(metric)
    return lambda R: _by_columns(
        lambda r: cg(metric.matrix, r, rtol=_SOLVED, atol=0.0, maxiter=200, M=multigrid)[0], R
    )


def _by_columns(solve: Callable[[Array], Array], R: Array) -> Array:
    solved = np.empty(R.shape, order="F")
    for j in range(R.shape[1]):
        solved[:, j] = solve(np.ascontiguousarray(R[:, j]))
    return solved


def _multigrid(metric: Metric) -> Any:
    """Set smoothed aggregation up; the same bits each time, and NumPy's global generator as it was.

    The Laplacian's null vector, all ones on the inputs, is sqrt(q!/alpha!) on packed coordinates: coarse
    spaces are built to hold it.
    """
    import pyamg

    null = 1.0 / unpacking_weights(metric.weights.shape[0], metric.degree)
    with _seeded_global_generator():
        levels = pyamg.smoothed_aggregation_solver(
            metric.matrix, B=null[:, np.newaxis], symmetry="symmetric", improve_candidates=None
        )
    return levels.aspreconditioner(cycle="V")


@contextmanager
def _seeded_global_generator() -> Iterator[None]:
    """Lend pyamg, which draws from NumPy's global generator, one of a known state."""
    with _global_generator:
        before = np.random.get_state()  # noqa: NPY002
        np.random.set_state(np.random.RandomState(_AMG_SEED).get_state())  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002
