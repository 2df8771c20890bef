"""The experiment mpi."""

from pathlib import Path

import pytest
import ranks

from matfree_hier.bench import measure, mpi
from matfree_hier.bench.experiment import load_scenarios
from matfree_hier.bench.grid import Entry

CASE = {
    "degree": 2,
    "n_inputs": 6,
    "n": 600,
    "k": 3,
    "dtype": "float64",
    "ranks": [1, 2],
    "modes": ["weak", "strong"],
    "rounds": 2,
    "seeds": 1,
    "max_error": 1e-12,
    "min_efficiency": 0.9,
    "max_transfer": 0.05,
}


@pytest.mark.skipif(not ranks.available(), reason="mpiexec is not installed")
@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_products_on_two_ranks_are_timed_and_agree(mode):
    pytest.importorskip("mpi4py")
    point = next(p for p in mpi.points(CASE) if (p["mode"], p["ranks"]) == (mode, 2))
    values = mpi.compute(point, 5)
    assert values["error"] <= 1e-12
    assert values["seconds"] > 0.0
    assert 0.0 < values["transfer"] < 1.0
    assert values["efficiency"] > 0.0


GRIDS = CASE | {"grids": [[2, 2]], "costs": {"degree": 3, "n_inputs": 50, "ratio": 10, "k": 4}}
GRIDS["costs"] |= {"block_size": 8, "max_basis": 40, "grids": [[1, 1], [2, 4]]}


@pytest.mark.skipif(not ranks.available(), reason="mpiexec is not installed")
def test_vectors_divided_over_a_grid_agree_with_one_rank():
    pytest.importorskip("mpi4py")
    (point,) = mpi.points(GRIDS)
    summary = mpi.summarise(GRIDS, [Entry(point, 5, mpi.compute(point, 5))])
    assert [check.what for check in summary.checks] == [
        "2 x 2 ranks: difference of products",
        "2 x 2 ranks: 1 - cosine of eigenvectors",
    ]
    assert all(check.met for check in summary.checks), summary.checks


def test_the_table_of_costs_of_the_scenario_is_that_of_the_page():
    text = mpi.costs_of(load_scenarios("mpi")["cases"]["grids"]["costs"])
    title, table = text.split("\n", 1)
    assert "D = 999,800,616, n = 9,998,006,160" in title
    assert table in (Path(__file__).parent.parent / "docs" / "divided.md").read_text(encoding="utf-8")


def test_weak_scaling_is_judged_by_efficiency_and_by_transfers():
    values = {"efficiency": 0.8, "seconds": 1.0, "seconds_alone": 0.8, "transfer": 0.06, "wait": 0.1}
    entries = [Entry(point, 5, values | {"error": 1e-15}) for point in mpi.points(CASE)]
    summary = mpi.summarise(CASE, entries)
    assert len(summary.rows) == 4
    missed = [check.what for check in summary.checks if not check.met]
    assert missed == [
        "weak scaling to 2 ranks: efficiency",
        "weak scaling to 2 ranks: share of transfers",
    ]


def test_without_mpiexec_the_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("matfree_hier.bench.measure.sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("matfree_hier.bench.measure.shutil.which", lambda _: None)
    with pytest.raises(measure.ChildError, match=r"pip install 'matfree-hier\[mpi\]'"):
        mpi.compute(mpi.points(CASE)[1], 5)
