from __future__ import annotations

import resource

import numpy as np
import pytest

from matfree_hier.bench import outofcore
from matfree_hier.bench.experiment import load_scenarios
from matfree_hier.bench.files import LAYOUTS, write_samples
from matfree_hier.bench.grid import Entry
from matfree_hier.bench.measure import resolve

TINY = {"degree": 1, "n_inputs": 6, "n_samples": 3_000, "seeds": 1}
FILES = ["npy float32", "parts int8", "chunks float16", "hdf5 float32"]


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(outofcore, "run_isolated", lambda target, a, **_: resolve(target)(**a))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_every_layout_holds_the_samples_of_the_teacher(layout, dtype, tmp_path):
    if layout == "parquet":
        pytest.importorskip("pyarrow")
    arguments = {"degree": 1, "n_inputs": 6, "n_samples": 3_000, "seed": 5}
    (tmp_path / "plain").mkdir()
    plain = outofcore.opened(write_samples(str(tmp_path / "plain"), "npy", "float32", **arguments))
    source = outofcore.opened(write_samples(str(tmp_path), layout, dtype, **arguments))
    X = plain.inputs()
    stored = np.clip(np.rint(8 * X), -127, 127) if dtype == "int8" else X.astype(dtype)
    np.testing.assert_array_equal(source.inputs(), stored)
    np.testing.assert_array_equal(source.labels(), plain.labels())


def test_an_unknown_layout_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`layout` must be one of npy, .*, got csv"):
        write_samples(str(tmp_path), "csv", "int8", degree=1, n_inputs=2, n_samples=5, seed=1)


def test_products_from_files_are_those_from_memory_and_the_speed_is_judged(in_process, tmp_path):
    case = TINY | {"k": 4, "files": FILES, "min_ratio": 0.0}
    points = outofcore.points(case)
    entries = [Entry(point, 5, outofcore.compute(point, 5, tmp_path)) for point in points]
    assert not list(tmp_path.iterdir())
    summary = outofcore.summarise(case, entries)
    assert all(check.met for check in summary.checks)
    assert [row["same_bits"] for row in summary.rows] == [True] * 4
    assert [row["file_bytes"] for row in summary.rows[:2]] == [3000 * 32 + 256, 3000 * 14 + 14 * 128]
    slow = [entry._replace(values=entry.values | {"ratio": 0.1, "same_bits": False}) for entry in entries]
    assert not any(check.met for check in outofcore.summarise(case | {"min_ratio": 0.9}, slow).checks)


def test_fits_of_n_and_16_n_samples_are_compared_for_each_job(in_process, tmp_path):
    case = TINY | {"max_growth": 1.1}
    points = outofcore.points(case)
    assert [(p["job"], p["n_samples"]) for p in points] == [
        ("estimator", 3_000), ("estimator", 48_000), ("solver", 3_000), ("solver", 48_000)
    ]  # fmt: skip
    values = [outofcore.compute(points[i], 5, tmp_path) for i in (0, 2)]
    assert all(v["features"] >= 4 for v in values)
    assert all(v["peak_bytes"] > 1e7 for v in values)
    peaks = [100, 109, 100, 150]
    entries = [
        Entry(point, 5, values[i // 2] | {"peak_bytes": peak})
        for i, (point, peak) in enumerate(zip(points, peaks, strict=True))
    ]
    assert [check.met for check in outofcore.summarise(case, entries).checks] == [True, False]


def test_a_limit_of_address_space_is_set_before_the_fit(in_process, tmp_path, monkeypatch):
    case = TINY | {"limit_bytes": 70_000}
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, bounds: limits.append((what, bounds)))
    (point,) = outofcore.points(case)
    entry = Entry(point, 5, outofcore.compute(point, 5, tmp_path))
    assert limits == [(resource.RLIMIT_AS, (70_000, 70_000))]
    summary = outofcore.summarise(case, [entry])
    assert all(check.met for check in summary.checks)
    assert not outofcore.summarise(case | {"limit_bytes": 10**9}, [entry]).checks[0].met


def test_every_scenario_is_of_one_kind_and_in_a_preset():
    table = load_scenarios("outofcore")
    assert {"quick", "default", "large"} == set(table["presets"])
    assert {case for cases in table["presets"].values() for case in cases} == set(table["cases"])
    for case in table["cases"].values():
        assert len({"files", "limit_bytes", "max_growth"} & set(case)) == 1
        assert outofcore.points(case)
        assert all(outofcore.cost(point) > 0 for point in outofcore.points(case))


@pytest.mark.long
def test_a_file_larger_than_the_address_space_allowed_is_fitted(tmp_path):
    case = {"degree": 1, "n_inputs": 500, "n_samples": 900_000, "limit_bytes": 1_750_000_000, "seeds": 1}
    (point,) = outofcore.points(case)
    values = outofcore.compute(point, 5, tmp_path)
    summary = outofcore.summarise(case, [Entry(point, 5, values)])
    assert all(check.met for check in summary.checks)
