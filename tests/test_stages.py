from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from matfree_hier.fitting.moments import fit_ridge
from matfree_hier.fitting.readout import Readout, squares
from matfree_hier.fitting.spectral import Candidates
from matfree_hier.fitting.stages import fit_linear, refine_readout
from matfree_hier.links import link
from matfree_hier.model import HierarchicalModel
from matfree_hier.result import EigenResult, History
from matfree_hier.sources import open_source
from matfree_hier.status import Status
from tests import oracle
from tests.test_moments import folded

TEACHER = HierarchicalModel(8, 2, weights=[0.8, -0.5, 0.33], seed=23)
OPTIONS = {
    "degree": 2,
    "link": "identity",
    "n_features": None,
    "max_steps": 40,
    "max_passes": 100,
    "dtype": "float64",
    "seed": 7,
    "progress": False,
}


def candidates(features, weights):
    """Directions as a spectral stage returns them."""
    k = len(features)
    spectrum = EigenResult(
        weights, features.T, np.zeros(k), 1.0, Status.CONVERGED, 5.0, History(), "dense", ""
    )
    return Candidates(features, np.ones(k, dtype=bool), spectrum, 5.0)


def blurred(seed=3):
    """Orthonormal rows at an overlap of about .8 with the true ones."""
    rng = np.random.default_rng(seed)
    rows = TEACHER.features_ + 0.08 * rng.standard_normal(TEACHER.features_.shape)
    return np.linalg.qr(rows.T)[0].T


def parts(label):
    """Training and held-out samples with labels from inputs' latents, (n, 3) -> (n,)."""
    sources = []
    for n, seed in ((2500, 29), (500, 31)):
        X, _ = TEACHER.sample(n, seed)
        sources.append(open_source((X, label(oracle.features(X, 2) @ TEACHER.features_.T))))
    return sources


def test_terms_in_a_latent_are_taken_off_the_labels_and_join_the_result():
    # Of degree 1: products of features of degree 2 have parts of degree 2, and can make up for the slope.
    teacher = HierarchicalModel(20, 1, weights=[0.8, -0.5, 0.33], seed=23)
    slope = 4.0 * teacher.features_[1]
    samples = [teacher.sample(n, seed) for n, seed in ((2500, 29), (500, 31))]
    train, held_out = (open_source((X, y + X @ slope)) for X, y in samples)
    rows = teacher.features_[:2] + 0.1 * np.random.default_rng(3).standard_normal((2, 20))
    rows = np.linalg.qr(np.vstack([rows, slope]).T)[0].T
    readout = Readout(rows, np.array([0.5, -0.3, 0.0]), rows @ slope, 0.0, link("identity"), 0.6)
    found = candidates(rows, readout.weights)
    outcome = refine_readout(train, held_out, found, readout, **OPTIONS | {"degree": 1})
    assert outcome.n_steps > 0
    fit = outcome.readout
    assert_allclose(fit.features @ fit.features.T, np.eye(len(fit.features)), atol=1e-10)
    assert_allclose(fit.slopes @ fit.features, slope, atol=1e-8)
    X, y = teacher.sample(500, 37)
    assert_allclose(fit(X @ fit.features.T), y + X @ slope, atol=0.02)


def test_a_readout_that_is_better_stays():
    train, held_out = parts(lambda h: squares(h) @ TEACHER.weights_)
    readout = Readout(TEACHER.features_, TEACHER.weights_, np.zeros(3), 0.0, link("identity"), 1.0)
    outcome = refine_readout(train, held_out, candidates(blurred(), TEACHER.weights_), readout, **OPTIONS)
    assert outcome.readout is readout
    assert outcome.n_steps == 0
    assert outcome.n_passes > 1


def test_nothing_outside_the_bulk_is_nothing_to_refine():
    train, held_out = parts(lambda h: squares(h) @ TEACHER.weights_)
    readout = Readout(np.empty((0, 36)), np.empty(0), np.empty(0), 0.0, link("identity"), 0.0)
    found = candidates(blurred(), TEACHER.weights_)
    inside = replace(found, outside=np.zeros(3, dtype=bool))
    outcome = refine_readout(train, held_out, inside, readout, **OPTIONS)
    assert (outcome.readout, outcome.n_passes) == (readout, 0.0)
    assert refine_readout(train, held_out, found, readout, **OPTIONS | {"max_passes": 4}).n_passes == 0.0


