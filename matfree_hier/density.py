"""Spectral density of a symmetric operator by block stochastic Lanczos quadrature.

One block Krylov space is grown from Gaussian probes. Its Ritz values are the nodes of a quadrature for every
probe at once, with weights of its own for each, so the scatter over probes gives error bars. Ritz values that
have converged are eigenvalues, of which the number is known; only the rest is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import aslinearoperator
from tqdm import tqdm

from matfree_hier.blas import single_threaded_blas
from matfree_hier.comm import collectively
from matfree_hier.packing import check_memory
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_ROUNDING = 32.0  # residuals below this many eps ||A|| are rounding: the Krylov space is exhausted there
_SAME = 1e3  # Ritz values within this many eps ||A|| are copies of one eigenvalue
_ISOLATED = 0.1  # a residual below this share of the gap makes a Ritz value an eigenvalue of known number
_OUTLIER_SHARE = 0.1  # of the spectrum, at each end, may be outliers
_EDGE_SHARE = 0.2  # of the spectrum, at each end, shows the shape of the edge
_FEW = 12.0  # eigenvalues for both, where the share is less
_EDGE_WIDTHS = 4.0  # Tracy-Widom widths past the edge that bulk eigenvalues do not reach (P < 1e-4)
_LOOK_AHEAD = 8  # outliers that may hide each other
_QUADRATIC = 40  # points that carry a fit of second order; fewer make its intercept wild
_EDGE_ERRORS = 2.0  # standard errors of the fitted edge


@dataclass(frozen=True, eq=False)
class SpectralDensity:
    """The spectrum of a symmetric D x D operator: a bulk with its density, and the outliers outside.

    Attributes
    ----------
    grid : ndarray of float64, shape (n_grid,)
        Points over the bulk.
    density : ndarray of float64, shape (n_grid,)
        Share of all eigenvalues per unit at each point, smoothed by a Gaussian of standard deviation
        `width`; outliers excluded, so it integrates to 1 less their share.
    standard_errors : ndarray of float64, shape (n_grid,)
        Of the density, from the scatter over probes; the smoothing is not an error in this sense.
    width : float
        Standard deviation of the smoothing, what the steps resolve.
    bulk_edges : ndarray of float64, shape (2,)
        Smallest and largest eigenvalue that is not an outlier.
    outliers : ndarray of float64, shape (r,)
        Eigenvalues outside the bulk, descending, each once.
    outlier_counts, outlier_errors : ndarray of float64, shape (r,)
        How many times each occurs (its weight, times D) and the standard error: 0 where the number is known.
    atoms : ndarray of float64, shape (a,)
        Eigenvalues within the bulk that occur more than once, descending.
    atom_counts, atom_errors : ndarray of float64, shape (a,)
        The same for them.
    nodes, weights : ndarray of float64, shape (m,)
        The quadrature: ``tr f(A) / D`` is about ``weights @ f(nodes)``; weights sum to 1.
    weight_errors : ndarray of float64, shape (m,)
        Standard error of each weight over the probes; those of different nodes are correlated.
    size : int
        D.
    n_probes, n_steps : int
        Width of the block and steps made.
    n_passes : float
        Products with the operator.
    """

    grid: Array
    density: Array
    standard_errors: Array
    width: float
    bulk_edges: Array
    outliers: Array
    outlier_counts: Array
    outlier_errors: Array
    atoms: Array
    atom_counts: Array
    atom_errors: Array
    nodes: Array
    weights: Array
    weight_errors: Array
    size: int
    n_probes: int
    n_steps: int
    n_passes: float

    def __repr__(self) -> str:
        lower, upper = self.bulk_edges
        return (
            f"SpectralDensity(size {self.size}, bulk {lower:.4g} to {upper:.4g}, "
            f"{counted(len(self.outliers), 'outlier')}, {counted(self.n_passes, 'pass', '.4g')})"
        )

    def to_arrays(self) -> dict[str, Any]:
        """Return the fields by name, to be stored in a run file."""
        return dict(self.__dict__)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Rebuild a density from what `to_arrays` returned."""
        return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})


