import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from matfree_hier.labels import NAMES, LabelTransform, fit_label_transform, input_sizes
from matfree_hier.sources import open_source
from tests import oracle

FREE = [name for name in NAMES if name not in ("optimal", "normalised")]  # of a model and of inputs


def _labels(n, seed):
    """h2 of a teacher with strengths 1/k: skewed, with exponential tails."""
    weights = 1.0 / np.arange(1.0, 9.0)
    weights /= np.linalg.norm(weights)
    return (np.random.default_rng(seed).standard_normal((n, 8)) ** 2 - 1.0) @ weights / np.sqrt(2.0)


def _inputs(n, seed, d=6):
    return np.random.default_rng(seed + 1).standard_normal((n, d))


@given(
    name=st.sampled_from(FREE),
    n=st.integers(30, 400),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    offset=st.sampled_from([0.0, -3.0, 1e6]),
    seed=st.integers(2, 10_000),
)
def test_transformed_labels_average_to_zero_and_stay_finite(name, n, scale, offset, seed):
    y = scale * (_labels(n, seed) + offset)
    t = fit_label_transform(name, y)(y)
    assert np.all(np.isfinite(t))
    assert abs(t.mean()) <= 1e-12 * max(np.abs(t).max(), np.abs(y).max() if name == "identity" else 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_transform_survives_storage_and_pickling(name):
    X, y = _inputs(900, 7), _labels(900, 7)
    fitted = fit_label_transform(name, open_source((X, y)), degree=2, model=(y, np.sqrt(y - y.min())))
    stored = LabelTransform.from_parameters(fitted.name, fitted.parameters)
    sizes = input_sizes(X, 2)
    assert np.array_equal(stored(y, sizes), fitted(y, sizes))
    assert np.array_equal(pickle.loads(pickle.dumps(fitted))(y, sizes), fitted(y, sizes))


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("value", [0.0, -0.1, 1e300])
def test_constant_labels_become_exact_zeros(name, value):
    fitted = fit_label_transform(name, np.full(37, value))
    assert np.array_equal(fitted(np.full(5, value)), np.zeros(5))


def test_identity_recentres_and_none_leaves_labels_as_they_are():
    y = np.array([3.0, 5.0, 10.0])
    assert np.array_equal(fit_label_transform("identity", y)(y), [-3.0, -1.0, 4.0])
    assert np.array_equal(fit_label_transform(None, y)(y), y)


def test_clip_bounds_the_labels_at_one_deviation_about_the_median():
    y = np.random.default_rng(3).standard_normal(40_000)
    fitted = fit_label_transform("clip", y)
    assert_allclose(fitted.parameters["scale"], 1.0, atol=0.03)
    assert_allclose(np.ptp(fitted(y)), 2.0 * fitted.parameters["scale"], rtol=1e-12)
    inner = np.abs(y - fitted.parameters["centre"]) < fitted.parameters["scale"]
    assert_allclose(np.diff(fitted(y)[inner]), np.diff(y[inner]), atol=1e-12)


@pytest.mark.parametrize("name", ["clip", "tanh", "rank"])
@pytest.mark.parametrize("huge", [1e6, 1e306])
def test_a_few_huge_labels_hardly_move_the_transform(name, huge):
    y = _labels(5_000, 11)
    spoilt = np.concatenate([y, [huge, -huge, huge]])
    t, u = fit_label_transform(name, y)(y), fit_label_transform(name, spoilt)(spoilt)
    assert np.abs(u).max() < 1.2 * np.abs(t).max()
    assert np.sqrt(np.mean((u[:-3] - t) ** 2)) < 0.03 * t.std()


def test_rank_is_uniform_for_any_law_and_shares_levels_among_ties():
    y = np.exp(5.0 * np.random.default_rng(13).standard_normal(20_000))
    t = fit_label_transform("rank", y)(y)
    assert_allclose(np.sort(t), np.linspace(-1.0, 1.0, len(y)), atol=2e-3)
    binary = np.array([0.0, 1.0, 1.0, 1.0])
    assert np.array_equal(fit_label_transform("rank", binary)(binary), [-0.75, 0.25, 0.25, 0.25])


def test_normalised_labels_owe_nothing_to_the_radius_and_weigh_samples_equally():
    X = np.random.default_rng(19).standard_normal((20_000, 6))
    y = np.exp(X[:, 0] * X[:, 1] + (X**2).sum(axis=1))
    sizes = input_sizes(X, 3)
    phi = oracle.features(X[:50], 3)
    assert_allclose(sizes.norms[:50], np.mean(phi**2, axis=1), rtol=1e-12)
    assert_allclose(sizes.radii, np.mean(X**2, axis=1), rtol=1e-12)
    t = fit_label_transform("normalised", open_source((X, y)), degree=3)(y, sizes)
    rank = fit_label_transform("rank", y)(y)
    assert abs(t.mean()) < 1e-12
    large = sizes.norms > np.quantile(sizes.norms, 0.02)
    left = (t * sizes.norms)[large]  # the ranks less what they owe to the radius
    deciles = np.array_split(left[np.argsort(sizes.radii[large])], 10)
    assert np.abs([part.mean() for part in deciles]).max() < 0.04 < np.abs(rank).mean()
    assert abs(np.corrcoef(left, (X[:, 0] * X[:, 1])[large])[0, 1]) > 0.5
    fitted = fit_label_transform("normalised", open_source((X, y)), degree=3)
    assert_allclose(fitted.divisors(sizes), np.maximum(sizes.norms, fitted.parameters["floor"]))
    assert np.array_equal(fit_label_transform("rank", y).divisors(sizes), np.ones(len(y)))
    assert np.abs(t).max() < 2.0 / np.quantile(sizes.norms, 0.0099) + 0.1


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("kind", ["zeros", "sparse", "heavy", "tiny", "constant"])
def test_normalised_labels_stay_bounded_for_inputs_of_any_law(degree, kind):
    rng = np.random.default_rng(23)
    X = rng.standard_normal((800, 5))
    X = {
        "zeros": 0.0 * X,
        "sparse": X * (rng.random((800, 5)) < 0.05),
        "heavy": np.sign(X) * np.exp(8.0 * np.abs(X)),
        "tiny": 1e-9 * X,
        "constant": 0.0 * X + 3.0,
    }[kind]
    y = _labels(800, 29)
    sizes = input_sizes(X, degree)
    fitted = fit_label_transform("normalised", open_source((X, y)), degree=degree)
    floor = fitted.parameters["floor"]
    assert floor >= 0.05 * np.quantile(sizes.norms, 0.5, method="lower")
    assert np.abs(fitted(y, sizes)).max() <= 2.0 / floor + abs(fitted.mean)
    constant = np.full(800, 7.0)
    flat = fit_label_transform("normalised", open_source((X, constant)), degree=degree)
    assert np.array_equal(flat(constant, sizes), np.zeros(800))


def test_normalised_labels_of_many_samples_come_from_some_of_them(monkeypatch):
    monkeypatch.setattr("matfree_hier.labels._SIZE_ROWS", 1000)
    X, y = _inputs(4_321, 31), _labels(4_321, 31)
    fitted = fit_label_transform("normalised", open_source((X, y)), degree=2)
    few = fit_label_transform("normalised", open_source((X[::5], y[::5])), degree=2)
    assert_allclose(fitted.parameters["expected"], few.parameters["expected"], atol=0.02)
    assert fitted.parameters["radius"] == few.parameters["radius"]
    t = fitted(y, input_sizes(X, 2))
    assert abs(t.mean()) < 0.05 * t.std()


def test_normalised_labels_need_inputs():
    y = _labels(50, 37)
    with pytest.raises(ValueError, match="`labels` must be a source with inputs, and `degree` be given"):
        fit_label_transform("normalised", y, degree=2)
    X = _inputs(50, 37)
    fitted = fit_label_transform("normalised", open_source((X, y)), degree=2)
    with pytest.raises(ValueError, match="`sizes` must be given to a label transform that uses inputs"):
        fitted(y)
    X[3, 2] = 1e200
    with pytest.raises(FloatingPointError, match="Squares of inputs overflow: scale the columns of `X`"):
        fit_label_transform("normalised", open_source((X, y)), degree=2)


def test_the_optimal_transform_is_that_of_phase_retrieval():
    # y = h^2: w = y - 1, and w/(1 + w) = 1 - 1/y.
    h = np.random.default_rng(17).standard_normal(400_000)
    fitted = fit_label_transform("optimal", h**2, model=(h**2, h))
    z = np.linspace(0.1, 4.0, 40)
    assert_allclose(fitted(z) - fitted(1.0), 1.0 - 1.0 / z, rtol=0.02, atol=0.02)


def test_the_optimal_transform_needs_a_model():
    with pytest.raises(ValueError, match="`model` must give simulated labels and latents"):
        fit_label_transform("optimal", [1.0, 2.0])


def test_rare_labels_still_have_a_scale():
    y = np.zeros(10_000)
    y[:3] = 1.0
    t = fit_label_transform("clip", y)(y)
    assert t[0] > 0.0 > t[5]


@pytest.mark.parametrize("name", FREE)
def test_labels_spread_over_processes_give_the_same_transform(name):
    y = np.concatenate([_labels(601, 23), [0.0, -0.0, 0.0]])
    parts = [y[:200], y[200:200], y[200:]]

    # Three threads stand for processes and meet at each sum.
    barrier = threading.Barrier(3)
    slots, results = [None] * 3, [None] * 3

    def work(rank):
        def reduce(values):
            slots[rank] = values
            barrier.wait()
            total = sum(slots[1:], slots[0])
            barrier.wait()
            return total

        results[rank] = fit_label_transform(name, parts[rank], reduce=reduce)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = fit_label_transform(name, y)
    for result in results:
        assert result.parameters.keys() == whole.parameters.keys()
        for key, value in whole.parameters.items():
            exact = key in ("centre", "levels") or (name, key) == ("rank", "values")
            assert_allclose(
                result.parameters[key], value, rtol=0 if exact else 1e-12, atol=0 if exact else 1e-14
            )


def test_labels_may_come_in_chunks_or_from_a_source():
    y = _labels(300, 29)

    class Source:
        def labels(self):
            return y

    expected = fit_label_transform("clip", y)(y)
    assert np.array_equal(fit_label_transform("clip", iter([y[:100], y[100:]]))(y), expected)
    assert np.array_equal(fit_label_transform("clip", Source())(y), expected)


def test_a_callable_is_applied_and_recentred():
    y = np.array([1.0, 2.0, 6.0])
    fitted = fit_label_transform(np.square, y)
    assert_allclose(fitted(y), y**2 - 41.0 / 3.0)
    assert fitted.name == "callable"
    again = LabelTransform.from_parameters("callable", fitted.parameters, np.square)
    assert np.array_equal(again(y), fitted(y))
    assert fit_label_transform(fitted, y[:1]) is fitted


@pytest.mark.parametrize(
    ("transform", "labels", "sentence"),
    [
        ("sqrt", [1.0], r"`label_transform` must be one of identity, .*, a callable or None, got 'sqrt'"),
        (np.sum, [1.0, 2.0], r"must return an array of its input's shape \(1,\), got \(\)"),
        (lambda y: y / 0.0 if len(y) > 1 else y, [1.0, 2.0], "`label_transform` must be finite, got inf"),
        ("clip", [], "`labels` must hold at least one label, got none"),
        ("clip", [[1.0]], r"`labels` must be a vector, got shape \(1, 1\)"),
        ("clip", [1.0, np.nan], "`labels` must be finite, got nan at row 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_transforms_and_labels_are_refused(transform, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_label_transform(transform, np.array(labels))


def test_a_transform_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match=r"must be a name, a callable or None, got int\."):
        fit_label_transform(3, [1.0])


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("clop", {}, "`name` must be one of identity, "),
        ("callable", {"mean": 0.0}, "`function` must be given again"),
        ("clip", {"mean": 0.0, "scale": 1.0}, "must hold centre"),
    ],
)
def test_what_was_not_stored_cannot_be_rebuilt(name, parameters, sentence):
    with pytest.raises(ValueError, match=sentence):
        LabelTransform.from_parameters(name, parameters)
