"""Packed and tensor coordinates: order, sizes, isometry."""

from __future__ import annotations

import tracemalloc
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matfree_hier import packing
from tests import oracle
from tests.strategies import dtypes, laid_out, layouts, seeds, sizes

SIZES = [(1, 1), (1, 6), (5, 1), (2, 8), (3, 4), (7, 2), (6, 3)]


@pytest.mark.parametrize(("d", "q"), SIZES)
def test_order_is_that_of_itertools(d: int, q: int) -> None:
    expected = oracle.multi_indices(d, q)
    assert packing.n_packed(d, q) == len(expected)
    listed = packing.multi_indices(d, q)
    assert listed.dtype == np.int64
    assert list(map(tuple, listed.tolist())) == expected
    assert [packing.multi_index(p, d, q) for p in range(len(expected))] == expected
    assert [packing.position(index, d) for index in expected] == list(range(len(expected)))
    np.testing.assert_array_equal(packing.positions(listed, d), np.arange(len(expected)))


def test_position_sorts_its_indices() -> None:
    assert packing.position((4, 0, 2), 5) == packing.position((0, 2, 4), 5)


@given(d=st.integers(1, 10**6), q=st.integers(1, 12), fraction=st.fractions(0, 1))
def test_ranking_inverts_unranking_at_any_size(d: int, q: int, fraction: float) -> None:
    place = int(fraction * (packing.n_packed(d, q) - 1))
    index = packing.multi_index(place, d, q)
    assert list(index) == sorted(index)
    assert 0 <= index[0] <= index[-1] < d
    assert packing.position(index, d) == place


def test_last_multi_index_of_a_huge_size_is_exact() -> None:
    d, q = 10**9, 8
    n = comb(d + q - 1, q)
    assert n > 2**200
    assert packing.n_packed(np.int32(d), np.int8(q)) == n
    assert packing.multi_index(n - 1, d, q) == (d - 1,) * q
    assert packing.position((d - 1,) * q, d) == n - 1


@pytest.mark.parametrize(("d", "q"), SIZES)
def test_unpack_and_pack_are_the_isometry_and_its_transpose(d: int, q: int) -> None:
    matrix = oracle.unpacking_matrix(d, q)
    np.testing.assert_allclose(packing.unpack(np.eye(matrix.shape[1]), d, q), matrix, rtol=1e-15)
    np.testing.assert_allclose(packing.pack(np.eye(d**q), d, q), matrix.T, rtol=1e-15)


@given(size=sizes(max_inputs=5), k=st.integers(0, 4), seed=seeds, dtype=dtypes, layout=layouts)
def test_pack_inverts_unpack_and_keeps_norms(
    size: tuple[int, int], k: int, seed: int, dtype: str, layout: str
) -> None:
    d, q = size
    shape = (packing.n_packed(d, q), k) if k else (packing.n_packed(d, q),)
    v = laid_out(np.random.default_rng(seed).standard_normal(shape).astype(dtype), layout)
    T = packing.unpack(v, d, q)
    assert T.shape == (d**q, *shape[1:])
    assert T.dtype == v.dtype
    rtol = 30 * np.finfo(dtype).eps
    np.testing.assert_allclose(packing.pack(laid_out(T, layout), d, q), v, rtol=rtol)
    norms = [np.linalg.norm(each.astype(np.float64), axis=0) for each in (T, v)]
    np.testing.assert_allclose(*norms, rtol=rtol)


@given(size=sizes(max_inputs=4), seed=seeds)
def test_pack_is_the_adjoint_of_unpack(size: tuple[int, int], seed: int) -> None:
    d, q = size
    rng = np.random.default_rng(seed)
    v, T = rng.standard_normal(packing.n_packed(d, q)), rng.standard_normal(d**q)
    error = np.vdot(packing.unpack(v, d, q), T) - np.vdot(v, packing.pack(T, d, q))
    assert abs(error) <= 1e-14 * np.linalg.norm(v) * np.linalg.norm(T)


def test_unpack_of_pack_symmetrises() -> None:
    d = 4
    T = np.random.default_rng(6).standard_normal((d, d, d))
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    symmetric = np.mean([T.transpose(order) for order in orders], axis=0)
    np.testing.assert_allclose(
        packing.unpack(packing.pack(T.ravel(), d, 3), d, 3), symmetric.ravel(), atol=1e-15
    )


def test_integers_and_half_precision_become_float64() -> None:
    for dtype in ("int16", "bool", "float16"):
        assert packing.unpack(np.ones(3, dtype), 2, 2).dtype == np.float64
        assert packing.pack(np.ones(4, dtype), 2, 2).dtype == np.float64


