"""The experiments authors, kernels-baseline and limits."""

from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.bench import authors, kernels_baseline, limits
from matfree_hier.bench.experiment import load_scenarios
from matfree_hier.bench.grid import Entry
from matfree_hier.model import HierarchicalModel
from matfree_hier.packing import unpack

SMALL = {"degree": 2, "n_inputs": 10, "n_features": 3, "gamma": 0.4, "n_test": 500}


def test_the_authors_teacher_has_their_weights():
    truth = authors.teacher(SMALL | {"n_inputs": 20, "n_features": 11}, 5)
    X, y = truth.sample(500, 6)
    h = truth.latents(X)
    b = np.sign(truth.weights_) * 11**-0.2 * np.arange(1, 12) ** -0.4
    np.testing.assert_allclose(y, np.tanh((h**2 - 1) @ b))
    assert {-1.0, 1.0} == set(np.sign(truth.weights_))


@pytest.mark.parametrize("variant", authors.VARIANTS)
def test_every_variant_finds_features_of_an_easy_task(variant):
    found = authors.compute(SMALL | {"n": 4000, "variant": variant}, 5)
    assert found["overlaps"].shape == (3,)
    assert found["overlaps"].max() > 0.5


def test_the_record_is_met_within_what_its_spread_allows():
    assert authors.allowed(0.01, 2) == 0.05
    assert authors.allowed(0.09, 5) == pytest.approx(2.5 * 0.09 * 0.3**0.5)
    case = SMALL | {"n": [4000], "recorded": [0.3], "recorded_sd": [0.01], "variants": ["paper"], "seeds": 1}
    entries = [Entry({"n": 4000, "variant": "paper"}, 5, {"overlaps": np.full(3, 0.36), "mse": 0.5})]
    summary = authors.summarise(case, entries)
    assert [check.met for check in summary.checks] == [False]
    assert summary.rows[0]["overlap"] == pytest.approx(0.36)
    assert summary.rows[0]["gain"] == 0.0


def test_gains_over_paper_are_taken_seed_by_seed():
    case = SMALL | {"n": [40], "recorded": [0.3], "recorded_sd": [0.01], "variants": ["centred"], "seeds": 2}
    found = {"paper": (0.2, 0.4), "centred": (0.25, 0.55)}
    entries = [
        Entry({"n": 40, "variant": name}, seed, {"overlaps": np.full(3, overlap), "mse": 0.5})
        for name, overlaps in found.items()
        for seed, overlap in enumerate(overlaps)
    ]
    assert authors.summarise(case, entries).rows[0]["gain"] == pytest.approx(0.1)
    assert np.isnan(authors.summarise(case, entries[2:]).rows[0]["gain"])


def test_the_part_of_degree_2_is_what_matrices_say():
    """h_k = x^T M_k x/sqrt 2 less its mean; h2 has 4 |sum_k lambda_k M_k^2|^2 of its variance in degree 2."""
    truth = HierarchicalModel(12, 2, weights=[0.8, -0.6, 0.3], seed=7)
    M = unpack(truth.features_.T, 12, 2).T.reshape(-1, 12, 12)
    weights = truth.weights_
    low = 4.0 * np.sum(np.einsum("k,kij->ij", weights, M @ M) ** 2)
    pairs = np.einsum("kab,lbc,kcd,lda->kl", M, M, M, M)
    variance = weights @ weights + low + 2.0 * weights @ pairs @ weights
    assert kernels_baseline.share_of_degree(truth, 2, 9) == pytest.approx(low / variance, abs=0.02)
    assert kernels_baseline.share_of_degree(truth, 4, 9) == pytest.approx(1.0 - low / variance, abs=0.03)
    assert 0.1 < low / variance < 0.7


def test_kernels_and_ours_are_fitted_to_the_same_samples():
    errors = {}
    for name in ("rbf", "polynomial", "refined"):
        point = SMALL | {"n_inputs": 14, "n_features": 2, "n": 1200, "model": name}
        errors[name] = kernels_baseline.compute(point, 5)["mse"]
    assert errors["refined"] < 0.1 < min(errors["rbf"], errors["polynomial"])


KERNELS_CASE = SMALL | {
    "n_kernels": [400, 800, 10_000_000],
    "n": [400, 800, 1600],
    "seeds": 2,
    "plateau": 800,
    "above": 0.1,
    "below": 0.05,
    "refined_error": 0.1,
    "paper_by": 0.9,
    "spectral_by": 0.2,
}


def errors_of(case, errors):
    """Return entries of one error a model, whatever the number of samples."""
    return [
        Entry(point, seed, {"mse": errors[point["model"]], "overlap": 0.5})
        for point in kernels_baseline.points(case)
        for seed in (1, 2)
    ]


