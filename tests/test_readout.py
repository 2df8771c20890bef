import numpy as np
import pytest
from numpy.testing import assert_allclose

from matfree_hier.fitting.readout import (
    beats_the_mean,
    is_curved,
    latent_chunks,
    read_paper,
    read_squares,
    squares,
)
from matfree_hier.links import FittedLink
from matfree_hier.model import HierarchicalModel
from matfree_hier.sources import open_source
from tests import oracle

TEACHER = HierarchicalModel(6, 2, weights=[0.8, -0.5, 0.3], seed=23)


def samples(n=4000, seed=29, noise=0.1, link=lambda h: h):
    X, y = TEACHER.sample(n, seed)
    return X, link(y) + noise * np.random.default_rng(seed).standard_normal(n)


def test_latents_of_every_third_sample_are_those_of_all():
    X, y = samples(100_000)
    source = open_source((X, y))
    H = np.concatenate([h for _, h, _ in latent_chunks(source, TEACHER.features_, 2)])
    assert_allclose(H[:500], oracle.features(X[:500], 2) @ TEACHER.features_.T, atol=1e-12)
    third = [(h, labels) for _, h, labels in latent_chunks(source, TEACHER.features_, 2, step=3)]
    assert len(third) > 1  # several chunks, or the phase is not tested
    assert_allclose(np.concatenate([h for h, _ in third]), H[::3], atol=1e-12)
    assert_allclose(np.concatenate([labels for _, labels in third]), y[::3])


def test_the_papers_readout_is_its_formula():
    X, y = samples(500)
    rows = np.linalg.qr(np.random.default_rng(5).standard_normal((21, 4)))[0].T
    fit = read_paper(open_source((X, y)), rows, 2, "identity")
    h = oracle.features(X, 2) @ rows.T
    outer = h[:, :, np.newaxis] * h[:, np.newaxis, :] - np.eye(4)
    second = np.mean(y[:, np.newaxis, np.newaxis] * outer, axis=0) / np.sqrt(2)  # (2.12)
    h2 = np.einsum("ij,nij->n", second, outer) / np.sqrt(2)  # (2.13)
    assert_allclose(fit(oracle.features(X, 2) @ fit.features.T), h2, atol=1e-12)
    assert_allclose(fit.features @ fit.features.T, np.eye(4), atol=1e-12)
    assert_allclose(fit.features @ rows.T @ rows, fit.features, atol=1e-12)  # the same span
    assert (np.diff(np.abs(fit.weights)) <= 0).all()


def test_the_papers_readout_fits_a_link():
    X, y = samples(20_000, link=lambda h: np.tanh(2 * h))
    source = open_source((X, y))
    plain = read_paper(source, TEACHER.features_, 2, "identity")
    fitted = read_paper(source, TEACHER.features_, 2, "auto")
    assert isinstance(fitted.link, FittedLink)
    assert fitted.r2 > plain.r2 + 0.05


def test_true_features_are_read_out_with_their_weights():
    X, y = samples()
    fit = read_squares(open_source((X, y + 3)), TEACHER.features_, 2, "auto", 7)
    assert_allclose(fit.weights, [0.8, -0.5, 0.3], atol=0.02)
    assert not fit.slopes.any()
    assert fit.link.name == "identity"
    assert fit.intercept == pytest.approx(3, abs=0.02)
    assert fit.r2 == pytest.approx(1 - 0.01 / np.var(y), abs=0.003)


def test_features_of_pure_noise_get_no_weight():
    X, _ = samples(1000)
    kept = 0
    for seed in range(10):
        y = np.random.default_rng(seed).standard_normal(1000)
        fit = read_squares(open_source((X, y)), TEACHER.features_, 2, "auto", 7)
        kept += bool(fit.weights.any())
        if not fit.weights.any():
            assert_allclose(fit(np.ones((5, 3))), y.mean(), atol=1e-12)
    assert kept <= 1


