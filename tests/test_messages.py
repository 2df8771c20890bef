"""Objects as messages: what is unpacked is what was packed, and errors keep their type and words."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from matfree_hier import messages
from matfree_hier.status import InputError, NotConverged

_values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def _carried(value, known=None):
    """Send a value to itself: through its announcement, and the blocks that follow."""
    message = messages.pack(value, known)
    blocks = iter([block.copy() for block in message.blocks()])

    def fill(block):
        block[:] = next(blocks)

    return messages.received(pickle.loads(pickle.dumps(message.announcement())), fill, known)


@given(_values)
def test_plain_objects_arrive_as_they_were(value):
    assert _carried(value) == value


@given(st.sampled_from([0, 3, 70_000]), st.sampled_from(["f4", "f8", "i8", "?"]), st.sampled_from("CF"))
def test_arrays_of_any_size_arrive_bit_for_bit_and_can_be_written_to(n, dtype, order):
    rng = np.random.default_rng(3)
    arrays = [np.asarray(rng.standard_normal((n, 3)), dtype, order=order), np.arange(n)[::2]]
    for sent, came in zip(arrays, _carried(arrays), strict=True):
        assert came.dtype == sent.dtype
        assert_array_equal(came, sent)
        came[:1] = 0


def test_memory_of_large_arrays_is_not_copied():
    array = np.zeros(100_000)
    message = messages.pack(array)
    array[5] = 7.0
    assert len(message.pickled) < 1000
    assert message.parts[0].view(np.float64)[5] == 7.0


def test_functions_that_every_rank_has_go_by_name():
    mine, theirs = (lambda y: y), (lambda y: 2.0 * y)
    message = messages.pack(("a", mine), {"transform": mine})
    came = messages.unpack(message.pickled, message.parts, {"transform": theirs})
    assert came == ("a", theirs)
    assert not messages.is_picklable(mine)
    assert messages.is_picklable(mine, {"transform": mine})
    with pytest.raises(TypeError, match="An object cannot be sent to the other ranks"):
        messages.pack(mine)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("`k` must be in 1..3, got 4."),
        InputError("data.csv, row 3: nan"),
        FileNotFoundError("There is no file x."),
        MemoryError("17 GB"),
        KeyboardInterrupt(),
    ],
)
def test_errors_keep_their_type_and_say_where_they_came_up(error):
    sent = messages.portable(error)
    assert (type(sent), str(sent)) == (type(error), str(error))
    named = messages.from_rank(sent, 3)
    assert type(named) is type(error)
    assert str(named) == f"Rank 3: {str(error) or 'KeyboardInterrupt'}"


class _TwoError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_errors_that_do_not_travel_leave_their_words():
    sent = messages.portable(_TwoError(1, 2))
    assert (type(sent), str(sent)) == (RuntimeError, "_TwoError: 1 and 2")
    code = UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")
    assert str(messages.from_rank(code, 1)) == f"Rank 1: {code}"
    kept = messages.portable(NotConverged("too few passes", result=[1.0]))
    assert kept.result == [1.0]
