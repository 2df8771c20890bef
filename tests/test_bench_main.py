"""The experiment main: what it writes, and what it counts as missed."""

from __future__ import annotations

import re

import pytest
from commandline import records

from matfree_hier.bench import main, recover
from matfree_hier.bench.__main__ import DONE, MISSED
from matfree_hier.bench.__main__ import main as command
from matfree_hier.store import RunFile

TINY_MAIN = {
    "degree": 2,
    "n_inputs": 8,
    "n_samples": 20_000,
    "n_features": 2,
    "gamma": 0.5,
    "min_qualifying": 2,
}


def test_the_main_job_in_miniature_recovers_reports_and_writes(tiny, tmp_path, capfd):
    tiny(TINY_MAIN)
    assert command(["main", "--out", str(tmp_path), "--threads", "1"]) == DONE
    out = capfd.readouterr().out
    assert "feature" in out
    assert re.search(r"^1 .* found$", out, flags=re.MULTILINE)
    assert "a dense matrix         32.8 kB (d^q x d^q), 10.4 kB (packed, D x D)" in out
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    with RunFile(tmp_path / "run.h5", "tiny", mode="r") as run:
        assert {"spectrum", "history", "recovery", "provenance"} <= set(run.groups())
        assert run.load("recovery")["overlap"].shape == (2,)
        assert run.load("spectrum")["eigenvectors"].shape == (36, 2)
    first, case, verdict = records((tmp_path / "main.jsonl").read_text())
    assert first["record"] == "machine"
    assert first["threads"] == 1
    assert verdict == {"record": "verdict", "experiment": "main", "passed": True, "missed": []}
    check_case(case)


def check_case(case):
    assert case["record"] == "main"
    assert case["case"] == "tiny"
    assert case["n_packed"] == 36
    assert case["data_bytes"] == 20_000 * (8 * 4 + 8)
    assert case["dense_bytes"] == 8 * 8**4
    assert case["packed_bytes"] == 8 * 36**2
    assert case["peak_bytes_beyond_data"] == case["peak_bytes"] - case["data_bytes"]
    assert case["n_passes"] > 0
    assert 0 < case["gflops"]["low"] <= case["gflops"]["median"] <= case["gflops"]["high"]
    assert [f["feature"] for f in case["features"]] == [1, 2]
    for f in case["features"]:
        assert f["n_over_n_k"] == pytest.approx(20_000 / f["n_k"])
        assert f["n_k"] == pytest.approx(36 * case["second_moment"] / (2 * f["theta"] ** 2))
        assert 0.6 <= f["overlap"] <= 1
        assert f["eigenvalue"] == pytest.approx(f["predicted_eigenvalue"], rel=0.2)


@pytest.mark.usefixtures("in_process")
def test_with_json_standard_output_is_one_object_a_line_and_a_miss_is_exit_status_1(tiny, tmp_path, capfd):
    tiny(TINY_MAIN | {"n_samples": 2_000, "min_qualifying": 3})
    assert command(["main", "--json", "--seed", "5", "--out", str(tmp_path), "--threads", "1"]) == MISSED == 1
    out, err = capfd.readouterr()
    missed = ["tiny: 2 features have n >= 4 n_k, at least 3 are needed."]
    assert [line["record"] for line in records(out)] == ["machine", "main", "verdict"]
    assert records(out)[-1]["missed"] == missed
    assert err.endswith(f"python -m matfree_hier.bench main: {missed[0]}\n")


def test_the_seed_alone_decides_what_the_main_job_finds():
    case = main.Case(**TINY_MAIN | {"n_samples": 2_000})
    once, again, other = (recover.solve(case, seed, progress=False)[2].eigenvalues for seed in (5, 5, 6))
    assert once.tolist() == again.tolist()
    assert once.tolist() != other.tolist()


def judged(**changes):
    feature = {"feature": 1, "qualifies": True, "overlap": 0.9, "n_over_n_k": 8.0}
    record = {"features": [feature], "peak_bytes_beyond_data": 5e8, "ok": True, "status": "Done."}
    case = {"min_qualifying": 1, "min_top_overlap": 0.8, "max_bytes_beyond_data": 10**9}
    case.update((k, v) for k, v in changes.items() if k in case)
    feature.update((k, v) for k, v in changes.items() if k in feature)
    record.update((k, v) for k, v in changes.items() if k in record)
    return main.judge("tiny", main.Case(**{**TINY_MAIN, **case}), record)


def test_a_case_that_reaches_all_it_was_asked_for_passes():
    assert judged() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qualifies": False}, "0 features have n >= 4 n_k, at least 1 are needed"),
        ({"overlap": 0.59, "min_top_overlap": 0.0}, "overlap 0.590 at n = 8.0 n_k, at least 0.6 is needed"),
        ({"overlap": 0.79}, "the first feature has squared overlap 0.790, at least 0.8 is needed"),
        ({"peak_bytes_beyond_data": 1.2e9}, "1.2 GB of memory beyond the data, the limit is 1 GB"),
        ({"ok": False}, "tiny: Done."),
    ],
)
def test_each_thing_a_case_misses_is_said(changes, message):
    (sentence,) = judged(**changes)
    assert message in sentence
