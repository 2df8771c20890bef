from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from matfree_hier import report
from matfree_hier.cli import main
from matfree_hier.density import spectral_density
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.page import Section, Table, page
from matfree_hier.report.pages import _table_section, table_figures
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
ONE_SIZE = {name: column[:4] for name, column in TABLE.items()}
ABOUT = {"experiment": "recovery", "scenario": '{"n_inputs": 5, "degree": 2}', "versions": {"numpy": "1"}}
ERRORS = {"estimator": ["paper", "paper", "mine"], "n": [100, 200, 200], "relative_mse": [0.9, 0.5, 0.1]}
PEERS = {"route": ["ours", "other"], "seconds": [1.0, np.nan], "outcome": ["done", "failed"]}
TIMES = {"varied": ["n", "n", "k"], "size": [10, 20, 3], "seconds": [0.1, 0.2, 0.1]}
RANKS = {
    "mode": ["weak", "weak"],
    "ranks": [1, 2],
    "efficiency": [1.0, 0.9],
    "low": [0.9, 0.8],
    "high": [1, 1],
}
SMOOTHING = {
    "n_packed": [10, 10, 40, 40],
    "ratio": [1, 2, 1, 2],
    "overlap": [0.2, 0.5, 0.1, 0.4],
    "deviation": [0.4, 0.4, 0.4, 0.4],
    "limit": [0.0, 0.4, 0.0, 0.4],
}
EDGES = {name: TABLE[name] for name in ("n", "seed", "feature")}
EDGES |= {"left": np.full(8, -1.0), "right": np.full(8, 1.0), "eigenvalue": np.full(8, 2.0)}
EDGES |= {
    "predicted_left": np.full(8, -1.1),
    "predicted_right": np.full(8, 1.1),
    "predicted": np.full(8, 1.9),
}
OVERLAPS = {"variant": ["a"], "n": [10], "overlap": [0.5], "recorded": [0.4], "recorded_sd": [0.1]}
TEXTS = np.array(["a", "b", "c", "d", "e", "f", "g", "h"])
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
        (f"{tmp_path / 'run.h5'}::b", "holds no run `b`, it has run: name one as"),
    ):
        assert main(["report", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert main(["report", str(tmp_path / "run.h5"), "--out", str(tmp_path / "no" / "p.html")]) == 2
    assert main(["report", str(tmp_path / "run.h5"), "--out", str(tmp_path / "run.h5")]) == 2


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        ("density", "bulk_edges", "A spectral density needs `bulk_edges`"),
        ("density", "standard_errors", "A spectral density needs `standard_errors`"),
        ("density", "density", "A spectral density needs `density`"),
        ("spectrum", "status", "A spectrum needs `status`"),
        ("spectrum", "eigenvalues", "A spectrum needs `eigenvalues`"),
        ("spectrum_configuration", "configuration", "A solve needs `configuration`"),
        ("spectrum", "history_passes", "A history needs `passes`"),
        ("history", "passes", "A history needs `passes`"),
    ],
)
def test_a_group_that_lacks_a_value_is_one_line_that_names_run_and_value(
    group, value, message, solve, tmp_path, capsys
):
    groups = dict(report.read_run(solve))
    history = groups.pop("spectrum_history")
    if group == "history":
        groups[group] = history
    else:  # as `EigenResult.to_arrays` has it
        groups["spectrum"] |= {f"history_{name}": values for name, values in history.items()}
    groups[group] = {name: values for name, values in groups[group].items() if name != value}
    path = tmp_path / "run.h5"
    assert refusal(groups, path, capsys).startswith(f"matfree_hier: `{path}::run`: {message}")


def refusal(groups, path, capsys):
    """Store groups and return the one line that says why there is no page of them."""
    with RunFile(path) as run:
        for name, values in groups.items():
            run.save(name, values)
    assert main(["report", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"table": {"n": 3}}, "must have one axis, got `n` of shape ()"),
        ({"recovery": {"overlap": 0.5}}, "must have one axis, got `overlap` of shape ()"),
        ({"table": TABLE, "table-laws": {"n": 3}}, "must have one axis, got `n` of shape ()"),
        (
            {"table": TABLE, "about": {"scenario": "{"}},
            "`scenario` in the group `about` is not JSON: Expecting",
        ),
        ({"table": TABLE, "about": {"record": "[1]"}}, "`record` in the group `about` must hold names and"),
    ],
)
def test_a_run_that_is_not_what_it_should_be_is_one_line_that_names_it(groups, message, tmp_path, capsys):
    line = refusal(groups, tmp_path / "run.h5", capsys)
    assert line.startswith(f"matfree_hier: `{tmp_path / 'run.h5'}::run`: ")
    assert message in line


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        ("density", "outliers", "A spectral density needs `outliers` with 1 axis, got shape ()"),
        ("spectrum", "residuals", "A spectrum needs `residuals` with 1 axis, got shape ()"),
        ("spectrum_history", "passes", "A history needs `passes` with 1 axis, got shape ()"),
        ("spectrum_history", "ritz_values", "A history needs `ritz_values` with 2 axes, got shape ()"),
    ],
)
def test_a_number_in_place_of_an_array_is_refused(group, value, message, solve, tmp_path, capsys):
    groups = dict(report.read_run(solve))
    groups[group] = groups[group] | {value: 3.0}
    assert message in refusal(groups, tmp_path / "run.h5", capsys)