@collectively
def spectral_density(
    A: Any,
    *,
    n_probes: int = 16,
    n_steps: int = 32,
    seed: int,
    n_grid: int = 512,
    progress: bool | None = None,
) -> SpectralDensity:
    """Estimate the spectral density of a symmetric operator, its bulk's edges and its outliers.

    Costs ``n_steps`` passes on blocks of ``n_probes`` vectors (fewer if the Krylov space is exhausted),
    memory for ``D * n_probes * n_steps`` doubles and ``4 D (n_probes n_steps)**2`` operations to keep the
    basis orthogonal, at one BLAS thread: the same bits for every number of threads.

    The number of copies of an eigenvalue is exact below `n_probes`, and where one eigenvalue takes all the
    rest (c I, low rank); otherwise it is estimated. An eigenvalue is an outlier if it lies beyond the edge
    of the others by more than bulk eigenvalues fluctuate: their counting function near an edge E is
    fitted by ``(E - x)**(3/2)`` with a correction, which also gives the Tracy-Widom width. Up to a tenth of
    the spectrum at each end can be outliers. On a bulk without such edges (heavy tails) the test is rough.

    Parameters
    ----------
    A : array_like, sparse matrix or LinearOperator, shape (D, D)
        Real and symmetric.
    n_probes : int
        Width of the block, at least 2 (no more than D are used).
    n_steps : int
        Products with the operator, at least 1. Edges are resolved to about ``(log D / n_steps)**2`` of the
        width of the bulk at worst.
    seed : int
        Of the probes.
    n_grid : int
        Points of the grid, at least 2.
    progress : bool, optional
        Show progress on standard error; by default on a terminal only.

    Returns
    -------
    SpectralDensity

    Raises
    ------
    TypeError
        If the operator is complex.
    ValueError
        If it is not square, not symmetric or returns values that are not finite, or an argument is out of
        its bounds.
    MemoryError
        If the basis does not fit in memory.

    References
    ----------
    L. Lin, Y. Saad, C. Yang, Approximating spectral densities of large matrices, SIAM Review 58 (2016),
    doi:10.1137/130934283. S. Ubaru, J. Chen, Y. Saad, Fast estimation of tr(f(A)) via stochastic Lanczos
    quadrature, SIAM J. Matrix Anal. Appl. 38 (2017), doi:10.1137/16M1104974.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.diag([5.0] + [1.0] * 199)
    >>> found = spectral_density(A, seed=7)
    >>> found.outliers.round(9), found.bulk_edges.round(9), found.atom_counts.round(9)
    (array([5.]), array([1., 1.]), array([199.]))
    """
    for name, value, low in (("n_probes", n_probes, 2), ("n_steps", n_steps, 1), ("n_grid", n_grid, 2)):
        if value < low:
            msg = f"`{name}` must be at least {low}, got {value}."
            raise ValueError(msg)
    operator = _Symmetric(A)
    capacity = min(operator.size, n_probes * n_steps)
    check_memory(8 * operator.size * capacity, f"A Lanczos basis of shape {(operator.size, capacity)}")
    probes = np.random.default_rng(seed).standard_normal((operator.size, min(n_probes, operator.size)))
    with single_threaded_blas():
        ritz = _block_lanczos(operator, probes, n_steps, progress=progress)
        spectrum = _counted(ritz, operator.size)
        return _summary(spectrum, operator, n_grid)


class _Symmetric:
    """A real symmetric operator that counts its products and refuses what is not one."""

    def __init__(self, A: Any) -> None:
        self.linear = aslinearoperator(A if hasattr(A, "shape") else np.asarray(A))
        rows, columns = self.linear.shape
        if rows != columns or rows < 1:
            msg = f"`A` must be square and not empty, got shape {(rows, columns)}."
            raise ValueError(msg)
        given: Any = getattr(self.linear, "dtype", None)  # operators may leave it open
        dtype = np.dtype(np.float64 if given is None else given)
        if dtype.kind == "c":
            msg = f"`A` must be real, got dtype {dtype}."
            raise TypeError(msg)
        self.size = int(rows)
        self.dtype = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)
        self.eps = float(np.finfo(self.dtype).eps)
        self.n_passes = 0

    def __call__(self, V: Array) -> Array:
        """Apply to a block (D, k); the result is a new array, whatever the operator reuses."""
        self.n_passes += 1
        W = np.array(self.linear.matmat(V.astype(self.dtype, order="C")), dtype=np.float64, order="F")
        if not np.isfinite(W).all():
            msg = f"`A` must return finite values; at pass {self.n_passes} it did not."
            raise ValueError(msg)
        return W


@dataclass(frozen=True)
class _Ritz:
    """Ritz values ascending (m,), their residuals (m,), squared components by probe (m, b), eps ||A||."""

    values: Array
    residuals: Array
    components: Array
    rounding: float


