"""The spectrum at every n/D, from the resolvent."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from matfree_hier.checks import finite, positive

Array: TypeAlias = NDArray[np.float64]

_NEAREST = 0.9  # to the pole of the resolvent, for samples that did not set its place


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
    tau = finite("t", t) / np.sqrt(2.0)
    if tau.ndim != 1 or tau.size == 0:
        msg = f"`t` must be a vector of at least one label, got shape {tau.shape}."
        raise ValueError(msg)
    h = np.empty((len(tau), 0)) if latents is None else finite("latents", latents)
    rho = np.ones(len(tau)) if norms is None else finite("norms", norms)
    for name, values in (("latents", h), ("norms", rho)):
        if values.shape[0] != len(tau) or values.ndim != 1 + (name == "latents"):
            msg = f"`{name}` must have a row for each of the {len(tau)} labels, got shape {values.shape}."
            raise ValueError(msg)
    delta = positive("n_packed", n_packed) / positive("n", n)
    shift = float(np.mean(tau * rho))
    right, left = BulkEnd(tau, rho, delta), BulkEnd(-tau, rho, delta)
    found = [_larger(right.outlier(column), left.outlier(column), shift) for column in (h**2).T]
    return Spectrum(
        edge_left=-left.edge - shift,
        edge_right=right.edge - shift,
        eigenvalues=np.array([value for value, _ in found]),
        overlaps=np.array([squared for _, squared in found]),
    )


class BulkEnd:
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

    def overlap_at(self, eigenvalue: float, tau: Array, rho: Array, squares: Array) -> float:
        """Return the overlap of the eigenvector of an eigenvalue, 0 if that is not outside the bulk.

        What it depends on beside the eigenvalue, E[tau^2 (h^2 - rho)/(1 - delta m tau)^2], is small, and
        taken from samples that the eigenvector does not come from.

        Parameters
        ----------
        eigenvalue : float
            Of (1/n) sum tau F F^T, not centred.
        tau, rho, squares : ndarray of float64, shape (n,)
            t/sqrt 2, |F|^2/D and squared latents of those samples.
        """
        if self.s == 0.0 or eigenvalue <= self.edge:
            return 0.0
        low = self.s
        while self.x(low) < eigenvalue:
            low *= 0.5
        s = float(brentq(lambda s: self.x(s) - eigenvalue, low, self.s, xtol=1e-15, rtol=1e-13))
        tau = tau / self.scale
        w = 1.0 / (1.0 - np.minimum(s * tau * rho, _NEAREST)) ** 2
        extra = float(np.mean(w * tau**2 * rho * (squares - rho)))
        slope = self.delta / s**2
        inside = float(np.mean((self.r / (1.0 - s * self.r)) ** 2))
        return max(slope - inside, 0.0) / (slope + max(extra, 0.0))


def _larger(right: tuple[float, float], left: tuple[float, float], shift: float) -> tuple[float, float]:
    """Return the pair at the end of the larger |eigenvalue|, less the shift."""
    a, b = right[0] - shift, -left[0] - shift
    if np.isnan(b) or abs(a) >= abs(b):
        return a, right[1]
    return b, left[1]
