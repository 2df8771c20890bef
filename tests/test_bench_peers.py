from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import PolynomialFeatures

from matfree_hier.bench import peers, rivals
from matfree_hier.bench.measure import ChildError, limit_time, run_isolated
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
    assert cosines.min() > 0.98


def test_a_dense_matrix_that_does_not_fit_says_how_large_it_is(monkeypatch):
    monkeypatch.setattr(rivals, "total_memory", lambda: 1000)
    task = rivals._task(HierarchicalModel(6, 2, weights=[1.0], seed=17), 100, 18)
    with pytest.raises(rivals.DoesNotFitError, match=r"does not fit: 1\.06e-05 GB .* size 21"):
        rivals.sklearn_dense(task)


def _entry(route, seconds, overlap, outcome="done"):
    values = {"outcome": outcome, "seconds": seconds, "processor_seconds": seconds}
    if outcome == "done":
        values |= {"n_passes": 3.0, "peak_bytes": 1e6, "overlap": overlap}
    return peers.Entry({"route": route, "threads": 1}, 5, values)


CASE = {"routes": ["ours", "torch", "arpack", "lobpcg", "sklearn"], "times_faster": 5, "degree": 2}
CASE |= {"n_inputs": 6, "n_samples": 10, "n_features": 2, "give_up_factor": 12, "gamma": 0.5}


def test_only_routes_that_reach_the_accuracy_are_compared_and_those_stopped_give_a_lower_bound():
    entries = [_entry("ours", 1.0, 0.9), _entry("torch", 9.0, 0.7), _entry("arpack", 4.0, 0.9)]
    entries += [_entry("lobpcg", 12.3, None, peers.STOPPED), _entry("sklearn", 0.0, None, "does not fit")]
    summary = peers.summarise(CASE, entries)
    assert [(check.value, check.met) for check in summary.checks] == [(4.0, False), (12.0, True)]
    outcomes = ["done", "inaccurate", "done", "not reached", "does not fit"]
    assert [row["outcome"] for row in summary.rows] == outcomes
    assert [row["at_least"] for row in summary.rows] == [False, False, False, True, False]
    assert "> 12.0 (12.0-12.0)" in summary.lines[0]


def test_a_rival_is_stopped_at_the_factor_times_our_own_seconds(monkeypatch):
    given, out_of_time = [], ChildError("", out_of_time=True)

    def walk(target, arguments, *, threads):
        given.append((arguments["point"]["route"], arguments["give_up"]))
        if arguments["give_up"] is not None:
            raise out_of_time
        return {"outcome": "done", "seconds": 7.0, "processor_seconds": 2.0}

    monkeypatch.setattr(peers, "run_isolated", walk)
    ours, rival = [p | {"threads": 1} for p in peers.points(CASE) if p["route"] in ("ours", "arpack")]
    known = {}
    peers.compute(ours, 5, known)
    stopped = {"outcome": peers.STOPPED, "seconds": 24.0, "processor_seconds": 24.0}
    assert peers.compute(rival, 5, known) == stopped
    assert given == [("ours", None), ("arpack", 24.0)]
    assert peers.compute(rival, 6, known) == stopped  # ours is timed first where it is not known
    assert given[2:] == [("ours", None), ("arpack", 24.0)]


@pytest.mark.parametrize("route", ["ours", "arpack"])
def test_a_route_that_fails_has_no_result_and_one_out_of_memory_an_answer(monkeypatch, route):
    def walk(target, arguments, *, threads):
        if arguments["give_up"] is None and route != "ours":
            return {"outcome": "done", "seconds": 1.0, "processor_seconds": 1.0}
        raise error

    monkeypatch.setattr(peers, "run_isolated", walk)
    (point,) = (p for p in peers.points(CASE) if p["route"] == route)
    error = ChildError("RuntimeError: no")
    with pytest.raises(ChildError, match="RuntimeError"):
        peers.compute(point, 5, {})
    error = ChildError("MemoryError: Unable to allocate 9 TiB")
    if route != "ours":
        assert peers.compute(point, 5, {}) == {"outcome": "does not fit: out of memory"}


def test_a_library_that_is_not_installed_has_a_line_but_no_point(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert "torch" not in [point["route"] for point in peers.points(CASE)]
    summary = peers.summarise(CASE, [_entry("ours", 1.0, 0.9)])
    assert [row["outcome"] for row in summary.rows] == ["done"] + ["not installed"] * 4


def test_a_seed_without_any_answer_is_no_error():
    entries = [_entry(route, 0.0, None, "does not fit") for route in CASE["routes"]]
    assert peers.summarise(CASE, entries).checks == []


def _last_forever():
    limit_time(0.2, threads=1)
    while True:
        pass


def test_a_process_whose_time_is_limited_ends_and_says_why():
    with pytest.raises(ChildError, match="no message") as caught:
        run_isolated("tests.test_bench_peers:_last_forever", {}, threads=1)
    assert caught.value.out_of_time
