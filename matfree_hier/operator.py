"""The moment operator: what every solver applies, one pass over the samples at a time.

Nothing of size n D or D**2 is ever formed: a block V of k vectors costs 4 n D k operations, and memory
O(D k) besides a tile of samples, whatever n is.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from math import sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse.linalg import LinearOperator
from threadpoolctl import ThreadpoolController

from matfree_hier import kernels
from matfree_hier.labels import fit_label_transform, input_sizes
from matfree_hier.packing import check_memory, check_size, pack, unpack
from matfree_hier.sources import SampleSource, open_source

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from matfree_hier.sources import Chunk

    Samples: TypeAlias = SampleSource | str | os.PathLike[str] | ArrayLike
    Labels: TypeAlias = Callable[..., NDArray[np.float64]]
    _Operator = LinearOperator[np.floating]
else:
    _Operator = LinearOperator

__all__ = ["MomentOperator", "adjoint", "project", "single_threaded_blas"]

MAX_DEGREE = 8  # of the kernels
_ROWS = 16_384  # samples a kernel call: enough to amortise a sweep over W, few enough for the caches
_INPUTS = 2**24  # entries of X a kernel call, which bounds the tile when d is huge
_KEPT_LABELS = 2**28  # bytes of transformed labels kept rather than transformed again each pass


class _SymmetricOperator(_Operator):
    """A real symmetric `LinearOperator` that checks and casts its blocks before `_apply` sees them."""

    def _apply(self, V: NDArray[Any]) -> NDArray[Any]:
        """Apply to a finite block, shape (N, k) with k >= 1, float32 or float64, of any layout."""
        raise NotImplementedError

    def matvec(self, x: ArrayLike) -> NDArray[Any]:  # type: ignore[override]
        """Apply the operator to one vector: (N,) -> (N,), or (N, 1) -> (N, 1)."""
        V = _block(x, "V", self.shape[0])
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
    comm : None
        Reserved for samples held by several processes.

    Attributes
    ----------
    source : SampleSource
        The samples.
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
        comm: object = None,
    ) -> None:
        if comm is not None:
            msg = f"`comm` must be None, got {comm!r}: sums over several processes are not available."
            raise ValueError(msg)
        self.degree = _degree(degree)
        self.source = _open(X, y)
        if not self.source.has_target:
            msg = "`y` must be given, or the source must have a target: there are no labels."
            raise ValueError(msg)
        self.n_samples, self.n_inputs = self.source.n_samples, self.source.n_inputs
        size = check_size(self.n_inputs, self.degree)
        super().__init__(_dtype(dtype, self.source), (size, size))  # type: ignore[call-arg]
        check_memory(3 * size * self.dtype.itemsize, f"Vectors of {size} entries")
        self.label_transform: Labels | None = (
            fit_label_transform(label_transform, self.source, degree=self.degree)
            if isinstance(label_transform, str)
            else label_transform
        )
        self.center_trace = bool(center_trace)
        self._lock = threading.Lock()
        self._n_applied = 0.0
        self._weights: NDArray[Any] | None = None
        self._summarise()
        if self.label_transform is not None and self.n_samples * self.dtype.itemsize <= _KEPT_LABELS:
            self._weights = np.concatenate([t for _, t in self._weighed()])

    def _summarise(self) -> None:
        """Take the mean, the scale and the trace from one cheap pass: O(d + q) a sample, no features."""
        total = second = largest = 0.0
        for chunk in self.source.chunks(rows=_rows(self.n_inputs)):
            t = self.weigh(chunk)
            norms = np.empty(len(t))
            X = np.ascontiguousarray(chunk.X, dtype=np.float64)
            kernels.squared_norms(X, self.degree, norms)
            with np.errstate(over="ignore", invalid="ignore"):
                total += float(t.sum())
                second += float(t @ norms)
            largest = max(largest, float(np.abs(t).max()))
        scale = self.n_samples * sqrt(2.0)
        _finite(np.array([total, second]), self.source)
        self.label_mean = total / self.n_samples
        self._trace: float = (second - self.shape[0] * total) / scale
        self.shift = -second / (scale * self.shape[0]) if self.center_trace else -total / scale
        self._exponent = int(np.frexp(largest)[1])  # |t| < 2**exponent

    def trace(self) -> float:
        """Return the trace of the operator before centring, (1/n) sum t_i (|F(x_i)|^2 - D) / sqrt 2."""
        return self._trace

    def labels(self) -> NDArray[np.float64]:
        """Return the labels as the operator weighs samples by them, transformed: shape (n,)."""
        return np.concatenate([self.weigh(chunk) for chunk in self.source.chunks()])

    @property
    def n_applied(self) -> float:
        """Passes over the data so far: samples touched / n. One ``C @ V`` is 1, whatever k."""
        return self._n_applied

    def restricted(self, start: int, stop: int) -> MomentOperator:
        """Return the operator of samples start..stop-1 alone, with this one's fitted label transform."""
        if not 0 <= start < stop <= self.n_samples:
            msg = f"`start` < `stop` must lie in 0..{self.n_samples}, got {start} and {stop}."
            raise ValueError(msg)
        return MomentOperator(
            self.source.slice(start, stop),
            degree=self.degree,
            dtype=self.dtype,
            label_transform=self.label_transform,
            center_trace=self.center_trace,
        )

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
        total = np.zeros(self.shape)
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            for chunk, t in self._weighed():
                kernels.moment(np.ascontiguousarray(chunk.X, dtype=self.dtype), t, self.degree, total)
            upper = np.triu(np.ldexp(total / (self.n_samples * sqrt(2.0)), self._exponent))
            upper[np.diag_indices(size)] += self.shift
            dense = (upper + np.triu(upper, 1).T).astype(self.dtype, copy=False)
        with self._lock:
            self._n_applied += 1.0
        return _finite(dense, self.source)

    def _apply(self, V: NDArray[Any]) -> NDArray[Any]:
        """Return Phi^T (t Phi V) / (n sqrt 2) + shift V for a finite block V of shape (D, k)."""
        total = np.zeros(V.shape)
        if total.nbytes > 2**28:
            check_memory(total.nbytes, f"Work arrays for {V.shape[1]} vectors of {len(V)} entries")
        scaled, exponents = _scaled(V, self.dtype)
        for chunk, t in self._weighed():
            X = np.ascontiguousarray(chunk.X, dtype=self.dtype)
            U = np.empty((len(X), V.shape[1]), self.dtype)
            kernels.forward(X, scaled, self.degree, U)
            U *= t[:, np.newaxis]
            kernels.backward(X, U, self.degree, total)
        with np.errstate(over="ignore", invalid="ignore"):
            total /= self.n_samples * sqrt(2.0)
            total = np.ldexp(total, exponents + self._exponent)
            total += self.shift * V.astype(np.float64, copy=False)
            product = total.astype(self.dtype, copy=False)
        with self._lock:
            self._n_applied += 1.0
        return _finite(product, self.source)

    def _weighed(self) -> Iterator[tuple[Chunk, NDArray[Any]]]:
        """Yield chunks with their transformed labels, scaled into (-1, 1) by a power of two, in `dtype`."""
        for chunk in self.source.chunks(rows=_rows(self.n_inputs), labels=self._weights is None):
            if self._weights is None:
                yield chunk, np.ldexp(self.weigh(chunk), -self._exponent).astype(self.dtype)
            else:
                yield chunk, self._weights[chunk.start : chunk.start + len(chunk.X)]

    def weigh(self, chunk: Chunk) -> NDArray[np.float64]:
        """Return the labels of a chunk of the samples, as the operator weighs them: shape (m,)."""
        y = np.asarray(chunk.y, dtype=np.float64)
        if self.label_transform is None:
            return y
        if getattr(self.label_transform, "uses_inputs", False):
            t = np.asarray(self.label_transform(y, input_sizes(chunk.X, self.degree)))
        else:
            t = np.asarray(self.label_transform(y))
        if t.dtype.kind not in "biuf" or t.shape != y.shape:
            msg = f"`label_transform` must map {y.shape} real labels to as many, got {t.shape} of {t.dtype}."
            raise ValueError(msg)
        bad = np.flatnonzero(~np.isfinite(t))
        if len(bad):
            self.source.validate()  # the label or an input may be NaN
            msg = f"`label_transform` must be finite, got {t[bad[0]]} at row {chunk.start + int(bad[0])}."
            raise ValueError(msg)
        return t.astype(np.float64, copy=False)