def test_inputs_are_not_written_to() -> None:
    v, T = np.arange(6.0), np.arange(9.0)
    packing.unpack(v, 3, 2), packing.pack(T, 3, 2)
    np.testing.assert_array_equal(v, np.arange(6.0))
    np.testing.assert_array_equal(T, np.arange(9.0))


def test_unpacking_a_million_entries_takes_twice_their_memory() -> None:
    d, q = 100, 3
    v = np.random.default_rng(9).standard_normal(packing.n_packed(d, q))
    tracemalloc.start()
    T = packing.unpack(v, d, q)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * T.nbytes
    np.testing.assert_allclose(packing.pack(T, d, q), v, rtol=1e-14)


def test_sizes_past_int64_are_refused_with_the_number() -> None:
    n = comb(10**5 + 3, 4)
    assert packing.check_size(10**5, 4) == n
    n = comb(10**5 + 4, 5)
    with pytest.raises(ValueError, match=rf"`d` = 100000 inputs at degree `q` = 5 have {n} packed"):
        packing.check_size(10**5, 5)
    with pytest.raises(ValueError, match=f"have {10**20} tensor coordinates, more than "):
        packing.check_size(10**5, 4, tensor=True)
    with pytest.raises(ValueError, match="more than 2"):
        packing.multi_indices(10**5, 5)


def test_largest_index_is_two_to_the_63_less_one() -> None:
    assert packing.check_size(2**63 - 1, 1) == 2**63 - 1
    with pytest.raises(ValueError, match=f"have {2**63} packed"):
        packing.check_size(2**63, 1)


def test_memory_is_refused_before_it_is_taken() -> None:
    packing.check_memory(10**6, "A small thing")
    with pytest.raises(MemoryError, match=r"^A huge thing would take 1e\+06 GB, and [0-9.e+]+ GB of memory"):
        packing.check_memory(10**15, "A huge thing")
    with pytest.raises(MemoryError, match=r"multi-indices of degree 4 would take .* GB"):
        packing.multi_indices(30_000, 4)
    block = np.broadcast_to(np.float32(1.0), (packing.n_packed(30_000, 2), 10**6))
    with pytest.raises(MemoryError, match=r"A tensor of 900000000 entries would take 3.6e\+06 GB"):
        packing.unpack(block, 30_000, 2)


def test_available_memory_is_that_of_this_machine() -> None:
    assert 10**7 < packing.available_memory() < 2**63 - 1


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: packing.n_packed(0, 2), ValueError, "`d` must be at least 1, got 0."),
        (lambda: packing.n_packed(3, 0), ValueError, "`q` must be at least 1, got 0."),
        (lambda: packing.n_packed(3.0, 2), TypeError, "`d` must be an integer at least 1, got 3.0."),
        (lambda: packing.check_size(3, "2"), TypeError, "`q` must be an integer at least 1, got '2'."),
        (lambda: packing.position((), 3), ValueError, "`index` must hold at least one index, got none."),
        (lambda: packing.position((0, 3), 3), ValueError, "`index` must be in 0..2, got 3."),
        (lambda: packing.position((-1, 0), 3), ValueError, "`index` must be in 0..2, got -1."),
        (lambda: packing.multi_index(6, 3, 2), ValueError, "`position` must be in 0..5, got 6."),
        (lambda: packing.multi_index(-1, 3, 2), ValueError, "`position` must be in 0..5, got -1."),
        (
            lambda: packing.unpack(np.ones(5), 3, 2),
            ValueError,
            "`v` must have shape (6,) or (6, k), got (5,).",
        ),
        (
            lambda: packing.pack(np.ones((3, 3)), 3, 2),
            ValueError,
            "`T` must have shape (9,) or (9, k), got (3, 3).",
        ),
        (lambda: packing.unpack(1j * np.ones(6), 3, 2), TypeError, "`v` must be real, got dtype complex128."),
        (lambda: packing.pack(1j * np.ones(9), 3, 2), TypeError, "`T` must be real, got dtype complex128."),
    ],
)
def test_wrong_arguments_are_named_in_one_sentence(call, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


def test_available_memory_keeps_within_the_limit_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": ["MemTotal: 9000 kB", "MemAvailable: 5000 kB"],
        "/proc/self/cgroup": ["0::/box"],
        "/sys/fs/cgroup/box/memory.max": ["3000000"],
        "/sys/fs/cgroup/box/memory.current": ["2500000"],
        "/sys/fs/cgroup/box/memory.stat": ["anon 1000000", "inactive_file 1500000"],
    }
    monkeypatch.setattr(packing, "_lines", lambda path: files.get(str(path), []))
    assert packing.available_memory() == 2_000_000
    files["/sys/fs/cgroup/box/memory.max"] = ["max"]
    assert packing.available_memory() == 5000 * 1024
