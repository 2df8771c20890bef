"""First corrections of finite d for degree 2."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matfree_hier.checks import positive

Array: TypeAlias = NDArray[np.float64]


class FiniteSize(NamedTuple):
    """First corrections in 1/d for degree 2, t = y and the identity link, for random features."""

    label_variance: float
    """Var y = 1 + (8 + 4 (sum lambda)^2)/d, for sum lambda^2 = 1."""
    theta: Array
    """lambda_k (1 + 8/d) on the trace-centred operator, shape (k,)."""
    shift: float
    """(4/d) sum lambda: what trace centring removes from every eigenvalue."""
    spurious_bulk: tuple[float, float]
    """Ends of the bulk that is left at n = infinity, about -4 and +20 times the extreme lambda over d."""
    noise_inflation: float
    """E r^8, r = |x|^2/d: by how much the label and feature norms together raise sigma^2."""


def finite_size(weights: ArrayLike, n_inputs: int) -> FiniteSize:
    """Return the corrections of finite d to the laws of degree 2.

    With h_l = x^T B_l x - tr B_l and C_l = sqrt 2 B_l, exactly E[C_hat] Y = sum_l lambda_l [<Y, C_l> C_l +
    2 (C_l^2 Y + Y C_l^2) + 2 C_l Y C_l], and for random C_l the terms behind the first are these. The plain
    estimator loses features weaker than the spurious bulk however many samples there are.

    Parameters
    ----------
    weights : array_like of float, shape (k,)
        lambda_k.
    n_inputs : int
        d.
    """
    weights = np.asarray(weights, dtype=np.float64)
    d = int(positive("n_inputs", n_inputs))
    high, low = max(0.0, float(weights.max())), min(0.0, float(weights.min()))
    return FiniteSize(
        label_variance=float(np.sum(weights**2) * (1.0 + 8.0 / d) + 4.0 * weights.sum() ** 2 / d),
        theta=weights * (1.0 + 8.0 / d),
        shift=float(4.0 * weights.sum() / d),
        spurious_bulk=(min(-4.0 * high, 20.0 * low) / d, max(20.0 * high, -4.0 * low) / d),
        noise_inflation=float(np.prod(1.0 + 2.0 * np.arange(8) / d)),
    )
