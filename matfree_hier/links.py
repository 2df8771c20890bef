"""Links g of the model y = g(h2) + noise: by name, from a callable, or what was fitted to samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import CubicSpline
from scipy.special import erf, ndtr

Array: TypeAlias = NDArray[np.float64]
Function: TypeAlias = Callable[[Array], Array]


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
            object.__setattr__(self, "_spline", natural_spline(self.knots, self.values))

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
        """That of g, and that it is scaled."""
        return f"scaled {self.base.name}"

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


def natural_spline(knots: Array, values: Array) -> CubicSpline:
    """Return the natural cubic spline through values at knots, at least two."""
    # SciPy's natural condition at two knots is the line through them.
    return CubicSpline(knots, values, bc_type="natural")


def _values(function: Function, h: ArrayLike, name: str) -> Array:
    h = np.asarray(h, dtype=np.float64)
    values = np.asarray(function(h), dtype=np.float64)
    if values.shape != h.shape:
        msg = f"`link` {name} must return an array of its input's shape {h.shape}, got {values.shape}."
        raise ValueError(msg)
    return values
