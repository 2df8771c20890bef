"""Label transforms t of the moment operator: what weighs a sample in place of its raw label.

The noise of the operator grows with E[t^2] and with the largest |t|, its signal with E[t (h_k^2 - 1)]: a few
huge labels carry much of the first and little of the second, so that bounding them finds more features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matfree_hier.theory import conditional_signal, optimal_transform

Array: TypeAlias = NDArray[np.float64]
Reduce: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
Parameters: TypeAlias = dict[str, Any]

NAMES = ("identity", "clip", "tanh", "rank", "optimal")

_TAIL = 0.005  # the share of labels at either end that the robust scale does not follow
_TABLE = 1025  # quantiles kept by "rank"


@dataclass(frozen=True)
class LabelTransform:
    """A fitted label transform; call it on labels.

    Attributes
    ----------
    name : str
        One of `NAMES`, or ``"callable"``.
    parameters : dict of str to float or ndarray of float64
        What `from_parameters` rebuilds it from; ``"mean"`` is what is subtracted last, so that the
        transformed labels of the fit average to zero.
    function : callable or None
        The user's function when the name is ``"callable"``.
    """

    name: str
    parameters: Mapping[str, Any]
    function: Callable[[Array], ArrayLike] | None = None
    _raw: Callable[[Array], Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_raw", _raw(self.name, self.parameters, self.function))

    @property
    def mean(self) -> float:
        """The mean over the labels of the fit before re-centring."""
        return float(self.parameters["mean"])

    def __call__(self, y: ArrayLike) -> Array:
        """Return the transformed, re-centred labels, float64, of the shape of ``y``."""
        return self._raw(np.asarray(y, dtype=np.float64)) - self.mean

    def __reduce__(self) -> tuple[Any, ...]:
        return LabelTransform, (self.name, self.parameters, self.function)

    @classmethod
    def from_parameters(
        cls, name: str, parameters: Mapping[str, Any], function: Callable[[Array], ArrayLike] | None = None
    ) -> LabelTransform:
        """Rebuild a transform from its name and `parameters`; a callable has to be given again.

        Raises
        ------
        ValueError
            If the name is unknown, a parameter is missing, or the function of a callable is not given.
        """
        if name not in (*NAMES, "callable"):
            msg = f"`name` must be one of {', '.join((*NAMES, 'callable'))}, got {name!r}."
            raise ValueError(msg)
        if name == "callable" and function is None:
            msg = "`function` must be given again: a label transform that is a callable is not stored."
            raise ValueError(msg)
        missing = [key for key in (*_KEYS[name], "mean") if key not in parameters]
        if missing:
            msg = f"`parameters` of the label transform {name} must hold {', '.join(missing)}."
            raise ValueError(msg)
        kept = {key: np.array(parameters[key], dtype=np.float64) for key in (*_KEYS[name], "mean")}
        return cls(name, {key: v if v.ndim else float(v) for key, v in kept.items()}, function)


_KEYS: dict[str, tuple[str, ...]] = {
    "identity": (),
    "clip": ("centre", "scale"),
    "tanh": ("centre", "scale"),
    "rank": ("values", "levels"),
    "optimal": ("values", "levels"),
    "callable": (),
}


def fit_label_transform(
    transform: Any,
    labels: Any,
    *,
    model: tuple[ArrayLike, ArrayLike] | None = None,
    reduce: Reduce | None = None,
) -> LabelTransform:
    """Fit a label transform to the labels of a sample.

    ``identity`` subtracts the mean, and None leaves the labels as they are (the paper's t = y). ``clip`` is
    clip(y - median, -s, s) with the robust scale s: the standard deviation of the labels after winsorising
    .5 % at either end, so that a few huge labels do not set it. ``tanh`` is s tanh((y - median)/s).
    ``rank`` maps to (-1, 1) by a table of quantiles; it undoes any increasing link. ``optimal`` is
    w/(1 + w), w(y) = E[h_k^2 - 1 | y], the best one for a feature of a known model; by the resolvent
    equations (`theory.predict_spectrum`) ranks come within some percent of its overlaps. A callable is
    applied elementwise. Each is re-centred to mean zero over the sample. Constant labels become zeros.
    Cost O(n log n) time and 16 n bytes.

    Parameters
    ----------
    transform : str, callable, LabelTransform or None
        One of `NAMES`; a fitted transform is returned as it is.
    labels : array_like of float, shape (n,), or iterable of such, or an object with a method ``labels()``
        Labels, finite; an iterable is read once and joined.
    model : tuple of array_like of float, each of shape (N,), optional
        For ``optimal``: labels and the latent h_k of simulated samples (`theory.simulate_labels`).
    reduce : callable, optional
        Sums an array over the processes that share the samples (MPI); the medians and quantiles are then
        those of all labels, exactly, and equal on every process. A process may own no label.

    Raises
    ------
    ValueError
        If there are no labels, one is not finite, the name is unknown, or a callable returns NaN or infinity.
    """
    if isinstance(transform, LabelTransform):
        return transform
    if isinstance(transform, str) and transform not in NAMES:
        msg = f"`label_transform` must be one of {', '.join(NAMES)}, a callable or None, got {transform!r}."
        raise ValueError(msg)
    summary = _Summary(_gather(labels), reduce)
    if transform is None:
        return LabelTransform("identity", {"mean": 0.0})
    name, function = (transform, None) if isinstance(transform, str) else ("callable", transform)
    if function is not None and not callable(function):
        msg = f"`label_transform` must be a name, a callable or None, got {type(transform).__name__}."
        raise TypeError(msg)
    parameters = _FITS[name](summary) if name in _FITS else _optimal(model) if name == "optimal" else {}
    raw = _raw(name, parameters, function)
    # About the value at the median, so that constant labels become exact zeros.
    pivot = float(raw(np.array([summary.median]))[0])
    parameters["mean"] = pivot + summary.mean(raw(summary.sorted) - pivot)
    return LabelTransform(name, parameters, function)


def _gather(labels: Any) -> Array:
    if callable(getattr(labels, "labels", None)):
        labels = labels.labels()
    if not hasattr(labels, "__array__") and isinstance(labels, Iterable):
        parts = [np.asarray(part, dtype=np.float64) for part in labels]
        labels = np.concatenate([part.ravel() for part in parts]) if parts else np.empty(0)
    y = np.asarray(labels, dtype=np.float64)
    if y.ndim != 1:
        msg = f"`labels` must be a vector, got shape {y.shape}."
        raise ValueError(msg)
    bad = np.flatnonzero(~np.isfinite(y))
    if bad.size:
        msg = f"`labels` must be finite, got {y[bad[0]]} at row {bad[0]}."
        raise ValueError(msg)
    return y


class _Summary:
    """Counts, sums and exact order statistics of labels that may be spread over processes."""

    def __init__(self, y: Array, reduce: Reduce | None) -> None:
        self.sorted: Array = np.sort(y) + 0.0  # adding zero turns -0.0 into 0.0
        self.reduce = reduce
        self.count = int(self._total(np.array([len(y)]))[0])
        if self.count == 0:
            msg = "`labels` must hold at least one label, got none."
            raise ValueError(msg)
        self.low, self.high = (float(v) for v in self.order([0, self.count - 1]))
        self.median = float(self.quantile([0.5])[0])

    def _total(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self.reduce is None else np.asarray(self.reduce(values))

    def average(self, local_sum: Array) -> Array:
        """Return the mean over all samples from the sum over those of this process."""
        return np.asarray(self._total(local_sum) / self.count)

    def mean(self, values: Array) -> float:
        """Return the mean over all samples of ``values``, one a label of this process."""
        return float(self.average(np.array([values.sum()]))[0])

    def order(self, ranks: ArrayLike) -> Array:
        """Return the order statistics of the given ranks, 0-based."""
        ranks = np.asarray(ranks, dtype=np.int64)
        if self.reduce is None:
            return np.asarray(self.sorted[ranks])
        # Bisection over the 2^64 float64 bit patterns, made monotone: all ranks at once, exact.
        flip = np.int64(2**63 - 1)
        bits = self.sorted.view(np.int64)
        keys = bits ^ ((bits >> 63) & flip)
        low = np.full(ranks.shape, np.iinfo(np.int64).min)
        high = np.full(ranks.shape, np.iinfo(np.int64).max)
        for _ in range(64):
            middle = (low & high) + ((low ^ high) >> 1)
            enough = self._total(np.searchsorted(keys, middle, side="right")) > ranks
            high = np.where(enough, middle, high)
            low = np.where(enough, low, middle + 1)
        return np.asarray(low ^ ((low >> 63) & flip)).view(np.float64)

    def quantile(self, levels: ArrayLike) -> Array:
        """Return quantiles, linear between order statistics."""
        at = np.asarray(levels, dtype=np.float64) * (self.count - 1)
        below = np.floor(at).astype(np.int64)
        a, b = self.order(below), self.order(np.minimum(below + 1, self.count - 1))
        share = at - below
        return np.asarray(a * (1.0 - share) + b * share)

    def scale(self) -> float:
        """Return the winsorised standard deviation; that of all labels when most are equal; 1 if all are."""
        if self.low == self.high:
            return 1.0
        low, high = self.quantile([_TAIL, 1.0 - _TAIL])
        return self._deviation(low, high) or self._deviation(self.low, self.high) or 1.0

    def _deviation(self, low: float, high: float) -> float:
        # In units of half the range, so that no square overflows.
        half = high / 2.0 - low / 2.0
        if half == 0.0:
            return 0.0
        y = (np.clip(self.sorted, low, high) - low) / half
        mean = self.mean(y)
        return float(half * np.sqrt(self.mean((y - mean) ** 2)))


def _fit_scaled(summary: _Summary) -> Parameters:
    return {"centre": summary.median, "scale": summary.scale()}


def _fit_rank(summary: _Summary) -> Parameters:
    ranks = np.unique(np.linspace(0, summary.count - 1, _TABLE).round().astype(np.int64))
    levels = 2.0 * (ranks + 0.5) / summary.count - 1.0
    # Ties share the mean of their levels.
    values, where = np.unique(summary.order(ranks), return_inverse=True)
    return {"values": values, "levels": np.bincount(where, levels) / np.bincount(where)}


def _optimal(model: tuple[ArrayLike, ArrayLike] | None) -> Parameters:
    if model is None:
        msg = (
            "`model` must give simulated labels and latents for the label transform 'optimal',"
            " as `theory.simulate_labels` returns them; without a model, 'rank' comes close."
        )
        raise ValueError(msg)
    y, signal = conditional_signal(*model)
    return {"values": y, "levels": optimal_transform(signal)}


_FITS: dict[str, Callable[[_Summary], Parameters]] = {
    "clip": _fit_scaled,
    "tanh": _fit_scaled,
    "rank": _fit_rank,
}


def _raw(
    name: str, p: Mapping[str, Any], function: Callable[[Array], ArrayLike] | None
) -> Callable[[Array], Array]:
    """Return the transform before re-centring."""
    if name == "callable":
        assert function is not None
        return lambda y: _checked(function, y)
    if name == "clip":
        return lambda y: np.clip(_less(y, p["centre"]), -p["scale"], p["scale"])
    if name == "tanh":
        return lambda y: np.asarray(p["scale"] * np.tanh(_less(y, p["centre"]) / p["scale"]))
    if name in ("rank", "optimal"):
        return lambda y: np.asarray(np.interp(y, p["values"], p["levels"]))
    return lambda y: y


def _less(y: Array, centre: float) -> Array:
    with np.errstate(over="ignore"):  # a difference past the largest float is infinite, and is clipped
        return y - centre


def _checked(function: Callable[[Array], ArrayLike], y: Array) -> Array:
    t = np.asarray(function(y), dtype=np.float64)
    if t.shape != y.shape:
        msg = f"`label_transform` must return an array of its input's shape {y.shape}, got {t.shape}."
        raise ValueError(msg)
    bad = np.flatnonzero(~np.isfinite(t))
    if bad.size:
        msg = f"`label_transform` must be finite, got {t.flat[bad[0]]} for the label {y.flat[bad[0]]}."
        raise ValueError(msg)
    return t
