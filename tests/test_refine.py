"""Refinement from a spectral start: recovery, choices on held-out samples, states, bits."""

import pickle

import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose

from matfree_hier.fitting.refine import refine
from matfree_hier.links import FittedLink, link
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator, project
from matfree_hier.recovery import overlaps
from matfree_hier.sources import open_source
from matfree_hier.status import Status


class Task:
    """Samples of a teacher, in a training and a held-out part, with a spectral start from the first alone."""

    def __init__(self, ratio, seed, d=10, q=2, k=3, start=5, dtype=np.float64, **teacher):
        self.teacher = HierarchicalModel(d, q, k, seed=seed, **teacher)
        n = int(ratio * self.teacher.n_packed)
        self.X, self.y = self.teacher.sample(n, seed + 1, dtype)
        source = open_source((self.X, self.y))
        self.train, self.held_out = source.slice(n // 10, n), source.slice(0, n // 10)
        C = MomentOperator(self.train, degree=q, label_transform="clip").to_dense()
        values, vectors = np.linalg.eigh(C)
        order = np.argsort(-np.abs(values))[:start]
        self.features, self.weights, self.degree = vectors[:, order].T, values[order], q

    def refine(self, **options):
        options = {"degree": self.degree, "held_out": self.held_out} | options
        return refine(self.train, self.features, self.weights, **options)

    def test_error(self, result, n=4000):
        """Mean squared error over the variance of the noise-free target, on new samples."""
        X, _ = self.teacher.sample(n, 12345)
        y = self.teacher.predict(X)
        return np.mean((predict(result, X, self.degree) - y) ** 2) / y.var()


def predict(result, X, degree):
    h = project(X, result.features.T, degree)
    return result.link(result.offset + (h**2 - 1.0) @ result.weights / np.sqrt(2.0))


def same_bits(a, b):
    arrays = (a.features, a.weights, *a.history.values()), (b.features, b.weights, *b.history.values())
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(*arrays, strict=True)) and (
        (a.offset, a.n_passes, a.held_out_error) == (b.offset, b.n_passes, b.held_out_error)
    )


@pytest.mark.parametrize(("q", "d"), [(1, 30), (2, 10), (3, 6)])
def test_a_noise_free_target_is_found_exactly(q, d):
    task = Task(40, seed=17, q=q, d=d, gamma=0.5)
    result = task.refine(max_steps=60)
    assert task.test_error(result) < 1e-4
    assert_allclose(result.features @ result.features.T, np.eye(len(result.weights)), atol=1e-12)
    assert_allclose(overlaps(result.features, task.teacher.features_), 1.0, atol=5e-3)
    order = np.argsort(-np.abs(task.teacher.weights_))
    assert_allclose(result.weights[:3], task.teacher.weights_[order], atol=0.02)
    assert np.abs(result.weights[3:]).max(initial=0.0) < 0.02
    assert abs(result.offset) < 0.02
    assert result.link.name == "identity"
    assert result.status.ok


def test_refinement_does_better_than_the_start_by_far():
    task = Task(20, seed=18, d=14, k=10, gamma=1.0, dtype=np.float32)
    result = task.refine()
    assert result.held_out_error < 0.3 * result.start_error
    assert task.test_error(result) < 0.25
    assert result.n_steps <= 40
    assert result.n_passes < 1.2 * 40


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_labels_that_are_noise_end_no_worse_than_they_began(seed):
    task = Task(8, seed=seed)
    y = np.random.default_rng(seed).standard_normal(len(task.y))
    n = task.held_out.n_samples
    task.train, task.held_out = task.train.with_labels(y[n:]), task.held_out.with_labels(y[:n])
    result = task.refine()
    assert result.held_out_error <= result.start_error
    assert np.mean((predict(result, task.X[:n], 2) - y[:n]) ** 2) < 1.3


def test_the_history_tells_every_step():
    task = Task(15, seed=24)
    result = task.refine(max_steps=12)
    history = result.history
    assert np.array_equal(history["step"], np.arange(1, result.n_steps + 1))
    search = ~np.isnan(history["held_out"])
    assert np.nanmin(history["held_out"]) == result.held_out_error <= result.start_error
    assert np.mean((result.held_out - task.held_out.labels()) ** 2) <= 1.001 * result.held_out_error * np.var(
        task.y
    )
    assert search.sum() <= 9
    assert np.all(np.diff(history["ridge"][search]) < 0.0)
    assert np.all(history["n_components"] >= 1)
    assert result.status is (Status.SETTLED if search.sum() < 9 else Status.MAX_STEPS)


def test_no_start_at_all_finds_the_features_too():
    task = Task(40, seed=25, gamma=0.5)
    task.features, task.weights = task.features[:0], task.weights[:0]
    assert task.test_error(task.refine()) < 1e-3


def test_a_start_that_is_wrong_does_no_harm():
    task = Task(40, seed=26, gamma=0.5)
    task.features = np.linalg.qr(np.random.default_rng(5).standard_normal((55, 5)))[0].T
    assert task.test_error(task.refine()) < 1e-3


def test_the_number_of_components_can_be_fixed():
    task = Task(15, seed=27, k=6, gamma=0.5)
    for count in (2, 9):
        result = task.refine(n_features=count)
        assert len(result.weights) == count
        assert np.all(result.history["n_components"] == count)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_a_known_link_is_used(name):
    task = Task(40, seed=28, gamma=0.5, link=name)
    result = task.refine(link=name)
    assert result.link.base is link(name)
    assert result.link.scale == pytest.approx(1.0, rel=0.01)
    assert result.link.offset == pytest.approx(0.0, abs=0.01)
    assert task.test_error(result) < 1e-4
    assert overlaps(result.features, task.teacher.features_).mean() > 0.999


