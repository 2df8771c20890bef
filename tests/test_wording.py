"""Numbers with their nouns, and checks in a sentence."""

from __future__ import annotations

import pytest

from matfree_hier.wording import check_sentence, counted


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, "seed"), "0 seeds"),
        ((1, "seed"), "1 seed"),
        ((7260, "feature"), "7,260 features"),
        ((1.0, "pass", ".3g"), "1 pass"),
        ((12.5, "pass", ".3g"), "12.5 passes"),
    ],
)
def test_a_noun_is_in_the_plural_unless_its_number_is_written_as_1(arguments, text):
    assert counted(*arguments) == text


def test_a_check_is_a_sentence_with_its_value_and_bound():
    assert check_sentence("error", 0.12345, "at most", 0.2, True) == "error: 0.1235, at most 0.2: met"
    assert check_sentence("error", None, "at least", 1.0, False) == "error: nan, at least 1: MISSED"