def test_a_status_that_there_is_not_is_refused(solve, tmp_path, capsys):
    groups = dict(report.read_run(solve))
    groups["spectrum"] = groups["spectrum"] | {"status": "FINE"}
    assert "`status` must be one of CONVERGED" in refusal(groups, tmp_path / "run.h5", capsys)


def test_a_record_that_says_little_is_shown_as_far_as_it_goes(tmp_path):
    with RunFile(tmp_path / "run.h5") as run:
        run.save("table", TABLE)
        run.save("about", {"record": '{"seconds": 3, "versions": {"numpy": "1"}}'})
    assert "numpy 1" in report.run_page(tmp_path / "run.h5")


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (TABLE, "n"),
        (TABLE, "predicted"),
        (ERRORS, "n"),
        (ERRORS | {"sd": [0.1, 0.1, 0.1]}, "sd"),
        (TIMES, "seconds"),
        (RANKS, "low"),
        (PEERS, "seconds"),
        (OVERLAPS, "recorded_sd"),
        (SMOOTHING, "deviation"),
        (EDGES, "eigenvalue"),
    ],
)
def test_text_in_a_column_of_numbers_is_said_on_the_page_beside_the_table(table, column, tmp_path):
    with RunFile(tmp_path / "run.h5") as run:
        run.save("about", {"scenario": '{"seeds": 3}'})
        run.save(
            "table",
            {name: np.array(values) for name, values in table.items()}
            | {column: TEXTS[: len(table[column])]},
        )
    text = report.run_page(tmp_path / "run.h5")
    assert "needs numbers in the column" in text or "could not convert string to float: " in text
    assert "<summary>results" in text


def test_figures_are_drawn_from_paths_and_from_values_alike(fitted, solve):
    for run in (fitted, solve, report.read_run(solve)):
        assert report.plot_spectrum(run).axes[0].get_xlabel() == "rank"
        assert report.plot_history(run).axes[0].get_xlabel() == "passes over the data"
    assert report.plot_density(solve).axes[0].get_xlabel() == "eigenvalue"
    assert report.plot_recovery({"recovery": RECOVERY}).axes[0].get_title() == "Recovery of each feature"
    assert report.plot_recovery({"table": TABLE}).axes[0].get_xlabel() == "samples $n$"
    assert "$n / n_k$" in report.plot_collapse({"table": TABLE}).axes[0].get_xlabel()


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
        with pytest.raises(RunFileError, match="one line for each of 2 seeds, 2 sample sizes and 2 features"):
            report.grid_of({name: column[lines] for name, column in TABLE.items()}, "overlap")


def test_a_file_of_several_runs_is_one_page_with_a_section_for_each(tmp_path, capsys):
    path = tmp_path / "runs.h5"
    for name, groups in (
        ("a", {"table": TABLE, "about": ABOUT}),
        ("b", {"table": ONE_SIZE}),
        ("c", {"entry-1": {"x": 1}}),
    ):
        with RunFile(path, name) as run:
            for group, values in groups.items():
                run.save(group, values)
    assert main(["report", str(path)]) == 0
    text = path.with_suffix(".html").read_text()
    for title in ("a: recovery", "b: Results", "c"):
        assert f"<h2>{title}</h2>" in text
    assert "nothing to report yet" in text
    assert text.count("data:image/svg+xml;base64,") == 3
    assert report.run_page(f"{path}::b").count("data:image/svg+xml;base64,") == 1
    with pytest.raises(RunFileError, match="holds nothing to report; its groups are entry-1"):
        report.run_page(f"{path}::c")
    with pytest.raises(RunFileError, match=r"holds the runs a, b, c: name one as .*runs.h5::NAME"):
        report.plot_recovery(path)