def _block_lanczos(A: _Symmetric, probes: Array, n_steps: int, *, progress: bool | None) -> _Ritz:
    """Rayleigh-Ritz on the block Krylov space of the probes, with full reorthogonalisation."""
    size, width = probes.shape
    capacity = min(size, width * n_steps)
    Q = np.empty((size, capacity), order="F")
    T = np.zeros((capacity, capacity))
    Q[:, :width], R = np.linalg.qr(probes)
    start, stop, norm = 0, width, 0.0
    bar = None if progress is None else not progress  # tqdm: None shows on a terminal only
    for _ in tqdm(range(n_steps), desc="spectral density", unit="pass", delay=2, disable=bar):
        W = A(Q[:, start:stop])
        norm = max(norm, float(np.linalg.norm(W, axis=0).max()))
        H = Q[:, :stop].T @ W
        _require_symmetric(H[start:], _SAME * A.eps * norm)
        T[:stop, start:stop] = H
        T[start:stop, :start] = H[:start].T
        W -= Q[:, :stop] @ H
        U, sizes, rotation = np.linalg.svd(W, full_matrices=False)
        n_new = min(int((sizes > _ROUNDING * A.eps * norm).sum()), capacity - stop)
        last = slice(start, stop)
        if not n_new or A.n_passes == n_steps:
            break
        # Short columns were scaled up, and with them what rounding left of the old basis: project again.
        new = U[:, :n_new] - Q[:, :stop] @ (Q[:, :stop].T @ U[:, :n_new])
        Q[:, stop : stop + n_new] = np.linalg.qr(new)[0]
        start, stop = stop, stop + n_new
    T = T[:stop, :stop]
    values, S = scipy.linalg.eigh((T + T.T) / 2)
    residuals = np.linalg.norm((sizes[:, None] * rotation) @ S[last], axis=0)
    return _Ritz(values, residuals, (S[:width].T @ R) ** 2, A.eps * norm)


def _require_symmetric(H: Array, tolerance: float) -> None:
    difference = float(abs(H - H.T).max())
    if difference > tolerance:
        msg = f"`A` must be symmetric; on the probes v^T A u and u^T A v differ by {difference:.1e}."
        raise ValueError(msg)


@dataclass(frozen=True)
class _Spectrum:
    """Distinct Ritz values, descending (g,): copies seen, number by probe (g, b), whether isolated."""

    values: Array
    copies: NDArray[np.int64]
    counts: Array
    isolated: NDArray[np.bool_]


def _counted(ritz: _Ritz, size: int) -> _Spectrum:
    """Say how many eigenvalues each distinct Ritz value stands for."""
    x = ritz.values[::-1]
    width = ritz.components.shape[1]
    starts = np.flatnonzero(np.append(True, x[:-1] - x[1:] > _SAME * ritz.rounding))
    copies = np.diff(np.append(starts, len(x)))
    values = np.add.reduceat(x, starts) / copies
    residuals = np.maximum.reduceat(ritz.residuals[::-1], starts)
    components = np.add.reduceat(ritz.components[::-1], starts, axis=0)
    gaps = np.append(np.append(np.inf, values[:-1] - values[1:]), np.inf)
    complete = len(x) == size
    isolated = (residuals <= _ISOLATED * np.minimum(gaps[1:], gaps[:-1])) | complete
    # A block of b random vectors meets every eigenvector of an eigenvalue that has fewer than b.
    known = isolated & (copies < width) | complete
    n_open = size - int(copies[known].sum())
    if n_open and known.all():
        known[components.sum(axis=1).argmax()] = False
        n_open = size - int(copies[known].sum())
    counts = np.repeat(copies.astype(np.float64)[:, None], width, axis=1)
    if n_open:
        counts[~known] = n_open * components[~known] / components[~known].sum(axis=0)
    return _Spectrum(values, copies, counts, isolated)


def _n_outliers(values: Array, counts: Array, isolated: NDArray[np.bool_], size: int) -> int:
    """Count the leading values, descending, that lie beyond the edge of the others."""
    few = min(_FEW, (size - 1) / 2)
    limit, window = max(_OUTLIER_SHARE * size, few), max(_EDGE_SHARE * size, few)
    n_within = int((np.cumsum(counts) <= limit).sum())
    if isolated[: n_within + 1].all() and n_within < len(values) and counts[n_within] > limit:
        return n_within  # the bulk ends in one eigenvalue that is repeated
    n_candidates = int(np.cumprod(isolated[:n_within]).sum())
    found = 0
    for k in range(1, n_candidates + 1):
        if k <= found + _LOOK_AHEAD and values[k - 1] > _edge(values[k:], counts[k:], window):
            found = k
    return found


