"""Label transforms t of the moment operator: what weighs a sample in place of its raw label.

The noise of the operator grows with E[t^2] and with the largest |t|, its signal with E[t (h_k^2 - 1)]: a few
huge labels carry much of the first and little of the second, so that bounding them finds more features.
At finite d the size of the inputs does as much harm: |F(x)|^2 varies, and labels follow |x|. "normalised"
takes both out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matfree_hier.kernels import squared_norms
from matfree_hier.linkfit import fit_link
from matfree_hier.links import FittedLink
from matfree_hier.packing import n_packed
from matfree_hier.quantiles import Reduce, Summary
from matfree_hier.theory import conditional_signal, optimal_transform

Array: TypeAlias = NDArray[np.float64]
Parameters: TypeAlias = dict[str, Any]

NAMES = ("identity", "clip", "tanh", "rank", "normalised", "optimal")

_TABLE = 1025  # quantiles kept by "rank"
_SIZE_ROWS = 200_000  # samples whose sizes decide "normalised"
_KEPT_BYTES = 2**28  # of labels and sizes of samples that are dear to read
_SMALLEST = 0.01  # quantile of |F(x)|^2 below which it counts as this quantile
_FLOOR = 0.05  # or as this share of its median


class Sizes(NamedTuple):
    """How large inputs are, each of shape (m,): both are near 1 for N(0, I)."""

    radii: Array
    """|x|^2/d."""
    norms: Array
    """|F(x)|^2/D, a function of |x|."""


Raw: TypeAlias = Callable[[Array, Sizes | None], Array]


def input_sizes(X: ArrayLike, degree: int) -> Sizes:
    """Measure inputs, shape (m, d), for features of that degree: O(d + q) a row, no feature is made."""
    X = np.ascontiguousarray(X, dtype=np.float64)
    norms = np.empty(len(X))
    squared_norms(X, degree, norms)
    d = X.shape[1]
    norms[np.isnan(norms)] = np.inf  # of a difference of overflows
    return Sizes(np.einsum("ij,ij->i", X, X) / d, norms / n_packed(d, degree))


def sized(
    source: Any, degree: int, *, rows: int | None = None, step: int = 1, offset: int = 0
) -> Iterator[tuple[slice, Array | None, Sizes]]:
    """Yield runs of rows, their labels, and the sizes of their inputs.

    Both are kept with a source that is dear to read, 24 bytes a sample, if those of all samples take no more
    than 256 MiB: it is read once, then no more.

    Parameters
    ----------
    source : SampleSource
        Samples in this process.
    degree : int
        Of the features.
    rows : int, optional
        Samples a run.
    step, offset : int
        Labels and sizes are those of every `step`-th sample, `offset` samples coming before these.
    """
    if keep_sizes(source, degree):
        y, radii, norms = _kept_sizes(source, degree)
        count = rows or _SIZE_ROWS
        for first in range(0, source.n_samples, count):
            run = slice(first, min(first + count, source.n_samples))
            picked = slice(first + -(offset + first) % step, run.stop, step)
            yield run, None if y is None else y[picked], Sizes(radii[picked], norms[picked])
        return
    for start, X, y in source.chunks(rows=rows):
        picked = slice(-(offset + start) % step, None, step)
        sizes = input_sizes(X[picked], degree)
        yield slice(start, start + len(X)), None if y is None else y[picked], sizes


def keep_sizes(source: Any, degree: int) -> bool:
    """Read labels and sizes of a source that is dear to read, if it can keep them; say whether it does."""
    keeps = bool(source.reads_ahead and 24 * source.n_samples <= _KEPT_BYTES)
    if keeps:
        _kept_sizes(source, degree)
    return keeps


def forget_sizes(source: Any) -> None:
    """Give the memory of sizes that were kept back."""
    source.computed.clear()


def _kept_sizes(source: Any, degree: int) -> tuple[Array | None, Array, Array]:
    """Return labels and sizes of all samples, read at the first call."""
    key = ("sizes", degree)
    if key not in source.computed:
        y, radii, norms = (np.empty(source.n_samples) for _ in range(3))
        for start, X, labels in source.chunks():
            rows = slice(start, start + len(X))
            radii[rows], norms[rows] = input_sizes(X, degree)
            if labels is not None:
                y[rows] = labels
        source.computed[key] = radii, norms
        if source.has_target:
            source.keep_labels(y)
    return source.labels() if source.has_target else None, *source.computed[key]


@dataclass(frozen=True)
class LabelTransform:
    """A fitted label transform; call it on labels, and on sizes of inputs where it `uses_inputs`.

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
    _raw: Raw = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_raw", _raw(self.name, self.parameters, self.function))

    @property
    def mean(self) -> float:
        """The mean over the labels of the fit before re-centring."""
        return float(self.parameters["mean"])

    @property
    def uses_inputs(self) -> bool:
        """Whether the transform looks at the sizes of the inputs too."""
        return self.name == "normalised"

    def __call__(self, y: ArrayLike, sizes: Sizes | None = None) -> Array:
        """Return the transformed, re-centred labels, float64, of the shape of ``y``.

        Parameters
        ----------
        y : array_like of float, shape (m,)
        sizes : Sizes, optional
            Of the same samples' inputs (`input_sizes`); needed where `uses_inputs` says so.
        """
        if self.uses_inputs and sizes is None:
            msg = "`sizes` must be given to a label transform that uses inputs: those of `input_sizes`."
            raise ValueError(msg)
        return self._raw(np.asarray(y, dtype=np.float64), sizes) - self.mean

    def divisors(self, sizes: Sizes) -> Array:
        """Return what the labels of samples are divided by last, (m,): 1 unless it is "normalised"."""
        if not self.uses_inputs:
            return np.ones(len(sizes.norms))
        return np.asarray(np.maximum(sizes.norms, self.parameters["floor"]))

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
    "normalised": ("values", "levels", "radius", "knots", "expected", "floor"),
    "optimal": ("values", "levels"),
    "callable": (),
}


