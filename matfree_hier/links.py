"""Links g of the model y = g(h2) + noise: by name, from a callable, or fitted to samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import CubicSpline
from scipy.linalg import eigh
from scipy.optimize import least_squares
from scipy.special import erf, ndtr, ndtri

Array: TypeAlias = NDArray[np.float64]
Function: TypeAlias = Callable[[Array], Array]

_CHUNK = 65536  # rows of the spline's design matrix held at once
_USELESS = 0.1  # correlation of g(h) and labels from which a scale is fitted at least
_RESCALED = 10.0  # times as large, or as small, h may become at once
_FITS = 20  # evaluations of a link for its scale


@dataclass(frozen=True)
class Link:
    """A link g with its derivative; call it on an array of h2.

    Attributes
    ----------
    name : str
        One of `NAMES`, or the name of the callable.
    function : callable
        g, elementwise on float64 arrays.
    slope : callable or None
        g', elementwise; None takes central differences of `function`.
    """

    name: str
    function: Function
    slope: Function | None = None

    def __call__(self, h: ArrayLike) -> Array:
        """Return g(h), float64, of the shape of ``h``."""
        return _values(self.function, h, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Named links are made of lambdas, which do not pickle: they travel by name.
        if _LINKS.get(self.name) is self:
            return link, (self.name,)
        return Link, (self.name, self.function, self.slope)

    def derivative(self, h: ArrayLike) -> Array:
        """Return g'(h), float64, of the shape of ``h``."""
        if self.slope is not None:
            return _values(self.slope, h, self.name)
        h = np.asarray(h, dtype=np.float64)
        step = np.cbrt(np.finfo(np.float64).eps) * np.maximum(1.0, np.abs(h))
        slope: Array = (self(h + step) - self(h - step)) / (2.0 * step)
        return slope


@dataclass(frozen=True)
class FittedLink:
    """A natural cubic spline through a few knots, continued by straight lines outside them.

    Attributes
    ----------
    knots : ndarray of float64, shape (m,)
        Strictly increasing, m >= 1; m = 1 is a constant, m = 2 a line.
    values : ndarray of float64, shape (m,)
        The link at the knots.
    """

    knots: Array
    values: Array
    name: str = "fitted"
    _spline: CubicSpline | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if len(self.knots) > 1:
            object.__setattr__(self, "_spline", _natural(self.knots, self.values))

    def __call__(self, h: ArrayLike) -> Array:
        """Return g(h), float64, of the shape of ``h``."""
        h = np.asarray(h, dtype=np.float64)
        if self._spline is None:
            return np.full(h.shape, self.values[0])
        inside = np.clip(h, self.knots[0], self.knots[-1])
        result: Array = self._spline(inside) + self._spline(inside, 1) * (h - inside)
        return result

    def derivative(self, h: ArrayLike) -> Array:
        """Return g'(h), float64, of the shape of ``h``; constant outside the knots."""
        h = np.asarray(h, dtype=np.float64)
        if self._spline is None:
            return np.zeros(h.shape)
        result: Array = self._spline(np.clip(h, self.knots[0], self.knots[-1]), 1)
        return result

    @property
    def parameters(self) -> dict[str, Array]:
        """The arrays that `with_parameters` rebuilds the link from."""
        return {"knots": self.knots, "values": self.values}


@dataclass(frozen=True)
class ScaledLink:
    """offset + scale * g(h): a link g for labels in units of their own.

    Attributes
    ----------
    base : AnyLink
        g.
    scale, offset : float
    """

    base: AnyLink
    scale: float
    offset: float

    @property
    def name(self) -> str:
        """The name of g."""
        return self.base.name

    def __call__(self, h: ArrayLike) -> Array:
        """Return the link at h, float64, of the shape of ``h``."""
        return self.offset + self.scale * self.base(h)

    def derivative(self, h: ArrayLike) -> Array:
        """Return its derivative, float64, of the shape of ``h``."""
        return self.scale * self.base.derivative(h)

    @property
    def parameters(self) -> dict[str, float]:
        """The numbers that `with_parameters` rebuilds the link from, with g."""
        return {"scale": self.scale, "offset": self.offset}


AnyLink: TypeAlias = Link | FittedLink | ScaledLink

_RELU_MEAN = 1.0 / np.sqrt(2.0 * np.pi)  # E max(z, 0) for z ~ N(0, 1)

