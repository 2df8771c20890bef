import threading
import time

import pytest

from matfree_hier.sources.ahead import read_ahead


def readers():
    return [thread for thread in threading.enumerate() if "read-ahead" in thread.name]


def test_items_come_in_their_order_and_the_thread_ends_with_them():
    assert list(read_ahead(iter(range(100)))) == list(range(100))
    assert list(read_ahead(iter([]), depth=3)) == []
    assert not readers()


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_asked_for_is_read_ahead(depth):
    made = []

    def items():
        for i in range(20):
            made.append(i)
            yield i

    ahead = read_ahead(items(), depth)
    assert not made  # nothing is read before it is asked for
    assert next(ahead) == 0
    time.sleep(0.3)
    assert len(made) == depth + 2
    ahead.close()
    assert len(made) <= depth + 3


def test_items_are_made_while_the_caller_works():
    first_used, second_made = threading.Event(), threading.Event()

    def items():
        yield 1
        assert first_used.wait(10)
        second_made.set()
        yield 2

    ahead = read_ahead(items())
    assert next(ahead) == 1
    first_used.set()
    assert second_made.wait(10)  # the caller asked for no second item yet
    assert list(ahead) == [2]


def test_what_the_iterator_raises_is_raised_at_its_place():
    def items():
        yield 1
        msg = "row 7 is missing"
        raise ValueError(msg)

    ahead = read_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="row 7 is missing"):
        next(ahead)
    assert not readers()


def test_closing_early_closes_the_iterator_and_ends_the_thread():
    closed = threading.Event()

    def items():
        try:
            yield from range(1000)
        finally:
            closed.set()

    ahead = read_ahead(items())
    next(ahead)
    ahead.close()
    assert closed.is_set()
    assert not readers()
    for _ in read_ahead(items()):
        break
    assert not readers()