@pytest.mark.parametrize("max_passes", [8, 30, 60])
def test_no_more_passes_are_spent_than_allowed(max_passes, monkeypatch):
    monkeypatch.setattr("matfree_hier.fitting.stages.is_curved", lambda *a: True)
    train, held_out = parts(lambda h: np.tanh(3.0 * squares(h) @ TEACHER.weights_))
    readout = Readout(blurred(), 0.5 * TEACHER.weights_, np.zeros(3), 0.0, link("identity"), 0.3)
    found = candidates(blurred(), TEACHER.weights_)
    options = OPTIONS | {"link": "auto", "max_passes": max_passes}
    assert 1.0 < refine_readout(train, held_out, found, readout, **options).n_passes <= max_passes


def test_a_curved_outcome_is_refined_again_with_a_link():
    train, held_out = parts(lambda h: np.tanh(3.0 * squares(h) @ TEACHER.weights_))
    rows = blurred()
    readout = Readout(rows, 0.5 * TEACHER.weights_, np.zeros(3), 0.0, link("identity"), 0.3)
    found = candidates(rows, TEACHER.weights_)
    straight = refine_readout(train, held_out, found, readout, **OPTIONS)
    curved = refine_readout(train, held_out, found, readout, **OPTIONS | {"link": "auto"})
    assert curved.readout.link.name == "fitted"
    assert 1.0 - curved.readout.r2 < 0.3 * (1.0 - straight.readout.r2)


def test_a_given_link_is_refined_in_the_units_of_the_labels():
    train, held_out = parts(lambda h: 2.0 * np.tanh(squares(h) @ TEACHER.weights_) + 3.0)
    rows = blurred()
    readout = Readout(rows, 0.5 * TEACHER.weights_, np.zeros(3), 3.0, link("tanh"), 0.3)
    outcome = refine_readout(
        train, held_out, candidates(rows, TEACHER.weights_), readout, **OPTIONS | {"link": "tanh"}
    )
    fit = outcome.readout
    assert fit.intercept == pytest.approx(3.0, abs=0.05)
    assert fit.link.scale == pytest.approx(2.0, abs=0.05)
    X, y = TEACHER.sample(500, 37)
    assert_allclose(fit(oracle.features(X, 2) @ fit.features.T), 2.0 * np.tanh(y) + 3.0, atol=0.1)


def test_components_of_no_weight_are_dropped():
    rng = np.random.default_rng(5)
    train, held_out = parts(lambda h: squares(h) @ TEACHER.weights_ + 0.2 * rng.standard_normal(len(h)))
    rows = blurred()
    readout = Readout(rows, 0.5 * TEACHER.weights_, np.zeros(3), 0.0, link("identity"), 0.3)
    outcome = refine_readout(train, held_out, candidates(rows, TEACHER.weights_), readout, **OPTIONS)
    weakest = np.abs(outcome.readout.weights).min()
    assert weakest**2 > 0.005 * (1.0 - outcome.readout.r2) * np.var(held_out.labels())


@pytest.mark.parametrize("forced", [False, True])
def test_the_linear_part_is_the_ridge_where_it_helps_or_is_forced(forced):
    rng = np.random.default_rng(9)
    X, y = rng.standard_normal((300, 4)), rng.standard_normal(300) + 2.0
    part = fit_linear(open_source((X, y)), wanted=True, forced=forced, seed=7)
    ridge = fit_ridge(folded(np.column_stack([X, y])))
    assert not ridge.helps
    assert_allclose(part.coef, ridge.coefficients if forced else np.zeros(4), atol=1e-12)
    assert_allclose(part.residuals(X, y), y - X @ part.coef - part.intercept)
    useful = fit_linear(open_source((X, y + X @ [1, 2, 3, 4])), wanted=True, forced=False, seed=7)
    assert useful.r2 > 0.9
    plain = fit_linear(open_source((X, y)), wanted=False, forced=False, seed=7)
    assert_array_equal(plain.coef, np.zeros(4))
    assert plain.intercept == pytest.approx(y.mean())
