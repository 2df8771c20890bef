from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import oracle
import pytest

from matfree_hier.bench import __main__ as bench_main
from matfree_hier.bench import (
    experiment,
    main,
    measure,
    recover,
    reference,
    smooth,
    solve,
    solvers,
    throughput,
)
from matfree_hier.bench.__main__ import BAD_USAGE, DONE, INTERRUPTED, MISSED
from matfree_hier.bench.__main__ import main as command

ONE_OF_ALL = f"`EXPERIMENT` must be one of {', '.join(experiment.EXPERIMENTS)}"
BAD_FOLDER = "`--out` must be a folder to write to, or a name for a new one"
TINY_MAIN = {
    "degree": 2,
    "n_inputs": 8,
    "n_samples": 20_000,
    "n_features": 2,
    "gamma": 0.5,
    "min_qualifying": 2,
}
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


@pytest.fixture
def tiny(monkeypatch):
    """Put one small case in the place of the scenarios of an experiment."""

    def use(case):
        table = {"presets": {"default": ["tiny"]}, "cases": {"tiny": case}}
        monkeypatch.setattr(experiment, "load_scenarios", lambda _: table)

    return use


@pytest.fixture
def in_process(monkeypatch):
    """Measure in this process: a new one has to import everything again."""

    def run(target, arguments, **_):
        if target.endswith("time_first_product"):
            return {"import_seconds": 0.5, "compile_seconds": 12.0}
        return json.loads(measure.to_json(measure.resolve(target)(**arguments)))

    monkeypatch.setattr(main, "run_isolated", run)
    monkeypatch.setattr(throughput, "run_isolated", run)
    monkeypatch.setattr(solvers, "run_isolated", run)


def records(text):
    return [json.loads(line) for line in text.splitlines()]


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["mian"],
            f"{ONE_OF_ALL}, got mian. Did you mean main?",
        ),
        (
            ["kernels_baseline"],
            f"{ONE_OF_ALL}, got kernels_baseline. Did you mean kernels-baseline?",
        ),
        (["--preset", "huge"], "`--preset` of main must be one of quick, default, large, q3d60, got huge."),
        (["--seed", "-1"], "argument --seed: must be an integer of at least 0, got -1."),
        (["--threads", "0"], "argument --threads: must be an integer of at least 1, got 0."),
        (["--threads", "two"], "argument --threads: must be an integer of at least 1, got two."),
        (["--jsn"], "unrecognized arguments: --jsn"),
        (
            ["--out", "/dev/null/x"],
            f"{BAD_FOLDER}, got /dev/null/x (Not a directory).",
        ),
        (
            ["--out", __file__],
            f"{BAD_FOLDER}, got {__file__} (this is a file).",
        ),
    ],
)
def test_a_bad_argument_is_one_line_and_exit_status_2(arguments, message, capsys):
    try:
        status = command(arguments)
    except SystemExit as stop:
        status = stop.code
    assert status == BAD_USAGE == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"python -m matfree_hier.bench: {message}\n"


def test_help_is_a_line_or_two_an_experiment_aligned_and_names_every_option(capsys):
    assert command(["--help"]) == DONE
    text = capsys.readouterr().out
    for name in experiment.EXPERIMENTS:
        assert re.search(rf"^  {name:<16}  \S", text, flags=re.MULTILINE)
    for option in ("--preset", "--out", "--seed", "--threads", "--json", "--versions", "--version", "--help"):
        assert option in text
    assert "exit status: 0 done; 1" in text
    assert max(map(len, text.splitlines())) < 110


@pytest.mark.parametrize("name", experiment.EXPERIMENTS)
def test_the_help_of_an_experiment_says_what_it_is_and_lists_presets_and_cases(name, capsys):
    assert command([name, "--help"]) == DONE
    text = capsys.readouterr().out
    assert experiment.describe(name).split("\n")[0] in text
    table = experiment.load_scenarios(name)
    for preset, cases in table["presets"].items():
        assert re.search(rf"^  {preset} +{cases[0]}", text, flags=re.MULTILINE)
    for case in table["cases"]:
        assert re.search(rf"^  {re.escape(case)}  +\w+ \w", text, flags=re.MULTILINE)


def test_a_reader_that_leaves_early_causes_no_traceback():
    code = "import sys; from matfree_hier.bench.__main__ import main; sys.exit(main(['--versions']))"
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    job.stdout.close()
    _, err = job.communicate(timeout=100)
    assert (job.returncode, err) == (DONE, b"")


