from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from matplotlib.figure import Figure

from matfree_hier import report
from matfree_hier.bench import experiment, grid
from matfree_hier.bench import record as bench_record
from matfree_hier.bench.__main__ import BAD_USAGE, DONE, INTERRUPTED, MISSED
from matfree_hier.bench.__main__ import main as command
from matfree_hier.bench.grid import Check, Grid, Summary, run_grid, solved
from matfree_hier.bench.measure import ChildError
from matfree_hier.bench.revision import package_digest
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.page import cell
from matfree_hier.status import NotConverged
from matfree_hier.store import RunFile

CASE = {"seeds": 2, "sizes": [1, 2, 3], "largest": 100}


class Squares:
    """A small experiment that says what it computes, and can be made to stop."""

    def __init__(self):
        self.computed = []
        self.stop_at = None
        self.fail_at = None
        self.grid = Grid(
            "squares", self.points, self.compute, self.summarise, lambda point: point["size"], 10
        )

    def points(self, case):
        return [{"size": size} for size in case["sizes"]]

    def compute(self, point, seed):
        if (point["size"], seed) == self.stop_at:
            raise KeyboardInterrupt
        if self.fail_at is not None and (point["size"], seed) == self.fail_at[0]:
            raise self.fail_at[1]
        self.computed.append((point["size"], seed))
        return {"square": point["size"] ** 2 + seed, "vector": np.arange(3.0)}

    def summarise(self, case, entries):
        rows = [
            {"size": point["size"], "seed": seed, "square": values["square"], "name": "a"}
            for point, seed, values in entries
        ]
        figure = Figure()
        figure.subplots().plot([row["size"] for row in rows])
        largest = max(row["square"] for row in rows)
        return Summary(
            rows,
            ["line"],
            [Check("largest", largest, case["largest"])],
            {"sizes": figure},
            {"extremes": [{"what": "largest", "square": float(largest)}]},
        )


@pytest.fixture
def squares(monkeypatch):
    made = Squares()
    cases = {"tiny": dict(CASE), "more": {"seeds": 1, "sizes": [7], "largest": 100}}
    presets = {"default": ["tiny"], "large": ["tiny", "more"], "other": ["more"]}
    table = {"presets": presets, "cases": cases}
    monkeypatch.setitem(experiment.EXPERIMENTS, "squares", "a test")
    monkeypatch.setattr(experiment, "load_scenarios", lambda _: table)
    command_line = "matfree_hier.bench.__main__."
    monkeypatch.setattr(command_line + "load_scenarios", lambda _: table)
    monkeypatch.setattr(command_line + "load_runner", lambda _: lambda options: run_grid(made.grid, options))
    made.case = cases["tiny"]
    return made


def start(out, *more):
    return command(["squares", "--out", str(out), "--threads", "1", *more])


