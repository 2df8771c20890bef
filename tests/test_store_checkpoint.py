"""Checkpoints: what is saved comes back, and is replaced whole."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from stored import BASIS, MAPPING, VALUES, assert_same

from matfree_hier.store import Checkpoint, RunFile


@pytest.mark.parametrize("key", VALUES)
def test_a_checkpoint_gives_a_value_back_with_its_bits_type_and_memory_order(tmp_path, key):
    checkpoint = Checkpoint(tmp_path / "run.h5.checkpoint")
    checkpoint.save({key: VALUES[key], "after": np.arange(3)})
    assert_same(checkpoint.load(), {key: VALUES[key], "after": np.arange(3)})


@given(values=MAPPING)
def test_any_mapping_survives_a_checkpoint(values, tmp_path_factory):
    checkpoint = Checkpoint(tmp_path_factory.mktemp("any") / "checkpoint")
    checkpoint.save(values)
    assert_same(checkpoint.load(), values)


def test_a_checkpoint_is_replaced_and_deleted(tmp_path):
    with RunFile(tmp_path / "run.h5") as run, RunFile(tmp_path / "more.h5", "deep") as other:
        checkpoint = Checkpoint.beside(run)
        assert checkpoint.path == tmp_path / "run.h5.checkpoint"
        assert Checkpoint.beside(other).path == tmp_path / "more.h5.deep.checkpoint"
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint `.*run\.h5\.checkpoint`\."):
        checkpoint.load()
    for value in (1, 2):
        checkpoint.save({"x": value})
    assert checkpoint.exists()
    assert checkpoint.load() == {"x": 2}
    checkpoint.delete()
    checkpoint.delete()
    assert not checkpoint.exists()
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_saves_without_copying_an_ordered_array(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        "matfree_hier.store.checkpoint.write_whole", lambda path, kind, parts: written.extend(parts)
    )
    basis = np.asfortranarray(BASIS)
    Checkpoint(tmp_path / "checkpoint").save({"basis": basis})
    assert np.shares_memory(np.frombuffer(written[1], np.uint8), basis)


def test_a_read_only_array_is_saved(tmp_path):
    basis = BASIS.copy()
    basis.flags.writeable = False
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.save({"basis": basis})
    assert checkpoint.load()["basis"].flags.writeable
