"""The whole task by ours and by others, each in a process of its own: samples in memory in, features out.

All of them find the eigenvectors of the same operator: normalised labels, trace centred. Only what ours needs
is in this package; the others make the Hermite features in chunks by NumPy, PyTorch or scikit-learn.
"""

from __future__ import annotations

import time
import warnings
from functools import cache
from itertools import product
from math import comb, factorial, prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg
from numpy.polynomial.hermite_e import herme2poly
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg
from sklearn.preprocessing import PolynomialFeatures

from matfree_hier.bench.main import alternating_weights
from matfree_hier.bench.measure import PeakMemory, limit_time, total_memory
from matfree_hier.bench.reference import apply_in_chunks, feature_columns
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.recovery import overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"

TOL = 1e-1  # of residuals over the norm, asked of those that take a tolerance: enough for the overlaps
EXTRA = 8  # vectors beyond those wanted, in the authors' block
POWER_PASSES = 15  # what the authors' algorithm makes
CHUNK = 1024  # samples whose features are made at once


class Task(NamedTuple):
    """What each of them is given; the operator is sum t_i F_i F_i^T/(n sqrt 2) + `shift` I."""

    X: Array
    t: Array
    k: int
    degree: int
    seed: int
    shift: float

    @property
    def n_packed(self) -> int:
        """D."""
        return comb(self.X.shape[1] + self.degree - 1, self.degree)


class Found(NamedTuple):
    """Features (k, D) and what they took."""

    features: Array
    n_passes: float


class DoesNotFitError(RuntimeError):
    """A route needs more memory than there is; the message says how much."""


# ---- ours


def ours(task: Task) -> Found:
    """Block Krylov in blocks of as many vectors as wanted, until those outside the bulk are resolved."""
    C = MomentOperator(task.X, task.t, degree=task.degree, dtype="float32")
    result = top_eigenpairs(
        C,
        task.k,
        method="krylov",
        tol=TOL,
        stop="outliers",
        block_size=task.k,
        seed=task.seed,
        progress=False,
    )
    return Found(result.require_converged().eigenvectors.T, result.n_passes)


# ---- the authors' algorithm in PyTorch


def torch_power(task: Task) -> Found:
    """Block power iteration: 15 passes, QR after each, no Rayleigh-Ritz and no test of convergence."""
    import torch

    X, t = torch.from_numpy(task.X), torch.from_numpy(task.t)
    columns = torch.from_numpy(feature_columns(task.X.shape[1], task.degree))
    generator = torch.Generator().manual_seed(task.seed)
    Q = torch.randn(task.n_packed, task.k + EXTRA, generator=generator)
    Q = torch.linalg.qr(Q).Q
    for _ in range(POWER_PASSES):
        W = torch.zeros_like(Q)
        for start in range(0, len(X), CHUNK):
            F = _torch_features(X[start : start + CHUNK], task.degree, columns)
            W += F.T @ (t[start : start + CHUNK, None] * (F @ Q))
        W = W / (len(X) * 2.0**0.5) + task.shift * Q
        Q = torch.linalg.qr(W).Q
    return Found(Q[:, : task.k].T.numpy(), float(POWER_PASSES))


def _torch_features(X: Any, degree: int, columns: Any) -> Any:
    """Return features (n, D): products of columns of the table of h_0, .., h_q of each input."""
    import torch

    values = [torch.ones_like(X), X]
    for m in range(1, degree):
        values.append((X * values[m] - m**0.5 * values[m - 1]) / (m + 1) ** 0.5)
    table = torch.cat(values, dim=1)
    features = table[:, columns[0]]
    for column in columns[1:]:
        features = features * table[:, column]
    return features


# ---- SciPy's solvers over a product by NumPy


class _Product:
    """The product by NumPy, counted; each call is a pass, whatever the number of vectors."""

    def __init__(self, task: Task) -> None:
        self.task, self.n_passes = task, 0
        shape = (task.n_packed, task.n_packed)
        self.operator = LinearOperator(shape, matvec=self._vector, matmat=self, dtype=np.float64)

    def _vector(self, v: Array) -> Array:
        return self(v.reshape(-1, 1))

    def __call__(self, V: Array) -> Array:
        self.n_passes += 1
        task, block = self.task, np.ascontiguousarray(V, dtype=np.float32)
        mean = float(task.t.mean(dtype=np.float64)) / 2.0**0.5  # which the product subtracts
        sums = apply_in_chunks(task.X, task.t, block, task.degree, CHUNK)
        return np.asarray(sums + (mean + task.shift) * V)


def scipy_arpack(task: Task) -> Found:
    """``eigsh(which="LM")``: one vector a product."""
    applied = _Product(task)
    start = np.random.default_rng(task.seed).standard_normal(task.n_packed)
    _, vectors = eigsh(applied.operator, task.k, which="LM", tol=TOL, v0=start)
    return Found(vectors.T, applied.n_passes)


