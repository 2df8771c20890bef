"""Commands: fit, predict and inspect on data files, run by their command lines."""

import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from commandline import TEACHER, let_solves_end, refused, run, write_csv

from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.fitting.prepare import split
from matfree_hier.sources import open_source
from matfree_hier.status import Status

FLIGHTS = Path(__file__).parent.parent / "data" / "flights_sample.csv"


def test_fit_ends_with_r2_on_rows_the_fit_never_saw(table, capsys):
    status, out, err = run(capsys, "fit", table, "--degree", 1, "--seed", 7)
    assert status == 0
    assert err == ""
    assert re.match(r"[2-6] features by the refined estimator", out)
    scores = dict(re.findall(r"^  ([a-z].+?) +(-?\d\.\d{4})$", out, flags=re.MULTILINE))
    assert set(scores) == {"this fit", "ridge on raw columns", "mean"}
    assert out.rstrip().endswith(scores["mean"])
    train, held_out = split(open_source(table), 0.2, 7)
    twin = HierarchicalSpectralRegressor(degree=1, random_state=7).fit(train)
    assert float(scores["this fit"]) == pytest.approx(twin.score(held_out), abs=6e-5)
    assert float(scores["this fit"]) > float(scores["ridge on raw columns"]) + 0.3
    assert abs(float(scores["mean"])) < 0.02
    assert held_out.n_samples == 600


def test_predict_matches_columns_by_name_and_needs_no_target(table, tmp_path, capsys):
    run(capsys, "fit", table, "--degree", 1, "--out", "run.h5::mine")
    X = open_source(table).inputs()[:500]
    rows = np.column_stack([X[:, ::-1], np.arange(500)])
    write_csv(tmp_path / "new.csv", rows, [*"fedcba", "other"])
    text = (tmp_path / "new.csv").read_text().splitlines()
    text[3] = text[3].rpartition(",")[0] + ",text is fine in a column that is not used"
    (tmp_path / "new.csv").write_text("\n".join(text) + "\n")
    status, out, err = run(capsys, "predict", "run.h5::mine", "new.csv", "--out", "p.csv")
    assert (status, err) == (0, "")
    assert out == "500 predictions written to p.csv\n"
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "prediction"
    expected = HierarchicalSpectralRegressor.load("run.h5::mine").predict(open_source(table)).tolist()[:500]
    np.testing.assert_allclose([float(line) for line in lines[1:]], expected, rtol=1e-12)
    assert [p.name for p in tmp_path.glob("*.tmp")] == []


