"""The arguments of `top_eigenpairs`, checked and resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from matfree_hier.checks import integer
from matfree_hier.metric import FACTORED, PRECONDITIONERS, Metric
from matfree_hier.metric import preconditioner as inverse_of
from matfree_hier.operator import MomentOperator
from matfree_hier.solvers.products import Products
from matfree_hier.solvers.records import Options
from matfree_hier.solvers.space import PLAIN, MetricSpace, Space

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

_BLOCKS_OF_ALL = 7  # that span the whole space, which shows outliers however close to the edge
_WIDEST = 256  # blocks that are made so wide for it
_BASIS_BYTES = 2**31  # of V and C V together, by default
_BASIS_BLOCKS = 40  # and no more blocks than this, since Rayleigh-Ritz costs the cube


def as_operator(C: Any) -> LinearOperator[Any]:
    """Return C as an operator: square, real, and finite where it is an array."""
    if isinstance(C, np.ndarray | list | tuple):
        C = np.asarray(C)
        if C.dtype.kind not in "biufc":
            msg = f"`C` must hold numbers, got dtype {C.dtype}."
            raise TypeError(msg)
        if C.ndim == 2 and C.dtype.kind == "f" and not np.isfinite(C).all():
            row, column = np.argwhere(~np.isfinite(C))[0]
            msg = f"`C` must be finite, got {C[row, column]} at row {row}, column {column}."
            raise ValueError(msg)
    linear = aslinearoperator(C)
    rows, columns = linear.shape
    if rows != columns or rows < 1:
        msg = f"`C` must be square and not empty, got shape {(rows, columns)}."
        raise ValueError(msg)
    if np.dtype(linear.dtype).kind == "c":
        msg = f"`C` must be real, got dtype {linear.dtype}."
        raise TypeError(msg)
    return linear


def require_one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not among those allowed."""
    if value not in allowed:
        msg = f"`{name}` must be one of {', '.join(allowed)}, got {value!r}."
        raise ValueError(msg)


def resolved_options(
    linear: LinearOperator[Any],
    k: int,
    which: str,
    tol: float,
    block_size: int | None,
    max_basis: int | None,
    max_passes: float,
    seed: int,
    stop: str = "residual",
    share: int = 1,
) -> Options:
    """Return the options of a solve, checked, with the sizes that were left open filled in.

    A basis of `share` times as many bytes fits where each of as many processes keeps a share of it.
    """
    size = int(linear.shape[0])
    k = integer("k", k, 1, size)
    if not 0.0 < tol < 1.0:
        msg = f"`tol` must be above 0 and below 1, got {tol}."
        raise ValueError(msg)
    if not max_passes >= 1:
        msg = f"`max_passes` must be at least 1, got {max_passes}."
        raise ValueError(msg)
    if block_size is None:
        width = _default_width(linear, k, stop)
    else:
        width = min(size, integer("block_size", block_size, 1))
    least = min(size, k + width)
    if max_basis is None:
        fitting = min(_BASIS_BLOCKS * width, _BASIS_BYTES * share // (16 * size))
        basis = min(size, max(k + 4 * width, fitting))
    else:
        basis = min(size, integer("max_basis", max_basis, least))
    return Options(k, which, float(tol), width, basis, float(max_passes), integer("seed", seed, 0))


def metric_space(
    metric: Any, kind: str | None, size: int, method: str, stop: str
) -> tuple[Space, dict[str, Any]]:
    """Return the space of a solve, its preconditioner set up, and what it adds to the configuration."""
    if kind is not None:
        require_one_of("preconditioner", kind, PRECONDITIONERS)
    if metric is None:
        if kind not in (None, "none"):
            msg = f'`preconditioner` must be None or "none" without a `metric`, got {kind!r}.'
            raise ValueError(msg)
        return PLAIN, {}
    if not isinstance(metric, Metric):
        msg = f"`metric` must be None or come from `metric.smoothness`, got {type(metric).__name__}."
        raise TypeError(msg)
    if metric.size != size:
        msg = f"`metric` must be of the operator's size {size}, got {metric.size}."
        raise ValueError(msg)
    if method not in ("auto", "krylov", "lobpcg", "dense"):
        msg = f'`method` must be "auto", "krylov", "lobpcg" or "dense" with a `metric`, got {method!r}.'
        raise ValueError(msg)
    if stop != "residual":
        msg = f'`stop` must be "residual" with a `metric`, got {stop!r}.'
        raise ValueError(msg)
    if metric.tau == 0.0:
        return PLAIN, {}
    kind = kind or ("exact" if size <= FACTORED else "amg")
    return MetricSpace(metric, inverse_of(metric, kind)), {
        "metric": metric.fingerprint(),
        "preconditioner": kind,
    }


def _default_width(linear: LinearOperator[Any], k: int, stop: str) -> int:
    """Return k, or what the outliers of samples need, rounded up to the kernel's tile."""
    size, tile = int(linear.shape[0]), 16 if linear.dtype == np.float32 else 8
    of_all = -(-size // _BLOCKS_OF_ALL)
    if stop == "outliers" and isinstance(linear, MomentOperator) and k < of_all <= _WIDEST:
        k = of_all
    return min(size, -(-k // tile) * tile)


def checked_start(start: ArrayLike, size: int) -> Array:
    """Return a start as a new float64 block, shape (D, s)."""
    V = np.asarray(start)
    if V.dtype.kind not in "biuf":
        msg = f"`start` must hold real numbers, got dtype {V.dtype}."
        raise TypeError(msg)
    V = V.reshape(-1, 1) if V.ndim == 1 else V
    if V.ndim != 2 or V.shape[0] != size or not 1 <= V.shape[1] <= size:
        msg = f"`start` must have shape ({size},) or ({size}, s) with s in 1..{size}, got {np.shape(start)}."
        raise ValueError(msg)
    V = V.astype(np.float64)
    bad = np.argwhere(~np.isfinite(V))
    if len(bad):
        msg = f"`start` must be finite, got {V[tuple(bad[0])]} at row {bad[0][0]}, column {bad[0][1]}."
        raise ValueError(msg)
    return V


def probe(products: Products, seed: int) -> tuple[Array, Array]:
    """Return two random vectors and their products."""
    xy = np.random.default_rng([seed, 2]).standard_normal((products.size, 2))
    return xy, products(xy)


def require_symmetric(products: Products, V: Array, W: Array) -> None:
    """Compare x^T C y with y^T C x for the last two columns of a block V, which are random, and W = C V."""
    xy, images = V[:, -2:], W[:, -2:]
    H = xy.T @ images
    scale = float(np.linalg.norm(xy) * np.linalg.norm(images))
    if len(H) == 2 and abs(H[0, 1] - H[1, 0]) > 1e3 * products.eps * scale:
        msg = (
            "`C` must be symmetric; for two random vectors x^T C y and y^T C x differ by"
            f" {abs(H[0, 1] - H[1, 0]):.1e}, got {H[0, 1]:.6g} and {H[1, 0]:.6g}."
        )
        raise ValueError(msg)
