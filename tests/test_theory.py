from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from scipy.special import ndtri

from matfree_hier import theory
from matfree_hier.kernels import features
from matfree_hier.model import HierarchicalModel
from matfree_hier.packing import n_packed, unpack

MIXED = np.arange(1.0, 7.0) ** -0.5 * np.array([1, -1, 1, 1, -1, 1])
MIXED /= np.linalg.norm(MIXED)


def _normal(n):
    """A sample of N(0, 1) without sampling error: the midpoints of n equal slices."""
    return ndtri((np.arange(n) + 0.5) / n)


def _clip(y):
    t = np.clip(y - np.median(y), -y.std(), y.std())
    return t - t.mean()


def _spectrum(F, t):
    """Eigenvalues and vectors of the trace-centred operator, dense."""
    n, D = F.shape
    C = (F.T * t) @ F / (n * np.sqrt(2.0))
    return np.linalg.eigh(C - np.trace(C) / D * np.eye(D))


def _outside(w, V, spectrum):
    return V[:, (w < spectrum.edge_left) | (w > spectrum.edge_right)]


# The resolvent equations


@pytest.mark.parametrize(("ratio", "tolerance"), [(4.0, 0.13), (16.0, 0.06), (64.0, 0.03)])
def test_edges_eigenvalues_and_overlaps_agree_with_a_simulation(ratio, tolerance):
    D, n = 500, int(ratio * 500)
    F = np.random.default_rng(5).standard_normal((n, D))
    h = F[:, :6]  # A_k is the k-th unit vector
    t = _clip((h**2 - 1.0) @ MIXED / np.sqrt(2.0))
    w, V = _spectrum(F, t)
    s = theory.predict_spectrum(t, n, D, h)
    clear = s.overlaps > 0.15
    assert clear.sum() == (3 if ratio < 10 else 6)
    measured = np.sum(_outside(w, V, s)[:6] ** 2, axis=1)
    assert_allclose(measured[clear], s.overlaps[clear], atol=tolerance)
    top = np.sort(s.eigenvalues[clear & (s.eigenvalues > 0)])[::-1]
    assert_allclose(w[::-1][: len(top)], top, rtol=0.05)
    bulk = np.sum(V[:6] ** 2, axis=0) < 0.1
    assert_allclose([w[bulk][0], w[bulk][-1]], [s.edge_left, s.edge_right], rtol=0.05)


def test_the_equations_are_those_of_lu_and_li():
    # Their notation: psi(l) = l (1/alpha + E[z/(l - z)]), phi(l) = l E[z s^2/(l - z)], z <= 1 the transform.
    s = _normal(40_001)
    z = 1.0 - 1.0 / (0.3 + s**2)
    for alpha in (1.0, 3.0, 10.0):

        def phi(x):
            return x * np.mean(z * s**2 / (x - z))

        def psi(x, alpha=alpha):
            return x * (1.0 / alpha + np.mean(z / (x - z)))

        def slope(f, x):
            return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5

        low = z.max() + 2e-3
        edge = brentq(lambda x, psi=psi: slope(psi, x), low, 50.0)
        point = brentq(lambda x, psi=psi, edge=edge: psi(max(x, edge)) - phi(x), low, 50.0)
        expected = slope(psi, point) / (slope(psi, point) - slope(phi, point)) if point > edge else 0.0
        got = theory.predict_spectrum(np.sqrt(2.0) * z, alpha, 1, s[:, None])
        assert_allclose(got.overlaps[0], expected, rtol=1e-4)
        assert_allclose(got.edge_right, psi(edge) - z.mean(), rtol=1e-6)
        if expected > 0.0:
            assert_allclose(got.eigenvalues[0], psi(point) - z.mean(), rtol=1e-6)


def test_phase_retrieval_is_weakly_recovered_from_half_a_sample_a_coordinate():
    # Mondelli and Montanari: for y = a^2 the best transform's threshold is n/d = 1/2.
    a = _normal(200_000)
    w = a**2 - 1.0
    assert_allclose(theory.optimal_threshold(w, 1000), 500.0, rtol=1e-3)
    t = theory.optimal_transform(w)
    below, above = (theory.predict_spectrum(t, r, 1.0, a[:, None]).overlaps[0] for r in (0.48, 0.55))
    assert below == 0.0
    assert above > 0.01