def test_a_kernel_that_does_not_fit_in_memory_is_an_answer_of_the_table(monkeypatch):
    monkeypatch.setattr(kernels_baseline, "LOW_ROWS", 10_000)
    errors = dict.fromkeys(kernels_baseline.MODELS, 0.5)
    summary = kernels_baseline.summarise(KERNELS_CASE, errors_of(KERNELS_CASE, errors))
    notes = {(row["model"], row["n"]): row["note"] for row in summary.rows}
    assert notes["rbf", 800] == ""
    assert notes["rbf", 1600] == "not run"
    assert notes["polynomial", 10_000_000].startswith("does not fit: 2.6")
    assert ("refined", 10_000_000) not in notes
    assert "does not fit" in summary.lines[0]


def test_a_kernel_that_runs_out_of_memory_does_not_fit_and_what_is_stored_counts(monkeypatch):
    def full(*_, **__):
        raise MemoryError

    point = next(p for p in kernels_baseline.points(KERNELS_CASE) if p["model"] == "rbf")
    with monkeypatch.context() as patch:
        patch.setattr(kernels_baseline, "kernel_ridge", full)
        values = kernels_baseline.compute(point, 5)
    row = kernels_baseline._row("rbf", point["n"], [Entry(point, 5, values)])
    assert row["note"].startswith("does not fit")
    monkeypatch.setattr(kernels_baseline, "total_memory", lambda: 1)
    row = kernels_baseline._row("rbf", point["n"], [Entry(point, 5, {"mse": 0.5, "overlap": np.nan})])
    assert (row["note"], row["relative_mse"]) == ("", 0.5)
    assert not [p for p in kernels_baseline.points(KERNELS_CASE) if p["model"] == "rbf"]


def test_kernels_have_to_stand_at_the_floor_where_refined_is_past_it(monkeypatch):
    monkeypatch.setattr(kernels_baseline, "LOW_ROWS", 10_000)
    floor = kernels_baseline.floors(KERNELS_CASE, [1, 2])[2]
    good = {"rbf": floor + 0.05, "polynomial": floor, "paper": 0.8 * floor, "spectral": 0.05, "refined": 0.0}
    good |= {"paper-h2": 3.0, "paper-less-low": 0.2}

    def missed(**changed):
        entries = errors_of(KERNELS_CASE, good | changed)
        checks = kernels_baseline.summarise(KERNELS_CASE, entries).checks
        return [check.what.partition(":")[0] for check in checks if not check.met]

    assert missed() == []
    assert missed(rbf=1.0) == ["rbf"]  # has learnt nothing
    assert missed(polynomial=floor - 0.2) == ["polynomial"]  # is past the floor itself
    assert missed(refined=0.2, paper=1.0) == ["refined", "paper"]


def test_a_scenario_asks_for_sizes_that_are_fitted():
    table = load_scenarios("kernels-baseline")
    assert {name for names in table["presets"].values() for name in names} == set(table["cases"])
    for case in table["cases"].values():
        assert case["plateau"] in case["n"]
        assert case["plateau"] in case["n_kernels"]
        assert case["seeds"] >= 2


def test_time_is_measured_against_one_size_at_a_time():
    case = {
        "degree": 2,
        "n_inputs": 5,
        "n": 256,
        "k": 8,
        "ns": [256, 512],
        "n_inputs_s": [5, 9],
        "ks": [8, 16],
    }
    case |= {"max_exponent": 1.2, "seeds": 2}
    points = limits.points(case)
    assert len(points) == 6
    assert limits.time_product(points[0], 5) > 0.0
    entries = [Entry(p, seed, {"seconds": 1e-3 * limits._size(p) ** 1.3}) for p in points for seed in (1, 2)]
    summary = limits.summarise(case, entries)
    assert [check.value for check in summary.checks] == pytest.approx([1.3] * 3)
    assert not any(check.met for check in summary.checks)


def test_a_recovery_is_judged_by_its_weakest_feature(tmp_path):
    point = {"degree": 2, "n_inputs": 10, "n_samples": 8000, "n_features": 2, "gamma": 0.5, "tol": 1e-2}
    point |= {"block_size": 8, "threads": 1}
    values = limits.compute(point, 5, tmp_path)
    assert values["weakest"] <= values["overlap"] <= 1.0
    assert values["seconds"] > 0.0
    assert values["peak_bytes"] > values["data_bytes"] > 0.0
    case = point | {"min_overlap": 2.0, "seeds": 1}
    summary = limits.summarise(case, [Entry(point, 5, values)])
    assert summary.checks[0].value == values["weakest"]
    assert not summary.checks[0].met
