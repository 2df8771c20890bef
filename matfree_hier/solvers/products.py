"""Products with a symmetric operator as the solvers see them: float64 blocks, counted and checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.operator import MomentOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from scipy.sparse.linalg import LinearOperator

    Array = NDArray[np.float64]


_COLUMNS = 256  # of the identity, applied at a time


class OperatorFault(Exception):  # noqa: N818 - how a run ends, raised and caught inside the solvers
    """The operator raised an error or returned what is not finite; the text names the pass."""


class Products:
    """A symmetric operator of size D, applied to blocks of float64 vectors.

    Parameters
    ----------
    operator : LinearOperator of shape (D, D)
        Real. It is given C-contiguous blocks of its own dtype (float64 if that is an integer's).
    cost : float
        Passes one product counts for: below 1 where only a part of the samples is touched.

    Attributes
    ----------
    size : int
        D.
    dtype : numpy.dtype
        float32 or float64, what the operator computes in.
    passes : float
        Passes spent so far.
    seconds : float
        Duration of the last product.
    running : bool
        Whether a product is being made, so that it may be interrupted.
    inspect : callable or None
        What to call with the next block and its product, once.
    """

    def __init__(self, operator: LinearOperator[Any], *, cost: float = 1.0) -> None:
        self.operator = operator
        self.size = int(operator.shape[0])
        single = np.dtype(operator.dtype) in (np.float32, np.float16)
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if single else np.float64)
        self.eps = float(np.finfo(np.float32 if single else np.float64).eps)
        self.cost = cost
        self.n_samples: int | None = getattr(operator, "n_samples", None)
        self.passes = 0.0
        self.seconds = 0.0
        self.running = False
        self.inspect: Callable[[Array, Array], None] | None = None

    @property
    def samples_per_second(self) -> float:
        """Throughput of the last product; NaN for an operator without samples."""
        if self.n_samples is None or self.seconds <= 0.0:
            return float("nan")
        return self.cost * self.n_samples / self.seconds

    def __call__(self, V: Array) -> Array:
        """Apply the operator to a block, one pass whatever its width.

        Parameters
        ----------
        V : ndarray of float64, shape (D, b)
            Not written to.

        Returns
        -------
        ndarray of float64, shape (D, b), Fortran order
            A copy: some operators reuse the buffer they return.

        Raises
        ------
        OperatorFault
            If the operator raises an error or returns values of another shape, complex or not finite.
        """
        block = np.array(V, dtype=self.dtype, order="C")  # a copy: some operators write to what they get
        W = self._pass(lambda: self.operator.matmat(block), V.shape)
        if self.inspect is not None:
            inspect, self.inspect = self.inspect, None
            inspect(V, W)
        return W

    def matrix(self) -> Array:
        """Form the operator's matrix, shape (D, D): one pass for a `MomentOperator`, D/256 for others.

        Raises
        ------
        OperatorFault
            As for a product.
        """
        shape = (self.size, self.size)
        if isinstance(self.operator, MomentOperator):
            return self._pass(self.operator.to_dense, shape)
        A = np.empty(shape, order="F")
        for start in range(0, self.size, _COLUMNS):
            columns = np.eye(self.size, min(_COLUMNS, self.size - start), -start)
            A[:, start : start + _COLUMNS] = self(columns)
        return A

    def _pass(self, work: Callable[[], Any], shape: tuple[int, ...]) -> Array:
        """Do the work of one pass, which returns an array of that shape, and count, time and check it."""
        started = time.perf_counter()
        where = f"at pass {self.passes + self.cost:.4g}"
        self.running = True
        try:
            product = np.asarray(work())
        except Exception as error:
            msg = f"The operator raised {type(error).__name__} {where}: {error}"
            raise OperatorFault(msg) from error
        finally:
            self.running = False
        if product.shape != shape or product.dtype.kind not in "fiub":
            msg = f"The operator returned {product.dtype} of shape {product.shape} {where}."
            raise OperatorFault(msg)
        W = np.array(product, dtype=np.float64, order="F")
        self.passes += self.cost
        self.seconds = time.perf_counter() - started
        if not np.isfinite(W).all():
            msg = f"The operator returned values that are not finite {where}."
            raise OperatorFault(msg)
        return W
