"""How smooth features should be: the metric with the lowest error on samples that they have not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from matfree_hier.metric import Metric, graph_weights, smoothness

if TYPE_CHECKING:
    from collections.abc import Callable

    from matfree_hier.fitting.spectral import Candidates

TRIED = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)  # values of tau, for a graph of two edges an input
_FEWEST_PASSES = 10.0  # that another value is worth trying with
_PATIENCE = 2  # values in a row that did worse, before larger ones are not tried


class Find(Protocol):
    """`find_candidates` of some operator."""

    def __call__(self, *, metric: Metric | None, max_passes: float, run_file: Any) -> Candidates:
        """Return candidates."""
        ...


def find_smooth(
    find: Find,
    tau: float | str,
    graph: Any,
    *,
    n_inputs: int,
    degree: int,
    max_passes: float,
    run_file: Any,
    judge: Callable[[Candidates], float],
) -> Candidates:
    """Return the candidates of a given smoothness, or of the one with the best R^2 on held-out samples.

    Parameters
    ----------
    find : callable
        Solves with a metric.
    tau : float or "auto"
        "auto" tries `TRIED` over the mean weight of the edges at an input, from the lowest on.
    graph
        As in `metric.graph_weights`; None is a path.
    n_inputs, degree : int
        d and q.
    max_passes : float
        Over the samples, for all solves together.
    run_file
        Where a solve keeps itself; those of "auto" do not.
    judge : callable
        Returns R^2 on samples that candidates have not seen.
    """
    weights = graph_weights("path" if graph is None else graph, n_inputs)
    if tau != "auto":
        metric = smoothness(weights, degree, float(tau))
        return find(metric=metric, max_passes=max_passes, run_file=run_file)
    unit = float(weights.sum()) / (2.0 * n_inputs) or 1.0
    best, best_r2, n_passes, n_worse = None, -float("inf"), 0.0, 0
    for value in TRIED:
        if best is not None and (n_worse == _PATIENCE or max_passes - n_passes < _FEWEST_PASSES):
            break
        metric = smoothness(weights, degree, value / unit)
        found = find(metric=metric, max_passes=max_passes - n_passes, run_file=None)
        n_passes += found.n_passes
        r2 = judge(found)
        n_worse = 0 if r2 > best_r2 else n_worse + 1
        if best is None or r2 > best_r2:
            best, best_r2 = found, r2
    assert best is not None  # TRIED is not empty
    return replace(best, n_passes=n_passes)
