"""The command line: what the parser takes, and how runs end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import let_solves_end, refused, run

from matfree_hier import __version__
from matfree_hier.status import Status

ROOT = Path(__file__).parent.parent


def test_an_interrupt_says_what_to_type_to_resume(table, capsys, monkeypatch):
    let_solves_end(monkeypatch, Status.INTERRUPTED)
    status, _, err = run(capsys, "fit", "data.csv", "--degree", 1, "--out", "my run.h5")
    assert status == 130
    expected = "python -m matfree_hier fit data.csv --degree 1 --out 'my run.h5'"
    assert err == f"matfree_hier: Interrupted. To resume, type: {expected}\n"


def test_a_reader_that_stops_is_no_error(table, capsys):
    run(capsys, "fit", table, "--degree", 1)
    command = [sys.executable, "-m", "matfree_hier", "inspect", "run.h5"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_module_runs_as_a_command():
    command = [sys.executable, "-m", "matfree_hier", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"matfree_hier {__version__}\n", "")


@pytest.mark.parametrize("command", [[], ["fit"], ["predict"], ["inspect"]])
def test_help_is_complete(command, capsys):
    status, out, _ = run(capsys, *command, "--help")
    assert status == 0
    assert "exit status:" in out
    for option in re.findall(r"^  (--[a-z-]+)", out, flags=re.MULTILINE):
        described = re.search(rf"^  {option}\b[^\n]*(  \S|\n {{10,}}\S)", out, flags=re.MULTILINE)
        assert described, f"{option} has no words"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "argument COMMAND: invalid choice: 'fly'"),
        (["fit"], "the following arguments are required: DATA"),
        (["fit", "data.csv", "--degree", "9"], "argument --degree: must be an integer in 1..8, got 9."),
        (["fit", "data.csv", "--degree", "two"], "argument --degree: must be an integer in 1..8, got two."),
        (
            ["fit", "data.csv", "--features", "0"],
            "argument --features: must be auto or an integer of at least 1",
        ),
        (
            ["fit", "data.csv", "--features", "x"],
            "argument --features: must be auto or an integer of at least 1",
        ),
        (["fit", "data.csv", "--holdout", "1"], "argument --holdout: must be in 0..0.9, got 1."),
        (["fit", "data.csv", "--tol", "0"], "argument --tol: must be above 0 and below 1, got 0."),
        (["fit", "data.csv", "--tol", "nan"], "argument --tol: must be above 0 and below 1, got nan."),
        (["fit", "data.csv", "--seed", "-1"], "argument --seed: must be an integer of at least 0, got -1."),
        (["fit", "data.csv", "--max-passes", "0"], "argument --max-passes: must be an integer of at least 1"),
        (["fit", "data.csv", "--prepare", "pca"], "argument --prepare: invalid choice: 'pca'"),
        (["fit", "data.csv", "--deg", "2"], "unrecognized arguments: --deg 2"),
        (["predict", "none.h5", "data.csv"], "the following arguments are required: --out"),
    ],
)
def test_bad_arguments_are_one_sentence_and_exit_status_2(table, capsys, arguments, message):
    assert message in refused(capsys, *arguments)
    assert not Path("run.h5").exists()
