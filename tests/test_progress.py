from __future__ import annotations

import io
import sys

import pytest

from matfree_hier import progress
from matfree_hier.progress import GridProgress


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def run(clock, seconds, **options):
    with GridProgress("squares tiny", [1.0, 1.0, 2.0, 4.0], **options) as bar:
        for spent in seconds:
            clock.now += spent
            bar.update(computed=True)


def test_a_log_gets_a_line_after_an_entry_at_most_every_30_seconds(clock, capsys):
    run(clock, [20, 20, 40, 29])
    assert capsys.readouterr().err.splitlines() == [
        "squares tiny: 2 of 4 [00:40, about 02:00 left]",
        "squares tiny: 3 of 4 [01:20, about 01:20 left]",
    ]


def test_the_first_entry_says_nothing_about_the_time_left_since_it_compiles(clock, capsys):
    run(clock, [300, 30])
    assert capsys.readouterr().err.splitlines() == [
        "squares tiny: 1 of 4 [05:00]",
        "squares tiny: 2 of 4 [05:30, about 03:00 left]",
    ]


def test_a_short_grid_or_one_told_to_be_silent_leaves_no_line_in_a_log(clock, capsys):
    run(clock, [5, 5, 5, 5])
    run(clock, [50, 50, 50, 50], show=False)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_one_line_that_is_drawn_again(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run(clock, [50, 50, 50, 50])
    assert terminal.getvalue().count("\n") == 1
    assert "4 of 4" in terminal.getvalue()