def test_inspect_shows_spectrum_features_and_held_out_error(table, capsys):
    _, fitted, _ = run(capsys, "fit", table, "--degree", 2, "--features", 3)
    status, out, err = run(capsys, "inspect", "run.h5", "--features", 2, "--terms", 3)
    assert (status, err) == (0, "")
    assert "3 features by the refined estimator" in out
    assert "spectrum: 3 eigenvalues" in out
    assert out.count("\nfeature ") == 2
    assert "(1 more: --features 3)" in out
    terms = re.findall(r"[+-]\d\.\d{3} (\S+)", out)
    assert len(terms) == 6
    assert all(re.fullmatch(r"h2\([a-f]\)|[a-f]\*[a-f]", term) for term in terms)
    assert fitted[fitted.index("R^2 on") :] in out


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_arrays_are_found_by_their_names(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.chdir(tmp_path)
    X, y = TEACHER.sample(2000, 29)
    if suffix == "npz":
        np.savez("data.npz", inputs=X, labels=y, junk=np.arange(3))
    else:
        with h5py.File("data.h5", "w") as file:
            file["inputs"], file["labels"], file["junk"] = X, y, np.arange(3)
    names = ("--inputs-name", "inputs", "--target-name", "labels")
    status, *_ = run(capsys, "fit", f"data.{suffix}", *names, "--degree", 1)
    assert status == 0
    status, *_ = run(capsys, "predict", "run.h5", f"data.{suffix}", *names[:2], "--out", "p.csv")
    assert status == 0
    assert len(Path("p.csv").read_text().splitlines()) == 2001


def test_without_holdout_all_rows_are_fitted(table, capsys):
    status, out, _ = run(capsys, "fit", table, "--degree", 1, "--holdout", 0)
    assert status == 0
    assert "n = 3000" in out
    assert "held out" not in out


def test_the_flights_sample_is_fitted_and_advised_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain = ("--features", 4, "--prepare", "none", "--out", "plain.h5")
    status, out, err = run(capsys, "fit", FLIGHTS, "--target", "arr_delay", *plain)
    assert status == 0
    assert "16 inputs as they are" in out
    assert err.count("\n") == 1
    assert "`precip` has excess kurtosis" in err
    assert "--prepare gaussianise" in err
    assert "R^2 on 200 rows held out of the fit" in out
    status, out, err = run(capsys, "fit", FLIGHTS, "--features", 4)
    assert (status, err) == (0, "")
    assert "16 inputs gaussianised" in out


def test_a_dry_run_forecasts_and_writes_nothing(table, capsys):
    status, out, _ = run(capsys, "fit", table, "--degree", 3, "--dry-run")
    assert status == 0
    assert "D = 56, 32 vectors" in out
    assert "memory: about" in out
    assert "time: about" in out
    assert not Path("run.h5").exists()


# --- ends of a run -----------------------------------------------------------------------------------------


def test_no_feature_is_exit_status_1_and_still_predicts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    X = rng.standard_normal((1000, 3))
    write_csv("data.csv", np.column_stack([X, X[:, 0] + rng.standard_normal(1000)]), list("abcy"))
    status, out, err = run(capsys, "fit", "data.csv")
    assert status == 1
    assert "No eigenvalue stands above the bulk" in err
    assert "this fit" in out
    status, out, _ = run(capsys, "inspect", "run.h5")
    assert status == 0
    assert "0 features" in out
    status, *_ = run(capsys, "predict", "run.h5", "data.csv", "--out", "p.csv")
    assert status == 0


def test_not_converged_is_exit_status_1(table, capsys, monkeypatch):
    let_solves_end(monkeypatch, Status.MAX_PASSES)
    status, out, err = run(capsys, "fit", table, "--degree", 1, "--features", 2)
    assert status == 1
    assert "The passes over the data ran out" in err
    assert "this fit" in out


def test_a_failed_operator_is_exit_status_1(table, capsys, monkeypatch):
    let_solves_end(monkeypatch, Status.OPERATOR_FAILED)
    status, _, err = run(capsys, "fit", table, "--degree", 1)
    assert status == 1
    assert "The operator raised an error" in err


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "data.csv", "--features", "22"], "--features must be auto or in 1..21, got 22."),
        (["fit", "data.csv", "--target", "z"], "has no column `z`"),
        (
            ["fit", "data.csv", "--target", "y", "--target-name", "y"],
            "--target and --target-name say the same",
        ),
        (["fit", "data.csv", "--out", "nowhere/run.h5"], "`path` must lie in an existing folder"),
        (["fit", "none.csv"], "none.csv"),
        (["fit", "."], "."),
        (["predict", "none.h5", "data.csv", "--out", "p.csv"], "There is no run file"),
        (["predict", "data.csv", "data.csv", "--out", "p.csv"], "is not a matfree_hier run file"),
        (
            ["predict", "none.h5", "data.csv", "--out", "nowhere/p.csv"],
            "--out must lie in an existing folder",
        ),
        (["predict", "none.h5", "data.csv", "--out", "data.csv"], "--out must not be the data file itself"),
        (["inspect", "none.h5"], "There is no run file"),
    ],
)
def test_what_does_not_fit_the_data_or_files_is_one_sentence_and_exit_status_2(
    table, capsys, arguments, message
):
    assert message in refused(capsys, *arguments)
    assert not Path("run.h5").exists()


def truncated_hdf5(path):
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = np.ones((1000, 3)), np.ones(1000)
    path.write_bytes(path.read_bytes()[:9000])


BAD_FILES = {
    "text.csv": ("a,b,y\n1,2,3\n1,two,3\n", ["text.csv", "`b`", "two"]),
    "nan.csv": ("a,b,y\n1,2,3\n1,nan,3\n", ["nan.csv", "`b`", "nan"]),
    "missing.csv": ("a,b,y\n1,2,3\n1,,3\n", ["missing.csv", "`b`"]),
    "ragged.csv": ("a,b,y\n1,2,3\n1,2\n", ["ragged.csv"]),
    "empty.csv": ("", ["empty.csv"]),
    "header.csv": ("a,b,y\n", ["header.csv"]),
    "one.csv": ("a,b,y\n1,2,3\n", ["one.csv", "enough rows"]),
    "data.xyz": ("1 2 3\n", ["data.xyz", "extension", ".csv"]),
    "text.npz": ("not a zip file", ["text.npz"]),
    "text.h5": ("not an HDF5 file", ["text.h5"]),
    "short.h5": (truncated_hdf5, ["short.h5"]),
    "matrix.npy": (lambda path: np.save(path, np.ones((9, 3))), ["matrix.npy", "target"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_one_sentence_and_exit_status_2(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    content, words = BAD_FILES[name]
    if callable(content):
        content(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    message = refused(capsys, "fit", name)
    assert all(word in message for word in words), message


def test_a_file_that_may_not_be_read_is_refused(table, capsys):
    table.chmod(0)
    if os.access(table, os.R_OK):
        pytest.skip("this user may read every file")
    assert "data.csv" in refused(capsys, "fit", table)


def test_predicting_from_other_columns_is_refused(table, tmp_path, capsys):
    run(capsys, "fit", table, "--degree", 1)
    write_csv(tmp_path / "less.csv", np.ones((5, 5)), list("abcde"))
    assert "`f`" in refused(capsys, "predict", "run.h5", "less.csv", "--out", "p.csv")
    np.savez(tmp_path / "less.npz", X=np.ones((5, 5)))
    assert "5" in refused(capsys, "predict", "run.h5", "less.npz", "--out", "p.csv")
    assert not Path("p.csv").exists()
