"""Functions called where samples are: one share in this process stands for all."""

import numpy as np
from numpy.testing import assert_array_equal

from matfree_hier.shares import LocalShares, joined, together
from matfree_hier.sources import open_source


def _described(source, *arguments):
    return source.n_samples, arguments


def _source(n):
    return open_source((np.arange(3.0 * n).reshape(n, 3), np.arange(float(n))))


def test_a_function_gets_the_share_then_its_place_then_arguments_then_rows():
    shares, rows = LocalShares(_source(4)), np.ones(4)
    assert shares.each(_described) == [(4, ())]
    assert shares.each(_described, "a", by_row=[rows], placed=True) == [(4, (0, "a", rows))]
    assert shares.sum(_described, 2) == (4, (2,))
    assert shares.derive(_described, 2).target == (4, (2,))


def test_sources_together_are_counted_one_after_the_other():
    shares = together([_source(4).shares, _source(2).shares], lambda parts, starts, x: (parts, starts, x), 7)
    parts, starts, x = shares.target
    assert [part.n_samples for part in parts] == [4, 2]
    assert (starts, x) == ([0, 4], 7)


def test_a_single_array_is_joined_without_a_copy():
    a, b = np.arange(3), np.arange(2)
    assert joined([a]) is a
    assert_array_equal(joined([a, b]), [0, 1, 2, 0, 1])
