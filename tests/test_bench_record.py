from __future__ import annotations

import json

import pytest

from matfree_hier.bench import record
from matfree_hier.bench.record import Made

WHERE = {"processor": "a", "cpus": 2, "memory_gb": 8, "versions": {"matfree-hier": "0.1"}}
FIRST = Made("2026-05-13", 1.5, 1.0, 1, "aa")
LAST = Made("2026-05-14", 1234.0, 2000.0, 2, "bb")


def made_by(*entries, presets=("quick",)):
    return {"presets": list(presets), **record.case_record({"seeds": 1}, 7, entries, WHERE)}


def test_times_of_entries_add_up_and_what_differs_is_listed():
    found = made_by(FIRST, LAST)
    assert (found["seconds"], found["processor_seconds"]) == (1235.5, 2001.0)
    assert (found["threads"], found["source"]) == ([1, 2], ["aa", "bb"])
    assert found["computed"] == "2026-05-13 to 2026-05-14"
    assert found["entries"] == 2
    same = made_by(FIRST, FIRST)
    assert (same["threads"], same["source"], same["computed"]) == (1, "aa", "2026-05-13")


def test_the_sentence_of_a_case_says_seeds_date_time_and_code():
    assert record.sentence(made_by(FIRST)).split("; ") == [
        "made: preset quick",
        "first seed 7, 1 seed",
        "computed 2026-05-13 in 1.5 s (1.0 s of processor time), 1 thread",
        "matfree-hier 0.1, source aa",
    ]
    assert record.sentence(made_by(FIRST, LAST, presets=())).split("; ") == [
        "made: first seed 7, 1 seed",
        "computed 2026-05-13 to 2026-05-14 in 1,235.5 s (2,001.0 s of processor time), 1 and 2 threads",
        "matfree-hier 0.1, source aa and bb",
    ]


def test_an_entry_keeps_how_it_was_made():
    assert Made.from_text(FIRST.to_text()) == FIRST
    made = record.Stopwatch(threads=3).read()
    assert made.threads == 3
    assert made.seconds >= 0
    assert made.source == record.package_digest()


def test_a_preset_is_summed_up_once_all_its_cases_are_on_record(tmp_path):
    path = tmp_path / "about.json"
    cases = {"a": made_by(FIRST), "b": made_by(LAST)}
    presets = {"quick": ["a"], "both": ["a", "b"], "large": ["a", "c"]}
    totals = record.write_about(path, "squares", cases, presets)
    assert totals.keys() == {"quick", "both"}
    assert totals["both"] == {"cases": 2, "seconds": 1235.5, "processor_seconds": 2001.0}
    assert record.read_about(path) == cases


@pytest.mark.parametrize("text", [None, "", "{", "[]", json.dumps({"processor": "a"}), '{"cases": ["a"]}'])
def test_a_record_that_is_not_there_or_of_another_kind_counts_as_none(tmp_path, text):
    path = tmp_path / "about.json"
    if text is not None:
        path.write_text(text)
    assert record.read_about(path) == {}


@pytest.mark.parametrize("old", [{"seeds": 1}, made_by(FIRST) | {"seconds": None}, "a", None])
def test_a_case_on_record_without_its_times_is_skipped(tmp_path, old):
    path = tmp_path / "about.json"
    path.write_text(json.dumps({"cases": {"a": made_by(FIRST), "old": old}}))
    cases = record.read_about(path)
    assert cases == {"a": made_by(FIRST)}
    presets = {"quick": ["a"], "both": ["a", "old"]}
    assert record.write_about(path, "squares", cases, presets).keys() == {"quick"}