def test_features_after_the_last_that_helps_get_no_weight():
    X, _ = samples()
    h = oracle.features(X, 2) @ TEACHER.features_.T
    y = squares(h[:, 0]) + 0.5 * np.random.default_rng(3).standard_normal(len(X))
    fit = read_squares(open_source((X, y)), TEACHER.features_, 2, "identity", 7)
    assert fit.weights[0] == pytest.approx(1, abs=0.03)
    assert np.abs(fit.weights[1:]).max() < 0.03


def test_slopes_come_in_where_the_target_is_linear_in_a_latent():
    X, _ = samples()
    h = oracle.features(X, 2) @ TEACHER.features_.T
    y = squares(h[:, 0]) + 2 * h[:, 1]
    fit = read_squares(open_source((X, y)), TEACHER.features_, 2, "identity", 7)
    assert_allclose(fit.slopes, [0, 2, 0], atol=1e-8)
    assert_allclose(fit.weights, [1, 0, 0], atol=1e-8)
    assert_allclose(fit(h), y, atol=1e-7)


def test_a_saturating_link_is_found():
    X, y = samples(20_000, link=lambda h: np.tanh(2 * h))
    source = open_source((X, y))
    plain = read_squares(source, TEACHER.features_, 2, "identity", 7)
    fitted = read_squares(source, TEACHER.features_, 2, "auto", 7)
    assert isinstance(fitted.link, FittedLink)
    assert fitted.r2 > plain.r2 + 0.05
    X, y = samples(5000, seed=31, link=lambda h: np.tanh(2 * h))
    h = oracle.features(X, 2) @ TEACHER.features_.T
    assert np.mean((fitted(h) - y) ** 2) < 0.8 * np.mean((plain(h) - y) ** 2)


@pytest.mark.parametrize("link", ["tanh", lambda h: np.tanh(h)])
def test_a_link_that_is_given_takes_the_units_of_the_labels(link):
    X, y = samples(20_000, link=np.tanh, noise=0.05)
    fit = read_squares(open_source((X, 3.0 * y + 5.0)), TEACHER.features_, 2, link, 7)
    assert_allclose(fit.weights, [0.8, -0.5, 0.3], atol=0.04)
    assert fit.link.scale == pytest.approx(3.0, rel=0.02)
    assert fit.intercept == pytest.approx(5.0, abs=0.05)
    assert fit.r2 > 0.97


def test_no_feature_is_the_mean():
    X, y = samples(100)
    none = np.empty((0, 21))
    for fit in (read_squares(open_source((X, y)), none, 2, "auto", 7),):
        assert_allclose(fit(np.empty((3, 0))), y.mean())
    assert_allclose(read_paper(open_source((X, y - y.mean())), none, 2, "auto")(np.empty((3, 0))), 0)


def test_links_are_decided_on_a_bounded_number_of_samples(monkeypatch):
    monkeypatch.setattr("matfree_hier.fitting.readout.LINK_ROWS", 3000)
    seen = []
    monkeypatch.setattr(
        "matfree_hier.fitting.readout.fit_link",
        lambda h, y: seen.append(len(h)) or (lambda x: np.zeros(len(x))),
    )
    X, y = samples(10_000)
    read_squares(open_source((X, y)), TEACHER.features_, 2, "auto", 7)
    assert 0 < max(seen) <= 3000


def test_predictions_beat_the_mean_only_beyond_chance():
    X, y = samples(1000, noise=1.0)
    h2 = squares(oracle.features(X, 2) @ TEACHER.features_.T) @ TEACHER.weights_
    assert beats_the_mean(h2, y, 7)
    assert not beats_the_mean(np.full(1000, y.mean()), y, 7)
    rng = np.random.default_rng(5)
    chance = [
        beats_the_mean(0.02 * rng.standard_normal(1000), rng.standard_normal(1000), 7) for _ in range(40)
    ]
    assert sum(chance) <= 2


def test_predictions_are_curved_only_beyond_chance():
    h = np.random.default_rng(5).standard_normal(2000)
    noise = 0.3 * np.random.default_rng(3).standard_normal(2000)
    assert is_curved(h, np.tanh(h) + noise, 7)
    assert not is_curved(h, h + noise, 7)
    assert not is_curved(h, h + 5.0, 7)