def fit_label_transform(
    transform: Any,
    labels: Any,
    *,
    degree: int | None = None,
    model: tuple[ArrayLike, ArrayLike] | None = None,
    reduce: Reduce | None = None,
) -> LabelTransform:
    """Fit a label transform to the labels of a sample.

    ``identity`` subtracts the mean, and None leaves the labels as they are (the paper's t = y). ``clip`` is
    clip(y - median, -s, s) with the robust scale s: the standard deviation of the labels after winsorising
    .5 % at either end, so that a few huge labels do not set it. ``tanh`` is s tanh((y - median)/s).
    ``rank`` maps to (-1, 1) by a table of quantiles; it undoes any increasing link. ``normalised`` is
    (rank(y) - E[rank(y) | |x|])/rho, rho = |F(x)|^2/D, the expectation a spline of few degrees of freedom,
    rho no smaller than its 1 % quantile or .05 of its median: what labels owe to |x| alone, and samples with
    large |F(x)|, make the spurious part of the spectrum at finite d. Both divisions matter: each without the
    other can find less than ranks do. ``optimal`` is w/(1 + w), w(y) = E[h_k^2 - 1 | y], the best one for
    Gaussian features of a known model; by the resolvent equations (`theory.predict_spectrum`) ranks come
    within some percent of its overlaps. A callable is applied elementwise. Each is re-centred to mean zero
    over the sample. Constant labels become zeros. Cost O(n log n) time and 16 n bytes; ``normalised`` reads
    the inputs once, and its spline and mean come from at most 200,000 samples, evenly spread.

    Parameters
    ----------
    transform : str, callable, LabelTransform or None
        One of `NAMES`; a fitted transform is returned as it is.
    labels : array_like of float, shape (n,), or iterable of such, or an object with a method ``labels()``
        Labels, finite; an iterable is read once and joined. For ``normalised`` a `SampleSource`.
    degree : int, optional
        For ``normalised``: that of the features.
    model : tuple of array_like of float, each of shape (N,), optional
        For ``optimal``: labels and the latent h_k of simulated samples (`theory.simulate_labels`).
    reduce : callable, optional
        Sums an array over the processes that share the samples (MPI); the medians and quantiles are then
        those of all labels, exactly, and equal on every process. A process may own no label.

    Raises
    ------
    ValueError
        If there are no labels, one is not finite, the name is unknown, a callable returns NaN or infinity, or
        ``normalised`` gets no inputs.
    """
    if isinstance(transform, LabelTransform):
        return transform
    if isinstance(transform, str) and transform not in NAMES:
        msg = f"`label_transform` must be one of {', '.join(NAMES)}, a callable or None, got {transform!r}."
        raise ValueError(msg)
    if transform == "normalised" and (degree is None or reduce is not None or not hasattr(labels, "chunks")):
        msg = (
            "`labels` must be a source with inputs, and `degree` be given, for the label transform"
            " 'normalised'; it cannot be fitted across processes."
        )
        raise ValueError(msg)
    summary = Summary(_gather(labels), reduce)
    if transform is None:
        return LabelTransform("identity", {"mean": 0.0})
    name, function = (transform, None) if isinstance(transform, str) else ("callable", transform)
    if function is not None and not callable(function):
        msg = f"`label_transform` must be a name, a callable or None, got {type(transform).__name__}."
        raise TypeError(msg)
    if name == "normalised":
        assert degree is not None
        return LabelTransform(name, _fit_normalised(_fit_rank(summary), labels, degree))
    parameters = _FITS[name](summary) if name in _FITS else _optimal(model) if name == "optimal" else {}
    raw = _raw(name, parameters, function)
    # About the value at the median, so that constant labels become exact zeros.
    pivot = float(raw(np.array([summary.median]), None)[0])
    parameters["mean"] = pivot + summary.mean(raw(summary.sorted, None) - pivot)
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