def test_a_grid_computes_every_point_with_every_seed_and_writes_what_it_shows(squares, tmp_path, capsys):
    assert start(tmp_path) == DONE
    assert squares.computed == [(size, seed) for size in (1, 2, 3) for seed in (10, 11)]
    kept = tmp_path / "squares"
    files = {"tiny.csv", "tiny-extremes.csv", "tiny.txt", "tiny-sizes.png", "about.json"}
    assert {file.name for file in kept.iterdir()} == files
    with (kept / "tiny.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1] == {"size": "3", "seed": "11", "square": "20", "name": "a"}
    assert (kept / "tiny-extremes.csv").read_text() == "what,square\nlargest,20\n"
    with RunFile(tmp_path / "squares.h5", "tiny", mode="r") as run:
        assert run.load("table-extremes")["square"].tolist() == [20.0]
    out = capsys.readouterr().out
    assert "check: largest: 20, at most 100: met" in out
    page = (tmp_path / "squares.html").read_text()
    assert "largest: 20" in page
    assert "data:image/svg+xml;base64," in page


def test_what_is_committed_names_neither_folder_nor_host(squares, tmp_path):
    start(tmp_path)
    for file in (tmp_path / "squares").glob("*.[jt]*"):
        assert str(tmp_path) not in file.read_text()
    assert about(tmp_path)["cases"]["tiny"].keys() == {
        "parameters", "presets", "first_seed", "seeds", "entries", "computed", "seconds", "processor_seconds",
        "threads", "source", "processor", "cpus", "memory_gb", "versions", "checks",
    }  # fmt: skip


def about(out):
    return json.loads((out / "squares" / "about.json").read_text())


def test_what_is_kept_says_how_each_case_was_made(squares, tmp_path, capsys):
    start(tmp_path, "--seed", "11")
    record = about(tmp_path)["cases"]["tiny"]
    assert record["presets"] == ["default", "large"]
    assert record["parameters"] == CASE
    assert (record["first_seed"], record["seeds"], record["entries"], record["threads"]) == (11, 2, 6, 1)
    assert record["computed"] == datetime.now(UTC).date().isoformat()
    assert 0 <= record["seconds"] < 60
    assert 0 <= record["processor_seconds"] < 60
    assert record["source"] == package_digest()
    assert {"matfree-hier", "python", "numba"} <= record["versions"].keys()
    assert {"processor", "cpus", "memory_gb"} <= record.keys()
    check = {"what": "largest", "value": 21, "side": "at most", "bound": 100, "met": True}
    assert record["checks"] == [check]
    printed = (tmp_path / "squares" / "tiny.txt").read_text()
    assert printed.startswith(
        "line\ncheck: largest: 21, at most 100: met\nmade: presets default, large; first"
    )
    assert "first seed 11, 2 seeds; computed 20" in printed
    out = capsys.readouterr().out
    assert printed in out
    assert "preset default: 1 case in " in out
    page = (tmp_path / "squares.html").read_text()
    for fact in ("presets", "first seed", "computed", "processor seconds", "source"):
        assert f'<td class="text">{fact}</td>' in page


def test_the_report_of_a_case_shows_how_it_was_made_and_its_checks_as_the_page_of_the_grid_does(
    squares, tmp_path
):
    start(tmp_path)
    texts = [(tmp_path / "squares.html").read_text(), report.run_page(tmp_path / "squares.h5::tiny")]
    record = about(tmp_path)["cases"]["tiny"]
    for text in texts:
        assert '<li class="met">largest: 20, at most 100: met</li>' in text
        for name in ("computed", "seconds", "source"):
            assert f'<td class="text">{name}</td><td class="text">{cell(record[name])}</td>' in text
        assert '<td class="text">presets</td><td class="text">default, large</td>' in text
        assert '<td class="text">first seed</td><td class="text">10</td>' in text
        assert f'<td class="text">memory_gb</td><td class="text">{record["memory_gb"]}</td>' in text
        assert "extremes (1 rows)" in text


def test_times_are_those_of_computing_whichever_run_did_it(squares, tmp_path):
    start(tmp_path)
    first = about(tmp_path)
    assert start(tmp_path) == DONE
    assert about(tmp_path) == first
    assert first["presets"].keys() == {"default"}
    spent = first["presets"]["default"]
    assert spent == {"cases": 1} | {
        key: first["cases"]["tiny"][key] for key in ("seconds", "processor_seconds")
    }


def test_another_preset_leaves_what_the_first_one_wrote(squares, tmp_path):
    start(tmp_path)
    squares.computed.clear()
    assert start(tmp_path, "--preset", "other") == DONE
    assert squares.computed == [(7, 10)]
    assert about(tmp_path)["cases"].keys() == {"tiny", "more"}
    assert about(tmp_path)["presets"].keys() == {"default", "large", "other"}
    page = (tmp_path / "squares.html").read_text()
    assert page.index("<h2>more</h2>") < page.index("<h2>tiny</h2>")


def test_cases_of_other_code_stay_on_the_page_and_are_computed_anew(squares, tmp_path, monkeypatch):
    start(tmp_path)
    monkeypatch.setattr(grid, "code_digest", lambda _: "other")
    assert start(tmp_path, "--preset", "other") == DONE
    assert "<h2>tiny</h2>" in (tmp_path / "squares.html").read_text()
    squares.computed.clear()
    start(tmp_path)
    assert len(squares.computed) == 6


def test_a_case_that_is_not_run_again_is_shown_as_it_was_stored(squares, tmp_path):
    start(tmp_path)
    whole = section(tmp_path, "tiny")
    start(tmp_path, "--preset", "other")
    figure = whole[whole.index("<figure>") : whole.index("</figure>\n") + len("</figure>\n")]
    assert section(tmp_path, "tiny") == whole.replace(figure, "")  # whose columns make none of the report's
    with RunFile(tmp_path / "squares.h5", "tiny") as run:
        run.save("table", {name: np.arange(1.0, 5.0) for name in ("varied", "size", "seconds")})
    start(tmp_path, "--preset", "other")
    assert 'alt="times"' in section(tmp_path, "tiny")


def section(out, name):
    page = (out / "squares.html").read_text()
    return page.partition(f"<h2>{name}</h2>")[2].partition("<h2>")[0]


def test_a_stored_case_is_shown_though_the_experiment_reads_it_no_more(squares, tmp_path):
    start(tmp_path)
    del squares.case["sizes"]
    with RunFile(tmp_path / "squares.h5", "tiny") as run:
        about = run.load("about")
        old = json.loads(about["record"])
        del old["parameters"]["sizes"], old["checks"], old["presets"]
        about.pop("lines")
        run.save("about", about | {"record": json.dumps(old | {"threads": [1, 10_000]})})
    assert start(tmp_path, "--preset", "other") == DONE
    assert '<td class="text">threads</td><td class="text">1, 10000</td>' in section(tmp_path, "tiny")


def test_a_case_that_was_never_completed_is_not_on_the_page_of_others(squares, tmp_path):
    squares.stop_at = (2, 11)
    start(tmp_path)
    assert start(tmp_path, "--preset", "other") == DONE
    assert section(tmp_path, "more")
    assert not section(tmp_path, "tiny")


def test_entries_made_before_the_package_changed_are_told_apart(squares, tmp_path, monkeypatch, capsys):
    start(tmp_path)
    squares.computed.clear()
    squares.case["seeds"] = 3
    for module in (grid, bench_record):
        monkeypatch.setattr(module, "package_digest", lambda: "0123")
    start(tmp_path)
    assert len(squares.computed) == 3
    assert "squares tiny: 6 of 9 entries were made before the package was changed" in capsys.readouterr().err
    assert about(tmp_path)["cases"]["tiny"]["source"] == sorted(["0123", package_digest()])


def test_a_reader_of_all_that_is_said_who_leaves_early_does_not_end_a_grid(squares, tmp_path, monkeypatch):
    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    start(tmp_path)
    squares.case["largest"] = 19
    monkeypatch.setattr(grid, "package_digest", lambda: "0123")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Closed())
    (tmp_path / "squares.html").unlink()
    assert start(tmp_path) == MISSED
    assert section(tmp_path, "tiny")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 3 TiB"), "out of memory: Unable to allocate 3 TiB"),
        (MemoryError(), "out of memory."),
        (ChildError("the measurement gave no result"), "the measurement gave no result"),
    ],
)
def test_a_case_without_a_result_is_missed_in_a_sentence_and_the_others_go_on(
    squares, tmp_path, capsys, error, words
):
    squares.fail_at = (2, 10), error
    assert start(tmp_path, "--preset", "large") == MISSED
    sentence = f"tiny: no result, 2 of 6 entries are kept: {words}"
    assert capsys.readouterr().err == f"python -m matfree_hier.bench squares: {sentence}\n"
    assert (1, 11) in squares.computed
    assert (7, 10) in squares.computed
    assert about(tmp_path)["cases"].keys() == {"more"}
    assert sentence in (tmp_path / "squares.html").read_text()
    squares.fail_at = None
    squares.computed.clear()
    assert start(tmp_path) == DONE
    assert len(squares.computed) == 4