def test_a_file_in_the_way_is_a_sentence_and_exit_status_2(monkeypatch, tmp_path, capsys):
    def in_the_way(job):
        (job.out / "kept").write_text("")
        (job.out / "kept").mkdir()

    monkeypatch.setattr("matfree_hier.bench.__main__.load_runner", lambda _: in_the_way)
    assert command(["solvers", "--preset", "quick", "--out", str(tmp_path)]) == BAD_USAGE
    err = capsys.readouterr().err
    assert err == f"python -m matfree_hier.bench: `{tmp_path / 'kept'}` cannot be used (File exists).\n"


def test_out_of_memory_is_a_sentence_and_exit_status_1(monkeypatch, tmp_path, capsys):
    def large(_):
        msg = "Unable to allocate 3 TiB"
        raise MemoryError(msg)

    monkeypatch.setattr("matfree_hier.bench.__main__.load_runner", lambda _: large)
    assert command(["solvers", "--preset", "quick", "--out", str(tmp_path)]) == MISSED
    err = capsys.readouterr().err
    assert err == "python -m matfree_hier.bench solvers: out of memory: Unable to allocate 3 TiB\n"


def test_records_of_cases_that_are_not_run_again_stay(monkeypatch, tmp_path):
    def run(job):
        for name in job.cases:
            job.emit({"record": "solver", "case": name, "seed": job.seed})
        return []

    monkeypatch.setattr("matfree_hier.bench.__main__.load_runner", lambda _: run)
    tables = {"presets": {"default": ["a", "b"], "other": ["b"]}, "cases": {"a": {}, "b": {}}}
    for place in (experiment, bench_main):
        monkeypatch.setattr(place, "load_scenarios", lambda _: tables)

    def kept(*more):
        command(["solvers", "--out", str(tmp_path), *more])
        found = records((tmp_path / "solvers.jsonl").read_text())
        return [(record["record"], record.get("case", ""), record.get("seed")) for record in found]

    assert kept("--seed", "5", "--preset", "other") == [
        ("machine", "", 5), ("solver", "b", 5), ("verdict", "", None)
    ]  # fmt: skip
    first = [("machine", "", 6), ("solver", "a", 6), ("solver", "b", 6), ("verdict", "", None)]
    assert kept("--seed", "6") == first
    last = [("machine", "", 7), ("solver", "b", 7), ("verdict", "", None)]
    assert kept("--seed", "7", "--preset", "other") == [*first[:2], *last]
    assert kept("--seed", "7", "--preset", "other") == [*first[:2], *last]


def test_versions_lists_what_is_measured(capsys):
    assert command(["--versions"]) == DONE
    out = capsys.readouterr().out
    for name in ("matfree-hier", "python", "numpy", "numba", "source"):
        assert re.search(rf"^{name} [\da-f]", out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("main", main.Case),
        ("smooth", smooth.Case),
        ("solvers", solvers.Case),
        ("throughput", throughput.Case),
    ],
)
def test_every_scenario_is_a_case_and_every_preset_names_scenarios(name, case):
    table = experiment.load_scenarios(name)
    for values in table["cases"].values():
        case(**values)
    for cases in table["presets"].values():
        assert set(cases) <= set(table["cases"])
    assert {"quick", "default", "large"} <= set(table["presets"])


