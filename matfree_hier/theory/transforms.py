"""Labels of the model simulated, and the best transform of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matfree_hier.checks import finite
from matfree_hier.links import AnyLink
from matfree_hier.links import link as as_link

Array: TypeAlias = NDArray[np.float64]


def simulate_labels(
    weights: ArrayLike,
    n_samples: int,
    seed: int,
    *,
    link: str | Callable[..., Array] | AnyLink = "identity",
    noise_std: float = 0.0,
) -> tuple[Array, Array]:
    """Draw labels and latents of the model in the limit of large d, where the h_k are independent N(0, 1).

    Parameters
    ----------
    weights : array_like of float, shape (k,)
        lambda_k.
    n_samples, seed : int
        How many samples to draw, and from which seed.
    link : str or callable
        g.
    noise_std : float
        Standard deviation of the noise.

    Returns
    -------
    y : ndarray of float64, shape (n_samples,)
    h : ndarray of float64, shape (n_samples, k)
    """
    weights = np.asarray(weights, dtype=np.float64)
    rng = np.random.default_rng(seed)
    h = rng.standard_normal((n_samples, len(weights)))
    y = as_link(link)((h**2 - 1.0) @ weights / np.sqrt(2.0))
    return y + noise_std * rng.standard_normal(n_samples), h


def strengths(t: ArrayLike, latents: ArrayLike) -> Array:
    """Return theta_k = E[t (h_k^2 - 1)]/sqrt 2, means over samples t (N,) and h (N, k)."""
    t, h = finite("t", t), finite("latents", latents)
    return np.asarray(t @ (h**2 - 1.0) / (len(t) * np.sqrt(2.0)))


def conditional_signal(y: ArrayLike, latent: ArrayLike, n_bins: int = 200) -> tuple[Array, Array]:
    """Tabulate w(y) = E[h_k^2 - 1 | y]: means over bins of equally many samples.

    Parameters
    ----------
    y, latent : array_like of float, shape (N,)
        Labels and h_k of simulated samples (`simulate_labels`).
    n_bins : int
        At most; equal labels share a bin.

    Returns
    -------
    y : ndarray of float64, shape (m,)
        Mean label of each bin, increasing; join the values by lines (`numpy.interp`).
    w : ndarray of float64, shape (m,)

    Raises
    ------
    ValueError
        If the vectors differ in length, are empty or hold NaN or infinity.
    """
    y, latent = finite("y", y), finite("latent", latent)
    if y.ndim != 1 or y.shape != latent.shape or y.size == 0:
        msg = (
            f"`y` and `latent` must be vectors of one length of at least 1, got {y.shape} and {latent.shape}."
        )
        raise ValueError(msg)
    order = np.argsort(y, kind="stable")
    y, squares = y[order], latent[order] ** 2 - 1.0
    starts = np.linspace(0, len(y), min(n_bins, len(y)), endpoint=False).astype(np.int64)
    starts = np.unique(np.searchsorted(y, y[starts]))  # where the labels equal to a bin's first begin
    count = np.diff(np.append(starts, len(y)))
    return np.add.reduceat(y, starts) / count, np.add.reduceat(squares, starts) / count


def optimal_threshold(signal: ArrayLike, n_packed: int) -> float:
    """Return D/E[w^2], w = E[h_k^2 - 1 | y]: the threshold n_k under the best label transform.

    For one feature, y = h^2 and degree 1 it is d/2 (Mondelli and Montanari 2019).

    Parameters
    ----------
    signal : array_like of float, shape (N,)
        w at the labels of a sample.
    n_packed : int
        D.
    """
    return float(n_packed / np.mean(finite("signal", signal) ** 2))


def optimal_transform(signal: ArrayLike) -> Array:
    """Return t = w/(1 + w), w = E[h_k^2 - 1 | y]: the label transform of the largest overlap at every n.

    Parameters
    ----------
    signal : array_like of float
        w at the labels; above -1.

    References
    ----------
    Luo, Alghamdi and Lu, Optimal spectral initialization for signal recovery with applications to phase
    retrieval, IEEE Trans. Signal Process. 67 (2019) 2347, arXiv 1811.04420.
    """
    w = finite("signal", signal)
    if np.any(w <= -1.0):
        msg = f"`signal` must be above -1, got {w.min()}."
        raise ValueError(msg)
    return w / (1.0 + w)