def scipy_lobpcg(task: Task) -> Found:
    """LOBPCG at each end of the spectrum, then the k of largest |eigenvalue| of both."""
    applied = _Product(task)
    rng = np.random.default_rng(task.seed)
    values: list[Array] = []
    vectors: list[Array] = []
    for largest in (True, False):
        start = rng.standard_normal((task.n_packed, task.k))
        scale = float(np.abs(values[0]).max()) if values else _norm(applied, start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the overlaps say whether it came far enough
            w, V = lobpcg(applied.operator, start, tol=TOL * scale, maxiter=60, largest=largest)[:2]
        values.append(w)
        vectors.append(V)
    w, V = np.concatenate(values), np.concatenate(vectors, axis=1)
    return Found(V[:, np.argsort(-np.abs(w))[: task.k]].T, applied.n_passes)


def _norm(applied: _Product, start: Array) -> float:
    """Return an estimate of the norm, from two products."""
    Q = np.linalg.qr(applied(start))[0]
    return float(np.linalg.norm(applied(Q), 2))


# ---- the dense matrix from scikit-learn's features


def sklearn_dense(task: Task) -> Found:
    """PolynomialFeatures, made Hermite, into the D x D matrix by chunks, and LAPACK's eigensolver."""
    size = task.n_packed
    memory = total_memory()
    needed = 3 * 8 * size**2  # the matrix, LAPACK's copy and its workspace
    if memory is not None and needed > memory:
        msg = f"does not fit: {needed / 1e9:.3g} GB for the dense eigenproblem of size {size:,}"
        raise DoesNotFitError(msg)
    monomials = PolynomialFeatures(task.degree).fit(task.X[:1])
    to_hermite = hermite_of_monomials(monomials.powers_, task.degree)
    A = np.zeros((size, size), np.float32)
    for start in range(0, len(task.X), CHUNK):
        F = to_hermite @ monomials.fit_transform(task.X[start : start + CHUNK]).T
        A += (F * task.t[start : start + CHUNK]) @ F.T
    A /= len(task.X) * 2.0**0.5
    A[np.diag_indices(size)] += task.shift
    values, vectors = scipy.linalg.eigh(A, driver="evd")
    return Found(vectors[:, np.argsort(-np.abs(values))[: task.k]].T, 1.0)


def hermite_of_monomials(powers: Array, degree: int) -> csr_array:
    """Return the matrix that makes the D Hermite features of one degree out of all monomials up to it.

    Parameters
    ----------
    powers : ndarray of int, shape (m, d)
        Exponents of the monomials, as `PolynomialFeatures.powers_` has them.
    degree : int
    """
    exponents = [tuple((j, int(p[j])) for j in np.flatnonzero(p)) for p in powers]
    column = {monomial: i for i, monomial in enumerate(exponents)}
    features = [monomial for monomial in exponents if sum(p for _, p in monomial) == degree]
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for row, feature in enumerate(features):
        for choice in product(*(range(p, -1, -2) for _, p in feature)):
            monomial = tuple((j, e) for (j, _), e in zip(feature, choice, strict=True) if e)
            rows.append(row)
            columns.append(column[monomial])
            values.append(prod(_hermite(p)[e] for (_, p), e in zip(feature, choice, strict=True)))
    shape = (len(features), len(powers))
    return csr_array((np.array(values, np.float32), (rows, columns)), shape=shape)


@cache
def _hermite(m: int) -> Array:
    """Return the coefficients of h_m by power."""
    return np.asarray(herme2poly([0] * m + [1]) / factorial(m) ** 0.5)


SETTINGS = {
    "ours": f"blocks of as many vectors as wanted, stop='outliers', tolerance {TOL:g}",
    "torch": f"{POWER_PASSES} passes, {EXTRA} vectors beyond those wanted",
    "arpack": f"tolerance {TOL:g}",
    "lobpcg": f"tolerance {TOL:g}",
    "sklearn": f"chunks of {CHUNK} samples",
}
ROUTES: dict[str, Callable[[Task], Found]] = {
    "ours": ours,
    "torch": torch_power,
    "arpack": scipy_arpack,
    "lobpcg": scipy_lobpcg,
    "sklearn": sklearn_dense,
}


def run_route(point: Mapping[str, Any], seed: int, give_up: float | None = None) -> dict[str, Any]:
    """Walk one route in this process, for so many seconds at most; called through `run_isolated`."""
    route = ROUTES[point["route"]]
    _warm_up(route, point["degree"])
    weights = alternating_weights(point["n_features"], point["gamma"])
    truth = HierarchicalModel(point["n_inputs"], point["degree"], weights=weights, seed=seed)
    task = _task(truth, point["n_samples"], seed + 1)
    memory = PeakMemory()
    if give_up is not None:
        limit_time(give_up, point["threads"])
    clock, processor = time.perf_counter(), time.process_time()
    try:
        found = route(task)
    except DoesNotFitError as reason:
        return {"outcome": str(reason)}
    return {
        "outcome": "done",
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
        "n_passes": float(found.n_passes),
        "peak_bytes": memory.baseline + memory.read(),
        "overlap": float(np.mean(overlaps(np.asarray(found.features, np.float64), truth.features_))),
    }


def _task(truth: HierarchicalModel, n: int, seed: int) -> Task:
    X, y = truth.sample(n, seed, np.float32)
    C = MomentOperator(X, y, degree=truth.degree, dtype="float32", label_transform="normalised")
    return Task(X, C.labels().astype(np.float32), truth.n_features, truth.degree, seed + 1, C.shift)


def _warm_up(route: Callable[[Task], Found], degree: int) -> None:
    """Compile and import what a route uses, on a small task."""
    truth = HierarchicalModel(6 + degree, degree, weights=[0.8, -0.6], seed=5)
    route(_task(truth, 8000, 6))