class TensorOperator(_SymmetricOperator):
    """A `MomentOperator` on the d**q tensor coordinates, flattened in C order; 0 off symmetric tensors.

    Memory is O(d**q) besides the block given and the result: columns are packed one by one.
    """

    def __init__(self, moment: MomentOperator) -> None:
        self.moment = moment
        size = check_size(moment.n_inputs, moment.degree, tensor=True)
        super().__init__(moment.dtype, (size, size))  # type: ignore[call-arg]

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
    scaled, exponents = _scaled(V.reshape(len(V), -1), kind)
    n_bytes = source.n_samples * scaled.shape[1] * kind.itemsize
    check_memory(n_bytes, f"Latents of {source.n_samples} samples")
    U = np.empty((source.n_samples, scaled.shape[1]), kind)
    row = 0
    for chunk in source.chunks(rows=_rows(source.n_inputs), labels=False):
        X = np.ascontiguousarray(chunk.X, dtype=kind)
        kernels.forward(X, scaled, degree, U[row : row + len(X)])
        row += len(X)
    with np.errstate(over="ignore", invalid="ignore"):
        np.ldexp(U, exponents, out=U)
    return _finite(U, source).reshape(source.n_samples, *V.shape[1:])


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
    exponents = _exponents(block)
    W = np.zeros((size, block.shape[1]))
    row = 0
    for chunk in source.chunks(rows=_rows(source.n_inputs), labels=False):
        X = np.ascontiguousarray(chunk.X, dtype=kind)
        weights = np.ldexp(block[row : row + len(X)], -exponents)
        kernels.backward(X, np.ascontiguousarray(weights, dtype=kind), degree, W)
        row += len(X)
    with np.errstate(over="ignore", invalid="ignore"):
        np.ldexp(W, exponents, out=W)
    return _finite(W, source).reshape(size, *G.shape[1:])


