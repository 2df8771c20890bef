"""What made a result, and what tells it from another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from stored import assert_same

from matfree_hier.store import RunFile, differences, provenance


def test_provenance_can_be_stored_and_names_what_computed(tmp_path):
    def transform(y):
        return y

    arguments = {
        "degree": 3,
        "link": transform,
        "sizes": [1, 2],
        "tol": 1e-6,
        "path": "\ud800",
        "nul": ["\0"],
    }
    record = provenance(arguments, seed=2**80, shape=(1000, 40), fingerprint="abc")
    with RunFile(tmp_path / "run.h5") as run:
        run.save("provenance", record)
        assert_same(run.load("provenance"), record)
    assert record["versions"]["numpy"] == np.__version__
    assert record["versions"].keys() == {"python", "matfree_hier", "numpy", "scipy", "numba", "h5py"}
    assert record["arguments"]["link"].endswith("transform")
    assert record["arguments"]["sizes"] == "[1, 2]"
    assert record["seed"] == 2**80
    assert record["created"].endswith("+00:00")
    assert record["processor"]
    assert str(Path.home()) not in json.dumps(record, default=str)


def test_configurations_that_differ_are_told_apart_by_name():
    stored, ours = {"seed": 3, "dtype": "float32"}, {"seed": 4, "dtype": "float32", "k": 2}
    assert differences(stored, stored) == ""
    assert differences(stored, ours) == "`k` was None and is 2; `seed` was 3 and is 4"