def test_a_table_that_is_not_complete_is_shown_with_the_reason_why_it_is_not_drawn(tmp_path):
    with RunFile(tmp_path / "run.h5") as run:
        run.save("table", {name: column[1:] for name, column in TABLE.items()})
    text = report.run_page(tmp_path / "run.h5")
    assert text.count("The table must have one line for each of 2 seeds") == 1
    assert "results (7 rows)" in text
    assert "data:image" not in text


def test_a_table_says_the_scale_of_the_paper_where_its_scenario_does():
    run = {"table": TABLE | {"weight": np.full(8, 0.5)}, "about": ABOUT}
    for figure, label in ((report.plot_recovery(run), "n / d^q"), (report.plot_collapse(run), "lambda_k")):
        (above,) = figure.axes[0].child_axes
        assert label in above.get_xlabel()
    assert not report.plot_recovery({"table": TABLE}).axes[0].child_axes
    (above,) = report.plot_recovery({"table": TABLE}, scale=(2.0, "mine")).axes[0].child_axes
    assert above.get_xlabel() == "mine"


def test_a_table_of_one_size_is_drawn_by_feature_with_its_predictions():
    axes = report.plot_recovery({"table": ONE_SIZE}).axes[0]
    assert "n / n_k" in axes.get_xlabel()
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named == ["1 - n_k / n, large D", "threshold n = n_k", "predicted", "measured"]
    bare = {name: ONE_SIZE[name] for name in ("n", "seed", "feature", "overlap")}
    assert report.plot_recovery({"table": bare}).axes[0].get_xlabel() == "feature k"


@pytest.mark.parametrize(
    ("draw", "table"),
    [
        (report.plot_errors, ERRORS),
        (report.plot_overlaps, OVERLAPS),
        (report.plot_smoothing, SMOOTHING),
        (report.plot_times, TIMES),
        (report.plot_peers, PEERS),
        (report.plot_efficiency, RANKS),
        (report.plot_edges, EDGES),
    ],
)
def test_each_kind_of_table_is_drawn_and_is_on_the_page(draw, table, tmp_path):
    figure = draw({"table": table})
    assert figure.axes[0].get_xlabel()
    assert draw({"table": table}, axes=figure.add_subplot()) is figure
    with RunFile(tmp_path / "run.h5") as run:
        run.save("table", {name: np.array(column) for name, column in table.items()})
    assert report.run_page(tmp_path / "run.h5").count("data:image/svg+xml;base64,") == 1


@pytest.mark.parametrize(
    ("draw", "table"),
    [
        (report.plot_recovery, TABLE),
        (report.plot_collapse, TABLE),
        (report.plot_errors, ERRORS),
        (report.plot_smoothing, SMOOTHING),
        (report.plot_times, TIMES),
        (report.plot_peers, PEERS),
        (report.plot_efficiency, RANKS),
        (report.plot_edges, EDGES),
    ],
)
def test_a_missing_column_is_named(draw, table):
    optional = {"predicted", "n_k"} if draw is report.plot_recovery else {"predicted"} & TABLE.keys()
    optional |= {"outcome", "deviation", "low", "high"}
    for name in table.keys() - (optional if draw is not report.plot_edges else set()):
        rest = {other: column for other, column in table.items() if other != name}
        with pytest.raises(RunFileError, match=f"needs a column `{name}`; this table has"):
            draw({"table": rest})


def test_every_table_that_the_bench_keeps_has_a_figure():
    results = Path(__file__).parent.parent / "bench" / "results"
    paths = [path for folder in sorted(results.iterdir()) for path in sorted(folder.glob("*.csv"))]
    assert paths
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        table = {name: _column(values) for name, values in zip(header, zip(*lines, strict=True), strict=True)}
        figures, _ = table_figures({"table": table})
        without = ("grids", "q3d100", "laws", "density", "tails")
        assert figures or path.stem.rpartition("-")[2] in without, path


def _column(values):
    try:
        return np.array(values, dtype=float)
    except ValueError:
        return np.array(values)


def test_columns_of_different_length_are_refused():
    with pytest.raises(RunFileError, match=r"must have one length, at least 1, got n 3, .* overlap 8"):
        report.plot_recovery({"table": TABLE | {"n": [1, 2, 3]}})
    with pytest.raises(RunFileError, match="must have one length, at least 1"):
        report.plot_peers({"table": {"route": [], "seconds": []}})
    with pytest.raises(RunFileError, match="must have one length, at least 1, got a 2, b 1"):
        _table_section({"table": {"a": [1, 2], "b": [1]}})
    with pytest.raises(RunFileError, match=r"must have one axis, got `n` of shape \(\)"):
        _table_section({"table": {"n": 3}})
    with pytest.raises(RunFileError, match=r"must have one axis, got `a` of shape \(2, 2\)"):
        _table_section({"table": {"a": np.ones((2, 2))}})


