from itertools import pairwise

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.decomposition import PCA
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from matfree_hier.fitting.prepare import (
    PREPARATIONS,
    Preparation,
    RowPart,
    advice,
    fit_preparation,
    materialised,
    split,
)
from matfree_hier.sources import open_source, stored


def table(n=4000, seed=3):
    """Correlated, skewed, shifted, rounded and constant columns."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, 2))
    return np.column_stack(
        [
            5 + 3 * Z[:, 0],
            Z[:, 0] + 0.1 * Z[:, 1],
            np.exp(2 * Z[:, 1]),
            np.where(rng.random(n) < 0.9, 0.0, rng.random(n)),  # rain: most of it at the smallest value
            np.full(n, 7.0),
        ]
    )


@given(
    cuts=st.lists(st.integers(0, 4000), min_size=1, max_size=4).map(sorted),
    n=st.integers(4000, 4300),
    fraction=st.floats(0.0005, 0.9995),
    inside=st.booleans(),
    data=st.data(),
)
def test_the_parts_of_shares_of_the_rows_make_the_part_of_the_whole(cuts, n, fraction, inside, data):
    X = np.arange(2.0 * n).reshape(n, 2)
    source = open_source((X, X[:, 0]))
    whole = RowPart(source, fraction, 5, inside=inside).labels()
    found = []
    for first, last in pairwise([0, *cuts, n]):
        share = source.slice(first, last)
        part = RowPart(share, fraction, 5, inside=inside, offset=first, n_rows=n)
        labels = part.labels()
        assert part.n_samples == len(labels)
        found.append(labels)
        if len(labels):
            start = data.draw(st.integers(0, len(labels) - 1))
            np.testing.assert_array_equal(part.inputs(start)[:, 0], labels[start:])
            assert part.where(start, 1).startswith(f"`X`, row {int(labels[start]) // 2} ")
    np.testing.assert_array_equal(np.concatenate(found), whole)


@given(n=st.integers(2, 3000), fraction=st.floats(0.05, 0.9), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_parts_are_disjoint_and_make_the_whole_in_order(n, fraction, seed, data):
    X = np.arange(2.0 * n).reshape(n, 2)
    rest, aside = split(open_source((X, X[:, 0])), fraction, seed)
    assert rest.n_samples + aside.n_samples == n
    assert abs(aside.n_samples - fraction * n) <= 1 + n // 1024
    both = np.concatenate([rest.labels(), aside.labels()])
    np.testing.assert_array_equal(np.sort(both), X[:, 0])
    for part in (rest, aside):
        assert (np.diff(part.labels()) > 0).all()
        start = data.draw(st.integers(0, part.n_samples))
        stop = data.draw(st.integers(start, part.n_samples))
        rows = data.draw(st.sampled_from([None, 1 + n // 3, n]))
        chunks = list(part.chunks(start, stop, rows=rows))
        found = np.concatenate([c.X[:, 0] for c in chunks]) if chunks else np.empty(0)
        np.testing.assert_array_equal(found, part.labels()[start:stop])
        assert [c.start for c in chunks] == list(np.cumsum([start, *[len(c.X) for c in chunks]])[:-1])
        assert all(c.X.flags.c_contiguous for c in chunks)


def test_a_part_of_a_sorted_file_is_like_the_whole():
    X = np.arange(100_000.0)[:, np.newaxis]
    _, aside = split(open_source((X, X[:, 0])), 0.2, 5)
    assert aside.n_samples == pytest.approx(20_000, abs=100)
    assert aside.labels().mean() == pytest.approx(X.mean(), rel=0.01)
    assert aside.slice(0, 2000).labels().max() < 11_000  # still in order: a slice is one place of the file


@pytest.mark.parametrize("kind", ["npy", "h5"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_part_of_files_is_that_of_their_rows(kind, inside, tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((5000, 3)).astype(np.float32), rng.standard_normal(5000)
    for i, rows in enumerate([slice(0, 1500), slice(1500, 1501), slice(1501, 5000)]):
        if kind == "npy":
            np.save(tmp_path / f"{i}.npy", X[rows])
            np.save(tmp_path / f"y{i}.npy", y[rows])
        else:
            with h5py.File(tmp_path / f"{i}.h5", "w") as file:
                file.create_dataset("X", data=X[rows], chunks=(min(100, len(X[rows])), 3))
                file.create_dataset("y", data=y[rows])
    if kind == "npy":
        source = open_source(str(tmp_path / "[0-2].npy"), [tmp_path / f"y{i}.npy" for i in range(3)])
    else:
        source = open_source([tmp_path / f"{i}.h5" for i in range(3)], cache_bytes=0)
    parts = [
        RowPart(whole, 0.3, 7, inside=inside).slice(100).transformed(lambda A: 2 * A)
        for whole in (source, open_source((X, y)))
    ]
    monkeypatch.setattr(stored, "RUN_BYTES", 1)  # short runs are read straight to their place too
    for rows in (None, 333):
        for ours, expected in zip(
            *(list(part.chunks(50, 1300, rows=rows, dtype="float64")) for part in parts), strict=True
        ):
            assert ours.start == expected.start
            np.testing.assert_array_equal(ours.X, expected.X)
            np.testing.assert_array_equal(ours.y, expected.y)
    np.testing.assert_array_equal(parts[0].labels(), parts[1].labels())


def test_another_seed_draws_another_part():
    source = open_source((np.arange(500.0)[:, np.newaxis], np.arange(500.0)))
    assert (split(source, 0.3, 5)[1].labels() != split(source, 0.3, 6)[1].labels()).any()


@pytest.mark.parametrize("inside", [True, False])
def test_a_part_names_the_row_of_the_whole(inside):
    X = np.arange(3000.0)[:, np.newaxis].copy()
    source = open_source((X, np.zeros(3000)))
    part = RowPart(source, 0.25, 9, inside=inside)
    for row in (0, 400, part.n_samples - 1):
        original = int(part.inputs(row, row + 1)[0, 0])
        assert part.where(row, 0) == source.where(original, 0)


def test_none_leaves_the_inputs():
    X = table()
    assert fit_preparation("none", open_source(X), 3)(X) is X


def test_standardise_is_scikit_learns_and_zeroes_constants():
    X = table()
    Z = fit_preparation("standardise", open_source(X), 3)(X)
    np.testing.assert_allclose(Z, StandardScaler().fit_transform(X), atol=1e-11)
    assert not Z[:, 4].any()


def test_whiten_is_scikit_learns_turned_back_to_the_columns():
    X = table()[:, :4]
    Z = fit_preparation("whiten", open_source(X), 3)(X)
    np.testing.assert_allclose(np.cov(Z.T, bias=True), np.eye(4), atol=1e-9)
    scaled = StandardScaler().fit_transform(X)
    pca = PCA(whiten=True).fit(scaled)
    twin = pca.transform(scaled) @ pca.components_ * np.sqrt(len(X) / (len(X) - 1))
    np.testing.assert_allclose(Z, twin, atol=1e-8)
    for j in range(4):  # each result keeps to its own column
        correlations = [np.corrcoef(Z[:, i], X[:, j])[0, 1] for i in range(4)]
        assert np.argmax(correlations) == j


def test_whiten_of_dependent_columns_stays_finite():
    X = table()
    X = np.column_stack([X, X[:, 0] + X[:, 1]])
    Z = fit_preparation("whiten", open_source(X), 3)(X)
    assert np.isfinite(Z).all()
    assert np.linalg.eigvalsh(np.cov(Z.T, bias=True)).max() == pytest.approx(1.0, abs=1e-6)


def test_gaussianise_makes_a_skewed_column_normal():
    X = table(20_000)
    Z = fit_preparation("gaussianise", open_source(X), 3)(X)
    np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(Z[:, :4].var(axis=0), 1, atol=1e-9)
    assert not Z[:, 4].any()
    levels = np.linspace(0.01, 0.99, 50)
    np.testing.assert_allclose(np.quantile(Z[:, 2], levels), norm.ppf(levels), atol=0.02)
    assert np.corrcoef(Z[:, 0], X[:, 0])[0, 1] > 0.999


def test_gaussianise_puts_ties_at_their_middle_rank():
    X = table(20_000)
    Z = fit_preparation("gaussianise", open_source(X), 3)(X)
    dry = Z[X[:, 3] == 0.0, 3]
    assert np.ptp(dry) == 0.0
    assert -1.0 < dry[0] < 0.0
    # scikit-learn's own transform sends the same value to its most extreme score
    theirs = QuantileTransformer(output_distribution="normal", random_state=3).fit_transform(X)
    assert theirs[X[:, 3] == 0.0, 3].max() < -5.0


def test_gaussianise_is_bounded_outside_the_range_seen():
    prepare = fit_preparation("gaussianise", open_source(table()), 3)
    assert np.abs(prepare(np.full((1, 5), 1e30))).max() < 10
    assert np.abs(prepare(np.full((1, 5), -1e30))).max() < 10


def test_gaussianise_takes_its_quantiles_from_a_sample_of_many_rows(monkeypatch):
    monkeypatch.setattr("matfree_hier.fitting.prepare._QUANTILE_ROWS", 2000)
    X = table(20_000)
    prepare = fit_preparation("gaussianise", open_source(X), 3)
    np.testing.assert_allclose(prepare(X).var(axis=0)[:4], 1, atol=1e-9)
    assert prepare.arrays["bound"] == pytest.approx(norm.ppf(1 - 0.5 / 2000), rel=0.01)


@pytest.mark.parametrize("name", PREPARATIONS)
def test_a_preparation_is_rebuilt_from_its_arrays_to_the_last_bit(name):
    X = table()
    prepare = fit_preparation(name, open_source(X), 3)
    again = Preparation(name, {key: np.array(a) for key, a in prepare.arrays.items()})
    np.testing.assert_array_equal(again(X), prepare(X))


@pytest.mark.parametrize("name", PREPARATIONS)
def test_a_row_is_prepared_alike_alone_and_in_a_chunk(name):
    X = table()
    prepare = fit_preparation(name, open_source(X), 3)
    np.testing.assert_array_equal(np.vstack([prepare(X[i : i + 1]) for i in range(50)]), prepare(X)[:50])


def test_unknown_preparations_are_refused():
    with pytest.raises(
        ValueError, match="`prepare` must be one of auto, none, standardise, whiten, gaussianise, got 'pca'"
    ):
        fit_preparation("pca", open_source(table()), 3)


def test_advice_is_silent_on_normal_inputs():
    rng = np.random.default_rng(7)
    assert advice(open_source(rng.standard_normal((20_000, 8)))) is None
    assert advice(open_source(rng.standard_normal((30, 8)))) is None  # too few rows to tell
    assert (
        advice(open_source(rng.standard_normal((20_000, 3)) * [1, 0, 1])) is None
    )  # nothing helps a constant


def test_advice_never_names_what_was_done_already():
    X = np.random.default_rng(7).standard_normal((20_000, 3))
    correlated = open_source(X @ np.array([[1, 0.8, 0], [0, 0.6, 0], [0, 0, 1]]))
    assert "whiten" in advice(correlated, "standardise")
    assert advice(correlated, "gaussianise") is None
    assert "gaussianise" in advice(open_source(np.exp(X)), "whiten")
    assert advice(open_source(np.exp(X)), "gaussianise") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: np.exp(X), ["excess kurtosis", "gaussianise"]),
        (lambda X: 3 * X, ["variance 9", "standardise"]),
        (lambda X: X + 2, ["mean 2", "standardise"]),
        (lambda X: X @ np.array([[1, 0.8, 0], [0, 0.6, 0], [0, 0, 1]]), ["`x0` and `x1`", "0.8", "whiten"]),
    ],
)
def test_advice_names_what_is_far_from_normal_and_what_helps(change, words):
    X = change(np.random.default_rng(7).standard_normal((20_000, 3)))
    sentence = advice(open_source(X))
    assert sentence.startswith("The inputs are far from standard normal (")
    assert all(word in sentence for word in words), sentence


def test_small_samples_are_kept_in_memory_and_large_ones_are_not():
    X = np.random.default_rng(7).standard_normal((100, 3))
    part = split(open_source((X, X[:, 0])), 0.3, 5)[0]
    kept = materialised(part, np.float32, 70 * 3 * 4)
    assert kept is not part
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept.labels(), part.labels())
    np.testing.assert_array_equal(kept.inputs(), part.inputs().astype(np.float32))
    assert materialised(part, np.float32, 70 * 3 * 4 - 1) is part


def test_auto_does_what_raw_inputs_need():
    X = np.random.default_rng(43).standard_normal((5000, 4))
    mixed = X @ np.array([[1.0, 0.9, 0, 0], [0, 0.44, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    for inputs, expected in (
        (X, "none"),
        (3.0 * X + 1.0, "standardise"),
        (mixed, "whiten"),
        (np.exp(X), "gaussianise"),
    ):
        assert fit_preparation("auto", open_source(inputs), 3).name == expected
