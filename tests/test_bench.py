"""The command of the bench: its arguments, its scenarios, its ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
from commandline import records

from matfree_hier.bench import __main__ as bench_main
from matfree_hier.bench import experiment, main, smooth, solvers, throughput
from matfree_hier.bench.__main__ import BAD_USAGE, DONE, INTERRUPTED, MISSED
from matfree_hier.bench.__main__ import main as command

ONE_OF_ALL = f"`EXPERIMENT` must be one of {', '.join(experiment.EXPERIMENTS)}"
BAD_FOLDER = "`--out` must be a folder to write to, or a name for a new one"


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


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_leaves_early_neither_ends_an_experiment_nor_changes_its_status(tmp_path, more):
    code = """
import sys
from matfree_hier.bench import __main__ as bench
def run(job):
    for line in range(20_000):
        job.say(f"line {line}")
        job.emit({"record": "solver", "case": "a", "line": line})
    (job.out / "last.csv").write_text("done")
    return ["a: missed."]
bench.load_runner = lambda _: run
sys.exit(bench.main(sys.argv[1:]))
"""
    arguments = ["solvers", "--preset", "quick", "--out", str(tmp_path), *more]
    job = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    job.stdout.close()
    _, err = job.communicate(timeout=100)
    assert (job.returncode, err) == (MISSED, "python -m matfree_hier.bench solvers: a: missed.\n")
    assert (tmp_path / "last.csv").read_text() == "done"
    assert records((tmp_path / "solvers.jsonl").read_text())[-1]["missed"] == ["a: missed."]


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


def test_lines_that_are_no_records_are_left_out_and_hide_neither_verdict_nor_other_cases(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("matfree_hier.bench.__main__.load_runner", lambda _: lambda job: ["a: missed."])
    path = tmp_path / "solvers.jsonl"
    earlier = ['{"record": "machine", "seed": 5}', '{"record": "solver", "case": "old"}', '{"case": ["odd"]}']
    path.write_bytes("\n".join([*earlier, "3", "[]", "null", '{"record": "sol', ""]).encode() + b"\xff\n")
    assert command(["solvers", "--preset", "quick", "--out", str(tmp_path)]) == MISSED
    first, solver, odd, ours, verdict = records(path.read_text())
    assert [first, solver, odd] == [json.loads(line) for line in earlier]
    assert (ours["record"], verdict["missed"]) == ("machine", ["a: missed."])


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


def test_tables_are_aligned_and_sizes_readable():
    table = experiment.format_table(["name", "value"], [["a", "1.0"], ["longer", "12.0"]])
    assert table.splitlines() == ["name    value", "------  -----", "a         1.0", "longer   12.0"]
    assert experiment.size_text(8 * 40**6) == "32.8 GB"
    assert experiment.size_text(8 * 11_480**2) == "1.05 GB"
    assert experiment.size_text(12) == "12 B"