def _edge(values: Array, counts: Array, window: float) -> float:
    """Return how far the eigenvalues of a bulk with these outermost ones, descending, may reach.

    Near an edge E that ends like a square root, the number of eigenvalues above x is
    ``N = 2/(3 pi) ((E - x)/s)**(3/2)``, and the largest fluctuates by s about E (Tracy and Widom). So x is
    regressed on ``y = N**(2/3)``: E is the intercept, ``-s (3 pi/2)**(2/3)`` the slope there.
    """
    middle = np.cumsum(counts) - counts / 2
    n = int((middle <= window).sum())
    if n < 2:
        return float("inf")
    degree = 1 if n < _QUADRATIC else 2
    basis = np.vander(middle[:n] ** (2 / 3), degree + 1, increasing=True)
    inverse = np.linalg.pinv(basis)
    coefficients = inverse @ values[:n]
    misfit = values[:n] - basis @ coefficients
    variance = float(misfit @ misfit) / max(1, n - degree - 1)
    error = float(np.sqrt(variance) * np.linalg.norm(inverse[0]))
    scale = max(0.0, -float(coefficients[1])) / (1.5 * np.pi) ** (2 / 3)
    reach: float = float(coefficients[0]) + _EDGE_WIDTHS * scale + _EDGE_ERRORS * error
    return reach


def _summary(spectrum: _Spectrum, A: _Symmetric, n_grid: int) -> SpectralDensity:
    """Tell bulk from outliers and smooth the bulk over a grid."""
    values, counts = spectrum.values, spectrum.counts
    mean, errors = counts.mean(axis=1), _standard_error(counts)
    n_above = _n_outliers(values, mean, spectrum.isolated, A.size)
    n_below = _n_outliers(-values[::-1], mean[::-1], spectrum.isolated[::-1], A.size)
    inside = np.arange(n_above, len(values) - n_below)
    outside = np.setdiff1d(np.arange(len(values)), inside)
    repeated = inside[spectrum.isolated[inside] & (spectrum.copies[inside] > 1)]
    upper, lower = values[inside[0]], values[inside[-1]]
    width = _resolution(values, inside, A.n_passes, complete=bool(spectrum.copies.sum() == A.size))
    grid = np.linspace(lower - 4 * width, upper + 4 * width, n_grid)
    kernel = np.exp(-0.5 * ((grid[:, None] - values[inside]) / width) ** 2) / (np.sqrt(2 * np.pi) * width)
    by_probe = kernel @ counts[inside] / A.size
    return SpectralDensity(
        grid=grid,
        density=by_probe.mean(axis=1),
        standard_errors=_standard_error(by_probe),
        width=width,
        bulk_edges=np.array([lower, upper]),
        outliers=values[outside],
        outlier_counts=mean[outside],
        outlier_errors=errors[outside],
        atoms=values[repeated],
        atom_counts=mean[repeated],
        atom_errors=errors[repeated],
        nodes=values,
        weights=mean / A.size,
        weight_errors=errors / A.size,
        size=A.size,
        n_probes=counts.shape[1],
        n_steps=A.n_passes,
        n_passes=float(A.n_passes),
    )


def _resolution(values: Array, inside: NDArray[np.int64], n_blocks: int, *, complete: bool) -> float:
    """Return a width of smoothing that a quadrature of `n_blocks` steps carries.

    Its error for a Gaussian of width w, r half the width of the bulk, is about ``exp(-2 (n_blocks w/r)**2)``.
    """
    half = float(values[inside[0]] - values[inside[-1]]) / 2
    norm = float(abs(values).max())
    if half <= 1e-9 * norm:
        return 1e-3 * norm if norm > 0 else 1e-3  # one eigenvalue: any width shows it
    return half * min(2 / n_blocks, len(values) ** (-1 / 3) if complete else np.inf)


def _standard_error(by_probe: Array) -> Array:
    """Return the standard error of the mean over probes, in the last axis; 0 for a single one (D = 1)."""
    n = by_probe.shape[1]
    if n == 1:
        return np.zeros(len(by_probe))
    error: Array = by_probe.std(axis=1, ddof=1) / np.sqrt(n)
    return error