def test_a_transition_by_size_has_every_size_at_every_ratio_once():
    uneven = {name: column[:3] for name, column in SMOOTHING.items()}
    twice = SMOOTHING | {"n_packed": [1, 1, 2, 2], "ratio": [1, 1, 1, 2]}
    for table, lines in ((uneven, 3), (twice, 4)):
        with pytest.raises(RunFileError, match=f"of 2 sizes and 2 ratios, got {lines} lines"):
            report.plot_smoothing({"table": table})
    order = [3, 0, 2, 1]
    shuffled = {name: np.array(column)[order] for name, column in SMOOTHING.items()}
    curve = report.plot_smoothing({"table": shuffled}).axes[0].lines[0]
    assert curve.get_ydata().tolist() == [0.2, 0.5]


@pytest.mark.parametrize("wrong", [0.0, np.inf])
def test_a_threshold_that_is_no_number_of_samples_is_refused(wrong):
    for draw, table in ((report.plot_collapse, TABLE), (report.plot_recovery, ONE_SIZE)):
        n_k = np.where(np.arange(len(table["n"])) == 0, wrong, table["n_k"])
        with pytest.raises(RunFileError, match="`n_k` must be finite and above 0"):
            draw({"table": table | {"n_k": n_k}})


def test_what_lacks_a_column_is_said_by_its_name():
    for draw, table, column, what in (
        (report.plot_recovery, TABLE, "seed", "An overlap by samples and seeds"),
        (report.plot_collapse, TABLE, "n_k", "A collapse of overlaps"),
        (report.plot_edges, EDGES, "left", "An edge by samples and seeds"),
    ):
        rest = {name: values for name, values in table.items() if name != column}
        with pytest.raises(RunFileError, match=f"{what} needs a column `{column}`"):
            draw({"table": rest})


def test_errors_have_a_panel_for_each_gamma_and_show_what_is_explained_below_one_half():
    table = {
        "gamma": [0.4, 0.4, 1.0, 1.0],
        "estimator": ["paper"] * 4,
        "n_over_D": [16, 32, 16, 32],
        "relative_mse": [0.9, 0.8, 0.5, 0.3],
        "theory": [0.9, 0.8, 0.5, 0.3],
        "in_fit": [0, 1, 1, 1],
        "sd": [0.1, 0.1, 0.1, 0.1],
    }
    laws = {"gamma": [1.0], "estimator": ["paper"], "exponent": [-0.7], "low": [-0.8], "high": [-0.6]}
    laws |= {"theory": [-0.72], "law": [-0.5], "note": [""]}
    figure = report.plot_errors({"table": table, "table-laws": laws})
    low, high = figure.axes[:2]
    assert low.get_title() == "gamma = 0.4"
    assert low.get_ylabel() == "part explained, 1 - error\n(bars: s.d.)"
    assert low.get_xlabel() == "n / D"
    theory = [line for line in low.lines if line.get_label() == "paper, theory"]
    assert theory[0].get_ydata() == pytest.approx([0.1, 0.2])
    named = [text.get_text() for text in high.get_legend().get_texts()]
    assert named == ["paper: -0.70 [-0.80, -0.60]", "paper, theory, -0.72", "the law, -0.50"]
    assert "full marks" in figure.get_suptitle()
    with pytest.raises(ValueError, match=r"`axes` have room for one gamma; the table has 0.4, 1"):
        report.plot_errors({"table": table}, axes=low)


def test_an_estimator_without_a_law_says_why_beside_the_exponent_of_theory():
    table = {
        "gamma": [0.4] * 4,
        "estimator": ["paper", "paper", "spectral", "spectral"],
        "n_over_D": [16, 32, 16, 32],
        "relative_mse": [1.2, 1.1, 1.1, 0.8],
        "theory": [0.9, 0.8, 0.9, 0.7],
    }
    laws = {"gamma": [0.4, 0.4], "estimator": ["paper", "spectral"], "exponent": [np.nan, np.nan]}
    laws |= {name: [np.nan, np.nan] for name in ("low", "high", "law")}
    laws |= {"theory": [np.nan, 1.2], "note": ["no fit: 0 points", "no fit: 1 point"]}
    axes = report.plot_errors({"table": table, "table-laws": laws}).axes[0]
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named == [
        "paper: explains less than nothing", "paper, theory", "spectral: no fit: 1 point",
        "spectral, theory, 1.20",
    ]  # fmt: skip


