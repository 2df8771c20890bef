import numpy as np
import pytest

from matfree_hier.checks import finite, integer, positive


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_every_kind_of_integer_becomes_a_python_int(value):
    assert integer("k", value, 1, 3) == 3
    assert type(integer("k", value, 0)) is int


@pytest.mark.parametrize(
    ("value", "bounds", "error", "message"),
    [
        (0, (1,), ValueError, "`k` must be at least 1, got 0."),
        (7, (1, 6), ValueError, "`k` must be in 1..6, got 7."),
        (2.0, (1,), TypeError, "`k` must be an integer at least 1, got 2.0."),
        ("2", (1, 6), TypeError, "`k` must be an integer in 1..6, got '2'."),
        (None, (0,), TypeError, "`k` must be an integer at least 0, got None."),
    ],
)
def test_what_is_wrong_is_said_with_its_bound(value, bounds, error, message):
    with pytest.raises(error) as caught:
        integer("k", value, *bounds)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_what_is_not_positive_is_refused(value):
    assert positive("x", 2) == 2.0
    with pytest.raises(ValueError, match=rf"`x` must be finite and above 0, got {value}\."):
        positive("x", value)


def test_the_first_value_that_is_not_finite_is_named():
    assert finite("x", [1, 2]).dtype == np.float64
    with pytest.raises(ValueError, match=r"`x` must be finite, got inf\."):
        finite("x", [[1.0, np.inf], [np.nan, 2.0]])