class _Blas:
    """Who wants BLAS at one thread now: the first one in sets the limit, the last one out lifts it."""

    lock = threading.Lock()
    users = 0
    limit: Any = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS at one thread, so that D x k products have the same bits whatever the machine.

    Contexts may nest, and overlap between threads.
    """
    with _Blas.lock:
        if not _Blas.users:
            _Blas.limit = ThreadpoolController().limit(limits=1, user_api="blas")
        _Blas.users += 1
    try:
        yield
    finally:
        with _Blas.lock:
            _Blas.users -= 1
            if not _Blas.users:
                _Blas.limit.restore_original_limits()


def _operands(
    samples: Samples, V: ArrayLike, name: str, degree: int, dtype: DTypeLike | None, *, by_feature: bool
) -> tuple[SampleSource, int, NDArray[Any], np.dtype[Any]]:
    """Check the arguments of `project` and `adjoint`: a block by feature (D) or by sample (n)."""
    degree, source = _degree(degree), _open(samples)
    size = check_size(source.n_inputs, degree) if by_feature else source.n_samples
    return source, degree, _block(V, name, size), _dtype(dtype, source)


def _open(X: Samples, y: ArrayLike | None = None) -> SampleSource:
    if isinstance(X, SampleSource):
        if y is not None:
            msg = "`y` must be None when `X` is a source, which has its own labels."
            raise ValueError(msg)
        source = X
    else:
        source = open_source(X if y is None else (X, y))
    if source.n_samples < 1:
        msg = "`X` must have at least 1 sample, got 0."
        raise ValueError(msg)
    return source


def _degree(degree: int) -> int:
    if not isinstance(degree, (int, np.integer)) or not 1 <= degree <= MAX_DEGREE:
        msg = f"`degree` must be an integer in 1..{MAX_DEGREE}, got {degree!r}."
        raise ValueError(msg)
    return int(degree)


def _dtype(dtype: DTypeLike | None, source: SampleSource) -> np.dtype[Any]:
    kind = source.dtype if dtype is None else np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        msg = f"`dtype` must be float32, float64 or None, got {kind}."
        raise ValueError(msg)
    return np.dtype(kind)


def _block(V: ArrayLike, name: str, size: int) -> NDArray[Any]:
    """Return finite `V` of shape (size,) or (size, k) as float32 if it is that, as float64 otherwise."""
    array: NDArray[Any] = np.asarray(V)
    if array.dtype.kind not in "biuf":
        msg = f"`{name}` must be real, got dtype {array.dtype}."
        raise TypeError(msg)
    if array.ndim not in (1, 2) or len(array) != size:
        msg = f"`{name}` must have shape ({size},) or ({size}, k), got {array.shape}."
        raise ValueError(msg)
    finite = np.isfinite(array)
    if not finite.all():
        bad = tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), array.shape))
        msg = f"`{name}` must be finite, got {array[bad]} at row {bad[0]}."
        raise ValueError(msg)
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def _exponents(V: NDArray[Any]) -> NDArray[np.intp]:
    """Return e with |V| < 2**e in each column, shape (k,): exact scales, which change no digit."""
    largest = np.maximum(V.max(axis=0, initial=0.0), -V.min(axis=0, initial=0.0))
    exponents: NDArray[np.intp] = np.frexp(largest)[1].astype(np.intp)
    return exponents


def _scaled(V: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return V with its columns' entries brought into (-1, 1), C-contiguous in `dtype`, and exponents."""
    exponents = _exponents(V)
    return np.ldexp(V, -exponents).astype(dtype, order="C", copy=False), exponents


def _rows(n_inputs: int) -> int:
    """Return how many samples go into one kernel call."""
    return max(1, min(_ROWS, _INPUTS // n_inputs))


def _finite(result: NDArray[Any], source: SampleSource) -> NDArray[Any]:
    """Refuse NaN and infinity: they come of such samples (no sum loses them) or of overflow."""
    if not np.isfinite(result).all():
        source.validate()  # raises, and names the row
        msg = (
            f"Sums of features overflow {result.dtype}: scale the columns of `X` to unit variance, or the"
            " labels or vectors down, or use dtype='float64'."
        )
        raise FloatingPointError(msg)
    return result
