"""Features that are smooth over a graph of the inputs: teachers that have them, solutions read as features.

Noise in C spreads over all D directions, a smooth feature over the few that vary slowly: the problem
C v = w (I + tau L) v weighs the others down, and fewer samples suffice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.metric import preconditioner, smoothness
from matfree_hier.model import HierarchicalModel

if TYPE_CHECKING:
    from matfree_hier.metric import Metric

__all__ = ["bulk_edge", "features_of", "teacher"]

Array: TypeAlias = NDArray[np.float64]

_STREAM = 41  # of the random numbers that a seed stands for here


def teacher(
    n_inputs: int,
    degree: int,
    n_features: int,
    *,
    graph: Any = "path",
    tau: float = 1.0,
    seed: int,
    **options: Any,
) -> HierarchicalModel:
    """Return a teacher whose features are smooth over a graph: normal rows smoothed twice by (I + tau L)^-1.

    Parameters
    ----------
    n_inputs, degree, n_features : int
        d, q and d_1.
    graph
        As in `metric.graph_weights`.
    tau : float
        Directions of a smoothness v^T L v above 1/tau are damped.
    seed : int
        Of features and signs, at least 0.
    **options
        More arguments of `HierarchicalModel`, but for ``features``.

    Returns
    -------
    HierarchicalModel
    """
    metric = smoothness(graph, degree, tau, n_inputs=n_inputs)
    rng = np.random.default_rng([seed, _STREAM])
    smoothed, rows = preconditioner(metric, "exact"), rng.standard_normal((metric.size, n_features))
    rows = smoothed(smoothed(rows)).T
    return HierarchicalModel(n_inputs, degree, n_features, features=rows, seed=seed, **options)


def features_of(vectors: Array, values: Array) -> tuple[Array, Array]:
    """Turn solutions of C v = w B v into features: the plain Ritz pairs of C in their span.

    The solutions are orthonormal in B, where features are orthonormal as they are; and V^T C V = diag(w) at
    the solution, so no product with C is needed.

    Parameters
    ----------
    vectors : ndarray of float64, shape (D, k)
        V, orthonormal in B.
    values : ndarray of float64, shape (k,)
        w.

    Returns
    -------
    features : ndarray of float64, shape (k, D)
        Orthonormal rows, the largest |value| first.
    values : ndarray of float64, shape (k,)
        v^T C v of each.
    """
    Q, R = np.linalg.qr(vectors)
    inverse = np.linalg.inv(R)
    theta, S = np.linalg.eigh(inverse.T @ (values[:, np.newaxis] * inverse))
    order = np.argsort(-np.abs(theta), kind="stable")
    return np.ascontiguousarray((Q @ S[:, order]).T), theta[order]


def bulk_edge(metric: Metric, n_samples: int, second_moment: float = 1.0) -> float:
    """Return where the noise of C v = w B v ends: the largest |w| without any feature.

    The noise in C is about a symmetric Gaussian matrix of entries of variance s^2/D, s^2 = D E[t^2]/(2n)
    (`theory.bulk_edge`). In the eigenvectors of B, of eigenvalues 1/b_j, the entries of B^-1/2 C B^-1/2 have
    variance s^2 b_i b_j/D, and the edge x of such a matrix follows from its Dyson equation:
    x^2 = min over 0 < c < 1/max(b) of (s^2/c) mean_j b_j/(1 - c b_j). For B = I that is 2 s.

    Parameters
    ----------
    metric : Metric
    n_samples : int
        n, at least 1.
    second_moment : float
        E[t^2] of the labels.

    References
    ----------
    O. Ajanki, L. Erdos, T. Krueger, Universality for general Wigner-type matrices, Probab. Theory Relat.
    Fields 169 (2017), doi:10.1007/s00440-016-0740-2.
    """
    b = 1.0 / metric.levels()
    s2 = metric.size * second_moment / (2.0 * n_samples)
    c = np.linspace(0.0, 1.0, 513)[1:-1] / b.max()
    levels, counts = np.unique(b.round(12), return_counts=True)
    means = (counts * levels / (1.0 - c[:, np.newaxis] * levels)).sum(axis=1) / metric.size
    return float(np.sqrt((s2 * means / c).min()))
