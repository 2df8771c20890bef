"""Times, memory and processes of measurements."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from matfree_hier.bench import measure


def test_interleaved_calls_run_once_before_the_clock_and_then_in_turn():
    order = []
    seconds = measure.time_interleaved(
        {"a": lambda: order.append("a"), "b": lambda: time.sleep(0.01) or order.append("b")},
        repeats=2,
        pause=0,
    )
    assert "".join(order) == "ababab"
    assert seconds["b"].shape == (2,)
    assert seconds["b"].min() >= 0.01 > seconds["a"].max()
    with pytest.raises(ValueError, match="`repeats` must be at least 1, got 0"):
        measure.time_interleaved({}, repeats=0)


def test_peak_memory_sees_what_was_freed_since():
    memory = measure.PeakMemory()
    block = np.ones(10_000_000)
    del block
    assert 75e6 < memory.read() < 110e6


def test_a_small_process_of_a_large_parent_reports_its_own_memory():
    block = np.ones(40_000_000)  # 320 MB here
    code = f"import runpy; print(runpy.run_path({measure.__file__!r})['peak_bytes']())"  # NumPy and no more
    peak = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(peak.stdout) < 200e6 < block.nbytes


def test_a_measurement_of_its_own_has_its_threads_and_no_steering_variable(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    environment = measure.clean_environment(3)
    assert "OPENBLAS_CORETYPE" not in environment
    assert environment["NUMBA_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("target", "arguments", "reason"),
    [
        ("os:_exit", {"status": 3}, "it ended with exit status 3 and no message"),
        (
            "matfree_hier.bench.experiment:choose_cases",
            {"experiment": "x", "preset": "y"},
            "ValueError: `EXP",
        ),
    ],
)
def test_a_measurement_without_a_result_says_why(target, arguments, reason):
    with pytest.raises(measure.ChildError, match=f"the measurement {target} gave no result: {reason}"):
        measure.run_isolated(target, arguments, threads=1)


def test_records_are_strict_json():
    record = {
        "a": np.float32(1.5),
        "b": [np.nan, np.inf],
        "c": np.arange(2),
        "d": measure.Spread(1.0, 0.5, 2.0),
    }
    assert json.loads(measure.to_json(record)) == {
        "a": 1.5,
        "b": [None, None],
        "c": [0, 1],
        "d": {"median": 1.0, "low": 0.5, "high": 2.0},
    }
