"""Fits of small random teachers, and how their reports compare with the truth: used by tests alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.model import HierarchicalModel
from matfree_hier.packing import n_packed
from matfree_hier.recovery import overlaps


class Outcome(NamedTuple):
    """Of one fit; arrays have an entry for each feature that the report calls resolved."""

    setting: dict
    intervals: np.ndarray
    estimates: np.ndarray
    true: np.ndarray  # squared projection of the found feature on the span of the true ones
    matched: np.ndarray  # A.3: of the true feature that it stands for on the span of those resolved
    count: int
    n_found: int  # true features whose projection on the span of those resolved exceeds .2
    gamma_covered: bool | None
    weights: np.ndarray  # debiased, over the true ones they stand for


def random_setting(seed: int) -> dict:
    """Draw q = 1 with 100..200 inputs or q = 2 with 12..20, n/D in 10..100, gamma in .4..1, d_1 in 5..20."""
    rng = np.random.default_rng([seed, 77])
    q = int(rng.integers(1, 3))
    d = int(rng.integers(100, 201) if q == 1 else rng.integers(12, 21))
    n = int(10 ** rng.uniform(1.0, 2.0) * n_packed(d, q))
    gamma, k = rng.uniform(0.4, 1.0), int(rng.integers(5, 21))
    return {
        "degree": q,
        "n_inputs": d,
        "n": n,
        "gamma": gamma,
        "n_features": k,
        "noise_std": float(rng.choice([0.0, 0.3])),
    }


def outcome(seed: int, estimator: str, setting: dict | None = None) -> Outcome:
    """Fit a random teacher and compare."""
    setting = setting or random_setting(seed)
    teacher = HierarchicalModel(**{name: value for name, value in setting.items() if name != "n"}, seed=seed)
    X, y = teacher.sample(setting["n"], seed + 5000)
    model = HierarchicalSpectralRegressor(setting["degree"], estimator=estimator).fit(X, y)
    recovery = model.report_.recovery
    known = recovery.quality.taken(recovery.quality.resolved)
    found = model.features_[recovery.quality.resolved]
    projections = (found @ teacher.features_.T) ** 2
    rows, columns = linear_sum_assignment(-projections)
    spanned = overlaps(found, teacher.features_)
    matched, ratios = np.zeros(len(found)), np.full(len(found), np.nan)
    matched[rows] = spanned[columns]
    ratios[rows] = np.abs(known.weights[rows] / teacher.weights_[columns])
    low, high = recovery.law.interval
    return Outcome(
        setting,
        known.intervals,
        known.overlaps,
        overlaps(teacher.features_, found),
        matched,
        recovery.count,
        int(np.sum(spanned > 0.2)),
        bool(low <= setting["gamma"] <= high) if np.isfinite(low) else None,
        ratios,
    )


def coverage(outcomes: list[Outcome], which: str = "true") -> float:
    """Return the share of true overlaps in their intervals, .0001 to either side being rounding."""
    intervals = np.concatenate([each.intervals for each in outcomes])
    true = np.concatenate([getattr(each, which) for each in outcomes])
    return float(np.mean((true >= intervals[:, 0] - 1e-4) & (true <= intervals[:, 1] + 1e-4)))


def count_accuracy(outcomes: list[Outcome]) -> float:
    """Return the share of fits whose count is right or one short."""
    return float(np.mean([each.count - each.n_found in (0, -1) for each in outcomes]))