def test_an_interrupted_grid_says_what_to_type_and_goes_on_to_the_same_table(squares, tmp_path, capsys):
    start(tmp_path / "whole")
    squares.computed.clear()
    squares.stop_at = (2, 11)
    assert start(tmp_path / "cut") == INTERRUPTED
    message = capsys.readouterr().err
    assert "squares tiny: 3 of 6 entries are kept" in message
    assert f"to resume, type: python -m matfree_hier.bench squares --out {tmp_path / 'cut'}" in message
    assert squares.computed == [(1, 10), (1, 11), (2, 10)]
    squares.computed.clear()
    squares.stop_at = None
    assert start(tmp_path / "cut") == DONE
    assert squares.computed == [(2, 11), (3, 10), (3, 11)]
    tables = [(tmp_path / name / "squares" / "tiny.csv").read_bytes() for name in ("whole", "cut")]
    assert tables[0] == tables[1]


def test_an_interrupted_grid_counts_the_entries_that_are_in_the_file_wherever_they_come(
    squares, tmp_path, capsys
):
    start(tmp_path)
    squares.case["seeds"] = 3
    squares.stop_at = (1, 12)
    assert start(tmp_path) == INTERRUPTED
    assert "squares tiny: 6 of 9 entries are kept; to resume" in capsys.readouterr().err
    squares.fail_at, squares.stop_at = ((1, 12), MemoryError()), None
    assert start(tmp_path) == MISSED
    assert "tiny: no result, 6 of 9 entries are kept: out of memory." in capsys.readouterr().err


