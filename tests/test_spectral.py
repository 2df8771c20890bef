import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from matfree_hier.fitting.residualize import residualize
from matfree_hier.fitting.spectral import above_bulk, find_candidates, n_candidates, with_operator_labels
from matfree_hier.labels import fit_label_transform, input_sizes
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.recovery import overlaps
from matfree_hier.sources import open_source

TEACHER = HierarchicalModel(12, 2, 6, 0.4, seed=23)
D = TEACHER.n_packed


def source(n, seed=29):
    return open_source(TEACHER.sample(n, seed))


def found(samples, *, residualise, transform="normalised", n_features=6):
    labelled, _, _ = with_operator_labels(
        samples, 2, transform, residualise=residualise, dtype="float64", seed=7
    )
    operator = MomentOperator(labelled, degree=2)
    return find_candidates(operator, n_features, tol=1e-4, max_passes=100, seed=3, progress=False)


def test_labels_of_the_operator_are_the_transformed_ones():
    samples = source(2000)
    for name in ("clip", "normalised", None):
        labelled, _, n_passes = with_operator_labels(
            samples, 2, name, residualise=False, dtype="float64", seed=7
        )
        transform = fit_label_transform(name, samples, degree=2)
        expected = transform(samples.labels(), input_sizes(samples.inputs(), 2))
        assert_allclose(labelled.labels(), expected, atol=1e-15)
        assert_array_equal(labelled.inputs(), samples.inputs())
        assert n_passes == 0.0


def test_chaoses_are_subtracted_before_the_division():
    samples = source(3000)
    labelled, _, n_passes = with_operator_labels(
        samples, 2, "normalised", residualise=True, dtype="float64", seed=7
    )
    transform = fit_label_transform("normalised", samples, degree=2)
    sizes = input_sizes(samples.inputs(), 2)
    divisors = transform.divisors(sizes)
    before = samples.with_labels(transform(samples.labels(), sizes) * divisors)
    assert_allclose(labelled.labels() * divisors, residualize(before, 2, seed=7).labels, atol=1e-12)
    assert n_passes == 1.0


@pytest.mark.parametrize("n_per_feature", [20, 100])
def test_normalised_and_residual_labels_each_find_more(n_per_feature):
    samples = source(n_per_feature * D)
    sums = [
        overlaps(candidates.features, TEACHER.features_).sum()
        for candidates in (
            found(samples, residualise=False, transform="rank"),
            found(samples, residualise=False),
            found(samples, residualise=True),
        )
    ]
    assert sums[0] + 0.2 < sums[1] < sums[2] - 0.2


def test_candidates_outside_the_bulk_are_marked():
    candidates = found(source(30 * D), residualise=False, n_features=None)
    assert candidates.features.shape == (32, D)
    assert 3 <= candidates.outside.sum() < 32
    strongest = np.abs(candidates.spectrum.eigenvalues)
    assert strongest[candidates.outside].min() > np.median(strongest[~candidates.outside])
    assert found(source(30 * D), residualise=False).outside.all()


def test_noise_has_nothing_outside_the_bulk():
    X, y = TEACHER.sample(20 * D, 29)
    counts = []
    for seed in range(5):
        noise = np.random.default_rng(seed + 50).standard_normal(len(y))
        operator = MomentOperator(X, noise, degree=2, label_transform="normalised")
        counts.append(above_bulk(operator, np.linalg.eigvalsh(operator.to_dense())).sum())
    assert sum(counts) <= 2


@pytest.mark.parametrize(
    ("n_samples", "n_packed", "expected"),
    [
        (1000, 10, 10),  # all there are
        (50 * 800, 800, 32),
        (500 * 136, 136, 62),
        (5000 * 136, 136, 128),
        (3000 * 7260, 7260, 32),  # too dear for more
    ],
)
def test_more_samples_are_searched_for_more_features_where_that_is_cheap(n_samples, n_packed, expected):
    assert n_candidates(n_samples, n_packed) == expected