@pytest.mark.parametrize("name", ["tanh", "relu", "identity"])
def test_an_unknown_link_is_fitted_on_the_way(name):
    task = Task(60, seed=29, gamma=0.5, link=name)
    result = task.refine(link="auto")
    assert isinstance(result.link, FittedLink)
    assert result.offset == 0.0
    assert task.test_error(result) < 0.02
    assert overlaps(result.features, task.teacher.features_).mean() > 0.98


@pytest.mark.parametrize("link_name", ["identity", "auto", "tanh"])
def test_units_of_the_labels_do_not_matter(link_name):
    task = Task(20, seed=30, link="tanh" if link_name == "tanh" else "identity")
    plain = task.refine(link=link_name, max_steps=8)
    n = task.held_out.n_samples
    y = 1e6 * task.y + 3e6
    task.train, task.held_out = task.train.with_labels(y[n:]), task.held_out.with_labels(y[:n])
    scaled = task.refine(link=link_name, max_steps=8)
    assert_allclose(scaled.held_out_error, plain.held_out_error, rtol=1e-3)
    X = task.X[:50]
    assert_allclose(predict(scaled, X, 2), 1e6 * predict(plain, X, 2) + 3e6, atol=0.02e6)


@pytest.mark.parametrize("link_name", ["identity", "tanh", "auto"])
def test_a_refinement_goes_on_from_any_state_to_the_same_bits(link_name):
    task = Task(15, seed=31, k=6, dtype=np.float32, link="tanh")
    states = []
    whole = task.refine(link=link_name, callback=lambda state: states.append(pickle.dumps(state)))
    phases = {pickle.loads(state)["phase"] for state in states}
    assert phases == {"search", "all"}
    for state in states:
        assert same_bits(task.refine(link=link_name, state=pickle.loads(state)), whole)


def test_a_state_of_another_call_is_refused():
    task = Task(15, seed=32)
    states = []
    task.refine(max_steps=12, callback=states.append)
    with pytest.raises(
        ValueError, match=r"^`state` must come from the same call, got 12 for its `max_steps`"
    ):
        task.refine(max_steps=13, state=states[0])


def test_bits_do_not_depend_on_the_number_of_threads():
    task = Task(20, seed=33, k=6, dtype=np.float32)
    threads = numba.get_num_threads()
    results = []
    try:
        for count in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(count)
            results.append(task.refine(max_steps=8))
    finally:
        numba.set_num_threads(threads)
    assert same_bits(*results)


def test_latents_that_do_not_fit_are_computed_again():
    task = Task(30, seed=34, gamma=0.5)
    whole = task.refine(max_steps=20)
    streamed = task.refine(max_steps=20, latent_bytes=len(task.y) * 10 * 24 / 3)
    assert streamed.n_passes > 1.4 * whole.n_passes
    assert whole.held_out_error < streamed.held_out_error + 0.01 < 0.3 * whole.start_error


def test_an_interrupted_refinement_returns_the_best_so_far():
    task = Task(15, seed=35)

    def stop(state):
        if state["step"] == 5:
            raise KeyboardInterrupt

    result = task.refine(callback=stop)
    assert result.status is Status.INTERRUPTED
    assert result.n_steps == 5
    assert len(result.weights) >= 1
    n = task.held_out.n_samples
    prediction = predict(result, task.X[:n], 2)
    assert_allclose(result.held_out, prediction, atol=1e-8)
    error = np.mean((prediction - task.y[:n]) ** 2) / task.y.var()
    assert_allclose(error, result.held_out_error, rtol=1e-6)


def test_a_held_out_part_is_set_aside_where_none_is_given():
    task = Task(30, seed=36, gamma=0.5)
    result = refine(open_source((task.X, task.y)), task.features, task.weights, degree=2)
    assert task.test_error(result) < 1e-3


def test_constant_labels_have_no_features():
    X = np.random.default_rng(37).standard_normal((200, 3))
    result = refine(open_source((X, np.full(200, 4.0))), np.eye(2, 6), [0.5, -0.2], degree=2)
    assert result.features.shape == (0, 6)
    assert result.offset == pytest.approx(4.0)
    assert result.status is Status.NO_FEATURE_FOUND


def test_progress_is_shown_when_asked_for(capsys):
    Task(10, seed=38).refine(max_steps=4, progress=True)
    assert "held-out error" in capsys.readouterr().err
    Task(10, seed=38).refine(max_steps=4)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"features": np.eye(2, 7)}, r"`features` must have shape \(K, 6\), got \(2, 7\)\."),
        ({"weights": [1.0]}, r"`weights` must have shape \(2,\), got \(1,\)\."),
        ({"weights": [1.0, np.nan]}, r"`features` and `weights` must be finite\."),
        ({"max_steps": 0}, r"`max_steps` must be at least 1, got 0\."),
        ({"n_features": 7}, r"`n_features` must be in 1\.\.6, got 7\."),
        ({"degree": 9}, r"`degree` must be in 1\.\.8, got 9\."),
        ({"link": "cosh"}, r"`link` must be one of identity, tanh, .*, got 'cosh'\."),
    ],
)
def test_arguments_out_of_bounds_are_refused(changes, sentence):
    X = np.random.default_rng(39).standard_normal((40, 3))
    arguments = {"features": np.eye(2, 6), "weights": [1.0, 0.5], "degree": 2} | changes
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        refine(open_source((X, X[:, 0])), **arguments)


def test_too_few_samples_are_refused():
    X = np.ones((3, 3))
    with pytest.raises(ValueError, match=r"must have at least 2 samples each, got 3 and 0\.$"):
        refine(open_source((X, X[:, 0])), np.eye(2, 6), [1.0, 0.5], degree=2)
