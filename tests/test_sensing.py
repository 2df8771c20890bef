from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from oracle import features
from scipy.optimize import minimize_scalar
from strategies import seeds

from matfree_hier.fitting import sensing
from matfree_hier.fitting.factor import Factor, Samples, Work
from matfree_hier.fitting.sensing import Sensing
from matfree_hier.links import link
from matfree_hier.sources import open_source

D = 15  # of 5 inputs at degree 2


def _problem(seed, g="identity", n=300, k=3, parts=1, noise=True):
    """Random samples and a random factor on them, in float64; also the dense features."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 5)), rng.standard_normal(n)
    factor = Factor(0.5 * rng.standard_normal((D, k)), rng.choice([-1.0, 1.0], k), 0.3, link(g))
    if not noise:
        y = (features(X, 2) @ factor.W) ** 2 @ factor.signs
    source = open_source((X, y))
    cuts = np.linspace(0, n, parts + 1).astype(int)
    sources = [source.slice(a, b) for a, b in pairwise(cuts)]
    samples = Samples(sources, 2, np.dtype(np.float64), 0.0, 1.0, Work(n))
    return samples, factor, features(X, 2)


def _loss(factor, phi, y, ridge):
    h = (phi @ factor.W) ** 2 @ factor.signs
    r = factor.link(h + factor.shift) - y
    return r @ r / (2 * len(y)) + ridge / 2 * np.sum(factor.W**2)


def _start(samples, factor, latent_bytes=1e9):
    return Sensing(samples, factor, factor.W[:, :0], latent_bytes)


@pytest.mark.parametrize("g", ["identity", "tanh"])
def test_the_gradient_is_that_of_the_loss_written_out(g):
    samples, factor, phi = _problem(5, g)
    run = _start(samples, factor)
    G = run._gradient(0.07)
    rng = np.random.default_rng(8)
    for _ in range(3):
        P = rng.standard_normal(factor.W.shape)
        ends = [Factor(factor.W + t * P, factor.signs, run.factor.shift, factor.link) for t in (-1e-5, 1e-5)]
        low, high = (_loss(end, phi, samples.y, 0.07) for end in ends)
        assert_allclose(np.sum(G * P), (high - low) / 2e-5, rtol=1e-5)


@pytest.mark.parametrize("g", ["identity", "tanh"])
def test_second_derivatives_are_those_of_the_dense_jacobian(g):
    samples, factor, phi = _problem(6, g)
    run = _start(samples, factor)
    run._append(run._gradient(0.0))
    L, rng = run.shares.target.L, np.random.default_rng(9)
    slopes = factor.link.derivative(run.h + run.factor.shift)
    T = 2 * slopes[:, None] * factor.signs * (phi @ factor.W)
    jacobian = (L[:, :, None] * T[:, None, :]).reshape(len(L), -1)
    A = rng.standard_normal((L.shape[1], 3))
    assert_allclose(
        run._second_derivative(A).ravel(), jacobian.T @ (jacobian @ A.ravel()) / len(L), atol=1e-12
    )
    gram, means = run._first_sweep()
    assert_allclose(gram, T.T @ T / len(L), atol=1e-12)
    assert_allclose(means.ravel(), jacobian.T @ slopes / np.linalg.norm(slopes) / np.sqrt(len(L)), atol=1e-12)


@given(seeds, st.sampled_from(["identity", "tanh", "quadratic"]), st.floats(1e-3, 1.0))
def test_no_step_raises_the_loss(seed, g, ridge):
    samples, factor, phi = _problem(seed, g, n=120)
    run = _start(samples, factor)
    for _ in range(4):
        before = _loss(run.factor, phi, samples.y, ridge)
        run.step(ridge)
        assert _loss(run.factor, phi, samples.y, ridge) <= before * (1 + 1e-9)
        assert_allclose(run.error, np.mean((run.factor.link(run.h + run.factor.shift) - samples.y) ** 2))
        assert_allclose(run.h, (phi @ run.factor.W) ** 2 @ run.factor.signs, atol=1e-9)


def test_a_model_without_noise_is_found_exactly():
    samples, factor, _ = _problem(7, noise=False)
    noise = 0.1 * np.random.default_rng(4).standard_normal(factor.W.shape)
    run = _start(samples, Factor(factor.W + noise, factor.signs, 0.0, factor.link))
    for _ in range(25):
        run.step(1e-14)
    assert run.error < 1e-9 * samples.y.var()


@pytest.mark.parametrize("g", ["identity", "tanh"])
def test_a_step_costs_one_pass_and_two_where_latents_do_not_fit(g):
    samples, factor, phi = _problem(8, g, n=4000)
    in_memory, streamed = _start(samples, factor), _start(samples, factor, latent_bytes=4000 * 6 * 8 / 2)
    costs = []
    for run in (in_memory, streamed):
        for _ in range(2):
            samples.work.products = 0
            run.step(0.01)
        costs.append(samples.work.passes)
    assert costs[0] == 1.0
    assert 1.5 < costs[1] < 2.0
    # The directions come from half of the samples; the loss and its minimum along them from all.
    first = _start(samples, factor).error
    assert in_memory.error < streamed.error + 1e-3 < first
    for run in (in_memory, streamed):
        assert_allclose(run.h, (phi @ run.factor.W) ** 2 @ run.factor.signs, atol=1e-9)


@pytest.mark.parametrize("latent_bytes", [1e9, 1e4])
def test_samples_in_several_parts_are_the_samples_in_one(latent_bytes):
    runs = []
    for parts in (1, 3):
        samples, factor, _ = _problem(9, parts=parts)
        run = _start(samples, factor, latent_bytes)
        run.step(0.05)
        runs.append(run)
    # Conjugate gradients make much of differences in rounding.
    assert_allclose(runs[0].factor.W, runs[1].factor.W, atol=1e-5)
    assert_allclose(runs[0].error, runs[1].error, rtol=1e-5)


def test_the_last_step_may_have_another_number_of_columns():
    samples, factor, phi = _problem(10)
    previous = np.random.default_rng(3).standard_normal((D, 5))
    run = Sensing(samples, factor, previous, 1e9)
    for _ in range(2):
        run.step(0.05)
    assert_allclose(run.h, (phi @ run.factor.W) ** 2 @ run.factor.signs, atol=1e-9)
    assert_allclose(run.shares.target.L[:, 3:6], phi @ run.previous, atol=1e-9)


@given(seeds)
def test_the_line_search_finds_the_lowest_point_of_the_quartic(seed):
    rng = np.random.default_rng(seed)
    r, a, b = rng.standard_normal((3, 20)) * 10.0 ** rng.uniform(-2, 2, (3, 1))
    penalty = tuple(rng.standard_normal(2) ** 2)

    def value(t):
        return np.sum((r + t * a + t * t * b) ** 2) / 40 + penalty[0] * t + penalty[1] * t * t / 2

    sums = np.array([b @ b, a @ b, a @ a, r @ b, a @ r])
    t = sensing._quartic_minimum(sums, 20, penalty)
    for centre in np.concatenate([[0.0, t], rng.standard_normal(3) * abs(t)]):
        other = value(minimize_scalar(value, bracket=(centre - 0.1, centre + 0.1)).x)
        assert value(t) <= other + 1e-9 * (abs(other) + value(0.0))


def test_conjugate_gradients_solve_a_system_of_few_unknowns():
    rng = np.random.default_rng(11)
    M = rng.standard_normal((6, 6))
    H = M @ M.T + np.eye(6)
    right = rng.standard_normal((2, 3))
    Y = sensing._conjugate_gradients(lambda Y: (H @ Y.ravel()).reshape(2, 3), right, np.eye(3))
    assert_allclose((H @ Y.ravel()).reshape(2, 3), right, atol=5e-3 * np.linalg.norm(right))


def test_dependent_directions_are_dropped_from_the_basis():
    B = np.random.default_rng(12).standard_normal((D, 4))
    B = np.column_stack([B, B[:, 0] * 3.0, np.zeros(D), 1e-8 * B[:, 1] + B[:, 2]])
    C = sensing._orthonormalising(B)
    assert C.shape == (7, 4)
    assert_allclose((B @ C).T @ (B @ C), np.eye(4), atol=1e-6)


@given(seeds, st.integers(1, 20))
def test_diagonalising_changes_the_factor_and_not_the_model(seed, k):
    rng = np.random.default_rng(seed)
    factor = Factor(rng.standard_normal((D, k)), rng.choice([-1.0, 1.0], k), 0.0, link("identity"))
    turned = factor.diagonalised()
    before, after = ((f.W * f.signs) @ f.W.T for f in (factor, turned))
    assert_allclose(before, after, atol=1e-12 * k)
    gram = turned.W.T @ turned.W
    assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12 * k)
    assert np.all(np.diff(np.abs(turned.sizes)) <= 1e-12)
    assert np.linalg.norm(turned.W) <= np.linalg.norm(factor.W) * (1 + 1e-12)


def test_columns_left_out_leave_their_expectation():
    samples, factor, phi = _problem(13, "tanh", k=4)
    errors = samples.errors_by_count(factor)
    for count in range(5):
        part = factor.leading(count)
        h = (phi @ part.W) ** 2 @ part.signs
        assert_allclose(part.shift + part.sizes.sum(), factor.shift + factor.sizes.sum())
        assert_allclose(errors[count], np.mean((np.tanh(h + part.shift) - samples.y) ** 2))
