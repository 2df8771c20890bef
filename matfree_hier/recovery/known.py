"""How well features are recovered, against a known teacher."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]


def overlaps(features: ArrayLike, true: ArrayLike) -> Array:
    """Return the squared norm of each true feature's projection on the span of those found (paper, A.3).

    Cost O(D K'(K' + K)) time.

    Parameters
    ----------
    features : array_like of float, shape (K', D)
        Features found, as rows; neither orthonormal nor independent need they be, and K' may be 0.
    true : array_like of float, shape (K, D)
        True features, as rows; their length does not matter.

    Returns
    -------
    ndarray of float64, shape (K,)
        In [0, 1]: 1 where the true feature lies in the span; 0 for a row of zeros.

    Raises
    ------
    ValueError
        If either is not a matrix, they differ in columns, or a value is NaN or infinity.

    References
    ----------
    arXiv 2605.14567, appendix A.3.
    """
    found, true = _rows("features", features), _rows("true", true)
    if found.shape[1] != true.shape[1]:
        msg = (
            f"`features` and `true` must have equally many columns, got {found.shape[1]} and {true.shape[1]}."
        )
        raise ValueError(msg)
    if found.shape[0] == 0:
        return np.zeros(true.shape[0])
    _, s, rows = np.linalg.svd(found, full_matrices=False)
    basis = rows[s > s[0] * max(found.shape) * np.finfo(np.float64).eps]
    squares: Array = np.sum((true @ basis.T) ** 2, axis=1)
    return np.clip(squares, 0.0, 1.0)


def projections(features: ArrayLike, true: ArrayLike) -> Array:
    """Return the norm of each true feature's projection on the span found: the root of `overlaps`."""
    return np.sqrt(overlaps(features, true))


def _rows(name: str, rows: ArrayLike) -> Array:
    """Return the rows scaled to length 1, so that the rank found does not depend on their lengths."""
    array = np.asarray(rows, dtype=np.float64)
    if array.ndim != 2:
        msg = f"`{name}` must be a matrix of one feature a row, got shape {array.shape}."
        raise ValueError(msg)
    if not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        msg = f"`{name}` must be finite, got a value that is not in row {bad}."
        raise ValueError(msg)
    largest = np.abs(array).max(axis=1, initial=0.0, keepdims=True)
    array = array / np.where(largest > 0.0, largest, 1.0)  # so that no square overflows or vanishes
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    return np.asarray(array / np.where(norms > 0.0, norms, 1.0))
