"""Links fitted to samples: a spline of few degrees of freedom, or the scale of a link that is given."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.optimize import least_squares
from scipy.special import ndtr, ndtri

from matfree_hier.links import AnyLink, FittedLink, ScaledLink, natural_spline

Array: TypeAlias = NDArray[np.float64]

_CHUNK = 65536  # rows of the spline's design matrix held at once
_LEAST = 0.1  # of the labels' spread, which a link spans at first
_RESCALED = 10.0  # times as large, or as small, h may become at once
_FITS = 20  # evaluations of a link for its scale


def fit_link(h: ArrayLike, y: ArrayLike, *, degrees_of_freedom: int = 12) -> FittedLink:
    """Fit y = g(h) by ridge regression on a fixed map of few features (paper, eq. 2.14).

    The map is the natural cubic spline on ``degrees_of_freedom`` knots at quantiles of ``h`` that are
    equally spaced as normal scores; the ridge penalises the integral of g''^2, so that a straight line is
    free, and its strength minimises the generalised cross-validation score with the degrees of freedom
    counted 1.4 times (Kim and Gu 2004). Few degrees of freedom are part of the method: a link that can
    follow single samples memorises the features' noise. Outside the outermost knots, each with some 20
    samples beyond it, the link is a straight line: it cannot blow up in the tails. Cost O(n m^2) time and
    O(n) memory for m knots.

    Parameters
    ----------
    h : array_like of float, shape (n,)
        Estimates of h2.
    y : array_like of float, shape (n,)
        Labels.
    degrees_of_freedom : int, default 12
        The number of knots, at least 1 (a constant); fewer are used when ``h`` has fewer distinct values.

    Returns
    -------
    FittedLink

    Raises
    ------
    ValueError
        If the arrays are empty, differ in length or hold NaN or infinity.

    References
    ----------
    arXiv 2605.14567, eq. 2.14. Y.-J. Kim and C. Gu, Smoothing spline Gaussian regression: more scalable
    computation via efficient approximation, JRSS B 66 (2004) 337, doi 10.1046/j.1369-7412.2003.05316.x.
    """
    h, y = np.asarray(h, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if h.ndim != 1 or h.shape != y.shape or h.size == 0:
        msg = f"`h` and `y` must be vectors of one length of at least 1, got shapes {h.shape} and {y.shape}."
        raise ValueError(msg)
    if degrees_of_freedom < 1:
        msg = f"`degrees_of_freedom` must be at least 1, got {degrees_of_freedom}."
        raise ValueError(msg)
    for name, values in (("h", h), ("y", y)):
        if not np.isfinite(values).all():
            msg = (
                f"`{name}` must be finite, got {values[~np.isfinite(values)][0]} at row {_first_bad(values)}."
            )
            raise ValueError(msg)
    knots = _knots(h, degrees_of_freedom)
    centre = y.mean()
    if len(knots) == 1:
        return FittedLink(knots, np.array([centre]))
    return FittedLink(knots, centre + _ridge(h, y - centre, knots))


def _ridge(h: Array, y: Array, knots: Array) -> Array:
    """Return the link at the knots, the ridge strength chosen by generalised cross-validation."""
    m, n = len(knots), len(h)
    basis = _CardinalBasis(knots)
    gram, moment = np.zeros((m, m)), np.zeros(m)
    for start in range(0, n, _CHUNK):
        B = basis(h[start : start + _CHUNK])
        gram += B.T @ B
        moment += B.T @ y[start : start + _CHUNK]
    # In the basis that diagonalises both forms, strength a shrinks component i by 1 / (1 + a s_i).
    gram += np.eye(m) * np.finfo(np.float64).eps * m * np.trace(gram)
    s, U = eigh(basis.roughness(), gram)
    s[:2] = 0.0  # constants and lines are free; rounding may say otherwise
    s = np.maximum(s, 0.0)
    c = U.T @ moment
    scale = 1.0 / np.median(s[2:]) if m > 2 and np.median(s[2:]) > 0.0 else 1.0
    strengths = scale * np.concatenate([[0.0], np.logspace(-8, 8, 65)])
    shrink = 1.0 / (1.0 + np.outer(strengths, s))
    unexplained = np.maximum(y @ y - c @ c, 0.0) + ((1.0 - shrink) ** 2) @ c**2
    left = 1.0 - 1.4 * shrink.sum(axis=1) / n
    # With too few samples for any choice to be judged, the smoothest one.
    score = np.divide(unexplained, left**2, out=np.full(len(left), np.inf), where=left > 1e-6)
    best = int(np.argmin(score)) if np.isfinite(score).any() else len(strengths) - 1
    values: Array = U @ (shrink[best] * c)
    return values


class _CardinalBasis:
    """Natural cubic splines that are 1 at one knot and 0 at the others, straight outside."""

    def __init__(self, knots: Array) -> None:
        self.knots = knots
        self.spline = natural_spline(knots, np.eye(len(knots)))

    def __call__(self, h: Array) -> Array:
        """Return the design matrix, shape (n, m)."""
        inside = np.clip(h, self.knots[0], self.knots[-1])
        B: Array = self.spline(inside)
        beyond = np.flatnonzero(h != inside)
        B[beyond] += self.spline(inside[beyond], 1) * (h - inside)[beyond, None]
        return B

    def roughness(self) -> Array:
        """Return S with v^T S v = integral of g''^2 for knot values v, exactly: g'' is piecewise linear."""
        second: Array = self.spline(self.knots, 2)
        width = np.diff(self.knots)[:, None]
        a, b = second[:-1], second[1:]
        S: Array = (
            a.T @ (width * a) + b.T @ (width * b) + (a.T @ (width * b) + b.T @ (width * a)) / 2.0
        ) / 3.0
        return S


def _knots(h: Array, count: int) -> Array:
    """Return at most ``count`` distinct quantiles of ``h``, equally spaced as normal scores."""
    knots = _distinct(np.quantile(h, _levels(len(h), count)))
    if len(knots) == 1 < count and h.min() < h.max():
        # Most values are equal: a line through the extremes.
        return np.array([h.min(), h.max()])
    return knots


def _levels(n: int, count: int) -> Array:
    """Return quantile levels, equally spaced as normal scores, with some 20 samples beyond each end."""
    if count == 1:
        return np.array([0.5])
    reach = -float(ndtri(min(20.0 / n, 0.1)))
    levels: Array = ndtr(np.linspace(-reach, reach, count))
    return levels


def _distinct(knots: Array) -> Array:
    """Return increasing knots less those so close to another that the splines would be ill-conditioned."""
    gap = 1e-3 * (knots[-1] - knots[0]) / len(knots)
    kept = [float(knots[0])]
    for knot in knots[1:]:
        if knot - kept[-1] > gap:
            kept.append(float(knot))
    return np.array(kept)


def _first_bad(values: Array) -> int:
    return int(np.flatnonzero(~np.isfinite(values))[0])


def fit_scale(link: AnyLink, h: ArrayLike, y: ArrayLike) -> tuple[ScaledLink, float, float]:
    """Fit y = offset + scale * g(shift + factor * h), a link g for h and labels in units of their own.

    By least squares from factor 1, with scale and factor above 0. Cost is some 10 evaluations of g and g'.

    Parameters
    ----------
    link : Link, FittedLink or ScaledLink
        g; the scale and offset it may have are replaced.
    h : array_like of float, shape (n,)
        Estimates of h2.
    y : array_like of float, shape (n,)
        Labels.

    Returns
    -------
    link : ScaledLink
    factor, shift : float
    """
    base = link.base if isinstance(link, ScaledLink) else link
    h, y = np.asarray(h, dtype=np.float64), np.asarray(y, dtype=np.float64)
    unit = float(y.std()) or 1.0  # of the labels: the solver's tolerances are relative to 1

    def residuals(p: Array) -> Array:
        return np.asarray(p[0] + p[1] * base(p[3] + p[2] * h) - y / unit)

    def jacobian(p: Array) -> Array:
        z = p[3] + p[2] * h
        slopes = p[1] * base.derivative(z)
        return np.column_stack([np.ones(len(h)), base(z), slopes * h, slopes])

    values = base(h)
    centred = values - values.mean()
    spread = float(centred.std())
    if spread == 0.0:
        return ScaledLink(base, unit, float(y.mean()) - unit * float(values[0])), 1.0, 0.0
    scale = max(float(centred @ y) / (len(y) * unit * spread**2), _LEAST / spread)
    start = np.array([y.mean() / unit - scale * values.mean(), scale, 1.0, 0.0])
    bounds = [-np.inf, 0.0, 1.0 / _RESCALED, -np.inf], [np.inf, np.inf, _RESCALED, np.inf]
    fit = least_squares(residuals, start, jac=jacobian, x_scale="jac", bounds=bounds, max_nfev=_FITS)
    offset, scale, factor, shift = (float(value) for value in fit.x)
    return ScaledLink(base, unit * scale, unit * offset), factor, shift