def test_the_best_transform_beats_the_others():
    y, h = theory.simulate_labels([1.0], 50_000, 3)
    best = theory.optimal_transform(np.interp(y, *theory.conditional_signal(y, h[:, 0])))
    for other in (_clip(y), np.tanh(y)):
        for ratio in (2.0, 6.0):
            best_overlap, overlap = (
                theory.predict_spectrum(t, ratio, 1.0, h).overlaps[0] for t in (best, other)
            )
            assert best_overlap > overlap - 0.002


def test_one_label_alone_gives_the_marchenko_pastur_edges():
    # t = sqrt 2: C is the sample covariance; edges (1 +- sqrt(D/n))^2, here less its mean eigenvalue 1.
    for ratio in (0.25, 4.0):
        s = theory.predict_spectrum(np.full(7, np.sqrt(2.0)), ratio, 1.0)
        assert_allclose(s.edge_right, (1.0 + ratio**-0.5) ** 2 - 1.0, rtol=1e-6)
        left = (1.0 - ratio**-0.5) ** 2 if ratio > 1.0 else 0.0
        assert_allclose(s.edge_left, left - 1.0, rtol=1e-6, atol=1e-9)


def test_many_samples_give_the_simple_laws():
    y, h = theory.simulate_labels(MIXED, 200_000, 7)
    t = np.clip(y, -4.0, 4.0)
    n, D = 3000.0, 1
    s = theory.predict_spectrum(t, n, D, h)
    theta, moment = theory.strengths(t, h), np.mean(t**2)
    assert_allclose([-s.edge_left, s.edge_right], theory.bulk_edge(n, D, moment), rtol=0.02)
    assert_allclose(s.eigenvalues, theory.outlier_eigenvalue(theta, n, D, moment), rtol=0.01)
    weighted = np.mean(t[:, None] ** 2 * h**2, axis=0)
    assert_allclose(1.0 - s.overlaps, 1.0 - theory.overlap(theta, n, D, moment, weighted), rtol=0.02)