def _fit_scaled(summary: Summary) -> Parameters:
    return {"centre": summary.median, "scale": summary.scale()}


def _fit_rank(summary: Summary) -> Parameters:
    ranks = np.unique(np.linspace(0, summary.count - 1, _TABLE).round().astype(np.int64))
    levels = 2.0 * (ranks + 0.5) / summary.count - 1.0
    # Ties share the mean of their levels.
    values, where = np.unique(summary.order(ranks), return_inverse=True)
    if len(values) == 1:
        return {"values": values, "levels": np.zeros(1)}  # exactly
    return {"values": values, "levels": np.bincount(where, levels) / np.bincount(where)}


def _fit_normalised(ranks: Parameters, source: Any, degree: int) -> Parameters:
    """Add to the parameters of the ranks what they owe to |x|, the least norm and the mean."""
    step = -(-source.n_samples // _SIZE_ROWS)
    parts = source.shares.each(_sampled_sizes, ranks, degree, step, placed=True)
    t, radii, norms = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not np.isfinite(radii).all():
        source.validate()  # raises, and names the row
        msg = "Squares of inputs overflow: scale the columns of `X` to unit variance."
        raise FloatingPointError(msg)
    radius = float(np.median(radii)) or float(radii.mean()) or 1.0
    expected = fit_link(radii / (radii + radius), t)
    small, middle = np.quantile(norms, [_SMALLEST, 0.5], method="lower")
    floor = max(float(small), _FLOOR * float(middle))
    p = {
        **ranks,
        "radius": radius,
        "knots": expected.knots,
        "expected": expected.values,
        "floor": floor or float(norms.mean()) or 1.0,
    }
    left = t - _owed_to_radius(p, radii)
    p["mean"] = float(np.mean(left / np.maximum(norms, p["floor"])))
    return p


def _sampled_sizes(source: Any, offset: int, ranks: Parameters, degree: int, step: int) -> tuple[Array, ...]:
    """Return ranks and sizes of every `step`-th sample, all shares counted."""
    parts = [(np.empty(0),) * 3]
    for _, y, sizes in sized(source, degree, step=step, offset=offset):
        assert y is not None
        parts.append((np.interp(y, ranks["values"], ranks["levels"]), *sizes))
    t, radii, norms = (np.concatenate(part) for part in zip(*parts, strict=True))
    return t, radii, norms


def _owed_to_radius(p: Mapping[str, Any], radii: Array) -> Array:
    """E[rank(y) | |x|]: a spline in r/(r + median r), which is bounded, as ranks are."""
    link = FittedLink(p["knots"], p["expected"])
    return np.clip(link(radii / (radii + p["radius"])), -1.0, 1.0)


def _optimal(model: tuple[ArrayLike, ArrayLike] | None) -> Parameters:
    if model is None:
        msg = (
            "`model` must give simulated labels and latents for the label transform 'optimal',"
            " as `theory.simulate_labels` returns them; without a model, 'rank' comes close."
        )
        raise ValueError(msg)
    y, signal = conditional_signal(*model)
    return {"values": y, "levels": optimal_transform(signal)}


_FITS: dict[str, Callable[[Summary], Parameters]] = {
    "clip": _fit_scaled,
    "tanh": _fit_scaled,
    "rank": _fit_rank,
}


def _raw(name: str, p: Mapping[str, Any], function: Callable[[Array], ArrayLike] | None) -> Raw:
    """Return the transform before re-centring."""
    if name == "callable":
        assert function is not None
        return lambda y, _: _checked(function, y)
    if name == "clip":
        return lambda y, _: np.clip(_less(y, p["centre"]), -p["scale"], p["scale"])
    if name == "tanh":
        return lambda y, _: np.asarray(p["scale"] * np.tanh(_less(y, p["centre"]) / p["scale"]))
    if name in ("rank", "optimal"):
        return lambda y, _: np.asarray(np.interp(y, p["values"], p["levels"]))
    if name == "normalised":
        return lambda y, sizes: _normalised(p, y, sizes)
    return lambda y, _: y


def _normalised(p: Mapping[str, Any], y: Array, sizes: Sizes | None) -> Array:
    assert sizes is not None
    t = np.interp(y, p["values"], p["levels"]) - _owed_to_radius(p, sizes.radii)
    return np.asarray(t / np.maximum(sizes.norms, p["floor"]))


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
