"""The teacher: a hierarchical target of Hermite features, and its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from threadpoolctl import threadpool_limits

from matfree_hier.checks import finite, integer
from matfree_hier.kernels import forward
from matfree_hier.links import AnyLink
from matfree_hier.links import link as as_link
from matfree_hier.packing import check_memory, check_size

Array: TypeAlias = NDArray[np.float64]
Key: TypeAlias = NDArray[np.unsignedinteger[Any]]

BLOCK = 1024  # rows drawn by one counter; part of what a seed means
_CHUNK = 8192  # rows of given inputs taken through the kernel at once

# Streams of random numbers: what is drawn for one never moves another.
_FEATURES, _SIGNS, _SAMPLES = 1, 2, 3
_INPUTS, _NOISE = 0, 1


class HierarchicalModel:
    """y = g(h2) + noise, h2 = (1/sqrt 2) sum_k lambda_k (h_k^2 - 1), h_k = <A_k, F(x)>, x ~ N(0, I_d).

    F(x) are the D = C(d + q - 1, q) packed Hermite features of degree q, the rows A_k are orthonormal, and
    lambda_k is proportional to s_k k^-gamma with sum lambda_k^2 = 1, s_k = +-1. Memory O(n_features D).

    Parameters
    ----------
    n_inputs : int
        d, at least 1.
    degree : int
        q, 1 to 8.
    n_features : int, optional
        d_1, 1 to D; by default the number of ``features`` or ``weights`` given.
    gamma : float, default 1.0
        Decay of the weights, at least 0.
    signs : {"random", "positive"}, default "random"
        s_k = +-1 with equal odds, or all +1.
    weights : array_like of float, shape (n_features,), optional
        lambda_k, taken as they are, never normalised; ``gamma`` and ``signs`` are then not used.
    features : array_like of float, shape (n_features, D), optional
        Rows to orthonormalise in their order (Gram-Schmidt: row k stays in the span of the first k); standard
        normal rows by default.
    link : str or callable, default "identity"
        g: a name known to `matfree_hier.links.link`, or a callable.
    noise_std : float, default 0.0
        Standard deviation of the normal noise on y, at least 0.
    seed : int, optional
        At least 0; needed when features or signs are drawn.

    Attributes
    ----------
    features_ : ndarray of float64, shape (n_features, D)
        Orthonormal rows A_k, read-only.
    weights_ : ndarray of float64, shape (n_features,)
        lambda_k, read-only.
    link_ : Link
        The link with its derivative.
    n_packed : int
        D.

    Raises
    ------
    ValueError
        If an argument is outside its bounds, shapes disagree, or the given features are linearly dependent.
    MemoryError
        If the features do not fit in memory.

    References
    ----------
    arXiv 2605.14567, eqs. 2.2 to 2.5.

    Examples
    --------
    >>> import matfree_hier as mh
    >>> teacher = mh.HierarchicalModel(n_inputs=10, degree=2, n_features=3, gamma=1.0, seed=7)
    >>> X, y = teacher.sample(n=500, seed=11)
    >>> X.shape, y.shape, teacher.features_.shape
    ((500, 10), (500,), (3, 55))
    """

    def __init__(
        self,
        n_inputs: int,
        degree: int,
        n_features: int | None = None,
        gamma: float = 1.0,
        *,
        signs: str = "random",
        weights: ArrayLike | None = None,
        features: ArrayLike | None = None,
        link: str | Callable[..., Any] | AnyLink = "identity",
        noise_std: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.n_inputs = integer("n_inputs", n_inputs, 1)
        self.degree = integer("degree", degree, 1, 8)
        self.n_packed = check_size(self.n_inputs, self.degree)
        self.seed = None if seed is None else integer("seed", seed, 0)
        given = None if features is None else _given("features", features, 2)
        weights = None if weights is None else _given("weights", weights, 1)
        self.n_features = _count(n_features, given, weights, self.n_packed)
        self.gamma = _real("gamma", gamma)
        self.noise_std = _real("noise_std", noise_std)
        if signs not in ("random", "positive"):
            msg = f'`signs` must be "random" or "positive", got {signs!r}.'
            raise ValueError(msg)
        self.signs = signs
        self.link_ = as_link(link)
        self.weights_ = self._power_law() if weights is None else weights
        self.weights_.flags.writeable = False
        # Kept as columns, which the kernel reads; features_ is their transpose.
        self._columns = self._orthonormal(given)
        self._columns.flags.writeable = False

    @property
    def features_(self) -> Array:
        """The orthonormal rows A_k, shape (n_features, D), read-only."""
        return self._columns.T

    def __repr__(self) -> str:
        return (
            f"HierarchicalModel(n_inputs={self.n_inputs}, degree={self.degree},"
            f" n_features={self.n_features}, gamma={self.gamma:g}, link={self.link_.name!r},"
            f" noise_std={self.noise_std:g}, seed={self.seed})"
        )

    def sample(self, n: int, seed: int, dtype: DTypeLike = np.float64) -> tuple[NDArray[Any], Array]:
        """Draw n samples; the first m of them are ``sample(m, seed)``, whatever n.

        Parameters
        ----------
        n : int
            Number of samples, at least 0.
        seed : int
            At least 0.
        dtype : float64 or float32
            Of the inputs. The float32 inputs of a seed are its float64 inputs, rounded; labels are float64
            and belong to the inputs as returned.

        Returns
        -------
        X : ndarray of ``dtype``, shape (n, d)
        y : ndarray of float64, shape (n,)

        Raises
        ------
        ValueError
            If an argument is outside its bounds.
        MemoryError
            If the samples do not fit in memory.
        """
        return self.sample_range(0, integer("n", n, 0), seed, dtype)

    def sample_range(
        self, start: int, stop: int, seed: int, dtype: DTypeLike = np.float64
    ) -> tuple[NDArray[Any], Array]:
        """Draw samples start..stop-1 of a seed, the same to the last bit however they are cut into ranges.

        Rows come in blocks of `BLOCK`, each drawn and computed whole from its own counter of one Philox
        generator, so that any block is reached at once; noise has a counter of its own.

        Parameters
        ----------
        start, stop : int
            0 <= start <= stop.
        seed : int
            At least 0.
        dtype : float64 or float32
            Of the inputs.

        Returns
        -------
        X : ndarray of ``dtype``, shape (stop - start, d)
        y : ndarray of float64, shape (stop - start,)
        """
        start = integer("start", start, 0)
        stop = integer("stop", stop, start)
        seed = integer("seed", seed, 0)
        dtype = np.dtype(dtype)
        if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            msg = f"`dtype` must be float32 or float64, got {dtype}."
            raise ValueError(msg)
        n = stop - start
        check_memory(n * (self.n_inputs * dtype.itemsize + 8), f"{n} samples of {self.n_inputs} inputs")
        X, y = np.empty((n, self.n_inputs), dtype), np.empty(n)
        key = np.random.SeedSequence(seed, spawn_key=(_SAMPLES,)).generate_state(2, np.uint64)
        for block in range(start // BLOCK, -(-stop // BLOCK) if n else 0):
            first = max(start, block * BLOCK)
            last = min(stop, (block + 1) * BLOCK)
            rows = slice(first - block * BLOCK, last - block * BLOCK)
            X_block, y_block = self._block(key, block, dtype)
            X[first - start : last - start] = X_block[rows]
            y[first - start : last - start] = y_block[rows]
        return X, y

    def _block(self, key: Key, block: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Array]:
        X = _stream(key, block, _INPUTS).standard_normal((BLOCK, self.n_inputs)).astype(dtype, copy=False)
        y = self._target(self._project(X))
        if self.noise_std > 0.0:
            y += self.noise_std * _stream(key, block, _NOISE).standard_normal(BLOCK)
        return X, y

    def latents(self, X: ArrayLike) -> Array:
        """Return h_k = <A_k, F(x)>, computed in float64; cost O(n D n_features).

        Parameters
        ----------
        X : array_like of float, shape (n, d)

        Returns
        -------
        ndarray of float64, shape (n, n_features)

        Raises
        ------
        ValueError
            If ``X`` has another number of columns or holds NaN or infinity.
        """
        X = np.asarray(X)
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            msg = f"`X` must have shape (n, {self.n_inputs}), got {X.shape}."
            raise ValueError(msg)
        h = np.empty((X.shape[0], self.n_features))
        for start in range(0, X.shape[0], _CHUNK):
            rows = np.asarray(X[start : start + _CHUNK], dtype=np.float64)
            bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if bad.size:
                msg = f"`X` must be finite, got a value that is not in row {start + bad[0]}."
                raise ValueError(msg)
            h[start : start + _CHUNK] = self._project(rows)
        return h

    def predict(self, X: ArrayLike) -> Array:
        """Return the target without noise, g(h2(x)).

        Parameters
        ----------
        X : array_like of float, shape (n, d)

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return self._target(self.latents(X))

    def _project(self, X: NDArray[Any]) -> Array:
        h = np.empty((X.shape[0], self.n_features))
        forward(np.ascontiguousarray(X, dtype=np.float64), self._columns, self.degree, h)
        return h

    def _target(self, h: Array) -> Array:
        h2 = ((h**2 - 1.0) @ self.weights_) / np.sqrt(2.0)  # (2.4)
        return self.link_(h2)  # (2.5)

    def _power_law(self) -> Array:
        weights: Array = np.arange(1.0, self.n_features + 1.0) ** -self.gamma
        weights /= np.linalg.norm(weights)
        if self.signs == "positive":
            return weights
        return np.asarray(weights * self._generator(_SIGNS).choice([-1.0, 1.0], self.n_features))

    def _orthonormal(self, given: Array | None) -> Array:
        D, k = self.n_packed, self.n_features
        if given is None:
            check_memory(4 * 8 * D * k, f"{k} features of {D} coordinates and their orthonormalisation")
            given = self._generator(_FEATURES).standard_normal((k, D))
        # One thread: the bits of a blocked QR may depend on their number.
        with threadpool_limits(limits=1, user_api="blas"):
            norms = np.linalg.norm(given, axis=1)
            Q, R = np.linalg.qr(given.T / np.where(norms > 0.0, norms, 1.0))
        diagonal = np.diag(R)
        dependent = np.flatnonzero((np.abs(diagonal) < 1e-10) | (norms == 0.0))
        if dependent.size:
            row = dependent[0]
            msg = f"`features` must be linearly independent: row {row} is in the span of those above."
            raise ValueError(msg)
        return np.ascontiguousarray(Q * np.sign(diagonal))

    def _generator(self, stream: int) -> np.random.Generator:
        if self.seed is None:
            msg = "`seed` must be given when features or signs are drawn."
            raise ValueError(msg)
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed, spawn_key=(stream,))))


