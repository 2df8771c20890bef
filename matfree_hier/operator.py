"""The moment operator: what every solver applies, one pass over the samples at a time.

Nothing of size n D or D**2 is ever formed: a block V of k vectors costs 4 n D k operations, and memory
O(D k) besides a tile of samples, whatever n is.
"""

from __future__ import annotations

import threading
from math import sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse.linalg import LinearOperator

from matfree_hier.blas import single_threaded_blas
from matfree_hier.comm import collectively, team_of
from matfree_hier.labels import fit_label_transform
from matfree_hier.moment import MomentShare, feature_sums, latents, squared_norms
from matfree_hier.operands import (
    checked_block,
    checked_degree,
    exponents_of,
    open_samples,
    product_dtype,
    require_finite,
    scaled_columns,
)
from matfree_hier.packing import check_memory, check_size, pack, unpack
from matfree_hier.shares import joined
from matfree_hier.sources.ranks import gathered, offer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from matfree_hier.comm import Team
    from matfree_hier.operands import Samples
    from matfree_hier.sources import SampleSource

    Labels: TypeAlias = Callable[..., NDArray[np.float64]]
    _Operator = LinearOperator[np.floating]
else:
    _Operator = LinearOperator

__all__ = ["MomentOperator", "adjoint", "project"]


class _SymmetricOperator(_Operator):
    """A real symmetric `LinearOperator` that checks and casts its blocks before `_apply` sees them."""

    def _apply(self, V: NDArray[Any]) -> NDArray[Any]:
        """Apply to a finite block, shape (N, k) with k >= 1, float32 or float64, of any layout."""
        raise NotImplementedError

    def matvec(self, x: ArrayLike) -> NDArray[Any]:  # type: ignore[override]
        """Apply the operator to one vector: (N,) -> (N,), or (N, 1) -> (N, 1)."""
        V = checked_block(x, "V", self.shape[0])
        if not V.size:
            return np.zeros(V.shape, self.dtype)
        return self._apply(V.reshape(len(V), -1)).reshape(V.shape)

    def matmat(self, X: ArrayLike) -> NDArray[Any]:  # type: ignore[override]
        """Apply the operator to a block of k vectors in one pass: (N, k) -> (N, k)."""
        return self.matvec(X)

    def _matvec(self, x: ArrayLike) -> NDArray[Any]:
        return self.matvec(x)

    def _matmat(self, X: ArrayLike) -> NDArray[Any]:
        return self.matmat(X)

    def _adjoint(self) -> _SymmetricOperator:
        return self

    def _transpose(self) -> _SymmetricOperator:
        return self