def test_reversing_the_labels_mirrors_the_spectrum():
    y, h = theory.simulate_labels(MIXED, 5_000, 11)
    t = _clip(y) + 0.1
    a, b = theory.predict_spectrum(t, 20, 1, h), theory.predict_spectrum(-t, 20, 1, h)
    assert_allclose([a.edge_left, a.edge_right], [-b.edge_right, -b.edge_left], rtol=1e-9)
    assert_allclose(a.eigenvalues, -b.eigenvalues, rtol=1e-9)
    assert_allclose(a.overlaps, b.overlaps, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_spectrum_scales_with_the_labels(scale):
    y, h = theory.simulate_labels(MIXED, 2_000, 13)
    a, b = theory.predict_spectrum(_clip(y), 30, 1, h), theory.predict_spectrum(scale * _clip(y), 30, 1, h)
    assert_allclose(b.eigenvalues, scale * a.eigenvalues, rtol=1e-9)
    assert_allclose(b.overlaps, a.overlaps, rtol=1e-9)


def test_labels_that_are_zero_or_of_one_sign_have_a_spectrum():
    zero = theory.predict_spectrum(np.zeros(5), 10, 3, np.ones((5, 2)))
    assert (zero.edge_left, zero.edge_right) == (0.0, 0.0)
    assert np.array_equal(zero.overlaps, [0.0, 0.0])
    assert np.all(np.isnan(zero.eigenvalues))
    negative = theory.predict_spectrum(-np.ones(5), 1, 3)  # fewer samples than coordinates
    assert_allclose(negative.edge_right, np.sqrt(0.5))  # eigenvalue 0, centred


def test_feature_norms_widen_the_bulk_as_they_do_at_finite_d():
    d = 25
    D = n_packed(d, 2)
    n = 12 * D
    teacher = HierarchicalModel(d, 2, 6, 0.4, seed=17)
    X, y = teacher.sample(n, 19)
    F = np.empty((n, D))
    features(X, 2, F)
    norms = np.sum(F**2, axis=1) / D
    t = np.random.default_rng(23).permutation(_clip(y))  # labels of the right law, without signal
    w, _ = _spectrum(F, t)
    with_norms = theory.predict_spectrum(t, n, D, norms=norms)
    assert_allclose(w[[0, -1]], [with_norms.edge_left, with_norms.edge_right], rtol=0.08)
    assert theory.predict_spectrum(t, n, D).edge_right < 0.9 * w[-1]


# Closed forms


def test_simple_laws_agree_with_a_simulation_at_degree_one():
    # q = 1: F = x. Two features, t = y far above threshold.
    d, n = 60, 60 * 400
    weights = np.array([0.8, -0.6])
    X = np.random.default_rng(29).standard_normal((n, d))
    y = (X[:, :2] ** 2 - 1.0) @ weights / np.sqrt(2.0)
    w, V = _spectrum(X, y)
    moment = 1.0 + 4.0 * weights**2
    assert_allclose(w[[-1, 0]], theory.outlier_eigenvalue(weights, n, d), atol=0.03)
    measured = 1.0 - np.sum(V[:2][:, [0, -1]] ** 2, axis=1)
    assert_allclose(measured, 1.0 - theory.overlap(weights, n, d, 1.0, moment), rtol=0.35)
    assert_allclose(np.abs(w[[1, -2]]), theory.bulk_edge(n, d), rtol=0.15)


def test_threshold_overlap_and_eigenvalue_meet_at_the_threshold():
    n_k = theory.recovery_threshold([0.5, -0.25], 100, 2.0)
    assert_allclose(n_k, [400.0, 1600.0])
    assert_allclose(theory.overlap([0.5, -0.25], n_k, 100, 2.0), 0.0, atol=1e-15)
    assert_allclose(theory.overlap(0.5, 1600.0, 100, 2.0), 0.75)
    just = theory.outlier_eigenvalue([0.5, -0.25], 1.0001 * n_k, 100, 2.0)
    assert_allclose(just, np.sign(just) * theory.bulk_edge(n_k, 100, 2.0), rtol=1e-3)
    assert np.all(np.isnan(theory.outlier_eigenvalue([0.5, 0.0], 399.0, 100, 2.0)))
    assert theory.recovery_threshold(0.0, 100) == np.inf
    assert theory.expected_count([0.5, -0.25, 0.0], 1000.0, 100, 2.0) == 1


def test_the_error_follows_the_papers_exponent():
    weights = np.arange(1.0, 200_001.0) ** -0.8
    weights /= np.linalg.norm(weights)
    n = np.array([1e2, 1e4])
    errors = [theory.relative_mse(weights, float(m), 1) for m in n]
    slope = np.log(errors[1] / errors[0]) / np.log(n[1] / n[0])
    assert_allclose(slope, theory.mse_exponent(0.8), atol=0.03)
    assert theory.mse_exponent(0.5) == 0.0
    assert theory.mse_exponent(0.4) > 0.0


def test_the_mean_operator_of_degree_two_is_the_one_finite_size_rests_on():
    # E[C_hat] Y = sum_l lambda_l [<Y, C_l> C_l + 2 (C_l^2 Y + Y C_l^2) + 2 C_l Y C_l], by exact quadrature.
    d, k = 3, 2
    teacher = HierarchicalModel(d, 2, weights=[0.8, -0.6], seed=31)
    z, w = np.polynomial.hermite_e.hermegauss(7)
    X = np.array(np.meshgrid(z, z, z)).reshape(3, -1).T.copy()
    weight = np.prod(np.array(np.meshgrid(w, w, w)).reshape(3, -1), axis=0) / (2 * np.pi) ** 1.5
    F = np.empty((len(X), 6))
    features(X, 2, F)
    C = (F.T * (weight * teacher.predict(X))) @ F / np.sqrt(2.0)
    C -= weight @ teacher.predict(X) / np.sqrt(2.0) * np.eye(6)
    B = [unpack(row, d, 2).reshape(d, d) for row in teacher.features_]
    v = np.random.default_rng(37).standard_normal(6)
    Y = unpack(v, d, 2).reshape(d, d)
    expected = sum(
        teacher.weights_[i]
        * (np.sum(Y * B[i]) * B[i] + 2 * (B[i] @ B[i] @ Y + Y @ B[i] @ B[i]) + 2 * B[i] @ Y @ B[i])
        for i in range(k)
    )
    assert_allclose(unpack(C @ v, d, 2).reshape(d, d), expected, atol=1e-12)


def test_finite_size_gives_label_variance_strengths_and_the_spurious_bulk():
    d = 60
    D = n_packed(d, 2)
    weights = np.array([1.0])
    B = unpack(HierarchicalModel(d, 2, weights=weights, seed=41).features_[0], d, 2).reshape(d, d)
    size = theory.finite_size(weights, d)
    mean = 2 * B @ B  # then E[C_hat] Y = <Y, B> B + mean Y + Y mean + 2 B Y B
    assert_allclose(
        np.sum(B * (np.sum(B * B) * B + mean @ B + B @ mean + 2 * B @ B @ B)), 1 + 12 / d, rtol=0.02
    )
    assert_allclose(size.theta[0] + size.shift, 1 + 12 / d)
    b = np.linalg.eigvalsh(B)
    # On symmetric matrices Y -> mean Y + Y mean + 2 B Y B has the eigenvalues 2 (b_i^2 + b_j^2 + b_i b_j).
    pairs = np.array([2 * (p * p + r * r + p * r) for i, p in enumerate(b) for r in b[i:]])
    assert len(pairs) == D
    centred = np.sort(pairs) - size.shift
    assert_allclose([centred[0], centred[-1]], size.spurious_bulk, rtol=0.15)
    assert_allclose(size.label_variance, 1 + 12 / d)
    assert_allclose(size.noise_inflation, np.prod([1 + 2 * j / d for j in range(8)]))


# Errors and curves


def test_the_power_laws_are_those_of_the_sums_they_stand_for():
    falling = np.arange(1.0, 100_001.0) ** -0.8
    for n in (1e3, 1e5):
        assert_allclose(
            theory.mse_law(n, 1, 0.8, 100_000),
            theory.relative_mse(falling / np.linalg.norm(falling), n, 1),
            rtol=0.05,
        )
    assert_allclose(theory.mse_law(1e3, 1, 0.8), theory.mse_law(1e3, 1, 0.8, 10**6), rtol=0.03)
    slow = np.arange(1.0, 1e6 + 1.0) ** -0.2
    explained = [1.0 - theory.relative_mse(slow / np.linalg.norm(slow), n, 1) for n in (1e5, 3e5)]
    assert_allclose(1.0 - theory.mse_law([1e5, 3e5], 1, 0.2, 10**6), explained, rtol=0.02)


def test_the_curve_of_the_papers_estimator_is_that_of_a_simulation():
    # q = 1, where features are exactly Gaussian: top eigenvectors of both signs, readout (2.12) of n others.
    d, k = 100, 6
    ratios = (16, 50)
    found, errors = {16: [], 50: []}, {16: [], 50: []}
    for ratio in ratios:
        n = ratio * d
        for seed in range(3, 9):
            teacher = HierarchicalModel(d, 1, weights=MIXED, seed=seed)
            X, y = teacher.sample(n, seed + 10)
            w, V = _spectrum(X, _clip(y))
            V = V[:, np.argsort(-np.abs(w))[:k]]
            found[ratio].append(np.sum((teacher.features_ @ V) ** 2, axis=1))
            X, y = teacher.sample(n, seed + 20)
            second = (X @ V * (y - y.mean())[:, None]).T @ (X @ V)
            X, y = teacher.sample(20_000, seed + 30)
            errors[ratio].append(
                1.0 - np.corrcoef(np.einsum("ij,jk,ik->i", X @ V, second, X @ V), y)[0, 1] ** 2
            )
    n = d * np.array(ratios)
    curve = theory.recovery_curve(MIXED, n, d, transform=_clip, readout_samples=n)
    measured = np.array([np.mean(found[r], axis=0) for r in ratios])
    assert_allclose(curve.overlaps[0], measured[0], atol=0.15)
    assert_allclose(curve.overlaps[1], measured[1], atol=0.03)
    assert_allclose(curve.overlaps.mean(axis=1), measured.mean(axis=1), atol=0.03)
    assert_allclose(curve.relative_mse, [np.mean(errors[r]) for r in ratios], rtol=0.15)
    assert_allclose(
        curve.edges[1],
        theory.predict_spectrum(_clip(theory.simulate_labels(MIXED, 5000, 3)[0]), 5000, d)[:2],
        rtol=0.1,
    )


def test_a_curve_knows_links_and_noise():
    plain, noisy, bent = (
        theory.recovery_curve(MIXED, 4_000, 100, transform=_clip, **options)
        for options in ({}, {"noise_std": 1.0}, {"link": "tanh"})
    )
    assert np.all(noisy.overlaps < plain.overlaps)
    assert noisy.relative_mse > plain.relative_mse
    assert_allclose(bent.overlaps, plain.overlaps, atol=0.1)
    assert abs(bent.relative_mse - plain.relative_mse) < 0.1
    nothing = theory.recovery_curve(MIXED, 50, 100, transform=_clip, noise_std=5.0)
    assert np.isnan(nothing.eigenvalues).all()
    assert nothing.relative_mse > 0.95
    again = theory.recovery_curve(MIXED, 4_000, 100, transform=_clip)
    assert_allclose(again.overlaps, plain.overlaps, rtol=0)


def test_the_error_of_refinement_solves_its_equation():
    n, D, noise = 3_000, 100, 0.09
    left = theory.refined_mse(MIXED, n, D, noise)
    o = theory.overlap(MIXED, n, D, left + noise)
    assert_allclose(left, np.sum(MIXED**2 * (1 - o**2)), rtol=1e-6)
    # As least squares with as many parameters as the factor has: s^2 = noise/(1 - k D/n).
    many = theory.refined_mse(MIXED, 100_000, D, noise)
    assert_allclose(many, noise / (1 - 6 * D / 100_000) - noise, rtol=0.05)
    assert theory.refined_mse(MIXED, n, D) == 0.0
    assert theory.refined_mse(MIXED, 30, D) == 1.0
    assert theory.refined_mse(MIXED, 150, D, start=0.1) < theory.refined_mse(MIXED, 150, D)


def test_the_variance_of_labels_at_finite_d_is_that_of_teachers():
    measured, expected = [], []
    for seed in range(3, 9):
        teacher = HierarchicalModel(20, 2, weights=np.abs(MIXED), seed=seed)
        measured.append(np.var(teacher.sample(40_000, seed)[1]))
        expected.append(theory.finite_size(teacher.weights_, 20).label_variance)
    assert np.mean(expected) > 2.0  # 1 without the corrections
    assert_allclose(np.mean(measured), np.mean(expected), rtol=0.1)


def test_simulated_labels_have_the_models_law():
    y, h = theory.simulate_labels(MIXED, 100_000, 43, link="tanh", noise_std=0.5)
    h2 = (h**2 - 1.0) @ MIXED / np.sqrt(2.0)
    assert_allclose(np.var(y - np.tanh(h2)), 0.25, rtol=0.03)
    assert np.array_equal(theory.simulate_labels(MIXED, 50, 43)[1], theory.simulate_labels(MIXED, 50, 43)[1])
    plain, h = theory.simulate_labels(MIXED, 400_000, 47)
    assert_allclose(theory.strengths(plain, h), MIXED, atol=0.02)


def test_the_conditional_signal_is_a_table_without_repeats():
    y = np.repeat([0.0, 1.0, 2.0], [500, 3, 7])
    h = np.sqrt(1.0 + np.arange(510.0))
    at, w = theory.conditional_signal(y, h)
    assert np.array_equal(at, [0.0, 1.0, 2.0])
    assert_allclose(w, [249.5, 501.0, 506.0])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: theory.mse_exponent(0.0), "`gamma` must be finite and above 0, got 0.0"),
        (lambda: theory.mse_law(5.0, 1, 0.5), "`gamma` must not be 0.5"),
        (
            lambda: theory.mse_law(5.0, 1, 0.4),
            "`n_features` must be given for `gamma` below 0.5, got gamma 0.4",
        ),
        (lambda: theory.recovery_curve([1.0], [5.0, 0.0], 10), "`n` must be finite and above 0, got 0.0"),
        (lambda: theory.bulk_edge([5.0, -1.0], 10), "`n` must be above 0, got -1.0"),
        (lambda: theory.overlap(0.5, 10.0, 10, -2.0), "`second_moment` must be finite and above 0, got -2.0"),
        (
            lambda: theory.predict_spectrum([], 10, 10),
            r"`t` must be a vector of at least one label, got shape \(0,\)",
        ),
        (lambda: theory.predict_spectrum([np.nan], 10, 10), "`t` must be finite, got nan"),
        (lambda: theory.predict_spectrum([1.0], 0, 10), "`n` must be finite and above 0, got 0"),
        (
            lambda: theory.predict_spectrum([1.0, 2.0], 9, 10, np.ones((3, 1))),
            r"`latents` must have a row for each of the 2 labels, got shape \(3, 1\)",
        ),
        (
            lambda: theory.predict_spectrum([1.0, 2.0], 9, 10, norms=np.ones(1)),
            r"`norms` must have a row for each of the 2 labels, got shape \(1,\)",
        ),
        (lambda: theory.optimal_transform([-1.0]), "`signal` must be above -1, got -1.0"),
        (
            lambda: theory.conditional_signal([1.0], [1.0, 2.0]),
            "`y` and `latent` must be vectors of one length",
        ),
    ],
)
def test_bad_arguments_are_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize("delta", [0.25, 2.0])
def test_labels_that_are_all_one_have_the_marchenko_pastur_density(delta):
    low, high = (1 - np.sqrt(delta)) ** 2, (1 + np.sqrt(delta)) ** 2
    x = np.linspace(low, high, 22)[1:-1]
    density = theory.bulk_density(x - 1, np.full(5, np.sqrt(2.0)), 1000 / delta, 1000, width=1e-6)
    assert_allclose(density, np.sqrt((high - x) * (x - low)) / (2 * np.pi * delta * x), atol=1e-4)


