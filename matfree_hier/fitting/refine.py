"""Refinement of spectral features by low-rank sensing: the model fitted to the labels themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from matfree_hier.blas import single_threaded_blas
from matfree_hier.checks import integer
from matfree_hier.fitting.prepare import split
from matfree_hier.fitting.refinement import Refined, Refinement
from matfree_hier.links import AnyLink
from matfree_hier.links import link as named_link
from matfree_hier.operands import MAX_DEGREE
from matfree_hier.packing import check_size
from matfree_hier.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matfree_hier.metric import Metric
    from matfree_hier.sources import SampleSource

__all__ = ["Refined", "refine"]

Array: TypeAlias = NDArray[np.float64]

_HELD_OUT = 5000  # samples held out, within 2 to 10 % of all


def refine(
    source: SampleSource,
    features: ArrayLike,
    weights: ArrayLike,
    *,
    degree: int,
    held_out: SampleSource | None = None,
    link: str | Callable[..., Any] | AnyLink = "identity",
    n_features: int | None = None,
    max_steps: int = 40,
    dtype: Any = None,
    latent_bytes: float = 2**30,
    seed: int = 3,
    metric: Metric | None = None,
    progress: bool | None = None,
    callback: Callable[[dict[str, Any]], object] | None = None,
    state: Mapping[str, Any] | None = None,
) -> Refined:
    """Fit y = g(offset + sum_k weights_k (h_k^2 - 1)/sqrt 2) by least squares, from a spectral estimate.

    Steps are taken on one part of the samples under a penalty that falls, components are added and removed
    and the best step is chosen on the held-out rest, and then all samples are fitted with those choices: so
    the held-out error is never above that of the start. A step is one backward and one forward product:
    4 n D K operations; memory is about 80 D K bytes and `latent_bytes`.

    Parameters
    ----------
    source : SampleSource
        Samples with labels.
    features : array_like of float, shape (K, D)
        Rows to start from, about orthonormal; weak and wrong ones do no harm, and K may be 0.
    weights : array_like of float, shape (K,)
        Their weights, of which signs and ratios count: eigenvalues will do.
    degree : int
        Of the features.
    held_out : SampleSource, optional
        Samples that the start has not seen either; by default 5000 of those of `source` are set aside,
        but 2 % at least and 10 % at most.
    link : str, callable, Link or FittedLink
        g: a name, "auto" to fit one on the way, or a callable (with its ``derivative``, if it has one). One
        that is given is so but for the units of the labels: what is returned is a `ScaledLink`.
    n_features : int, optional
        The number of components; by default it is chosen on the held-out samples.
    max_steps : int
        At least 1; a quarter of them is for the last fit.
    dtype : {None, "float32", "float64"}
        Of the products; None: that of the source.
    latent_bytes : float
        Memory for latents, 12 n K bytes in float32; with less, a step costs two passes instead of one.
    seed : int
        Of the held-out part and of new components.
    metric : Metric, optional
        B of the penalty tr W^T B W, by default the identity: keeps features smooth.
    progress : bool, optional
        Show progress on standard error; by default on a terminal only.
    callback : callable, optional
        Called every 5 steps with the state: a dict of arrays, numbers and strings to be kept.
    state : mapping, optional
        Such a state: the same call goes on from there, to the same bits.

    Returns
    -------
    Refined

    Raises
    ------
    ValueError
        If an argument is out of its bounds or shapes disagree.
    MemoryError
        If the factor does not fit in memory.

    References
    ----------
    The model is that of arXiv:2605.14567, equations (2.4) and (2.5), which does not have this estimator. It
    is low-rank sensing with the nuclear norm as penalty: B. Recht, M. Fazel, P. Parrilo, Guaranteed
    minimum-rank solutions of linear matrix equations, SIAM Review 52 (2010), doi:10.1137/070697835.
    """
    size = check_size(source.n_inputs, integer("degree", degree, 1, MAX_DEGREE))
    A, w = _start(features, weights, size)
    if held_out is None:
        share = min(0.1, max(0.02, _HELD_OUT / source.n_samples))
        source, held_out = split(source, share, seed)
    if source.n_samples < 2 or held_out.n_samples < 2:
        counts = f"{source.n_samples} and {held_out.n_samples}"
        msg = f"`source` and the part held out must have at least 2 samples each, got {counts}."
        raise ValueError(msg)
    run = Refinement(
        (source, held_out),
        degree,
        np.dtype(source.dtype if dtype is None else dtype),
        None if isinstance(link, str) and link == "auto" else named_link(link),
        None if n_features is None else integer("n_features", n_features, 1, size),
        integer("max_steps", max_steps, 1),
        float(latent_bytes),
        integer("seed", seed, 0),
        metric,
    )
    if state is not None:
        run.resume(state)
    status = Status.INTERRUPTED
    with single_threaded_blas(), _Bar(progress, run, callback) as bar:
        if state is None:
            run.begin(A, w)
        try:
            if run.phase == "search":
                run.search(bar)
            run.fit_all(bar)
            status = run.outcome
        except KeyboardInterrupt:
            pass
        return run.result(status)


class _Bar:
    """Tells the caller how the run goes: a line on standard error, and the state at reviews."""

    def __init__(
        self, show: bool | None, run: Refinement, callback: Callable[[dict[str, Any]], object] | None
    ) -> None:
        show = sys.stderr.isatty() if show is None else show
        self._callback = callback
        total = run.n_search + run.n_last
        self._bar: Any = tqdm(desc="refinement", unit="step", total=total, file=sys.stderr, disable=not show)

    def show(self, run: Refinement) -> None:
        """Show the step just taken."""
        self._bar.n = run.step
        count = int(run.records[-1][-1])
        self._bar.set_postfix_str(f"held-out error {run.best_error:.2e}, {count} components")

    def keep(self, run: Refinement) -> None:
        """Hand the state out."""
        if self._callback is not None:
            self._callback(run.state())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _start(features: ArrayLike, weights: ArrayLike, size: int) -> tuple[Array, Array]:
    A, w = np.asarray(features, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if A.ndim != 2 or A.shape[1] != size:
        msg = f"`features` must have shape (K, {size}), got {A.shape}."
        raise ValueError(msg)
    if w.shape != (len(A),):
        msg = f"`weights` must have shape ({len(A)},), got {w.shape}."
        raise ValueError(msg)
    if not (np.isfinite(A).all() and np.isfinite(w).all()):
        msg = "`features` and `weights` must be finite."
        raise ValueError(msg)
    return A, w
