"""What theory predicts: thresholds, eigenvalues, overlaps, the bulk's edge, scaling laws.

D is the number of packed coordinates, n the number of samples, t the transformed label, and
theta_k = E[t (h_k^2 - 1)]/sqrt 2 the strength of feature k (lambda_k for t = y and the identity link).
"Overlap" is the squared projection of the true feature on the one found. The features F(x) are treated as
Gaussian: exact for degree 1, the limit of large d for others, with first corrections in `finite_size`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from matfree_hier.links import AnyLink
from matfree_hier.links import link as as_link

Array: TypeAlias = NDArray[np.float64]


def recovery_threshold(theta: ArrayLike, n_packed: int, second_moment: float = 1.0) -> Array:
    """Return n_k = D E[t^2]/(2 theta_k^2), the number of samples above which feature k is found.

    Parameters
    ----------
    theta : array_like of float, shape (k,)
        Strengths theta_k of either sign; 0 gives infinity.
    n_packed : int
        D.
    second_moment : float
        E[t^2], 1 for t = y = h2.

    Returns
    -------
    ndarray of float64, shape (k,)

    References
    ----------
    Paper (arXiv 2605.14567) Theorem 3.1 up to its constant.
    """
    theta = np.asarray(theta, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(n_packed * _positive("second_moment", second_moment) / (2.0 * theta**2))


def bulk_edge(n: ArrayLike, n_packed: int, second_moment: float = 1.0) -> Array:
    """Return 2 sigma, the bulk's half-width, sigma^2 = D E[t^2]/(2 n); good for n/D above some 30.

    Below that, and whenever t is skewed, `predict_spectrum` gives both edges.
    """
    return 2.0 * np.sqrt(_variance(n, n_packed, second_moment))


def outlier_eigenvalue(theta: ArrayLike, n: ArrayLike, n_packed: int, second_moment: float = 1.0) -> Array:
    """Return theta_k + sigma^2/theta_k where |theta_k| > sigma, NaN where feature k is not found.

    Parameters
    ----------
    theta, n : array_like of float
        Strengths and numbers of samples, broadcast against each other.
    n_packed : int
        D.
    second_moment : float
        E[t^2].
    """
    theta = np.asarray(theta, dtype=np.float64)
    variance = _variance(n, n_packed, second_moment)
    found = theta**2 > variance
    return np.where(found, theta + variance / np.where(found, theta, 1.0), np.nan)


def overlap(
    theta: ArrayLike,
    n: ArrayLike,
    n_packed: int,
    second_moment: float = 1.0,
    weighted_moment: ArrayLike | None = None,
) -> Array:
    """Return the squared projection of feature k on the one found, 1 - n_k/n above threshold, else 0.

    With the moment E[t^2 h_k^2] given, (1 - n_k/n)/(1 - n_k/n + n'_k/n) with n'_k that moment in place of
    E[t^2]: the same where t and h_k are nearly independent, and 1 - n'_k/n far above threshold.

    Parameters
    ----------
    theta, n : array_like of float
        Strengths and numbers of samples, broadcast against each other.
    n_packed : int
        D.
    second_moment : float
        E[t^2].
    weighted_moment : array_like of float, optional
        E[t^2 h_k^2], of the shape of ``theta``; 1 + 4 lambda_k^2 for t = y and the identity link.

    Returns
    -------
    ndarray of float64
        In [0, 1].
    """
    theta = np.asarray(theta, dtype=np.float64)
    signal = np.maximum(theta**2 - _variance(n, n_packed, second_moment), 0.0)
    weighted = second_moment if weighted_moment is None else np.asarray(weighted_moment, dtype=np.float64)
    noise = np.asarray(weighted) * n_packed / (2.0 * np.asarray(n, dtype=np.float64))
    return np.asarray(signal / (signal + noise))


def expected_count(theta: ArrayLike, n: float, n_packed: int, second_moment: float = 1.0) -> int:
    """Return the number of features above threshold at n samples."""
    return int(np.sum(recovery_threshold(theta, n_packed, second_moment) < n))


def relative_mse(
    weights: ArrayLike, n: float, n_packed: int, theta: ArrayLike | None = None, second_moment: float = 1.0
) -> float:
    """Return the spectral estimator's 1 - R^2 for g = identity, with the best readout of the features found.

    1 - sum_k lambda_k^2 o_k^2 / sum_k lambda_k^2, o_k the overlap: the squares of two unit normal variables
    of squared correlation o correlate by o.

    Parameters
    ----------
    weights : array_like of float, shape (k,)
        lambda_k.
    n : float
        Number of samples.
    n_packed : int
        D.
    theta : array_like of float, shape (k,), optional
        Strengths under the label transform; ``weights`` for t = y.
    second_moment : float
        E[t^2].
    """
    weights = np.asarray(weights, dtype=np.float64)
    o = overlap(weights if theta is None else theta, n, n_packed, second_moment)
    return float(1.0 - np.sum(weights**2 * o**2) / np.sum(weights**2))


def mse_exponent(gamma: float) -> float:
    """Return e = 1/(2 gamma) - 1, the paper's exponent in n for the spectral estimator.

    For gamma > 1/2 it is negative and the error falls as (n/D)^e (Theorem 3.2). For gamma < 1/2 it is
    positive: the error is of order one, and its part explained grows as (n/(d_1 D))^e. At 1/2 it is 0 and
    the law is logarithmic. It is the sum over the features not yet found: the (n/D)^(1/(2 gamma)) first
    ones are.

    Raises
    ------
    ValueError
        If ``gamma`` is not above 0.

    References
    ----------
    arXiv 2605.14567, Theorem 3.2 and Corollary 3.1.
    """
    return 0.5 / _positive("gamma", gamma) - 1.0


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
    d = int(_positive("n_inputs", n_inputs))
    high, low = max(0.0, float(weights.max())), min(0.0, float(weights.min()))
    return FiniteSize(
        label_variance=float(np.sum(weights**2) * (1.0 + 8.0 / d) + 4.0 * weights.sum() ** 2 / d),
        theta=weights * (1.0 + 8.0 / d),
        shift=float(4.0 * weights.sum() / d),
        spurious_bulk=(min(-4.0 * high, 20.0 * low) / d, max(20.0 * high, -4.0 * low) / d),
        noise_inflation=float(np.prod(1.0 + 2.0 * np.arange(8) / d)),
    )


class Spectrum(NamedTuple):
    """Prediction for the trace-centred operator."""

    edge_left: float
    edge_right: float
    eigenvalues: Array
    """Of each feature, shape (k,); NaN where it is not recovered."""
    overlaps: Array
    """Squared projection of each feature on its eigenvector, shape (k,); 0 where not recovered."""


def predict_spectrum(
    t: ArrayLike,
    n: float,
    n_packed: int,
    latents: ArrayLike | None = None,
    norms: ArrayLike | None = None,
) -> Spectrum:
    """Predict the bulk's edges and each feature's eigenvalue and overlap from the resolvent, at any n/D.

    With tau = t/sqrt 2, delta = D/n and m the trace of the resolvent of (1/n) sum tau F F^T over D, x(m) =
    1/m + E[tau/(1 - delta m tau)]; the edges are the extrema of x nearest to m = 0 on either side. Feature
    k stands out where 1/m = E[tau (h_k^2 - 1)/(1 - delta m tau)] has a root before the edge. Expectations
    are means over the sample given, which may be the data's own or a simulated one (`simulate_labels`) of
    any length. Cost some 100 O(N k) for N samples.

    Parameters
    ----------
    t : array_like of float, shape (N,)
        Transformed labels.
    n : float
        Number of samples of the operator; need not be N.
    n_packed : int
        D.
    latents : array_like of float, shape (N, k), optional
        h_k of the same samples, for eigenvalues and overlaps.
    norms : array_like of float, shape (N,), optional
        |F(x)|^2/D of the same samples, 1 for Gaussian features: at finite d they vary together with the
        labels and widen the bulk.

    Returns
    -------
    Spectrum
        Of C_hat less tr(C_hat)/D I. A feature that stands out at both ends is reported at the end of the
        larger |eigenvalue|.

    Raises
    ------
    ValueError
        If shapes disagree, values are not finite, or n is not above 0.

    References
    ----------
    Lu and Li, Phase transitions of spectral initialization for high-dimensional non-convex estimation,
    Information and Inference 9 (2020) 507, doi 10.1093/imaiai/iaz020. Mondelli and Montanari, Fundamental
    limits of weak recovery with applications to phase retrieval, Found. Comput. Math. 19 (2019) 703, doi
    10.1007/s10208-018-9395-y.
    """
    tau = _finite("t", t) / np.sqrt(2.0)
    if tau.ndim != 1 or tau.size == 0:
        msg = f"`t` must be a vector of at least one label, got shape {tau.shape}."
        raise ValueError(msg)
    h = np.empty((len(tau), 0)) if latents is None else _finite("latents", latents)
    rho = np.ones(len(tau)) if norms is None else _finite("norms", norms)
    for name, values in (("latents", h), ("norms", rho)):
        if values.shape[0] != len(tau) or values.ndim != 1 + (name == "latents"):
            msg = f"`{name}` must have a row for each of the {len(tau)} labels, got shape {values.shape}."
            raise ValueError(msg)
    delta = _positive("n_packed", n_packed) / _positive("n", n)
    shift = float(np.mean(tau * rho))
    right, left = _End(tau, rho, delta), _End(-tau, rho, delta)
    found = [_larger(right.outlier(column), left.outlier(column), shift) for column in (h**2).T]
    return Spectrum(
        edge_left=-left.edge - shift,
        edge_right=right.edge - shift,
        eigenvalues=np.array([value for value, _ in found]),
        overlaps=np.array([squared for _, squared in found]),
    )


class _End:
    """The right end of the spectrum of (1/n) sum tau F F^T.

    m is measured as s = delta m scale and tau rho as r = tau rho/scale, scale the largest tau rho (or |tau
    rho| when all are negative): then s is in (0, 1) (or (0, inf)) and nothing overflows.
    """

    def __init__(self, tau: Array, rho: Array, delta: float) -> None:
        weighted = tau * rho
        top = float(weighted.max())
        self.scale = top if top > 0.0 else float(-weighted.min())
        self.delta = delta
        self.edge, self.s = 0.0, 0.0
        if self.scale == 0.0:
            return
        self.r, self.tau, self.rho = weighted / self.scale, tau / self.scale, rho
        last = 1.0 - 1e-12 if top > 0.0 else 1e12
        # m^2 x'(m) grows with m: its root is the edge.
        if self._steepness(last) > 0.0:
            last = float(brentq(self._steepness, 0.0, last, xtol=1e-15, rtol=1e-14))
        elif top <= 0.0:
            return  # fewer samples than coordinates and no positive label: the spectrum ends at 0
        self.s = last
        self.edge = self.x(last)

    def _steepness(self, s: float) -> float:
        return float(np.mean((s * self.r / (1.0 - s * self.r)) ** 2)) / self.delta - 1.0

    def x(self, s: float) -> float:
        """Return x(m)."""
        return self.scale * (self.delta / s + float(np.mean(self.r / (1.0 - s * self.r))))

    def outlier(self, squares: Array) -> tuple[float, float]:
        """Return eigenvalue and overlap of the feature with these h_k^2; NaN and 0 if it has none here."""
        if self.s == 0.0:
            return np.nan, 0.0
        signal = self.tau * (squares - self.rho)

        def excess(s: float) -> float:
            # phi_k(m) - x(m) in units of the scale: increasing, from -infinity at 0.
            return float(np.mean(signal / (1.0 - s * self.r))) - self.delta / s

        if excess(self.s) <= 0.0:
            return np.nan, 0.0
        # For s <= 1/2 the mean is at most twice that of |signal|.
        low = min(self.s / 2.0, 0.5, self.delta / (2.0 * float(np.mean(np.abs(signal)))) / 2.0)
        s = float(brentq(excess, low, self.s, xtol=1e-15, rtol=1e-13))
        w = 1.0 / (1.0 - s * self.r) ** 2
        phi_slope = float(np.mean(w * self.tau * self.r * squares))
        x_slope = self.delta / s**2 - float(np.mean(w * self.r**2))  # of -x
        return self.x(s), x_slope / (x_slope + phi_slope)


def _larger(right: tuple[float, float], left: tuple[float, float], shift: float) -> tuple[float, float]:
    """Return the pair at the end of the larger |eigenvalue|, less the shift."""
    a, b = right[0] - shift, -left[0] - shift
    if np.isnan(b) or abs(a) >= abs(b):
        return a, right[1]
    return b, left[1]


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
    t, h = _finite("t", t), _finite("latents", latents)
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
    y, latent = _finite("y", y), _finite("latent", latent)
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
    return float(n_packed / np.mean(_finite("signal", signal) ** 2))


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
    w = _finite("signal", signal)
    if np.any(w <= -1.0):
        msg = f"`signal` must be above -1, got {w.min()}."
        raise ValueError(msg)
    return w / (1.0 + w)


def _variance(n: ArrayLike, n_packed: int, second_moment: float) -> Array:
    n = np.asarray(n, dtype=np.float64)
    if not np.all(n > 0.0):
        msg = f"`n` must be above 0, got {n.min()}."
        raise ValueError(msg)
    return np.asarray(n_packed * _positive("second_moment", second_moment) / (2.0 * n))


def _positive(name: str, value: float) -> float:
    if not 0.0 < value < np.inf:
        msg = f"`{name}` must be finite and above 0, got {value}."
        raise ValueError(msg)
    return float(value)


def _finite(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        msg = f"`{name}` must be finite, got {array[~np.isfinite(array)][0]}."
        raise ValueError(msg)
    return array
