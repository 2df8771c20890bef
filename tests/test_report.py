from __future__ import annotations

import re

import numpy as np
import pytest

from matfree_hier import report
from matfree_hier.cli import main
from matfree_hier.density import spectral_density
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.page import Section, Table, page
from matfree_hier.status import RunFileError
from matfree_hier.store import RunFile

TABLE = {
    "n": np.repeat([100, 200], 4),
    "seed": np.tile([7, 7, 8, 8], 2),
    "feature": np.tile([1, 2], 4),
    "overlap": np.linspace(0.1, 0.8, 8),
    "predicted": np.full(8, 0.5),
    "n_k": np.tile([50.0, 80.0], 4),
}
RECOVERY = {"overlap": np.array([0.9, 0.5]), "n_over_n_k": np.array([10.0, 2.0])}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "run.h5"
    X = np.random.default_rng(5).standard_normal((3000, 4))
    y = (X[:, 0] * X[:, 1]) ** 2
    HierarchicalSpectralRegressor(n_features=1, estimator="spectral", run_file=path, link=np.arctan).fit(X, y)
    with RunFile(path) as run:
        run.save("held_out", {"n_rows": 77, "r2": {"this fit": 0.5, "mean": 0.0}})
    return path


@pytest.fixture(scope="module")
def solve(tmp_path_factory):
    path = tmp_path_factory.mktemp("solve") / "run.h5"
    A = np.diag(np.r_[9.0, -7.0, np.linspace(-1, 1, 30)])
    top_eigenpairs(A, 2, method="krylov", block_size=2, run_file=f"{path}::only")
    with RunFile(path, "only") as run:
        run.save("density", spectral_density(A, seed=3).to_arrays())
    return path


def test_the_page_of_a_fit_shows_its_features_tables_figures_and_versions(fitted, tmp_path):
    assert main(["report", str(fitted), "--out", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert re.search(r"[+-]0\.9\d\d x0\*x1", text)
    assert "rows held out of the fit: 77" in text
    assert "numpy" in text
    assert '<td class="text">n_features</td><td class="text">1</td>' in text
    assert "run_file" not in text
    assert text.count("data:image/svg+xml;base64,") == 2


def test_the_page_of_a_solve_is_written_beside_the_run_file(solve, capsys):
    assert main(["report", str(solve)]) == 0
    text = solve.with_suffix(".html").read_text()
    assert "<td>1</td><td>9</td>" in text
    assert "2 outliers" in text
    assert text.count("data:image/svg+xml;base64,") == 2
    assert main(["report", f"{solve}::only"]) == 0
    assert solve.with_name("run.only.html").exists()


def test_a_page_fetches_nothing(fitted):
    text = report.run_page(fitted)
    assert not re.search(r"https?://", text)
    assert not re.search(r"<(script|link|iframe)", text)


def test_numbers_stand_to_the_right_words_to_the_left_and_prose_is_wrapped():
    rows = [{"route": "ours", "seconds": 0.5, "times": np.nan}]
    rows += [{"route": "other", "seconds": 2e-6, "times": 4}]
    section = Section("s", lines=["a sentence", "a  b\n1  2"], tables={"t": Table.of(rows)})
    text = page("title", [section], {})
    assert '<th class="text">route</th><th>seconds</th><th>times</th>' in text
    assert '<td class="text">other</td><td>2e-06</td><td>4</td>' in text
    assert '<pre class="prose">a sentence</pre>\n<pre>a  b\n1  2</pre>' in text


def test_a_run_that_cannot_be_shown_is_one_line_and_exit_status_2(tmp_path, capsys):
    with RunFile(tmp_path / "run.h5") as run:
        run.save("else", {"a": 1})
    for path, message in (
        (tmp_path / "none.h5", "There is no run file"),
        (tmp_path / "run.h5", "holds nothing to report; its groups are else."),
        (f"{tmp_path / 'run.h5'}::b", "holds no run b, it has run: name one as"),
    ):
        assert main(["report", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert main(["report", str(tmp_path / "run.h5"), "--out", str(tmp_path / "no" / "p.html")]) == 2
    assert main(["report", str(tmp_path / "run.h5"), "--out", str(tmp_path / "run.h5")]) == 2


def test_figures_are_drawn_from_paths_and_from_values_alike(fitted, solve):
    for run in (fitted, solve, report.read_run(solve)):
        assert report.plot_spectrum(run).axes[0].get_xlabel() == "rank"
        assert report.plot_history(run).axes[0].get_xlabel() == "passes over the data"
    assert report.plot_density(solve).axes[0].get_xlabel() == "eigenvalue"
    assert report.plot_recovery({"recovery": RECOVERY}).axes[0].get_title() == "Recovery of each feature"
    assert report.plot_recovery({"table": TABLE}).axes[0].get_xlabel() == "samples $n$"
    assert (
        report.plot_collapse({"table": TABLE}).axes[0].get_xlabel()
        == "samples over threshold at large D, $n / n_k$"
    )


def test_a_run_without_what_is_drawn_is_refused():
    for draw in (report.plot_recovery, report.plot_spectrum, report.plot_history, report.plot_density):
        with pytest.raises(RunFileError, match="the groups other"):
            draw({"other": {}})


def test_a_table_becomes_an_array_whatever_the_order_of_its_lines():
    order = np.random.default_rng(3).permutation(8)
    shuffled = {name: column[order] for name, column in TABLE.items()}
    for table in (TABLE, shuffled):
        n, values = report.grid_of(table, "overlap")
        assert n.tolist() == [100, 200]
        assert values == pytest.approx(np.array([[[0.1, 0.2], [0.5, 0.6]], [[0.3, 0.4], [0.7, 0.8]]]))


def test_a_table_with_a_line_missing_or_twice_is_refused():
    for lines in (slice(1, None), [0, 0, 2, 3, 4, 5, 6, 7]):
        with pytest.raises(ValueError, match="one line for each of 2 seeds, 2 numbers of samples and 2"):
            report.grid_of({name: column[lines] for name, column in TABLE.items()}, "overlap")


def test_what_is_shown_cannot_become_markup():
    section = Section(
        "<b>", {"<i>": "&"}, ["<pre>"], [("<u>", True)], tables={"<q>": Table(["<a>"], [["<s>"]])}
    )
    text = page("<title>", [section], {})
    for tag in ("<b>", "<i>", "<u>", "<q>", "<a>", "<s>", "<title><"):
        assert tag not in text
    assert "&lt;b&gt;" in text
