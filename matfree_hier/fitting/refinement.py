"""The course of a refinement: a search judged on held-out samples, then a fit to all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.fitting.factor import Factor, Samples, Work
from matfree_hier.fitting.sensing import Sensing
from matfree_hier.linkfit import fit_link, fit_scale
from matfree_hier.links import AnyLink, FittedLink, ScaledLink, with_parameters
from matfree_hier.links import link as named_link
from matfree_hier.metric import preconditioner
from matfree_hier.smooth import bulk_edge
from matfree_hier.solvers.space import PLAIN, MetricSpace, Space
from matfree_hier.status import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matfree_hier.metric import Metric
    from matfree_hier.sources import SampleSource

Array: TypeAlias = NDArray[np.float64]

REVIEW = 5  # steps between reviews: components added and removed, latents computed anew, state handed out
_FIRST_RIDGE = 2.0  # in units of the noise (`_ridge`): about where the first components appear
_HALVINGS = 5.0  # of the ridge in the course of the search
_LAST_SHARE = 0.25  # of the steps are for the last fit, on all samples
_PATIENCE = 6  # steps without a lower held-out error before the search ends
_MOST_COMPONENTS = 64  # unless asked for, for the sake of time
_NEGLIGIBLE = 1e-4  # share of the variance for which no component is added
_LINK_KNOTS = 12  # of a link fitted on the way
_LINK_ROWS = 100_000  # samples that decide it
_FAITHFUL = 2.0  # held-out over training error below which h is as good on one as on the other
_RECORD = ("step", "held_out", "train", "ridge", "n_components")
_COUNTS = ("phase", "step", "last_step", "best_step")
_SAVED = (*_COUNTS, "error", "start_error", "best_error", "level", "best_level", "optimism")


@dataclass(frozen=True, eq=False)
class Refined:
    """What a refinement returns: y = link(offset + sum_k weights_k (h_k^2 - 1)/sqrt 2), h = <features, F>.

    Attributes
    ----------
    features : ndarray of float64, shape (K, D)
        Orthonormal rows, the largest |weight| first.
    weights : ndarray of float64, shape (K,)
    offset : float
        Inside the link; 0 for a fitted one.
    link : Link, FittedLink or ScaledLink
    status : Status
    n_passes : float
        Passes over all samples: one forward and one backward product of a block, whatever its width.
    n_steps : int
        Steps taken, those of the last fit included.
    start_error, held_out_error : float
        Mean squared error over the variance of the labels, on the held-out samples: of the start, and of
        the best factor found without them (before the last fit, which uses them too).
    held_out : ndarray of float64, shape (m,)
        What that factor predicts of the held-out samples.
    history : dict of str to ndarray of float64, shape (m,)
        A record a step: ``step``, ``held_out`` and ``train`` (errors over the variance of the labels; NaN
        for the held-out one in the last fit), ``ridge`` (in units of the noise), ``n_components``.
    """

    features: Array
    weights: Array
    offset: float
    link: AnyLink
    status: Status
    n_passes: float
    n_steps: int
    start_error: float
    held_out_error: float
    held_out: Array
    history: dict[str, Array]


class Watcher(Protocol):
    """Who wants to know how a refinement goes."""

    def show(self, run: Refinement) -> None:
        """Take note of the step just taken."""

    def keep(self, run: Refinement) -> None:
        """Take note of `run.state()`, from which the course can be resumed."""


class Refinement:
    """One call of `refine`, its arguments checked; `state` is all that its course depends on."""

    def __init__(
        self,
        parts: tuple[SampleSource, SampleSource],
        degree: int,
        dtype: np.dtype[Any],
        link: AnyLink | None,
        n_features: int | None,
        max_steps: int,
        latent_bytes: float,
        seed: int,
        metric: Metric | None = None,
    ) -> None:
        self.space: Space = PLAIN
        self.noise_share, self.metric = 1.0, metric
        if metric is not None:
            self.space = MetricSpace(metric, preconditioner(metric, "exact"))
            self.noise_share = bulk_edge(metric, metric.size, 2.0) / 2.0  # of the edge of the plain noise
        self.link, self.fixed, self.latent_bytes, self.seed = link, n_features, latent_bytes, seed
        y = np.concatenate([part.labels() for part in parts])
        self.origin, self.unit = float(y.mean()), float(y.std()) or 1.0
        self.work = Work(len(y))
        self.train, self.held_out, self.all = (
            Samples(each, degree, dtype, self.origin, self.unit, self.work)
            for each in (parts[:1], parts[1:], parts)
        )
        self.n_packed = self.all.n_packed
        self.n_last = floor(_LAST_SHARE * max_steps)
        self.n_search = max_steps - self.n_last
        # More components than that have more parameters than there are samples, by half.
        affordable = max(4, ceil(1.5 * self.train.n / self.n_packed))
        self.most = n_features or min(self.n_packed, affordable, _MOST_COMPONENTS)
        self.phase, self.step, self.best_step = "search", 0, 0
        self.error = self.start_error = self.best_error = np.inf
        self.level = self.best_level = _FIRST_RIDGE
        self.optimism, self.last_step = 1.0, 0
        self.factor: Factor
        self.best: Factor
        self.records: list[tuple[float, ...]] = []

    # --- the course ----------------------------------------------------------------------------------------

    def begin(self, features: Array, weights: Array) -> None:
        """Judge the start, and add components to it."""
        W = features.T * np.sqrt(np.abs(weights) / sqrt(2.0))
        signs = np.where(weights < 0.0, -1.0, 1.0)
        start = _fitted_scale(Factor(W, signs, 0.0, self.link or named_link("identity")), self.held_out)
        start = self._judge(start, 0)
        self.start_error = self.error
        wanted = self._wanted(len(signs))
        self.factor = self._widened(start.diagonalised().leading(wanted), wanted)
        self.previous = W[:, :0]

    def search(self, watcher: Watcher) -> None:
        """Take steps on the training part for as long as the held-out error falls."""
        sensing = self._sensing(self.train)
        while self.step < self.n_search and not self.settled:
            if sensing.n_steps == REVIEW:
                self.factor, self.previous = self._reviewed(sensing.factor), sensing.previous
                watcher.keep(self)
                del sensing  # its latents, before there are others
                sensing = self._sensing(self.train)
            sensing.step(self._ridge(sensing, self.error))
            self._judge(sensing.factor, self.step + 1, sensing)
            self._advance(self.error, sensing)
            watcher.show(self)

    def fit_all(self, watcher: Watcher) -> None:
        """Take some steps on all samples, from the best factor and with its penalty."""
        if self.phase == "search":
            self._end_search()
            watcher.keep(self)
        if self.step == self.last_step:
            return
        sensing = self._sensing(self.all)
        while self.step < self.last_step:
            if sensing.n_steps == REVIEW:
                self.factor, self.previous = sensing.factor, sensing.previous
                watcher.keep(self)
                del sensing  # its latents, before there are others
                sensing = self._sensing(self.all)
            # How much larger the error is on samples not fitted to is known from the search.
            sensing.step(self._ridge(sensing, self.optimism * sensing.error))
            if self._adapts and self.optimism < _FAITHFUL:
                sensing.relink(*self._relinked(sensing.factor, [(sensing.h, self.all.y)]))
            self._advance(np.nan, sensing)
            watcher.show(self)
        self.factor = sensing.factor

    def _end_search(self) -> None:
        """Take the useful components of the best factor."""
        self.phase = "all"
        factor = self.best.diagonalised()
        self.factor = self.best = factor.leading(self._n_useful(factor, 0.0))
        self.previous = factor.W[:, :0]
        improved = self.best_step > 0 and len(self.factor.signs) > 0
        self.last_step = self.step + (self.n_last if improved else 0)
        if self.settled:
            self.level = self.best_level

    @property
    def outcome(self) -> Status:
        """How the course ended."""
        if not len(self.factor.signs):
            return Status.NO_FEATURE_FOUND
        return Status.SETTLED if self.settled else Status.MAX_STEPS

    @property
    def settled(self) -> bool:
        """Whether the held-out error has stopped falling."""
        return min(self.step, self.n_search) - self.best_step >= _PATIENCE

    def _sensing(self, samples: Samples) -> Sensing:
        return Sensing(samples, self.factor, self.previous, self.latent_bytes, self.space)

    def _ridge(self, sensing: Sensing, error: float) -> float:
        """Return the level in units of the noise: the size of a gradient of residuals of this mean square."""
        noise = sqrt(error * sensing.mean_square_slope * self.n_packed / sensing.samples.n)
        return max(self.level * self.noise_share * noise, 1e-12)

    def _advance(self, held_out: float, sensing: Sensing) -> None:
        """Record the step, and lower the ridge: as long as the held-out error falls, it wants lowering."""
        self.step += 1
        errors = held_out, sensing.error
        self.records.append((self.step, *errors, self.level, len(sensing.factor.signs)))
        if self.phase == "search" or not self.settled:
            self.level *= 2.0 ** (-_HALVINGS / self.n_search)

    # --- judging on held-out samples -----------------------------------------------------------------------

    def _judge(self, factor: Factor, step: int, sensing: Sensing | None = None) -> Factor:
        """Set `error` to the held-out error, and keep the factor if it is the best.

        The link, or the scale of one that is given, is fitted anew: to held-out samples, where h is not
        adapted to the noise, and to the others too once that makes little difference. Returns the factor
        with it.
        """
        h = self.held_out.combined(factor)
        if self._adapts:
            known = [(h, self.held_out.y)]
            if sensing is not None and self.error < _FAITHFUL * sensing.error:
                known.append((sensing.h, self.train.y))
            factor, scale = self._relinked(factor, known)
            h *= scale
            if sensing is not None:
                sensing.relink(factor, scale)
        self.error = float(np.mean((factor.link(h + factor.shift) - self.held_out.y) ** 2))
        if self.error < self.best_error:
            self.best, self.best_step, self.best_error = factor, step, self.error
            self.best_level = self.level
            if sensing is not None:
                self.optimism = self.error / (sensing.error or 1.0)
        return factor

    @property
    def _adapts(self) -> bool:
        return self.link is None or self.link.name != "identity"

    def _relinked(self, factor: Factor, known: list[tuple[Array, Array]]) -> tuple[Factor, float]:
        """Fit the link to pairs of h and labels; return the factor with it, and what h is multiplied with.

        With a fitted link h is scaled to where the root mean square of the slope is 1, without which the
        ridge has no meaning.
        """
        step = -(-sum(len(h) for h, _ in known) // _LINK_ROWS)
        h, y = (np.concatenate([array[::step] for array in arrays]) for arrays in zip(*known, strict=True))
        if self.link is not None:
            scaled, scale, shift = fit_scale(self.link, h + factor.shift, y)
            return replace(factor.scaled(scale), shift=scale * factor.shift + shift, link=scaled), scale
        link = fit_link(h, y, degrees_of_freedom=_LINK_KNOTS)
        scale = sqrt(float(np.mean(link.derivative(h) ** 2))) or 1.0
        link = FittedLink(link.knots * scale, link.values)
        return replace(factor.scaled(scale), shift=0.0, link=link), scale

    def _n_useful(self, diagonalised: Factor, tolerance: float) -> int:
        """Return the fewest leading components with a held-out error at most `tolerance` above the least."""
        errors = self.held_out.errors_by_count(diagonalised)
        return self.fixed or int(np.argmax(errors <= errors.min() + tolerance))

    def _reviewed(self, factor: Factor) -> Factor:
        """Return the useful components with spare ones beside them: the next weaker, or new ones."""
        factor = factor.diagonalised()
        wanted = self._wanted(self._n_useful(factor, _NEGLIGIBLE))
        return self._widened(factor.leading(wanted), wanted)

    def _wanted(self, n_useful: int) -> int:
        return self.fixed or min(self.most, n_useful + max(4, n_useful // 2))

    def _widened(self, factor: Factor, n_components: int) -> Factor:
        """Add random components of both signs, which together add little to the error."""
        count = n_components - len(factor.signs)
        if count <= 0:
            return factor
        drawn = np.random.default_rng([self.seed, self.step]).standard_normal((self.n_packed, count))
        drawn = self.space.directions(drawn)
        length = (0.005 * self.error / count) ** 0.25
        W = np.hstack([factor.W, drawn * (length / np.linalg.norm(drawn, axis=0))])
        return replace(factor, W=W, signs=np.append(factor.signs, np.where(np.arange(count) % 2, -1.0, 1.0)))

    # --- results and state ---------------------------------------------------------------------------------

    def result(self, status: Status) -> Refined:
        """Return the factor in the paper's form: M = sum_k lambda_k A_k A_k^T / sqrt 2."""
        factor = (self.factor if self.phase == "all" else self.best).diagonalised()
        sizes, link = factor.sizes, factor.link
        kept = np.abs(sizes) > 1e-12 * np.abs(sizes).max(initial=0.0)
        weights, offset = sizes[kept] * sqrt(2.0), factor.shift + float(sizes[kept].sum())
        if isinstance(link, ScaledLink):
            link = ScaledLink(link.base, self.unit * link.scale, self.origin + self.unit * link.offset)
        elif self.link is None and isinstance(link, FittedLink):
            link = FittedLink(link.knots - offset, self.origin + self.unit * link.values)
            offset = 0.0
        else:
            weights, offset = weights * self.unit, self.origin + self.unit * offset
        columns = np.array(self.records).reshape(-1, len(_RECORD)).T
        return Refined(
            np.ascontiguousarray((factor.W[:, kept] / np.sqrt(np.abs(sizes[kept]))).T),
            weights,
            offset,
            link,
            status,
            self.work.passes,
            self.step,
            self.start_error,
            self.best_error,
            self.origin + self.unit * self.best.link(self.held_out.combined(self.best) + self.best.shift),
            dict(zip(_RECORD, columns, strict=True)),
        )

    def _call(self) -> dict[str, Any]:
        """Return what a state must agree on with the call that goes on from it."""
        return {
            "n_train": self.train.n,
            "n_held_out": self.held_out.n,
            "n_packed": self.n_packed,
            "degree": self.all.degree,
            "dtype": self.all.dtype.name,
            "link": "auto" if self.link is None else self.link.name,
            "n_features": self.fixed or 0,
            "max_steps": self.n_search + self.n_last,
            "seed": self.seed,
            "metric": "" if self.metric is None else self.metric.fingerprint(),
        }

    def state(self) -> dict[str, Any]:
        """Return all that the rest of the course depends on."""
        values = {f"call_{name}": value for name, value in self._call().items()}
        values |= {name: getattr(self, name) for name in _SAVED}
        values |= {"previous": self.previous, "products": self.work.products}
        values["records"] = np.array(self.records).reshape(-1, len(_RECORD))
        for name in ("factor", "best"):
            factor = getattr(self, name)
            values |= {f"{name}_W": factor.W, f"{name}_signs": factor.signs, f"{name}_shift": factor.shift}
            if isinstance(factor.link, FittedLink | ScaledLink):
                values |= {f"{name}_link_{key}": value for key, value in factor.link.parameters.items()}
        return values

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go back to a state.

        Raises
        ------
        ValueError
            If it is that of another call.
        """
        for name, value in self._call().items():
            found = state.get(f"call_{name}")
            if found != value:
                msg = f"`state` must come from the same call, got {found!r} for its `{name}`, now {value!r}."
                raise ValueError(msg)
        for name in _SAVED:
            setattr(self, name, type(getattr(self, name))(state[name]))
        self.previous, self.work.products = np.asarray(state["previous"]), int(state["products"])
        self.records = [tuple(row) for row in np.asarray(state["records"]).tolist()]
        for name in ("factor", "best"):
            link = self.link or named_link("identity")
            kept = {key: state[key] for key in state if key.startswith(f"{name}_link_")}
            link = with_parameters(link, {key.rsplit("_", 1)[1]: value for key, value in kept.items()})
            W, signs = np.asarray(state[f"{name}_W"]), np.asarray(state[f"{name}_signs"])
            setattr(self, name, Factor(W, signs, float(state[f"{name}_shift"]), link))


def _fitted_scale(factor: Factor, samples: Samples) -> Factor:
    """Scale h to fit the labels best by least squares."""
    h, y, size = samples.combined(factor), samples.y, float(factor.sizes.sum())
    spread = float(h.std())
    if spread == 0.0:
        return replace(factor, shift=0.0)
    if factor.link.name == "identity":
        slope = float(np.mean((h - h.mean()) * y)) / spread**2
        scale = max(slope, 0.1 * float(y.std()) / spread)  # a useless start is made small
        return replace(factor.scaled(scale), shift=float(y.mean() - scale * h.mean()))
    link, scale, shift = fit_scale(factor.link, (h - size) / spread, y)
    scale /= spread
    return replace(factor.scaled(scale), shift=shift - scale * size, link=link)
