"""Eigensolvers that run to their end in one call: dense, Gram, and those of other packages.

Each gives an orthonormal block that should hold the wanted eigenvectors; what it is worth is judged by
`checked`, from a product of its own.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from scipy.sparse import linalg as sparse
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator

from matfree_hier import kernels
from matfree_hier.metric import preconditioner
from matfree_hier.operator import MomentOperator, adjoint, project
from matfree_hier.packing import check_memory
from matfree_hier.solvers.records import Options, Outcome
from matfree_hier.solvers.space import PLAIN, MetricSpace, Space
from matfree_hier.solvers.stopping import ResidualRule, RitzValues, verdict
from matfree_hier.solvers.subspace import (
    ROUNDING,
    filled,
    orthonormal,
    product_noise,
    ranking,
    rayleigh_ritz,
    residual_floor,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from matfree_hier.solvers.products import Products

    Array = NDArray[np.float64]

_RANK_TOL = 1e-12  # singular values below this share of the largest count as 0
_KRYLOV_PASSES = 25  # that a solve takes, for the choice of a method
_OVERHEAD = 2e6  # operations that a pass of the solver counts for besides, whatever the sizes
_LAPACK = 1.5  # how much slower an operation of LAPACK's eigensolvers, at one thread, is than a product's


def checked(
    products: Products, block: Array, options: Options, norm: float = 0.0, space: Space = PLAIN
) -> Outcome:
    """Rayleigh-Ritz on a block by one product, with the residuals that product gives.

    Parameters
    ----------
    products : Products
        The operator.
    block : ndarray of float64, shape (D, r)
        Orthonormal columns, r >= k.
    options : Options
        What is asked for.
    norm : float
        Lower bound of ||C|| known already.
    space : Space
        In which the columns are orthonormal.
    """
    W = products(block)
    H = block.T @ W
    values, S = rayleigh_ritz(H, options.which, options.k)
    values, S = values[: options.k], S[:, : options.k]
    norm = max(norm, float(np.abs(values).max()))
    vectors = block @ S
    residuals = np.linalg.norm(W @ S - space.apply(vectors) * values, axis=0)
    residuals = residuals / norm if norm > 0.0 else residuals
    floor = max(residual_floor(products.eps, product_noise(H, products.size), norm), space.rounding)
    ritz = RitzValues(values, residuals, norm, options.k, options.which, 0, (np.nan, np.nan))
    status, message = verdict(ResidualRule(options.tol), ritz, floor, products.dtype.name)
    return Outcome(values, vectors, residuals, norm, status, message)


def solve_dense(products: Products, options: Options, space: Space = PLAIN) -> Outcome:
    """Form the matrix, in one pass over samples, then LAPACK: 9 D^3 operations."""
    size = products.size
    check_memory((4 if space is PLAIN else 6) * 8 * size * size, f"The dense eigenproblem of size {size}")
    A = products.matrix()
    if isinstance(space, MetricSpace):
        values, V = scipy.linalg.eigh((A + A.T) / 2, space.metric.matrix.toarray(), driver="gvd")
    else:
        values, V = scipy.linalg.eigh((A + A.T) / 2, driver="evd")
    best = ranking(values, options.which, options.k)[: options.k]
    return checked(products, np.asfortranarray(V[:, best]), options, float(np.abs(values).max()), space)


def solve_gram(products: Products, options: Options) -> Outcome:
    """Solve on the span of n < D samples: C = Phi^T T Phi + shift I with Phi Phi^T by recurrence.

    With the eigenpairs U s^2 U^T of the Gram matrix, Phi = U s Q^T, and C = Q (s U^T T U s) Q^T + shift I: an
    eigenproblem of size n. What is orthogonal to all samples has the shift as its eigenvalue. Cost n^2 d
    + 20 n^3 and one or two passes besides the check.
    """
    C = products.operator
    assert isinstance(C, MomentOperator)  # `top_eigenpairs` has chosen this route
    n, size = C.n_samples, C.shape[0]
    check_memory(4 * 8 * n * n, f"The Gram route for {n} samples")
    X = np.ascontiguousarray(C.source.inputs(), dtype=np.float64)
    K = np.empty((n, n))
    kernels.gram(X, X, C.degree, K)
    squares, U = scipy.linalg.eigh((K + K.T) / 2, driver="evd")
    rank = min(int((squares > _RANK_TOL * max(squares[-1], 0.0)).sum()), size)
    s, U = np.sqrt(squares[n - rank :]), U[:, n - rank :]
    t = C.labels() / (n * 2.0**0.5)  # C = Phi^T diag(t) Phi + shift I
    mu, Z = scipy.linalg.eigh((s[:, None] * (U.T @ (t[:, None] * U))) * s, driver="evd")
    n_rest = min(size - rank, options.k)
    values = np.append(mu, np.zeros(n_rest)) + C.shift
    best = ranking(values, options.which, options.k)[: options.k]
    inside = best[best < rank]
    V = adjoint(C.source, U @ (Z[:, inside] / s[:, None]), C.degree, np.float64)
    products.passes += 0.5
    block = orthonormal(V, rank_tol=0.0)
    if len(inside) < options.k:
        block = _completed(products, C, block, (U, s), options)
    return checked(products, block, options, float(np.abs(values).max()))


def _completed(
    products: Products, C: MomentOperator, block: Array, factor: tuple[Array, Array], options: Options
) -> Array:
    """Add directions orthogonal to the features of every sample."""
    U, s = factor
    rng = np.random.default_rng(options.seed)
    G = rng.standard_normal((C.shape[0], options.k - block.shape[1]))
    for _ in range(2):  # twice is enough
        latents = project(C.source, G, C.degree, np.float64)
        G = G - adjoint(C.source, (U / s**2) @ (U.T @ latents), C.degree, np.float64)
        products.passes += 1.0
    return filled(np.hstack([block, orthonormal(G, block)]), block[:, :0], options.k, rng)


eigsh: Any = sparse.eigsh
lobpcg: Any = sparse.lobpcg


def solve_lobpcg(
    products: Products, options: Options, start: Array | None = None, space: Space = PLAIN
) -> Outcome:
    """Run SciPy's LOBPCG, for both ends where `which` needs them.

    What it does wrong is kept from the caller: it takes an absolute tolerance, finds one end only,
    overwrites its start, warns where it fails, and returns nonsense where the rank is below three blocks.
    The last is settled beforehand, by one pass on a block of that width.
    """
    size, width = products.size, options.block_size
    if size < 5 * width:  # LOBPCG would form the matrix
        return solve_dense(products, options, space)
    rng = np.random.default_rng(options.seed)
    nothing = np.empty((size, 0))
    probe = space.filled(nothing, nothing, 3 * width, rng)
    W = products(probe)
    norm = float(np.linalg.norm(W, 2))
    found = _range(W, max(_RANK_TOL, ROUNDING * products.eps) * norm)
    if isinstance(space, MetricSpace):
        if found.shape[1] < 3 * width:  # the range of B^-1 C
            found = space.orthonormal(preconditioner(space.metric, "exact")(found))
        norm = _norm_in(space, products, W, options)
    if found.shape[1] < 3 * width:
        block = space.filled(found, nothing, found.shape[1] + options.k, rng)
        return checked(products, block, options, norm, space)
    ends = {"LM": (True, False), "BE": (True, False), "LA": (True,), "SA": (False,)}[options.which]
    blocks: list[Array] = []
    for largest in ends:
        first = space.orthonormal(start) if start is not None else nothing
        X = space.filled(first[:, :width], nothing, width, rng)
        budget = (options.max_passes - products.passes - 1) / (len(ends) - len(blocks))
        beside = 2 if space is PLAIN else 3  # products that it makes besides one a step
        tol, n_steps = 0.5 * options.tol * norm, max(int(budget) - beside, 1)
        with warnings.catch_warnings(), contextlib.suppress(np.linalg.LinAlgError, ValueError):
            warnings.simplefilter("ignore")
            values, X = lobpcg(
                _counted(products), X, tol=tol, maxiter=n_steps, largest=largest, **_as_keywords(space)
            )[:2]
            norm = max(norm, float(np.abs(values).max()))
        blocks.append(space.orthonormal(np.asarray(X, dtype=np.float64), *blocks))
    block = space.filled(np.hstack(blocks), nothing, options.k, rng)
    return checked(products, block, options, norm, space)


def _as_keywords(space: Space) -> dict[str, Any]:
    """Return the matrix of the inner product and the preconditioner as LOBPCG takes them."""
    if not isinstance(space, MetricSpace):
        return {}
    return {"B": space.metric.matrix, "M": lambda R: space.directions(np.reshape(R, (len(R), -1)))}


def _norm_in(space: Space, products: Products, W: Array, options: Options) -> float:
    """Return the largest |Ritz value| of the directions that products W point to: about the norm of B^-1 C.

    Random directions are too rough to tell.
    """
    Q = space.orthonormal(space.directions(W))
    return float(np.abs(rayleigh_ritz(Q.T @ products(Q), options.which, options.k)[0]).max(initial=0.0))


def _range(W: Array, tolerance: float) -> Array:
    """Return an orthonormal basis of the columns of W, as far as they are above the tolerance."""
    Q, sizes, _ = scipy.linalg.svd(W, full_matrices=False)
    return np.asfortranarray(Q[:, sizes > tolerance])


def solve_arpack(products: Products, options: Options, start: Array | None = None) -> Outcome:
    """Run ARPACK: one vector, so one product, at a time."""
    size, k = products.size, options.k
    if size <= k + 1:
        return solve_dense(products, options)
    which = "LA" if k == 1 and options.which == "BE" else options.which  # ARPACK takes neither end then
    rng = np.random.default_rng(options.seed)
    v0 = rng.standard_normal(size) if start is None else start.sum(axis=1)
    n_lanczos = min(size, max(2 * k + 1, 20))
    n_restarts = max(1, int((options.max_passes - 1 - n_lanczos) // (n_lanczos - k)))
    try:
        _, V = eigsh(
            _counted(products),
            k,
            which=which,
            v0=v0,
            ncv=n_lanczos,
            maxiter=n_restarts,
            tol=options.tol,
        )
    except ArpackNoConvergence as error:
        V = error.eigenvectors
    except ArpackError:  # the start is in the null space: C is 0, or as good as that
        V = np.empty((size, 0))
    Q = orthonormal(np.asarray(V, dtype=np.float64))
    return checked(products, filled(Q, Q[:, :0], k, rng), options)


def solve_primme(products: Products, options: Options, start: Array | None = None) -> Outcome:
    """Run PRIMME, if it is installed."""
    try:
        import primme
    except ImportError as error:
        msg = '`method` "primme" needs the package primme: python -m pip install primme.'
        raise ValueError(msg) from error
    rng = np.random.default_rng(options.seed)
    blocks: list[Array] = []
    for end in {"LM": ["LM"], "LA": ["LA"], "SA": ["SA"], "BE": ["LA", "SA"]}[options.which]:
        first = rng.standard_normal((products.size, 1)) if start is None else start
        _, V = primme.eigsh(
            _counted(products),
            options.k,
            which=end,
            v0=first,
            tol=options.tol,
            maxBlockSize=options.block_size,
            maxiter=int(options.max_passes * options.block_size),  # which it takes as products with vectors
            return_unconverged=True,
            raise_for_unconverged=False,
        )
        blocks.append(orthonormal(np.asarray(V, dtype=np.float64), *blocks))
    Q = np.hstack(blocks)
    return checked(products, filled(Q, Q[:, :0], options.k, rng), options)


def _counted(products: Products) -> Any:
    """Return the operator as other packages take it."""
    return LinearOperator(
        shape=(products.size, products.size),
        dtype=np.float64,
        matvec=lambda x: products(np.reshape(x, (-1, 1)))[:, 0],
        matmat=products,
    )


# --- the cost model of method="auto" -----------------------------------------------------------------------


def _work_of_a_vector(linear: LinearOperator[Any]) -> float:
    """Operations of one product with one vector; of an unknown operator, those of a dense matrix."""
    size = float(linear.shape[0])
    return 4.0 * linear.n_samples * size if isinstance(linear, MomentOperator) else 2.0 * size**2


def work_krylov(linear: LinearOperator[Any], options: Options) -> float:
    """Operations of block Krylov: products, and keeping half a full basis orthogonal."""
    size, width = float(linear.shape[0]), options.block_size
    basis = min(size, options.max_basis, _KRYLOV_PASSES * width) / 2
    return _KRYLOV_PASSES * (width * _work_of_a_vector(linear) + 24.0 * size * basis * width + _OVERHEAD)


def work_dense(linear: LinearOperator[Any], options: Options) -> float:
    """Operations of forming the matrix and of LAPACK; infinite if memory does not hold it."""
    size = float(linear.shape[0])
    if not _fits(4 * 8 * int(size) ** 2):
        return np.inf
    in_vectors = size / 4.0 if isinstance(linear, MomentOperator) else size  # that forming the matrix costs
    work = (in_vectors + options.k) * _work_of_a_vector(linear)
    return work + _LAPACK * 9.0 * size**3 + _OVERHEAD


def work_gram(linear: LinearOperator[Any], options: Options) -> float:
    """Operations of the route by the Gram matrix; infinite for other operators, or if it does not fit."""
    if not isinstance(linear, MomentOperator) or linear.n_samples >= linear.shape[0]:
        return np.inf
    n, size = float(linear.n_samples), float(linear.shape[0])
    if not _fits(4 * 8 * int(n) ** 2):
        return np.inf
    passes = 4.0 * 4.0 * n * size * options.k
    return 2.0 * n**2 * (linear.n_inputs + 5 * linear.degree) + _LAPACK * 20.0 * n**3 + passes + _OVERHEAD


def _fits(n_bytes: int) -> bool:
    try:
        check_memory(n_bytes, "The matrix")
    except MemoryError:
        return False
    return True