def test_an_interrupted_run_says_what_to_type_and_ends_with_130(monkeypatch, tmp_path, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("matfree_hier.bench.__main__.load_runner", lambda _: interrupted)
    arguments = ["throughput", "--preset", "quick", "--out", str(tmp_path)]
    assert command(arguments) == INTERRUPTED == 130
    assert f"to run it again: python -m matfree_hier.bench {' '.join(arguments)}" in capsys.readouterr().err


def test_an_interrupted_run_keeps_what_it_had_measured(monkeypatch, tmp_path):
    def interrupted(job):
        job.emit({"record": "first"})
        raise KeyboardInterrupt

    monkeypatch.setattr("matfree_hier.bench.__main__.load_runner", lambda _: interrupted)
    command(["solvers", "--preset", "quick", "--out", str(tmp_path)])
    kept = records((tmp_path / "solvers.jsonl").read_text())
    assert [record["record"] for record in kept] == ["machine", "first"]


def test_a_signal_during_a_measurement_ends_its_process_too(tmp_path):
    job = subprocess.Popen(
        [sys.executable, "-m", "matfree_hier.bench", "main", "--out", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stderr.readline() == "q3d40: compiling\n"  # said by the process of the measurement
    job.send_signal(signal.SIGTERM)  # taken as Ctrl-C
    _, err = job.communicate(timeout=100)  # until no process holds standard error any more
    assert job.returncode == INTERRUPTED
    assert err.endswith(f"to run it again: python -m matfree_hier.bench main --out {tmp_path}\n")


# ---- main


def test_the_main_job_in_miniature_recovers_reports_and_writes(tiny, tmp_path, capfd):
    tiny(TINY_MAIN)
    assert command(["main", "--out", str(tmp_path), "--threads", "1"]) == DONE
    out = capfd.readouterr().out
    assert "feature" in out
    assert re.search(r"^1 .* found$", out, flags=re.MULTILINE)
    assert "a dense matrix         32.8 kB (d^q x d^q), 10.4 kB (packed, D x D)" in out
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    with store().RunFile(tmp_path / "run.h5", "tiny", mode="r") as run:
        assert {"spectrum", "history", "recovery", "provenance"} <= set(run.groups())
        assert run.load("recovery")["overlap"].shape == (2,)
        assert run.load("spectrum")["eigenvectors"].shape == (36, 2)
    first, case, verdict = records((tmp_path / "main.jsonl").read_text())
    assert first["record"] == "machine"
    assert first["threads"] == 1
    assert verdict == {"record": "verdict", "experiment": "main", "passed": True, "missed": []}
    check_case(case)


def store():
    from matfree_hier import store

    return store


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


# ---- throughput


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


# ---- solvers


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


# ---- peers


@pytest.mark.parametrize("restarted", [False, True])
def test_the_authors_power_iteration_is_their_fifteen_products(restarted):
    products = []
    rng = np.random.default_rng(41)
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    w = np.concatenate([[-10.0, 5.0, -2.0], np.full(27, 0.1)])

    class Operator:
        def __matmul__(self, V):
            products.append(V.shape[1])
            return Q @ (w[:, None] * (Q.T @ V))

    tol = 1e-12 if restarted else None
    start = rng.standard_normal((30, 5))
    found = reference.block_power(Operator(), start, 3, tol=tol, max_passes=60)
    assert products == [5] * found.n_passes
    assert found.n_passes in ({30, 45, 60} if restarted else {15})
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(3), atol=1e-13)
    np.testing.assert_allclose(found.values, w[:3], rtol=1e-13 if restarted else 1e-6)
    error = np.abs(np.abs(Q[:, :3].T @ found.vectors) - np.eye(3)).max()
    assert error < (1e-12 if restarted else 1e-2)
    assert error > (0.0 if restarted else 1e-9)


def test_the_power_iteration_does_not_exceed_its_passes():
    found = reference.block_power(
        np.diag([2.0, 1.99, 1.98]), np.eye(3)[:, ::-1] + 0.1, 2, tol=1e-15, max_passes=44
    )
    assert found.n_passes == 30


def test_the_numpy_moment_matrix_is_the_definition_with_its_trace_centred():
    rng = np.random.default_rng(43)
    X, t = rng.standard_normal((50, 4)), rng.standard_normal(50)
    expected = oracle.moment_matrix(X, t, 3)
    expected -= np.trace(expected) / 20 * np.eye(20)
    np.testing.assert_allclose(reference.moment_matrix(X, t, 3, rows=16), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("d", "q"), [(1, 1), (4, 1), (5, 2), (4, 3), (3, 5), (1, 4)])
def test_the_numpy_peers_make_the_features_of_the_definition(d, q):
    X = np.random.default_rng(31).standard_normal((7, d))
    expected = oracle.features(X, q).T
    np.testing.assert_allclose(reference.hermite_features(X, q), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(reference.gathered_features(X, q), expected, rtol=1e-12, atol=1e-13)


def test_the_numpy_peer_applies_the_operator_of_the_definition():
    rng = np.random.default_rng(33)
    X, t, V = rng.standard_normal((50, 4)), rng.standard_normal(50), rng.standard_normal((20, 3))
    expected = oracle.moment_matrix(X, t, 3) @ V
    np.testing.assert_allclose(reference.apply_in_chunks(X, t, V, 3, 16), expected, rtol=1e-11, atol=1e-12)
    scale = oracle.moment_scale(oracle.features(X, 3), t, V).max()
    assert reference.error_scale(X, t, V, 3) == pytest.approx(scale)


# ---- measure


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


def test_tables_are_aligned_and_sizes_readable():
    table = experiment.format_table(["name", "value"], [["a", "1.0"], ["longer", "12.0"]])
    assert table.splitlines() == ["name    value", "------  -----", "a         1.0", "longer   12.0"]
    assert experiment.size_text(8 * 40**6) == "32.8 GB"
    assert experiment.size_text(8 * 11_480**2) == "1.05 GB"
    assert experiment.size_text(12) == "12 B"
