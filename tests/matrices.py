"""Matrices whose spectrum is known, and what it is to have found their pairs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from matfree_hier.result import EigenResult
from matfree_hier.status import Status

Array = Any


class Counted(LinearOperator):
    """A dense symmetric matrix as an operator that counts its products."""

    def __init__(self, A: Array, dtype: Any = np.float64) -> None:
        super().__init__(np.dtype(dtype), A.shape)
        self.A = np.asarray(A, dtype=dtype)
        self.n_products = 0

    def _matmat(self, V: Array) -> Array:
        self.n_products += 1
        return self.A @ V

    def _matvec(self, v: Array) -> Array:
        return self._matmat(v.reshape(-1, 1))[:, 0]

    def _adjoint(self) -> Counted:
        return self


def with_spectrum(values: Any, seed: int = 9) -> Array:
    """A dense symmetric matrix with this spectrum and random eigenvectors."""
    values = np.asarray(values, dtype=np.float64)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    A = (Q * values) @ Q.T
    return (A + A.T) / 2


@functools.cache
def two_sided(size: int = 200, seed: int = 9) -> Array:
    """Both ends occupied by a few outliers of a semicircle-like bulk."""
    rng = np.random.default_rng(seed)
    bulk = np.sort(rng.uniform(-1, 1, size - 7))
    A = with_spectrum([*bulk, 5.0, 4.0, 2.5, 1.6, -4.5, -3.0, -2.0], seed)
    A.flags.writeable = False
    return A


_SPECTRA: dict[bytes, Array] = {}


def spectrum(A: Array) -> Array:
    """All eigenvalues, ascending; computed once for each matrix."""
    key = A.tobytes()
    if key not in _SPECTRA:
        _SPECTRA[key] = np.linalg.eigvalsh(A)
    return _SPECTRA[key]


def expected(A: Array, k: int, which: str = "LM") -> Array:
    w = spectrum(A)
    if which == "LM":
        return w[np.argsort(-np.abs(w), kind="stable")[:k]]
    if which == "LA":
        return w[::-1][:k]
    if which == "SA":
        return w[:k]
    return np.concatenate([w[::-1][: (k + 1) // 2], w[: k // 2][::-1]])


def assert_pairs(result: EigenResult, A: Array, k: int, which: str = "LM", tol: float = 1e-6) -> None:
    """The right values in the right order, orthonormal vectors, honest residuals, peaks positive."""
    assert result.status is Status.CONVERGED
    norm = np.abs(spectrum(A)).max()
    w, V = result.eigenvalues, result.eigenvectors
    assert w.shape == (k,)
    assert V.shape == (len(A), k)
    np.testing.assert_allclose(w, expected(A, k, which), atol=0.1 * tol * norm, rtol=0)
    np.testing.assert_allclose(V.T @ V, np.eye(k), atol=1e-12)
    residuals = np.linalg.norm(A @ V - V * w, axis=0)
    assert (residuals <= tol * norm * (1 + 1e-6) + 1e-300).all()
    np.testing.assert_allclose(result.residuals * result.norm, residuals, atol=1e-13 * norm)
    assert (V[np.abs(V).argmax(axis=0), np.arange(k)] > 0).all()
