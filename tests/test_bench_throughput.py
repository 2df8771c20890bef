"""The experiment throughput."""

from __future__ import annotations

import re
import time

import pytest
from commandline import records

from matfree_hier.bench import throughput
from matfree_hier.bench.__main__ import DONE
from matfree_hier.bench.__main__ import main as command

TINY_PRODUCT = {
    "degree": 3,
    "n_inputs": 5,
    "n_vectors": 16,
    "dtype": "float32",
    "target": 0.7,
    "peer_target": 1e9,
    "gigaflops": 0.01,
    "repeats": 1,
}


@pytest.mark.usefixtures("in_process")
def test_throughput_in_miniature_times_and_compares(tiny, tmp_path, capfd):
    tiny(TINY_PRODUCT)
    assert command(["throughput", "--out", str(tmp_path), "--threads", "1"]) == DONE
    out = capfd.readouterr().out
    assert re.search(r"^tiny .* 1e\+09 missed", out, flags=re.MULTILINE)  # a missed target is no failure
    assert re.search(r"^float32 +12.00 +10 missed +12.00 +0.50$", out, flags=re.MULTILINE)
    _, case, compilation, _ = records((tmp_path / "throughput.jsonl").read_text())
    assert case["accurate"] is True
    assert case["error"] <= case["error_bound"] == 2e-6
    assert case["n_features"] == 35
    assert {"share", "forward_share", "backward_share", "gflops", "blas_gflops"} <= set(case)
    assert {"numpy", "numpy_blocks", "numpy_formed", "sklearn"} == set(case["times_faster"])
    assert case["times_faster"]["numpy"] > 0
    assert all("thread" in line for line in case["blas"])
    assert compilation["dtype"] == "float32"
    assert compilation["second_compile_seconds"] == 12.0


def test_the_first_product_of_a_process_is_timed_beyond_the_second():
    throughput.time_first_product("float64", time.time())
    seconds = throughput.time_first_product("float64", time.time() - 3)
    assert 3 <= seconds["import_seconds"] < 4
    assert seconds["compile_seconds"] < 1