class MomentOperator(_SymmetricOperator):
    r"""C = (1/n) sum_i t_i (F(x_i) F(x_i)^T - I) / sqrt 2, by default less tr(C)/D I, never formed.

    F(x) are the D packed Hermite features of one degree, t_i the (transformed) labels. The operator is
    symmetric, and `C @ V` on a block costs one pass over the samples: 4 n D k operations and memory
    O(D k) plus a tile of samples. Labels and columns of V are scaled by powers of two on the way in and
    back on the way out, so that the error is relative to the result whatever their units, in float32
    too; sums over samples are accumulated in float64. Operators may be applied from several threads.

    Parameters
    ----------
    X : array_like of shape (n, d), SampleSource or path
        Inputs, n >= 1 rows, or samples with their labels as `open_source` takes them.
    y : array_like of shape (n,), optional
        Labels; only with inputs as an array. Taken as given: not centred.
    degree : int
        Degree q of the features, 1..8.
    dtype : {None, "float32", "float64"}
        Dtype of the features, the products and the results. None: that of the source, float32 for
        float32 data and float64 otherwise.
    label_transform : None, str or callable
        t = transform(y): None for t = y, a name known to `labels.fit_label_transform`, or a callable
        that maps (m,) float64 labels elementwise; where it has an attribute ``uses_inputs`` that is true,
        it is called with the labels and the `labels.Sizes` of their inputs.
    center_trace : bool
        Subtract tr(C)/D times the identity, the finite-d shift of the spectrum.
    comm : mpi4py.MPI.Comm, optional
        Samples on several ranks: every rank makes this call, and all that use the operator. A file, a
        teacher or arrays that are the same on all ranks are divided between them; others are a share each.
        Blocks of vectors, results and what is random are those of rank 0.

    Attributes
    ----------
    source : SampleSource
        The samples; on ranks other than 0 those of this rank.
    team : Team or None
        The ranks of `comm`.
    degree, n_samples, n_inputs : int
        q, n and d.
    shape : tuple of int
        (D, D).
    label_transform : callable or None
        The transform, fitted.
    label_mean : float
        Mean of t.
    center_trace : bool
        As given.
    shift : float
        What multiplies the identity in all: C V = Phi^T (t Phi V) / (n sqrt 2) + shift V.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, the samples are empty, unlabelled or not finite, or D is
        past 2**63 - 1.
    MemoryError
        If one block of vectors of length D does not fit in memory.

    References
    ----------
    Equation (2.6) of arXiv:2605.14567, doi:10.48550/arXiv.2605.14567.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(5).standard_normal((1000, 4))
    >>> C = MomentOperator(X, X[:, 0] * X[:, 1], degree=2)
    >>> C.shape, (C @ np.ones((10, 3))).shape
    ((10, 10), (10, 3))
    """

    def __init__(
        self,
        X: Samples,
        y: ArrayLike | None = None,
        *,
        degree: int,
        dtype: DTypeLike | None = None,
        label_transform: str | Labels | None = None,
        center_trace: bool = True,
        comm: Any = None,
    ) -> None:
        options = (degree, dtype, label_transform, center_trace)
        self.team = team_of(comm)
        if self.team is None:
            self._build(open_samples(X, y), *options)
            return
        team, own = self.team, []

        def bring() -> Any:
            own.append(open_samples(X, y))
            return offer(team, own[0])

        def build(offered: list[Any]) -> dict[str, Any]:
            self._build(gathered(team, offered), *options)
            return self._state()

        state = team.collective("MomentOperator", build, bring, {"label_transform": label_transform})
        if team.rank:
            self._take(state, team, own[0])

    def _build(
        self,
        source: SampleSource,
        degree: int,
        dtype: DTypeLike | None,
        label_transform: str | Labels | None,
        center_trace: bool,
    ) -> None:
        """Check the arguments and read the samples once."""
        self.degree, self.source = checked_degree(degree), source
        if not source.has_target:
            msg = "`y` must be given, or the source must have a target: there are no labels."
            raise ValueError(msg)
        self.n_samples, self.n_inputs = source.n_samples, source.n_inputs
        size = check_size(self.n_inputs, self.degree)
        super().__init__(product_dtype(dtype, source), (size, size))  # type: ignore[call-arg]
        check_memory(3 * size * self.dtype.itemsize, f"Vectors of {size} entries")
        self.label_transform: Labels | None = (
            fit_label_transform(label_transform, source, degree=self.degree)
            if isinstance(label_transform, str)
            else label_transform
        )
        self.center_trace = bool(center_trace)
        self._lock = threading.Lock()
        self._n_applied = 0.0
        self._shares = source.shares.derive(MomentShare, self.degree, self.dtype, self.label_transform)
        self._summarise()

    def _summarise(self) -> None:
        """Take the mean, the scale and the trace from one cheap pass: O(d + q) a sample, no features."""
        parts = self._shares.each(MomentShare.summary)
        total, second = (sum(part[i] for part in parts) for i in (0, 1))
        scale = self.n_samples * sqrt(2.0)
        require_finite(np.array([total, second]), self.source)
        self.label_mean = total / self.n_samples
        self._trace: float = (second - self.shape[0] * total) / scale
        self.shift = -second / (scale * self.shape[0]) if self.center_trace else -total / scale
        self._exponent = int(np.frexp(max(part[2] for part in parts))[1])  # |t| < 2**exponent
        self._shares.each(MomentShare.scale, self._exponent)

    def _state(self) -> dict[str, Any]:
        """Return what other ranks have of an operator."""
        names = (
            "degree", "n_samples", "n_inputs", "shape", "dtype", "label_transform", "center_trace",
            "label_mean", "_trace", "shift", "_n_applied",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def _take(self, state: dict[str, Any], team: Team, source: SampleSource) -> None:
        """Be what rank 0 has built; the source is this rank's own."""
        super().__init__(state["dtype"], state["shape"])  # type: ignore[call-arg]
        self.__dict__.update(state)
        self.team, self.source, self._lock = team, source, threading.Lock()

    @collectively
    def matvec(self, x: ArrayLike) -> NDArray[Any]:  # type: ignore[override]
        """Apply the operator to one vector, (D,) -> (D,), or to a block, (D, k) -> (D, k).

        Where the samples are on several ranks every rank makes this call, and the block is that of rank 0.
        """
        return super().matvec(x)

    def trace(self) -> float:
        """Return the trace of the operator before centring, (1/n) sum t_i (|F(x_i)|^2 - D) / sqrt 2."""
        return self._trace

    @collectively
    def labels(self) -> NDArray[np.float64]:
        """Return the labels as the operator weighs samples by them, transformed: shape (n,)."""
        return joined(self._shares.each(MomentShare.labels))

    @property
    def n_applied(self) -> float:
        """Passes over the data so far: samples touched / n. One ``C @ V`` is 1, whatever k."""
        return self._n_applied

    @n_applied.setter
    def n_applied(self, passes: float) -> None:
        self._n_applied = passes

    def restricted(self, start: int, stop: int) -> MomentOperator:
        """Return the operator of samples start..stop-1 alone, with this one's fitted label transform."""
        if not 0 <= start < stop <= self.n_samples:
            msg = f"`start` < `stop` must lie in 0..{self.n_samples}, got {start} and {stop}."
            raise ValueError(msg)
        new: MomentOperator = object.__new__(MomentOperator)
        new.team = self.team

        def build() -> dict[str, Any]:
            source = self.source.slice(start, stop)
            new._build(source, self.degree, self.dtype, self.label_transform, self.center_trace)
            return new._state()

        if self.team is None:
            build()
            return new
        known = {"label_transform": self.label_transform}
        state = self.team.collective("MomentOperator.restricted", lambda _: build(), known=known)
        if self.team.rank:
            new._take(state, self.team, self.source)
        return new

    def tensor(self) -> TensorOperator:
        """Return the same operator on d**q tensor coordinates, 0 off the symmetric tensors.

        Returns
        -------
        LinearOperator of shape (d**q, d**q)
            ``unpack C pack``: the same non-zero eigenpairs, eigenvectors unpacked.

        Raises
        ------
        ValueError
            If d**q is past 2**63 - 1.
        """
        return TensorOperator(self)

    @collectively
    def to_dense(self) -> NDArray[Any]:
        """Form the matrix: small sizes only.

        Returns
        -------
        ndarray of `dtype`, shape (D, D)
            Symmetric to the last bit. One pass, n D^2 operations, memory O(D^2).

        Raises
        ------
        MemoryError
            If the matrix is larger than memory; the message states its size.
        """
        size = self.shape[0]
        check_memory(2 * 8 * size * size, f"The dense matrix of shape {self.shape}")
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            total = self._shares.sum(MomentShare.matrix, size)
            upper = np.triu(np.ldexp(total / (self.n_samples * sqrt(2.0)), self._exponent))
            upper[np.diag_indices(size)] += self.shift
            dense = (upper + np.triu(upper, 1).T).astype(self.dtype, copy=False)
        with self._lock:
            self._n_applied += 1.0
        return require_finite(dense, self.source)

    def _apply(self, V: NDArray[Any]) -> NDArray[Any]:
        """Return Phi^T (t Phi V) / (n sqrt 2) + shift V for a finite block V of shape (D, k)."""
        if 8 * V.size > 2**28:
            check_memory(8 * V.size, f"Work arrays for {V.shape[1]} vectors of {len(V)} entries")
        scaled, exponents = scaled_columns(V, self.dtype)
        total = self._shares.sum(MomentShare.product, scaled)
        with np.errstate(over="ignore", invalid="ignore"):
            total /= self.n_samples * sqrt(2.0)
            total = np.ldexp(total, exponents + self._exponent)
            total += self.shift * V.astype(np.float64, copy=False)
            product = total.astype(self.dtype, copy=False)
        with self._lock:
            self._n_applied += 1.0
        return require_finite(product, self.source)

    @collectively
    def squared_norms(self) -> NDArray[np.float64]:
        """Return |F(x_i)|^2 of every sample, shape (n,): one reading of the samples, no features."""
        return joined(self.source.shares.each(squared_norms, self.degree))

    @collectively
    def sampled_labels(self, step: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the labels and |F|^2/D of every `step`-th sample, each of shape (m,)."""
        labels, norms = zip(*self._shares.each(MomentShare.sampled, step, placed=True), strict=True)
        return joined(list(labels)), joined(list(norms))


class TensorOperator(_SymmetricOperator):
    """A `MomentOperator` on the d**q tensor coordinates, flattened in C order; 0 off symmetric tensors.

    Memory is O(d**q) besides the block given and the result: columns are packed one by one.
    """

    def __init__(self, moment: MomentOperator) -> None:
        self.moment, self.team = moment, moment.team
        size = check_size(moment.n_inputs, moment.degree, tensor=True)
        super().__init__(moment.dtype, (size, size))  # type: ignore[call-arg]

    @property
    def n_applied(self) -> float:
        """Passes over the data so far."""
        return self.moment.n_applied

    @n_applied.setter
    def n_applied(self, passes: float) -> None:
        self.moment.n_applied = passes

    def _apply(self, V: NDArray[Any]) -> NDArray[Any]:
        d, q = self.moment.n_inputs, self.moment.degree
        check_memory(V.size * self.dtype.itemsize, f"A block of shape {V.shape}")
        packed = np.stack([pack(column, d, q) for column in V.T], axis=1)
        packed = self.moment.matmat(packed)
        W = np.empty(V.shape, self.dtype)
        for column in range(V.shape[1]):
            W[:, column] = unpack(packed[:, column], d, q)
        return W


def project(samples: Samples, V: ArrayLike, degree: int, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Project samples on directions: U = Phi V, the latents h = <V_k, F(x_i)> of each.

    Parameters
    ----------
    samples : SampleSource, path or array_like of shape (n, d)
        Inputs; labels are not looked at.
    V : array_like, shape (D,) or (D, k)
        Packed coordinates of the directions.
    degree : int
        Degree of the features, 1..8.
    dtype : {None, "float32", "float64"}
        Dtype of the features and the result; None: that of the samples.

    Returns
    -------
    ndarray of `dtype`, shape (n,) or (n, k)
        Cost 2 n D k operations, memory O(D k) besides the result.

    Raises
    ------
    TypeError, ValueError
        If `V` is not finite, real and of one of those shapes.
    MemoryError
        If the result is larger than memory.
    """
    source, degree, V, kind = _operands(samples, V, "V", degree, dtype, by_feature=True)
    scaled, exponents = scaled_columns(V.reshape(len(V), -1), kind)
    n_bytes = source.n_samples * scaled.shape[1] * kind.itemsize
    check_memory(n_bytes, f"Latents of {source.n_samples} samples")
    U = joined(source.shares.each(latents, scaled, degree, exponents))
    return require_finite(U, source).reshape(source.n_samples, *V.shape[1:])


def adjoint(
    samples: Samples, G: ArrayLike, degree: int, dtype: DTypeLike | None = None
) -> NDArray[np.float64]:
    """Sum the features with weights: W = Phi^T G, the adjoint of `project`.

    Parameters
    ----------
    samples : SampleSource, path or array_like of shape (n, d)
        Inputs; labels are not looked at.
    G : array_like, shape (n,) or (n, k)
        Weights of the samples.
    degree : int
        Degree of the features, 1..8.
    dtype : {None, "float32", "float64"}
        Dtype of the features; None: that of the samples.

    Returns
    -------
    ndarray of float64, shape (D,) or (D, k)
        Cost 2 n D k operations, memory O(D k) besides `G`.

    Raises
    ------
    TypeError, ValueError
        If `G` is not finite, real and of one of those shapes.
    MemoryError
        If the result is larger than memory.
    """
    source, degree, G, kind = _operands(samples, G, "G", degree, dtype, by_feature=False)
    size = check_size(source.n_inputs, degree)
    block = G.reshape(len(G), -1)
    check_memory(8 * size * block.shape[1], f"Sums of {size} features")
    exponents = exponents_of(block)
    W = source.shares.sum(feature_sums, size, degree, kind, exponents, by_row=[block])
    return require_finite(W, source).reshape(size, *G.shape[1:])


def _operands(
    samples: Samples, V: ArrayLike, name: str, degree: int, dtype: DTypeLike | None, *, by_feature: bool
) -> tuple[SampleSource, int, NDArray[Any], np.dtype[Any]]:
    """Check the arguments of `project` and `adjoint`: a block by feature (D) or by sample (n)."""
    degree, source = checked_degree(degree), open_samples(samples)
    size = check_size(source.n_inputs, degree) if by_feature else source.n_samples
    return source, degree, checked_block(V, name, size), product_dtype(dtype, source)
