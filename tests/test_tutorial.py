"""The tutorial of the README, taken out of it and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from matfree_hier.cli import main
from matfree_hier.store import RunFile

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def code():
    section = README.read_text(encoding="utf-8").partition("## From data to a figure")[2]
    block = re.search(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert block is not None
    return block[1]


def test_the_tutorial_is_short_and_draws_features_in_order(code, tmp_path, monkeypatch, capsys):
    assert len(code.splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "recovery.png").read_bytes().startswith(b"\x89PNG")
    with RunFile("recovery.h5", mode="r") as run:
        table = run.load("table")
    last = table["n"] == table["n"].max()
    found = [table["overlap"][last & (table["feature"] == k)].mean() for k in (1, 2, 3)]
    assert found[0] > 0.85
    assert found == sorted(found, reverse=True)
    assert main(["report", "recovery.h5"]) == 0
    assert "data:image/svg+xml;base64," in (tmp_path / "recovery.html").read_text()