def _stream(key: Key, block: int, stream: int) -> np.random.Generator:
    # The counter has four words; drawing moves the lowest, so the streams cannot meet.
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, block, stream]))


def _count(n: int | None, features: Array | None, weights: Array | None, n_packed: int) -> int:
    """Return the number of features that the arguments agree on."""
    sizes = {}
    if n is not None:
        sizes["n_features"] = integer("n_features", n, 1)
    if features is not None:
        sizes["features"] = features.shape[0]
        if features.shape[1] != n_packed:
            msg = f"`features` must have {n_packed} columns, got {features.shape[1]}."
            raise ValueError(msg)
    if weights is not None:
        sizes["weights"] = weights.shape[0]
    if not sizes:
        msg = "`n_features` must be given when neither `features` nor `weights` is."
        raise ValueError(msg)
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{size} by `{name}`" for name, size in sizes.items())
        msg = f"`n_features` must agree with the arrays given, got {told}."
        raise ValueError(msg)
    count = next(iter(sizes.values()))
    if not 1 <= count <= n_packed:
        msg = f"`n_features` must be in 1..{n_packed}, got {count}."
        raise ValueError(msg)
    return count


def _given(name: str, values: ArrayLike, ndim: int) -> Array:
    array = np.array(values, dtype=np.float64)
    if array.ndim != ndim:
        msg = f"`{name}` must have {ndim} dimension{'s' * (ndim > 1)}, got shape {array.shape}."
        raise ValueError(msg)
    return finite(name, array)


def _real(name: str, value: float) -> float:
    number = float(value)
    if not 0.0 <= number < np.inf:
        msg = f"`{name}` must be finite and at least 0, got {number}."
        raise ValueError(msg)
    return number
