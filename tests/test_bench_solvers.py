"""The experiment solvers: only what is accurate is timed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from commandline import records

from matfree_hier.bench import experiment, measure, solve, solvers
from matfree_hier.bench.__main__ import DONE, MISSED
from matfree_hier.bench.__main__ import main as command

TINY_SOLVE = {
    "degree": 2,
    "n_inputs": 9,
    "n_samples": 1_500,
    "n_features": 3,
    "k": 3,
    "width": 4,
    "max_passes": 300,
    "repeats": 2,
    "solvers": ["krylov", "dense", "lobpcg", "arpack", "power", "power-restarted"],
    "max_passes_of_ours": 21,
    "times_fewer": 2,
}


@pytest.mark.usefixtures("in_process")
def test_solvers_in_miniature_agree_and_only_the_accurate_are_timed(tiny, tmp_path, capfd):
    tiny(TINY_SOLVE)
    assert command(["solvers", "--out", str(tmp_path), "--threads", "1"]) == DONE
    out = capfd.readouterr().out
    assert re.search(r"^krylov .* accurate$", out, flags=re.MULTILINE)
    assert re.search(r"^power +15 +60 +- .* inaccurate$", out, flags=re.MULTILINE)
    assert re.search(r"^power: residual .* above 1e-06", out, flags=re.MULTILINE)
    assert re.search(r"^passes of krylov .* at most 21 +met$", out, flags=re.MULTILINE)
    assert re.search(r"^passes of lobpcg over them .* at least 2 +met$", out, flags=re.MULTILINE)
    *rows, case, verdict = records((tmp_path / "solvers.jsonl").read_text())[1:]
    assert verdict["passed"] is True
    assert case["n_packed"] == 45
    assert len(case["eigenvalues"]) == 3
    found = {row["solver"]: row for row in rows}
    assert list(found) == TINY_SOLVE["solvers"]
    for solver in ("krylov", "dense", "lobpcg", "arpack"):
        row = found[solver]
        assert row["shortfall"] == ""
        assert row["claims"] == "CONVERGED"
        assert row["residual"] <= 1e-6
        assert row["value_error"] <= 1e-9
        assert 0 < row["n_products"] <= row["n_passes"]
        assert row["n_vectors"] >= row["n_products"] >= 1
        assert 0 < row["seconds"]["low"] <= row["seconds"]["high"]
        assert row["values"] == pytest.approx(case["eigenvalues"], rel=1e-9)
    assert found["power"]["n_passes"] == found["power"]["n_products"] == 15
    assert found["power"]["residual"] > 1e-6
    assert "seconds" not in found["power"]
    assert found["power-restarted"]["residual"] < found["power"]["residual"]


@pytest.mark.usefixtures("in_process")
def test_the_gram_route_is_compared_where_samples_are_few(tiny, tmp_path):
    tiny(TINY_SOLVE | {"n_samples": 25, "solvers": ["gram", "krylov", "dense"], "repeats": 1})
    assert command(["solvers", "--out", str(tmp_path), "--threads", "1"]) == DONE
    gram, krylov, *_ = records((tmp_path / "solvers.jsonl").read_text())[1:]
    assert gram["n_vectors"] == 3
    assert gram["values"] == pytest.approx(krylov["values"], rel=1e-9)


@pytest.mark.usefixtures("in_process")
def test_only_what_is_outside_the_bulk_counts_where_that_is_asked(tiny, tmp_path, capfd):
    changes = {
        "accuracy": "outliers",
        "solvers": ["krylov-outliers", "krylov"],
        "peer_tol": 1e-5,
        "gamma": 0.0,
    }
    tiny(TINY_SOLVE | changes | {"n_features": 2, "n_samples": 4_000, "label_transform": "clip"})
    assert command(["solvers", "--out", str(tmp_path), "--threads", "1"]) == DONE
    first, second, case, _ = records((tmp_path / "solvers.jsonl").read_text())[1:]
    n_outliers = len(case["outliers"])
    assert n_outliers >= 2
    assert (
        f"of which the {n_outliers} outside the bulk count: eigenvectors to 0.001" in capfd.readouterr().out
    )
    assert first["vector_error"] <= 1e-3
    assert first["n_passes"] <= second["n_passes"]


@pytest.mark.usefixtures("in_process")
def test_a_case_with_nothing_outside_the_bulk_is_a_miss(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(solve, "outside_the_bulk", lambda values: np.zeros(len(values), bool))
    tiny(TINY_SOLVE | {"accuracy": "outliers", "solvers": ["krylov-outliers"], "times_fewer": None})
    assert command(["solvers", "--out", str(tmp_path), "--threads", "1"]) == MISSED
    verdict = records((tmp_path / "solvers.jsonl").read_text())[-1]
    assert verdict["missed"] == ["tiny: no eigenvalue is outside the bulk, so nothing was compared."]


@pytest.mark.usefixtures("in_process")
def test_a_wrong_answer_said_to_be_right_is_not_timed_and_is_exit_status_1(
    tiny, tmp_path, capfd, monkeypatch
):
    honest = solve.top_eigenpairs

    def wrong(C, k, **options):
        result = honest(C, k, **options)
        return result if C.shape[0] < 45 else replace(result, eigenvalues=result.eigenvalues * (1 + 1e-8))

    monkeypatch.setattr(solve, "top_eigenpairs", wrong)
    tiny(TINY_SOLVE | {"solvers": ["krylov", "arpack"], "tol": 1e-7})
    assert command(["solvers", "--json", "--out", str(tmp_path), "--threads", "1"]) == MISSED
    out, err = capfd.readouterr()
    for row in records(out)[1:3]:
        assert row["shortfall"] == "value error 1.0e-08 above 1e-09"
        assert "seconds" not in row
    ours = "tiny: krylov missed the accuracy: value error 1.0e-08 above 1e-09."
    theirs = "tiny: arpack says it converged and did not: value error 1.0e-08 above 1e-09."
    assert records(out)[-1]["missed"][:2] == [ours, theirs]
    assert f"bench solvers: {ours}" in err


@pytest.mark.usefixtures("in_process")
def test_without_a_dense_matrix_residuals_come_from_numpy_in_chunks(tiny, tmp_path):
    few = {"reference": False, "solvers": ["krylov", "lobpcg", "power"], "label_transform": "clip"}
    tiny(TINY_SOLVE | few | {"times_fewer": 1})
    assert command(["solvers", "--out", str(tmp_path), "--threads", "1"]) == DONE
    krylov, lobpcg, power, *_ = records((tmp_path / "solvers.jsonl").read_text())[1:]
    for row in (krylov, lobpcg):
        assert row["residual"] <= 1e-6
        assert row["value_error"] <= 1e-9
        assert row["seconds"]["median"] > 0
    assert power["residual"] > 1e-6


def test_a_pair_that_others_found_is_missed_without_a_dense_matrix_too():
    case = solvers.Case(**TINY_SOLVE | {"k": 2})
    rows = [
        {"solver": "krylov", "shortfall": "", "values": [-5.0, 3.0], "seconds": {}},
        {"solver": "arpack", "shortfall": "", "values": [-5.0, 2.0], "seconds": {}},
        {"solver": "power", "shortfall": "residual", "values": [9.0, 9.0]},
    ]
    solvers.withhold_where_pairs_are_missing(case, rows)
    assert rows[0]["value_error"] == 0
    assert rows[0]["seconds"] == {}
    assert rows[1]["shortfall"] == "a pair is missing that others found: 2.0e-01"
    assert "seconds" not in rows[1]
    assert "value_error" not in rows[2]


def compared(ours=(), lobpcg=(), **case):
    row = {"solver": "krylov", "shortfall": "", "claims": "CONVERGED", "n_passes": 12.5, "n_products": 11.0}
    rows = [row | dict(ours), row | {"solver": "lobpcg", "n_passes": 100.0} | dict(lobpcg)]
    bars = solvers.targets(solvers.Case(**TINY_SOLVE | {"times_fewer": 5} | case), rows)
    return solvers.judge("tiny", rows, bars)


def test_a_solve_that_reaches_all_it_was_asked_for_passes():
    assert compared() == []
    assert compared(aim=10) == []  # an aim is not a bar


@pytest.mark.parametrize(
    ("ours", "lobpcg", "message"),
    [
        ({"n_passes": 21.5}, {"n_passes": 200}, "passes of krylov: 21.5, at most 21 is asked."),
        ({}, {"n_passes": 60}, "passes of lobpcg over them: 4.8, at least 5 is asked."),
        ({"n_products": 13.0}, {}, "krylov counts 12.5 passes and made 13 products."),
        ({}, {"shortfall": "wrong"}, "lobpcg says it converged and did not: wrong."),
    ],
)
def test_each_count_or_claim_that_fails_is_said(ours, lobpcg, message):
    assert compared(ours, lobpcg) == [f"tiny: {message}"]


def test_a_solver_that_owns_up_to_its_failure_is_shown_and_no_miss():
    assert compared({}, {"shortfall": "residual 1e-3 above 1e-6", "claims": "MAX_PASSES"}) == []


def test_a_solver_of_ours_that_gives_nothing_is_a_miss():
    missed = solvers.judge("tiny", [{"solver": "gram", "shortfall": "no result"}], [])
    assert missed == ["tiny: gram missed the accuracy: no result."]


@pytest.mark.usefixtures("in_process")
def test_a_solver_that_is_not_installed_or_breaks_is_a_row(tiny, tmp_path, capfd, monkeypatch):
    isolated = solvers.run_isolated

    def broken(target, arguments, **options):
        if arguments.get("solver") == "arpack":
            msg = "it broke."
            raise measure.ChildError(msg)
        return isolated(target, arguments, **options)

    monkeypatch.setattr(solvers, "run_isolated", broken)
    monkeypatch.setattr(solvers, "find_spec", lambda _: None)
    tiny(TINY_SOLVE | {"solvers": ["krylov", "primme", "arpack"], "faster_than_arpack": True})
    assert command(["solvers", "--out", str(tmp_path), "--threads", "1"]) == DONE
    out = capfd.readouterr().out
    assert re.search(r"^primme( +-){6} +none$", out, flags=re.MULTILINE)
    assert "\nprimme: not installed\narpack: it broke.\n" in out


def test_scenarios_name_solvers_there_are():
    for case in experiment.load_scenarios("solvers")["cases"].values():
        assert set(case["solvers"]) <= set(solvers.SOLVERS)


def test_every_process_builds_the_same_operator_and_it_counts_vectors():
    case = solvers.Case(**TINY_SOLVE | {"n_samples": 200})
    V = np.random.default_rng(37).standard_normal((45, 3))
    first, again, other = solve.build(case, 5), solve.build(case, 5), solve.build(case, 6)
    np.testing.assert_array_equal(first @ V, again @ V)
    assert np.abs(first @ V - other @ V).max() > 0.1
    assert (first.n_vectors, first.n_applied) == (6, 2)


def test_outliers_of_a_spectrum_are_those_beyond_its_square_root_edge():
    rng = np.random.default_rng(39)
    A = rng.standard_normal((400, 400))
    bulk = np.linalg.eigvalsh((A + A.T) / np.sqrt(800.0))  # edges at -2 and 2
    assert not solve.outside_the_bulk(bulk).any()
    values = np.sort(np.append(bulk, [-2.5, 2.4, 2.4, 7.0]))
    np.testing.assert_array_equal(values[solve.outside_the_bulk(values)], [-2.5, 2.4, 2.4, 7.0])


def test_angles_are_to_the_nearest_vector_found():
    exact = np.eye(4)[:, :2]
    found = np.eye(4)[:, [3, 1, 0]].copy()
    found[:, 2] = [-1.0, 0.0, 1e-9, 0.0]
    np.testing.assert_allclose(solve.sines(exact, found), [1e-9, 0.0], rtol=1e-6)
