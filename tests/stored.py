"""Values that a run or a checkpoint can hold, and what it is to be the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

RNG = np.random.default_rng(20240517)
BASIS = RNG.standard_normal((40, 3))
VALUES: dict[str, Any] = {
    "float64": BASIS,
    "float32, Fortran": np.asfortranarray(BASIS.astype(np.float32)),
    "float16": BASIS.astype(np.float16),
    "longdouble": BASIS.astype(np.longdouble) / 3,
    "complex": BASIS + 1j,
    "int": np.arange(-5, 7, dtype=np.int16).reshape(3, 4),
    "uint64": np.array([2**64 - 1, 0], dtype=np.uint64),
    "big-endian": np.arange(5, dtype=">f8"),
    "bool": np.array([[True, False], [False, False]]),
    "bool, Fortran": np.asfortranarray(np.array([[True, False], [True, False]])),
    "three axes, Fortran": np.asfortranarray(RNG.standard_normal((2, 3, 4))),
    "empty": np.zeros((0, 4)),
    "empty, Fortran text": np.zeros((0, 2), dtype="U3"),
    "no axes": np.array(2.5),
    "one column": np.arange(4.0)[:, None],
    "NaN with payload": np.array([0x7FF8000000001234, 0xFFF8000000000001], dtype=np.uint64).view(np.float64),
    "extremes": np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, 1.7976931348623157e308]),
    "text array": np.array(["dep_delay", "é", ""]),
    "bytes array": np.array([b"ab", b"c"]),
    "times": np.array(["2013-01-01", "NaT"], dtype="M8[D]"),
    "records": np.array([(1, 2.5)], dtype=[("row", "i4"), ("value", "f8")]),
    "scalars": {
        "bool": True,
        "int": -3,
        "seed": 2**127 + 1,
        "float": -0.0,
        "nan": float("nan"),
        "none": None,
    },
    "numpy scalars": {
        "f4": np.float32(0.1),
        "f8": np.float64(0.1),
        "b": np.bool_(True),
        "t": np.datetime64(5, "s"),
    },
    "text": {"plain": "krylov", "empty": "", "greek": "λ = 1/√2\n", "long": "x" * 100_000},
    "names": ["dep_delay", "", "température"],
    "no names": [],
    "nested": {"deeper": {"deepest": np.arange(3), "order": ["z", "a"]}, "empty": {}},
}

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
KEY = TEXT.filter(lambda text: text not in ("", ".") and "/" not in text)
ARRAYS = st.tuples(
    hnp.arrays(
        st.one_of(
            hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.complex_number_dtypes()
        ),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.sampled_from("CF"),
).map(lambda pair: np.array(pair[0], order=pair[1]))
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.lists(TEXT, max_size=3), ARRAYS),
    lambda children: st.dictionaries(KEY, children, max_size=3),
    max_leaves=5,
)
MAPPING = st.dictionaries(KEY, VALUE, max_size=4)


def assert_same(got: Any, expected: Any) -> None:
    """Same types, bits, shapes, dtypes and memory order, through nested dicts."""
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same(got[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        if expected.flags.c_contiguous or expected.flags.f_contiguous:
            assert got.flags.f_contiguous == expected.flags.f_contiguous
            assert got.flags.c_contiguous == expected.flags.c_contiguous
        assert got.tobytes() == expected.tobytes()
    elif isinstance(expected, np.generic):
        assert (got.dtype, got.tobytes()) == (expected.dtype, expected.tobytes())
    elif isinstance(expected, float):
        assert np.float64(got).tobytes() == np.float64(expected).tobytes()
    else:
        assert got == expected
