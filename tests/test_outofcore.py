"""Fits of files too large to be kept: how often they are read, and files that change meanwhile."""

from __future__ import annotations

import os
from collections import Counter

import h5py
import numpy as np
import pandas as pd
import pytest

from matfree_hier import HierarchicalSpectralRegressor, estimator, moment
from matfree_hier.fitting.stages import fit_linear
from matfree_hier.fitting.survey import PowerSums, survey
from matfree_hier.sources import base, open_source
from matfree_hier.sources.stored import StoredArray
from matfree_hier.status import InputError

N, D = 4000, 60
KINDS = ["npy", "parts", "h5", "chunked h5", "parquet", "csv", "npz", "compressed npz"]


def samples(n=N):
    X = np.random.default_rng(5).standard_normal((n, D)).astype(np.float32)
    return X, X[:, 0] ** 2 + 0.5 * X[:, 1] + 0.1 * X[:, 2]


def written(folder, kind):
    """Write the samples; return what `open_source` takes, and the file that holds the last of them."""
    X, y = samples()
    if kind == "npy":
        np.save(folder / "X.npy", X)
        return (folder / "X.npy", y), folder / "X.npy"
    if kind == "parts":
        paths = [folder / f"part-{i}.npy" for i in range(3)]
        for path, rows in zip(paths, np.array_split(np.arange(N), 3), strict=True):
            np.save(path, np.column_stack([X[rows], y[rows]]).astype(np.float32))
        return paths, paths[2]
    if "h5" in kind:
        with h5py.File(folder / "X.h5", "w") as file:
            file.create_dataset("X", data=X, chunks=(100, D) if "chunked" in kind else None)
            file.create_dataset("y", data=y)
        return folder / "X.h5", folder / "X.h5"
    if "npz" in kind:
        (np.savez_compressed if "compressed" in kind else np.savez)(folder / "X.npz", X=X, y=y)
        return folder / "X.npz", folder / "X.npz"
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(D)]).assign(y=y)
    path = folder / f"X.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path, row_group_size=500)
    else:
        frame.to_csv(path, index=False)
    return path, path


def opened(data):
    return open_source(data, -1 if isinstance(data, list) else None, cache_bytes=0)


@pytest.fixture
def streamed(monkeypatch):
    """Keep no inputs in memory, and read a few hundred rows at a time."""
    monkeypatch.setattr(estimator, "IN_MEMORY", 0)
    monkeypatch.setattr(base, "BLOCK_BYTES", 256 * D * 4)


@pytest.fixture
def rows_read(monkeypatch):
    """Count the rows of matrices that are read from files."""
    counts = Counter()
    read, selected = StoredArray._read, StoredArray.selected

    def counted_read(self, first, last):
        counts["inputs" if self.ndim == 2 else "labels"] += last - first
        return read(self, first, last)

    def counted_selected(self, first, keep):
        before = counts["inputs"]
        block = selected(self, first, keep)
        counts["inputs"] = before + np.count_nonzero(keep)
        return block

    monkeypatch.setattr(StoredArray, "_read", counted_read)
    monkeypatch.setattr(StoredArray, "selected", counted_selected)
    return counts


def test_a_fit_reads_the_samples_once_for_each_thing_that_needs_them_all(streamed, rows_read, tmp_path):
    data, _ = written(tmp_path, "npy")
    model = HierarchicalSpectralRegressor(1, estimator="spectral", prepare="auto").fit(opened(data))
    assert model.report_.n_passes < 3
    # The survey; of train labels with sizes, the dense matrix, a check of its pairs, the readout; of the rest
    # the readout, three times, and what is known of the features. Two rows are read as examples.
    assert rows_read["inputs"] <= N * (1 + 0.8 * 4 + 0.2 * 4) + 10


def test_a_fit_has_the_bits_of_one_in_memory(streamed, tmp_path):
    data, _ = written(tmp_path, "npy")
    fits = [
        HierarchicalSpectralRegressor(1, max_passes=30).fit(s) for s in (opened(data), open_source(samples()))
    ]
    assert len(fits[0].features_)
    for name in ("features_", "weights_", "coef_", "intercept_"):
        np.testing.assert_array_equal(*(getattr(fit, name) for fit in fits))