def test_a_grid_interrupted_after_its_entries_says_that_they_are_kept(squares, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(squares, "grid", replace(squares.grid, summarise=interrupted))
    assert start(tmp_path) == INTERRUPTED
    message = capsys.readouterr().err
    assert "squares: all entries computed are kept; to resume, type: python -m matfree_hier.bench" in message


def test_a_finished_grid_computes_nothing_again(squares, tmp_path):
    start(tmp_path)
    squares.computed.clear()
    assert start(tmp_path) == DONE
    assert squares.computed == []


def test_a_changed_scenario_shares_only_the_entries_it_still_asks_for(squares, tmp_path):
    start(tmp_path)
    squares.computed.clear()
    squares.case |= {"sizes": [2, 4], "seeds": 3}
    assert start(tmp_path) == DONE
    assert squares.computed == [(2, 12), (4, 10), (4, 11), (4, 12)]
    with RunFile(tmp_path / "squares.h5", "tiny", mode="r") as run:
        assert run.load("table")["size"].tolist() == [2, 2, 2, 4, 4, 4]
        assert run.load("table")["name"].tolist() == ["a"] * 6


def test_a_further_table_that_a_case_has_no_more_leaves_its_run(squares, tmp_path):
    start(tmp_path)
    with RunFile(tmp_path / "squares.h5", "tiny") as run:
        run.save("table-old", {"a": np.arange(2)})
    start(tmp_path)
    with RunFile(tmp_path / "squares.h5", "tiny", mode="r") as run:
        assert [group for group in run.groups() if group.startswith("table")] == ["table", "table-extremes"]


def test_another_seed_or_version_is_computed_anew(squares, tmp_path, monkeypatch):
    start(tmp_path)
    squares.computed.clear()
    start(tmp_path, "--seed", "11")
    assert squares.computed == [(1, 12), (2, 12), (3, 12)]
    squares.computed.clear()
    monkeypatch.setattr(grid, "versions", lambda: {"matfree-hier": "9.9"})
    start(tmp_path)
    assert len(squares.computed) == 6


def test_a_check_that_fails_is_said_and_is_exit_status_1(squares, tmp_path, capsys):
    squares.case["largest"] = 19
    assert start(tmp_path) == MISSED
    assert "bench squares: tiny: largest: 20, at most 19: MISSED." in capsys.readouterr().err


def test_a_grid_that_another_process_runs_is_refused(squares, tmp_path, capsys):
    tmp_path.joinpath("x").mkdir()
    with RunFile(tmp_path / "squares.h5", "other") as run:
        run.save("a", {"b": 1})
        run.commit()
        assert start(tmp_path) == BAD_USAGE
    assert "bench: " in capsys.readouterr().err


def test_json_gives_rows_and_checks_one_a_line(squares, tmp_path, capsys):
    start(tmp_path, "--json")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["record"] for record in records] == ["machine", *["row"] * 6, "check", "made", "verdict"]
    assert records[-3] == {
        "record": "check", "case": "tiny", "what": "largest", "value": 20, "side": "at most", "bound": 100,
        "met": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [(1.0, False, True), (1.1, False, False), (1.0, True, True), (0.9, True, False)],
)
def test_a_check_holds_up_to_its_bound(value, at_least, met):
    assert Check("it", value, 1.0, at_least).met is met
    assert not Check("it", float("nan"), 1.0, at_least).met


def test_an_interruption_that_a_solve_caught_is_handed_on_and_a_miss_is_an_error():
    A = np.diag(np.arange(1.0, 41.0))
    stopped = top_eigenpairs(A, 2, method="krylov", callback=lambda _: True)
    with pytest.raises(KeyboardInterrupt):
        solved(stopped)
    with pytest.raises(NotConverged):
        solved(top_eigenpairs(A, 2, method="krylov", block_size=2, max_basis=4, max_passes=2))
    result = top_eigenpairs(A, 2)
    assert solved(result) is result