_LINKS = {
    "identity": Link("identity", lambda h: h, np.ones_like),
    "tanh": Link("tanh", np.tanh, lambda h: 1.0 - np.tanh(h) ** 2),
    "erf": Link("erf", erf, lambda h: 2.0 / np.sqrt(np.pi) * np.exp(-(h**2))),
    "relu": Link("relu", lambda h: np.maximum(h, 0.0) - _RELU_MEAN, lambda h: np.where(h > 0.0, 1.0, 0.0)),
    # x Phi(x): a relu with a smooth corner; E z Phi(z) = 1 / (2 sqrt(pi)).
    "gelu": Link(
        "gelu",
        lambda h: h * ndtr(h) - 0.5 / np.sqrt(np.pi),
        lambda h: ndtr(h) + h * np.exp(-(h**2) / 2.0) * _RELU_MEAN,
    ),
    "quadratic": Link("quadratic", lambda h: h + h**2 - 1.0, lambda h: 1.0 + 2.0 * h),
}
NAMES = tuple(_LINKS)


def link(link: str | Callable[..., object] | None) -> AnyLink:
    """Return the link of that name, or the callable as a link.

    The named links are centred for h2 ~ N(0, 1), so that E g(h2) is about 0 (paper, eq. 2.5):
    ``identity``, ``tanh``, ``erf``, ``relu`` (max(h, 0) less its mean), ``gelu`` (the same with a smooth
    corner) and ``quadratic`` (h + h^2 - 1). A callable is taken as it is; its attribute ``derivative`` is
    used when it has one, central differences otherwise.

    Parameters
    ----------
    link : str, callable, Link, FittedLink, ScaledLink or None
        None is the identity.

    Raises
    ------
    ValueError
        If no link has that name.
    TypeError
        If it is neither a name nor callable.

    References
    ----------
    arXiv 2605.14567, eq. 2.5.
    """
    if link is None:
        return _LINKS["identity"]
    if isinstance(link, (Link, FittedLink, ScaledLink)):
        return link
    if isinstance(link, str):
        if link not in _LINKS:
            msg = f"`link` must be one of {', '.join(NAMES)} or a callable, got {link!r}."
            raise ValueError(msg)
        return _LINKS[link]
    return _from_callable(link)


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
    spread = float(values.std())
    scale, offset = 1.0, float(y.mean()) / unit - float(values.mean())
    if spread > 0.0:
        covariance = float((values - values.mean()) @ y) / (len(y) * unit)
        scale = max(covariance / spread**2, _USELESS / spread)
        offset = float(y.mean()) / unit - scale * float(values.mean())
        start = np.array([offset, scale, 1.0, 0.0])
        bounds = [-np.inf, 0.0, 1.0 / _RESCALED, -np.inf], [np.inf, np.inf, _RESCALED, np.inf]
        fit = least_squares(residuals, start, jac=jacobian, x_scale="jac", bounds=bounds, max_nfev=_FITS)
        offset, scale, factor, shift = (float(value) for value in fit.x)
    else:
        factor, shift = 1.0, 0.0
    return ScaledLink(base, unit * scale, unit * offset), factor, shift


def with_parameters(link: AnyLink, parameters: Mapping[str, ArrayLike]) -> AnyLink:
    """Rebuild a fitted or scaled link from its `parameters`; a link that has none is returned.

    Parameters
    ----------
    link : AnyLink
        g of a scaled link.
    parameters : mapping
        Empty, or `knots` and `values` of a fitted link, or `scale` and `offset` of a scaled one.

    Raises
    ------
    ValueError
        If the knots are not increasing or the arrays differ in length.
    """
    if not parameters:
        return link
    if "scale" in parameters:
        base = link.base if isinstance(link, ScaledLink) else link
        return ScaledLink(base, *(float(np.asarray(parameters[key])) for key in ("scale", "offset")))
    knots = np.array(parameters["knots"], dtype=np.float64).ravel()
    values = np.array(parameters["values"], dtype=np.float64).ravel()
    if knots.size == 0 or knots.size != values.size or np.any(np.diff(knots) <= 0.0):
        msg = (
            "`parameters` must hold increasing `knots` and as many `values`, got"
            f" {knots.size} knots and {values.size} values."
        )
        raise ValueError(msg)
    return FittedLink(knots, values)


def _from_callable(function: Any) -> Link:
    if not callable(function):
        msg = f"`link` must be a name or a callable, got {type(function).__name__}."
        raise TypeError(msg)
    return Link(
        getattr(function, "__name__", type(function).__name__),
        function,
        getattr(function, "derivative", None),
    )


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
        self.spline = _natural(knots, np.eye(len(knots)))

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


def _natural(knots: Array, values: Array) -> CubicSpline:
    # SciPy's natural condition at two knots is the line through them.
    return CubicSpline(knots, values, bc_type="natural")


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


def _values(function: Function, h: ArrayLike, name: str) -> Array:
    h = np.asarray(h, dtype=np.float64)
    values = np.asarray(function(h), dtype=np.float64)
    if values.shape != h.shape:
        msg = f"`link` {name} must return an array of its input's shape {h.shape}, got {values.shape}."
        raise ValueError(msg)
    return values


def _first_bad(values: Array) -> int:
    return int(np.flatnonzero(~np.isfinite(values))[0])
