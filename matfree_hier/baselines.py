"""Kernel ridge regression by scikit-learn: what learns the same targets without features of its own.

A rotation-invariant kernel needs about d^r/r! samples for the part of the target of degree r in the inputs,
whatever its structure. Targets of this package with features of degree q have parts of degree 2, 4, .. 2 q.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.preprocessing import StandardScaler

from matfree_hier.packing import check_memory

Array: TypeAlias = NDArray[np.float64]

KERNELS = ("rbf", "polynomial")
ALPHAS = (
    1e-6,
    1e-3,
    0.1,
    1.0,
    10.0,
)  # next to none for noise-free labels, which past some n are interpolated
_FOLDS = 3
_MEDIAN_ROWS = 1000  # samples whose distances decide the bandwidth
_COPIES = 3.3  # of the n x n kernel matrix at once: 3.0 measured at n = 4,000


def kernel_ridge(
    X: ArrayLike,
    y: ArrayLike,
    kernel: str,
    *,
    degree: int = 2,
    alphas: ArrayLike = ALPHAS,
    seed: int = 3,
) -> GridSearchCV:
    """Fit kernel ridge regression, its regularisation chosen by cross-validation in three folds.

    Time O(n^3) for each of ``3 len(alphas) + 1`` fits, memory O(n^2).

    Parameters
    ----------
    X : array_like of float, shape (n, d)
        Inputs, n >= 3.
    y : array_like of float, shape (n,)
        Labels; they are standardised inside.
    kernel : {"rbf", "polynomial"}
        exp(-|x - x'|^2/(2 m^2)), m the median distance of two samples; or ((1 + <x, x'>/d)/2)^(2 q), which
        is about 1 at x = x' too, so that a ridge means the same to both.
    degree : int
        q of the features in the target: the polynomial kernel has the degree 2 q of the target.
    alphas : array_like of float > 0, shape (m,)
        Ridges to choose from.
    seed : int
        Of the folds, and of the samples whose distances are taken.

    Returns
    -------
    sklearn.model_selection.GridSearchCV
        Fitted; ``predict`` and ``score`` are those of the best ridge.

    Raises
    ------
    ValueError
        If the kernel is unknown or there are fewer than three samples.
    MemoryError
        If the kernel matrix does not fit in memory.
    """
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if kernel not in KERNELS:
        msg = f"`kernel` must be one of {', '.join(KERNELS)}, got {kernel!r}."
        raise ValueError(msg)
    if len(X) < _FOLDS:
        msg = f"`X` must have at least {_FOLDS} samples, got {len(X)}."
        raise ValueError(msg)
    check_memory(memory_of(len(X)), f"The kernel matrix of {len(X)} samples")
    if kernel == "rbf":
        model = KernelRidge(kernel="rbf", gamma=0.5 / median_distance(X, seed) ** 2)
    else:
        model = KernelRidge(kernel="polynomial", degree=2 * degree, gamma=0.5 / X.shape[1], coef0=0.5)
    search = GridSearchCV(
        TransformedTargetRegressor(model, transformer=StandardScaler()),
        {"regressor__alpha": np.asarray(alphas, dtype=np.float64)},
        scoring="neg_mean_squared_error",
        cv=KFold(_FOLDS, shuffle=True, random_state=seed),
    )
    return search.fit(X, y)


def memory_of(n: int) -> int:
    """Return the bytes of memory that `kernel_ridge` takes for n samples."""
    return int(_COPIES * 8 * n**2)


def median_distance(X: Array, seed: int = 3) -> float:
    """Return the median distance between two of at most 1000 samples drawn from X, (n, d) with n >= 2."""
    rows = np.random.default_rng(seed).permutation(len(X))[:_MEDIAN_ROWS]
    Z = X[rows]
    squares = np.einsum("ij,ij->i", Z, Z)
    distances = squares[:, None] + squares - 2.0 * Z @ Z.T
    return float(np.sqrt(np.median(distances[np.triu_indices(len(Z), 1)])))