@pytest.mark.parametrize("ratio", [1, 8])
def test_the_bulks_density_is_that_of_a_simulation_and_ends_at_the_edges(ratio):
    D, rng = 300, np.random.default_rng(5)
    t = _clip(rng.standard_normal((ratio * D, 3)) ** 2 @ np.array([0.6, -0.5, 0.3]))
    spectrum = theory.predict_spectrum(t, len(t), D)
    F = rng.standard_normal((len(t), D))
    C = (F.T * t) @ F / (len(t) * np.sqrt(2))
    w = np.linalg.eigvalsh(C - np.trace(C) / D * np.eye(D))
    ends = np.linspace(spectrum.edge_left, spectrum.edge_right, 6)
    fine = np.linspace(1.3 * spectrum.edge_left, 1.3 * spectrum.edge_right, 601)
    density = theory.bulk_density(fine, t, len(t), D)
    step = fine[1] - fine[0]
    shares = [density[(fine >= a) & (fine < b)].sum() * step for a, b in pairwise(ends)]
    assert_allclose(shares, np.histogram(w, ends)[0] / D, atol=0.02)
    assert density.sum() * step == pytest.approx(1.0, abs=0.01)
    assert density[0] < 0.01 * density.max()


def test_the_density_of_many_heavy_tailed_labels_treats_both_tails_alike():
    t = np.random.default_rng(7).standard_normal(40_000) ** 5  # the largest weighs as much as thousands
    x = np.linspace(-200, 200, 101)
    mirrored = theory.bulk_density(-x, -t, 4000, 1000)
    assert_allclose(theory.bulk_density(x, t, 4000, 1000), mirrored, rtol=0.02, atol=1e-5)
    spread = np.std(np.sort(t)[20:-20])
    typical = theory.bulk_density([0.0], np.clip(t, -20 * spread, 20 * spread), 4000, 1000, width=4.0)
    assert theory.bulk_density([0.0], t, 4000, 1000, width=4.0) == pytest.approx(typical, rel=0.1)


def test_a_density_needs_a_width():
    with pytest.raises(ValueError, match="`width` must be finite and above 0, got 0"):
        theory.bulk_density([1.0], [1.0], 10, 5)
