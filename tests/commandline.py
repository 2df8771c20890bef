"""Command lines run in this process, and what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier import cli
from matfree_hier.model import HierarchicalModel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from matfree_hier.status import Status

TEACHER = HierarchicalModel(6, 1, weights=[0.9, -0.5], seed=23)
NAMES = ["a", "b", "c", "d", "e", "f", "y"]


def write_csv(path: Any, columns: Any, names: Sequence[str]) -> Any:
    """Write a table with a header line and return its path."""
    np.savetxt(path, columns, fmt="%.17g", delimiter=",", header=",".join(names), comments="")
    return path


def table_of(folder: Path) -> Path:
    """Write `data.csv`, samples of the teacher with a linear part."""
    X, y = TEACHER.sample(3000, 29)
    path: Path = write_csv(folder / "data.csv", np.column_stack([X, y + X[:, 0]]), NAMES)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """Run a command line; return its exit status, standard output and standard error."""
    status = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """Return the sentence that a refused command ends with."""
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("matfree_hier: ")
    assert err.count("\n") == 1
    assert "usage" not in err
    assert "Traceback" not in err
    return err.removeprefix("matfree_hier: ").rstrip()


def records(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a text that has one a line."""
    return [json.loads(line) for line in text.splitlines()]


def let_solves_end(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    """Let every solve of a fit say that it ended with a status."""
    from matfree_hier.fitting import spectral

    solve = spectral.top_eigenpairs
    monkeypatch.setattr(spectral, "top_eigenpairs", lambda *a, **k: replace(solve(*a, **k), status=status))