@pytest.mark.parametrize("change", ["truncated", "rewritten", "removed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_between_passes_of_a_fit_is_named(kind, change, streamed, tmp_path, monkeypatch):
    data, path = written(tmp_path, kind)
    source = opened(data)
    find = HierarchicalSpectralRegressor._find

    def changed_then_found(*arguments):
        if change == "truncated":
            os.truncate(path, path.stat().st_size // 2)
        elif change == "removed":
            path.unlink()
        else:
            content = path.read_bytes()
            path.write_bytes(content[:-5] + b"12345")
            os.utime(path, ns=(1, 1))
        return find(*arguments)

    monkeypatch.setattr(HierarchicalSpectralRegressor, "_find", changed_then_found)
    error = FileNotFoundError if change == "removed" else InputError
    how = {
        "truncated": r"(was changed from \d+ to \d+ bytes",
        "rewritten": r"(was changed",
        "removed": "(was removed",
    }
    with pytest.raises(
        error, match=how[change] + r" while it was in use, noticed at rows \d+ to \d+\.)$"
    ) as caught:
        HierarchicalSpectralRegressor(1).fit(source)
    assert str(caught.value).startswith(f"{path} was ")


def test_a_file_that_shrinks_while_a_run_of_rows_is_read_is_named_with_the_row(tmp_path):
    data, path = written(tmp_path, "npy")
    source = opened(data)
    chunks = source.chunks(rows=500)
    next(chunks)
    os.truncate(path, 128 + 4 * D * 3210)
    with pytest.raises(
        InputError, match=r"X\.npy was changed from 960128 to 770528 bytes while .* at rows \d+ to"
    ):
        list(chunks)


def test_a_fingerprint_reads_pieces_of_the_inputs_and_the_labels_once(rows_read, tmp_path, monkeypatch):
    X, y = samples()
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    monkeypatch.setattr(base, "HASHED_WHOLE", X.nbytes // 2)
    monkeypatch.setattr(base, "HASHED_PIECE_BYTES", 10 * D * 4)
    source = open_source((tmp_path / "X.npy", tmp_path / "y.npy"))
    for _ in range(2):
        source.fingerprint()
    assert dict(rows_read) == {"inputs": 640, "labels": N}


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_small_numbers_are_never_widened_as_a_whole(dtype, streamed, tmp_path, monkeypatch):
    X, y = samples()
    np.save(tmp_path / "X.npy", np.rint(4 * X).astype(dtype))
    source = open_source((tmp_path / "X.npy", y))
    longest = []
    take = type(source)._take

    def watched(self, start, stop, keep, kind):
        longest.append(stop - start)
        return take(self, start, stop, keep, kind)

    monkeypatch.setattr(type(source), "_take", watched)
    monkeypatch.setattr(moment, "_ROWS", 500)
    HierarchicalSpectralRegressor(1, estimator="spectral", prepare="standardise").fit(source)
    assert max(longest) < N / 2


def test_power_sums_of_runs_are_those_of_all_rows():
    rows = 3.0 + np.random.default_rng(5).exponential(size=(5000, 4)) * [1.0, 0.1, 1e3, 1e-3]
    sums = PowerSums(0, *np.zeros((4, 4)))
    for part in np.split(rows, [7, 7, 8, 3000]):
        if len(part):
            sums.merge(PowerSums.of(part))
    centred = rows - rows.mean(axis=0)
    np.testing.assert_allclose(sums.mean, rows.mean(axis=0), rtol=1e-12)
    for power, got in ((2, sums.second), (3, sums.third), (4, sums.fourth)):
        np.testing.assert_allclose(got, (centred**power).sum(axis=0), rtol=1e-9)


@pytest.mark.parametrize("linear", [True, False])
def test_a_survey_has_the_moments_of_the_inputs(linear):
    X, y = samples()
    known = survey(open_source((X, y)), 5, linear=linear, shapes=True)
    np.testing.assert_allclose(known.inputs.mean, X.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(known.inputs.covariance(), np.cov(X.T, bias=True), atol=1e-6)
    np.testing.assert_allclose(known.fourth, ((X - X.mean(axis=0)) ** 4).sum(axis=0), rtol=1e-5)
    fit = fit_linear(open_source((X, y)), wanted=linear, forced=True, seed=5, known=known)
    again = fit_linear(open_source((X, y)), wanted=linear, forced=True, seed=5)
    np.testing.assert_array_equal(fit.coef, again.coef)
