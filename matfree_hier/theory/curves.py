"""Recovery and error against the number of samples, for any label transform and link, by simulated labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matfree_hier.checks import finite, positive
from matfree_hier.linkfit import fit_link
from matfree_hier.links import AnyLink
from matfree_hier.links import link as as_link
from matfree_hier.theory.resolvent import predict_spectrum
from matfree_hier.theory.transforms import simulate_labels

Array: TypeAlias = NDArray[np.float64]

_TESTED = 50_000  # simulated samples on which a readout is judged


class RecoveryCurve(NamedTuple):
    """Prediction at m numbers of samples."""

    n: Array
    """Shape (m,)."""
    edges: Array
    """Left and right end of the bulk, shape (m, 2)."""
    eigenvalues: Array
    """Of each feature, shape (m, k); NaN where it is not recovered."""
    overlaps: Array
    """Squared projection of each feature on its eigenvector, shape (m, k)."""
    relative_mse: Array
    """1 - R^2 of the target without noise, shape (m,)."""


def recovery_curve(
    weights: ArrayLike,
    n: ArrayLike,
    n_packed: int,
    *,
    transform: Callable[[Array], ArrayLike] | None = None,
    link: str | Callable[..., Array] | AnyLink = "identity",
    noise_std: float = 0.0,
    readout_samples: ArrayLike | None = None,
    n_simulated: int = 100_000,
    seed: int = 3,
) -> RecoveryCurve:
    """Predict what the spectral estimator finds, and its error, at each number of samples.

    At each n labels are simulated in the limit of large d (exact for degree 1), transformed, and put through
    `predict_spectrum`: as many as the data would have, so that unbounded labels are no larger than theirs,
    in as many draws as make ``n_simulated``, whose predictions are averaged. Cost some 100 O(n_simulated k)
    an n.

    Parameters
    ----------
    weights : array_like of float, shape (k,)
        lambda_k.
    n : array_like of float, shape (m,)
        Numbers of samples of the operator.
    n_packed : int
        D.
    transform : callable, optional
        Takes labels (n,), returns t (n,); None for t = y. ``lambda y: fit_label_transform("clip", y)(y)``,
        for instance.
    link : str or callable
        g.
    noise_std : float
        Standard deviation of the noise on y.
    readout_samples : array_like of float, shape (m,) or (), optional
        The readout is the paper's, equations (2.12) to (2.14), from that many samples of its own, with all k
        features, found or not. By default it is the best one: no noise in its coefficients.
    n_simulated : int
        Labels to simulate for each n.
    seed : int
        Of the simulation.

    Returns
    -------
    RecoveryCurve

    Raises
    ------
    ValueError
        If an argument is out of its bounds.

    Examples
    --------
    >>> curve = recovery_curve([0.8, -0.6], [1000.0, 4000.0], 100, transform=np.tanh)
    >>> bool(np.all(curve.overlaps[1] > curve.overlaps[0])), bool(curve.relative_mse[1] < 0.4)
    (True, True)
    """
    weights = finite("weights", weights)
    n = np.atleast_1d(finite("n", n))
    for size in n:
        positive("n", float(size))
    g = as_link(link)
    readouts = (
        None
        if readout_samples is None
        else np.broadcast_to(finite("readout_samples", readout_samples), n.shape)
    )
    edges, eigenvalues, overlaps, errors = [], [], [], []
    for i, size in enumerate(n):
        draws = _draws(int(size), n_simulated)
        spectra = []
        for j, count in enumerate(draws):
            y, h = simulate_labels(weights, count, _mixed(seed, i, j), link=g, noise_std=noise_std)
            t = y if transform is None else transform(y)
            spectra.append(predict_spectrum(t, float(size), n_packed, h))
        edges.append(np.mean([[s.edge_left, s.edge_right] for s in spectra], axis=0))
        found = np.array([s.overlaps for s in spectra])
        values = np.array([s.eigenvalues for s in spectra])
        overlaps.append(found.mean(axis=0))
        eigenvalues.append(_mean_of_known(values))
        m = None if readouts is None else int(readouts[i])
        errors.append(_error(weights, overlaps[-1], g, noise_std, m, _mixed(seed, i, len(draws))))
    return RecoveryCurve(n, np.array(edges), np.array(eigenvalues), np.array(overlaps), np.array(errors))


def _draws(n: int, n_simulated: int) -> list[int]:
    """Return the sizes of the draws: of n labels each, or one of fewer."""
    count = max(1, min(n, n_simulated))
    return [count] * max(1, round(n_simulated / count))


def _mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _mean_of_known(values: Array) -> Array:
    """Return means over draws (r, k) -> (k,) where most draws have a value, else NaN."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(2 * count > len(values), total / np.maximum(count, 1), np.nan)


def _error(
    weights: Array, overlaps: Array, g: AnyLink, noise_std: float, readout_samples: int | None, seed: int
) -> float:
    """Return 1 - R^2 on simulated samples: found latents are sqrt(o) h + sqrt(1 - o) z, z independent."""
    size = _TESTED + (readout_samples or 0)
    y, h = simulate_labels(weights, size, seed, link=g, noise_std=noise_std)
    z = np.random.default_rng([seed % 2**32, 1]).standard_normal(h.shape)
    found = np.sqrt(overlaps) * h + np.sqrt(1.0 - overlaps) * z
    if readout_samples is None:
        estimate = (found**2 - 1.0) @ (weights * overlaps)
    else:
        own, labels = found[_TESTED:], y[_TESTED:] - y[_TESTED:].mean()
        second = (own * labels[:, None]).T @ own - labels.sum() * np.eye(len(weights))  # (2.12)
        estimate = np.einsum("ij,jk,ik->i", found, second / readout_samples, found)  # (2.13), up to units
    estimate = estimate[:_TESTED]
    target = g((h[:_TESTED] ** 2 - 1.0) @ weights / np.sqrt(2.0))
    if np.ptp(estimate) == 0.0:
        return 1.0
    if g.name == "identity":
        return float(1.0 - np.corrcoef(estimate, target)[0, 1] ** 2)
    return float(np.mean((target - fit_link(estimate, target)(estimate)) ** 2) / np.var(target))
