"""The command of the bench: its arguments, its scenarios, its ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from commandline import records

from matfree_hier.bench import experiment, main, smooth, solvers, throughput
from matfree_hier.bench.__main__ import BAD_USAGE, DONE, INTERRUPTED, build_parser
from matfree_hier.bench.__main__ import main as command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mian"], f"`EXPERIMENT` must be one of {', '.join(experiment.EXPERIMENTS)}, got mian."),
        (["--preset", "huge"], "`--preset` of main must be one of quick, default, large, q3d60, got huge."),
        (["--seed", "-1"], "argument --seed: must be an integer of at least 0, got -1."),
        (["--threads", "0"], "argument --threads: must be an integer of at least 1, got 0."),
        (["--threads", "two"], "argument --threads: must be an integer of at least 1, got two."),
        (["--jsn"], "unrecognized arguments: --jsn"),
        (["--out", "/dev/null/x"], "[Errno 20] Not a directory: '/dev/null/x'"),
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


def test_help_names_every_option_experiment_preset_and_exit_status():
    text = build_parser().format_help()
    for name in experiment.EXPERIMENTS:
        for preset, cases in experiment.load_scenarios(name)["presets"].items():
            assert re.search(rf"{preset} +{', '.join(cases)}", text)
    for option in ("--preset", "--out", "--seed", "--threads", "--json", "--versions", "--version"):
        assert option in text
    assert "exit status: 0 done; 1" in text


def test_versions_lists_what_is_measured(capsys):
    assert command(["--versions"]) == DONE
    out = capsys.readouterr().out
    for name in ("matfree-hier", "python", "numpy", "numba"):
        assert re.search(rf"^{name} \d", out, flags=re.MULTILINE)


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
