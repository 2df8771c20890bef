from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import PolynomialFeatures

from matfree_hier.bench import peers, rivals
from matfree_hier.bench.reference import hermite_features
from matfree_hier.model import HierarchicalModel


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_hermite_features_come_from_monomials(degree):
    X = np.random.default_rng(7).standard_normal((9, 4))
    monomials = PolynomialFeatures(degree)
    values = monomials.fit_transform(X).T
    features = rivals.hermite_of_monomials(monomials.powers_, degree) @ values
    np.testing.assert_allclose(features, hermite_features(X, degree), atol=1e-5)


@pytest.mark.parametrize("route", [name for name in rivals.ROUTES if name != "torch"])
def test_every_route_finds_the_features_that_ours_finds(route):
    truth = HierarchicalModel(6, 2, weights=[0.8, -0.6], seed=17)
    task = rivals._task(truth, 6000, 18)
    features, exact = rivals.ROUTES[route](task).features, rivals.sklearn_dense(task).features
    cosines = np.linalg.svd(features @ exact.T, compute_uv=False)
    assert features.shape == (2, 21)
    assert cosines.min() > 0.995


def test_a_dense_matrix_that_does_not_fit_says_how_large_it_is(monkeypatch):
    monkeypatch.setattr(rivals, "total_memory", lambda: 1000)
    task = rivals._task(HierarchicalModel(6, 2, weights=[1.0], seed=17), 100, 18)
    with pytest.raises(rivals.DoesNotFitError, match=r"does not fit: 1\.06e-05 GB .* size 21"):
        rivals.sklearn_dense(task)


def _entry(route, seconds, overlap, outcome="done"):
    values = {"outcome": outcome, "seconds": seconds, "processor_seconds": seconds, "n_passes": 3.0}
    point = {"route": route, "threads": 1}
    return peers.Entry(point, 5, values | {"peak_bytes": 1e6, "overlap": overlap})


def test_only_routes_that_reach_the_accuracy_are_compared():
    case = {"routes": ["ours", "torch", "arpack", "sklearn"], "times_faster": 5, "degree": 2}
    case |= {"n_inputs": 6, "n_samples": 10, "n_features": 2}
    entries = [_entry("ours", 1.0, 0.9), _entry("torch", 9.0, 0.7), _entry("arpack", 4.0, 0.9)]
    entries.append(peers.Entry({"route": "sklearn", "threads": 1}, 5, {"outcome": "does not fit"}))
    summary = peers.summarise(case, entries)
    assert [check.value for check in summary.checks] == [4.0]
    assert not summary.checks[0].met
    assert [row["outcome"] for row in summary.rows] == ["done", "inaccurate", "done", "does not fit"]