def test_densities_of_several_sizes_are_panels_with_their_edges():
    grid = {"n": [100, 100, 200, 200], "eigenvalue": [-1, 1, -1, 1], "density": [0.1, 0.2, 0.3, 0.4]}
    figure = report.plot_density(
        {"table-density": grid | {"predicted_density": grid["density"]}, "table": EDGES}
    )
    few, many = figure.axes
    assert few.get_ylabel().startswith("n = 100")
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"predicted", "edges of the bulk", "predicted edges", "outliers"} <= set(named)
    assert many.get_legend() is None
    assert len(report.plot_density({"table-density": grid}).axes) == 2
    other = EDGES | {"n": np.full(8, 300)}
    assert len(report.plot_density({"table-density": grid, "table": other}).axes[0].lines) == 1
    one = {name: column[:2] for name, column in grid.items()}
    assert report.plot_density({"table-density": one}, axes=few) is figure
    figures, _ = table_figures({"table-density": grid, "table": EDGES})
    assert list(figures) == ["edges", "density"]


def test_a_density_marks_the_tails_of_the_first_seed_and_names_samples_by_size():
    grid = {"n": [100, 100, 200, 200], "eigenvalue": [-1, 1, -1, 1], "density": [0.1, 0.2, 0.3, 0.4]}
    tails = {"n": [100, 100, 200], "seed": [7, 8, 7], "eigenvalue": [1.5, 1.6, 1.7]}
    groups = {"table-density": grid, "table": EDGES, "table-tails": tails, "about": ABOUT}
    few, many = report.plot_density(groups).axes
    for panel, place in ((few, 1.5), (many, 1.7)):
        (marks,) = [lines for lines in panel.collections if lines.get_label() == "tails"]
        assert [line[0, 0] for line in marks.get_segments()] == [place]
    assert few.get_ylabel() == "n = 100 = 6.67 D\ndensity"


def bar_of(figure):
    return np.ptp(figure.axes[0].collections[0].get_segments()[0][:, 1])


@pytest.mark.parametrize(
    ("column", "of_error", "of_overlap"), [("relative_mse_sd", 0.4, 0), ("overlap_sd", 0, 0.4), ("sd", 0, 0)]
)
def test_deviations_are_drawn_of_the_value_that_their_column_names(column, of_error, of_overlap):
    error, overlap = {"relative_mse": [0.5, 0.4]}, {"overlap": [0.3, 0.4]}
    table = {"variant": ["a", "a"], "n": [1, 2], column: [0.2, 0.2]}
    both = {"table": table | error | overlap}
    assert bar_of(report.plot_errors(both)) == pytest.approx(of_error)
    assert bar_of(report.plot_overlaps(both)) == pytest.approx(of_overlap)


def test_a_bare_deviation_is_of_the_only_value_that_a_table_has():
    table = {"variant": ["a", "a"], "n": [1, 2], "sd": [0.2, 0.2]}
    assert bar_of(report.plot_errors({"table": table | {"relative_mse": [0.5, 0.4]}})) == pytest.approx(0.4)
    assert bar_of(report.plot_overlaps({"table": table | {"overlap": [0.5, 0.4]}})) == pytest.approx(0.4)


def test_what_has_no_value_is_not_in_the_legend():
    table = {"model": ["rbf", "rbf", "paper", "paper"], "n": [1, 2, 1, 2], "gamma": [0.4, 0.4, 1.0, 1.0]}
    values = [np.nan, np.nan, 0.5, np.nan]
    for draw, value in ((report.plot_errors, "relative_mse"), (report.plot_overlaps, "overlap")):
        (axes,) = draw({"table": table | {value: values}}).axes
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["paper"]
        with pytest.raises(RunFileError, match=f"needs a value in the column `{value}`; all are NaN"):
            draw({"table": table | {value: [np.nan] * 4}})


def test_what_is_shown_cannot_become_markup():
    section = Section(
        "<b>", {"<i>": "&"}, ["<pre>"], [("<u>", True)], tables={"<q>": Table(["<a>"], [["<s>"]])}
    )
    text = page("<title>", [section], {})
    for tag in ("<b>", "<i>", "<u>", "<q>", "<a>", "<s>", "<title><"):
        assert tag not in text
    assert "&lt;b&gt;" in text
