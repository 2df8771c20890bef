"""The moment operator against dense matrices built from the formulas."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from math import comb, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse.linalg import aslinearoperator, eigsh

from matfree_hier import packing
from matfree_hier.labels import LabelTransform, input_sizes
from matfree_hier.operator import MomentOperator, adjoint, project
from matfree_hier.sources import open_source
from matfree_hier.status import InputError
from tests import oracle
from tests.strategies import LAYOUTS, Problem, dtypes, laid_out, problems, seeds, sizes

TOLERANCE = {"float32": 2e-6, "float64": 1e-13}  # relative to the sums of absolute values


def samples(n: int, d: int, dtype: str = "float64", seed: int = 17) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(dtype)
    return X, X[:, 0].astype(np.float64) ** 2 + rng.standard_normal(n)


def block(rows: int, k: int, seed: int = 18) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal((rows, k))


def operator(n: int = 40, d: int = 4, q: int = 2, **options: Any) -> MomentOperator:
    return MomentOperator(*samples(n, d), degree=q, **options)


def assert_within(found: NDArray[Any], exact: NDArray[Any], scale: NDArray[Any], dtype: str) -> None:
    """Each column's largest error is within the dtype's tolerance of the column's largest scale."""
    assert found.dtype == dtype
    assert found.shape == exact.shape
    error = np.abs(found - exact).max(axis=0)
    assert (error <= TOLERANCE[dtype] * scale.max(axis=0)).all(), error / scale.max(axis=0)


# ---- the product -----------------------------------------------------------------------------------------


@given(problem=problems())
def test_product_agrees_with_the_dense_reference(problem: Problem) -> None:
    X, y, V, q, dtype = problem
    C = MomentOperator(X, y, degree=q, dtype=dtype, center_trace=False)
    phi = oracle.features(X, q)
    assert_within(C @ V, oracle.moment_product(phi, y, V), oracle.moment_scale(phi, y, V), dtype)


@given(problem=problems())
def test_centred_product_agrees_with_the_dense_reference(problem: Problem) -> None:
    X, y, V, q, dtype = problem
    C = MomentOperator(X, y, degree=q, dtype=dtype)
    phi = oracle.features(X, q)
    # tr(C)/D = mean(t (|F|^2 - D)) / (D sqrt 2)
    shift = np.mean(y * ((phi**2).sum(axis=1) / phi.shape[1] - 1.0)) / sqrt(2)
    size = np.mean(np.abs(y) * ((phi**2).sum(axis=1) / phi.shape[1] + 1.0)) / sqrt(2)
    wide = V.astype(np.float64)
    exact = oracle.moment_product(phi, y, V) - shift * wide
    assert_within(C @ V, exact, oracle.moment_scale(phi, y, V) + size * np.abs(wide), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "q"), [(12, 1), (12, 2), (12, 3), (12, 4), (12, 5), (12, 6), (5, 7), (4, 8)])
def test_product_agrees_for_every_degree_count_and_width(d: int, q: int, dtype: str) -> None:
    X, y = samples(1000, d, dtype)
    phi = oracle.features(X, q)
    V = block(phi.shape[1], 33)
    for n, widths in ((1, (1, 16)), (5, (2, 33)), (47, (1, 7)), (1000, (1, 2, 7, 16, 33))):
        C = MomentOperator(X[:n], y[:n], degree=q, dtype=dtype, center_trace=False)
        exact = oracle.moment_product(phi[:n], y[:n], V)
        scale = oracle.moment_scale(phi[:n], y[:n], V)
        for k in widths:
            assert_within(C @ V[:, :k], exact[:, :k], scale[:, :k], dtype)
        assert_within(C @ V[:, 4], exact[:, 4], scale[:, 4], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_of_two_on_labels_and_vectors_change_no_digit(dtype: str) -> None:
    X, y = samples(60, 5, dtype)
    V = block(15, 3)
    expected = MomentOperator(X, y, degree=2, dtype=dtype) @ V
    for a, b in ((40, 40), (-40, -40), (45, -45), (-40, 3)):
        found = MomentOperator(X, np.ldexp(y, a), degree=2, dtype=dtype) @ np.ldexp(V, b)
        np.testing.assert_array_equal(found, np.ldexp(expected, a + b))


def test_columns_of_very_different_scales_do_not_disturb_each_other() -> None:
    X, y = samples(60, 5, "float32")
    V = block(15, 3)
    expected = MomentOperator(X, y, degree=2) @ V
    found = MomentOperator(X, y, degree=2) @ (V * np.array([2.0**-80, 1.0, 2.0**60]))
    np.testing.assert_array_equal(found, (expected * np.float32([2.0**-80, 1.0, 2.0**60])))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_changes_no_bit(layout: str) -> None:
    X, y = samples(60, 5)
    V = block(15, 3)
    expected = MomentOperator(X, y, degree=2) @ V
    C = MomentOperator(laid_out(X, layout), laid_out(y, layout), degree=2)
    np.testing.assert_array_equal(C @ laid_out(V, layout), expected)


def test_samples_past_one_chunk_are_all_summed() -> None:
    X, y = samples(40_001, 2)
    C = MomentOperator(X, y, degree=3)
    np.testing.assert_allclose(C.to_dense(), oracle.moment_matrix(X, y, 3, centre=True), atol=1e-13)


def test_single_precision_keeps_its_digits_over_many_samples() -> None:
    """Labels of one sign: nothing cancels, and a plain float32 sum would stall."""
    n = 3_000_000
    X = np.random.default_rng(23).standard_normal((n, 1), dtype=np.float32)
    C = MomentOperator(X, np.full(n, 3.0), degree=1, center_trace=False)
    wide = X[:, 0].astype(np.float64)
    exact = 3.0 * (wide @ wide / n - 1.0) / sqrt(2)
    assert abs(float((C @ np.ones(1))[0]) - exact) < 1e-6 * 3.0 * sqrt(2)


def test_no_product_gives_zeros_of_other_labels() -> None:
    X, _ = samples(30, 3)
    C = MomentOperator(X, np.zeros(30), degree=2)
    np.testing.assert_array_equal(C @ block(6, 2), np.zeros((6, 2)))
    np.testing.assert_array_equal(operator(d=3) @ np.zeros((6, 2)), np.zeros((6, 2)))


# ---- properties ------------------------------------------------------------------------------------------


@given(problem=problems(), seed=seeds)
def test_operator_is_symmetric(problem: Problem, seed: int) -> None:
    """The dot test: <C u, v> = <u, C v>."""
    X, y, _, q, dtype = problem
    C = MomentOperator(X, y, degree=q, dtype=dtype)
    u, v = block(C.shape[0], 2, seed).T
    phi = np.abs(oracle.features(X, q))
    scale = np.abs(u) @ oracle.moment_scale(phi, np.abs(y), np.abs(v)[:, None])
    scale = scale + abs(C.shift) * (np.abs(u) @ np.abs(v))
    left, right = np.float64(C @ u) @ v, u @ np.float64(C @ v)
    assert abs(left - right) <= TOLERANCE[dtype] * scale


@given(problem=problems(), cut=st.floats(0, 1))
def test_operator_is_linear_in_the_samples(problem: Problem, cut: float) -> None:
    X, y, V, q, _ = problem
    C = MomentOperator(X, y, degree=q, dtype="float64")
    n = C.n_samples
    if n == 1:
        return
    m = 1 + int(cut * (n - 2))
    parts = m / n * (C.restricted(0, m) @ V) + (n - m) / n * (C.restricted(m, n) @ V)
    scale = oracle.moment_scale(oracle.features(X, q), np.abs(y), V)
    scale += np.abs(C.shift) * np.abs(V) + np.abs(y).max() * (oracle.features(X, q) ** 2).mean() * np.abs(V)
    assert (np.abs(C @ V - parts).max(axis=0) <= 1e-13 * scale.max(axis=0)).all()


@given(seed=seeds, size=sizes(max_inputs=6), dtype=dtypes)
def test_order_of_samples_does_not_matter(seed: int, size: tuple[int, int], dtype: str) -> None:
    d, q = size
    X, y = samples(50, d, dtype)
    order = np.random.default_rng(seed).permutation(50)
    phi = oracle.features(X, q)
    V = block(phi.shape[1], 3)
    found = MomentOperator(X[order], y[order], degree=q, center_trace=False) @ V
    exact = MomentOperator(X, y, degree=q, center_trace=False) @ V
    assert_within(found, exact, oracle.moment_scale(phi, y, V), dtype)


@given(seed=seeds, size=sizes(max_inputs=6), dtype=dtypes)
def test_order_of_inputs_permutes_the_coordinates(seed: int, size: tuple[int, int], dtype: str) -> None:
    d, q = size
    X, y = samples(50, d, dtype)
    order = np.random.default_rng(seed).permutation(d)
    place = [packing.position([order[i] for i in index], d) for index in oracle.multi_indices(d, q)]
    phi = oracle.features(X, q)
    V = block(phi.shape[1], 3)
    found = MomentOperator(X[:, order], y, degree=q, center_trace=False) @ V[place]
    exact = MomentOperator(X, y, degree=q, center_trace=False) @ V
    assert_within(found, exact[place], oracle.moment_scale(phi, y, V), dtype)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize(("d", "q"), [(1, 4), (3, 1), (5, 2), (4, 3), (2, 6)])
def test_dense_matrix_trace_and_shift_are_those_of_the_formula(d: int, q: int, centre: bool) -> None:
    X, y = samples(70, d)
    C = MomentOperator(X, y, degree=q, center_trace=centre)
    plain = oracle.moment_matrix(X, y, q)
    scale = np.abs(plain).max()
    np.testing.assert_allclose(
        C.to_dense(), oracle.moment_matrix(X, y, q, centre=centre), rtol=0, atol=1e-13 * scale
    )
    assert C.trace() == pytest.approx(np.trace(plain), abs=1e-13 * scale * len(plain))
    assert C.label_mean == pytest.approx(y.mean(), rel=1e-14)
    expected = -y.mean() / sqrt(2) - (np.trace(plain) / len(plain) if centre else 0.0)
    assert C.shift == pytest.approx(expected, abs=1e-13 * scale)


def test_a_dense_matrix_of_several_bands_is_formed_in_one_pass_and_symmetric() -> None:
    X, y = samples(1100, 11)
    C = MomentOperator(X, y, degree=3)
    assert C.shape == (286, 286)
    A = C.to_dense()
    np.testing.assert_allclose(A, oracle.moment_matrix(X, y, 3, centre=True), atol=1e-12)
    np.testing.assert_array_equal(A, A.T)
    assert C.n_applied == 1.0


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize(("d", "q"), [(1, 3), (3, 1), (4, 2), (3, 3), (2, 5)])
def test_tensor_operator_is_the_full_matrix(d: int, q: int, centre: bool) -> None:
    X, y = samples(60, d)
    C = MomentOperator(X, y, degree=q, center_trace=centre)
    T = C.tensor()
    exact = oracle.tensor_moment_matrix(X, y, q, centre=centre)
    scale = np.abs(oracle.tensor_moment_matrix(X, np.abs(y), q)).max()
    assert T.shape == (d**q, d**q)
    np.testing.assert_allclose(T @ np.eye(d**q), exact, rtol=0, atol=1e-13 * scale)
    v = block(d**q, 1)[:, 0]
    np.testing.assert_allclose(T @ v, exact @ v, rtol=0, atol=1e-12 * scale)
    assert C.n_applied == 2.0  # a block is one pass


def test_tensor_operator_has_the_eigenpairs_unpacked() -> None:
    C = operator(d=4, q=3)
    w, V = np.linalg.eigh(C.to_dense())
    unpacked = packing.unpack(V, 4, 3)
    np.testing.assert_allclose(C.tensor() @ unpacked, w * unpacked, atol=1e-12 * np.abs(w).max())


# ---- dtypes, sources and transforms ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [("float32", "float32"), ("float64", "float64"), ("int8", "float64"), ("int64", "float64")],
)
def test_dtype_follows_the_data(given_dtype: str, expected: str) -> None:
    X, y = samples(30, 3)
    X = (4 * X).astype(given_dtype)
    C = MomentOperator(X, y, degree=2)
    assert C.dtype == expected
    phi = oracle.features(X, 2)
    V = block(6, 2)
    W = C @ V
    exact = oracle.moment_product(phi, y, V) - C.trace() / 6 * V
    assert_within(W, exact, oracle.moment_scale(phi, y, V) + abs(C.shift) * np.abs(V), expected)


def test_half_precision_data_are_converted() -> None:
    X, y = samples(30, 3)
    half = X.astype(np.float16)
    found = MomentOperator(half, y, degree=2, dtype="float64") @ block(6, 2)
    np.testing.assert_array_equal(found, MomentOperator(half.astype(np.float64), y, degree=2) @ block(6, 2))


def test_asked_dtype_wins_over_that_of_the_data() -> None:
    for dtype in ("float32", np.float32, np.dtype("float32")):
        C = operator(dtype=dtype)
        assert C.dtype == np.float32
        assert (C @ np.ones(10)).dtype == np.float32
    assert MomentOperator(*samples(20, 3, "float32"), degree=2, dtype="float64").dtype == np.float64


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "bool", "longdouble"])
def test_vectors_of_any_real_dtype_are_cast(dtype: str) -> None:
    V = (3 * block(10, 2)).astype(dtype)
    np.testing.assert_array_equal(operator() @ V, operator() @ V.astype(np.float64))


def test_single_precision_samples_are_never_copied() -> None:
    X, y = samples(400_000, 20, "float32")
    tracemalloc.start()
    C = MomentOperator(X, y, degree=1)
    C @ np.ones(20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes / 2


def test_memory_does_not_grow_with_the_samples() -> None:
    peaks = []
    V = block(10, 4)
    for n in (50_000, 400_000):
        X, y = samples(n, 3)
        tracemalloc.start()
        MomentOperator(X, y, degree=3) @ V
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_sources_and_files_stand_in_place_of_arrays(tmp_path: Path) -> None:
    X, y = samples(50, 4)
    V = block(10, 3)
    expected = MomentOperator(X, y, degree=2) @ V
    np.testing.assert_array_equal(MomentOperator(open_source((X, y)), degree=2) @ V, expected)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    C = MomentOperator(tmp_path / "data.npz", degree=2)
    np.testing.assert_array_equal(C @ V, expected)
    assert (C.n_samples, C.n_inputs, C.degree) == (50, 4, 2)


def test_label_transform_is_applied_to_the_labels() -> None:
    X, y = samples(80, 4)
    V = block(10, 3)
    found = MomentOperator(X, y, degree=2, label_transform=np.tanh)
    plain = MomentOperator(X, np.tanh(y), degree=2)
    np.testing.assert_array_equal(found @ V, plain @ V)
    assert (found.trace(), found.label_mean) == (plain.trace(), plain.label_mean)


@pytest.mark.parametrize("kept", [0, 2**28])
def test_a_label_transform_may_look_at_the_inputs(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matfree_hier.moment._KEPT_LABELS", kept)
    X, y = samples(400, 4)
    C = MomentOperator(X, y, degree=2, label_transform="normalised")
    transform = C.label_transform
    assert isinstance(transform, LabelTransform)
    assert transform.uses_inputs
    t = transform(y, input_sizes(X, 2))
    V = block(10, 3)
    assert_within(C @ V, MomentOperator(X, t, degree=2) @ V, np.abs(V), "float64")
    assert np.array_equal(C.labels(), t)
    part = C.restricted(37, 100)
    assert np.array_equal(part.labels(), t[37:100])
    assert_within(part @ V, MomentOperator(X[37:100], t[37:100], degree=2) @ V, np.abs(V), "float64")


def test_named_label_transform_is_fitted_once_and_kept_by_parts() -> None:
    X, y = samples(80, 4)
    C = MomentOperator(X, y, degree=2, label_transform="clip")
    assert C.label_transform is not None
    t = C.label_transform(y)
    assert np.abs(t).max() < np.abs(y).max()
    np.testing.assert_array_equal(C @ block(10, 2), MomentOperator(X, t, degree=2) @ block(10, 2))
    part = C.restricted(20, 60)
    assert part.label_transform is C.label_transform
    assert part.n_samples == 40
    np.testing.assert_array_equal(
        part @ block(10, 2), MomentOperator(X[20:60], t[20:60], degree=2) @ block(10, 2)
    )


def test_restricted_operator_keeps_the_options() -> None:
    C = operator(dtype="float32", center_trace=False)
    part = C.restricted(5, 25)
    assert (part.dtype, part.center_trace, part.degree) == (np.float32, False, 2)


# ---- SciPy's interface -----------------------------------------------------------------------------------


def test_vector_and_column_keep_their_shapes() -> None:
    C = operator()
    v = block(10, 1)
    assert C.matvec(v[:, 0]).shape == (10,)
    assert C.matvec(v).shape == C.matmat(v).shape == (C @ v).shape == (10, 1)
    assert (C @ np.zeros((10, 0))).shape == (10, 0)
    np.testing.assert_array_equal(C @ v, (C @ v[:, 0])[:, None])
    assert C.n_applied == 6.0  # the empty block costs none


def test_each_product_returns_memory_of_its_own() -> None:
    C = operator()
    V = block(10, 2)
    first = C @ V
    kept = first.copy()
    C @ (2 * V)
    np.testing.assert_array_equal(first, kept)
    assert first.flags.c_contiguous
    assert not np.shares_memory(first, C @ V)


def test_adjoint_and_algebra_are_those_of_a_symmetric_operator() -> None:
    C = operator()
    V = block(10, 2)
    W = C @ V
    assert C.H is C
    assert C.T is C
    for found in (C.rmatmat(V), C.T @ V, aslinearoperator(C) @ V, (2.0 * C) @ V / 2, C @ (C @ V) @ np.eye(2)):
        assert found.shape == (10, 2)
    np.testing.assert_array_equal(C.rmatmat(V), W)
    np.testing.assert_array_equal(C.rmatvec(V[:, 0]), C @ V[:, 0])
    np.testing.assert_allclose((C + C) @ V, 2 * W, rtol=1e-15)


def test_arpack_finds_the_dense_spectrum() -> None:
    C = operator(n=200, d=5)
    w = eigsh(C, 3, which="LA", v0=np.ones(15), return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(w), np.linalg.eigvalsh(C.to_dense())[-3:], rtol=1e-10)


def test_passes_are_counted_whatever_the_width() -> None:
    C = operator()
    assert C.n_applied == 0.0
    C @ block(10, 7)
    C @ np.ones(10)
    assert C.n_applied == 2.0


# ---- threads ---------------------------------------------------------------------------------------------


def test_one_operator_serves_several_threads() -> None:
    C = operator(n=3000, d=8, q=3)
    blocks = [block(120, k, seed=40 + k) for k in range(1, 9)]
    expected = [C @ V for V in blocks]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(C.matmat, blocks * 3))
    for W, exact in zip(found, expected * 3, strict=True):
        np.testing.assert_array_equal(W, exact)
    assert C.n_applied == 32.0


THREADS_SCRIPT = """
import hashlib
import numba, numpy as np
from matfree_hier.operator import MomentOperator, adjoint, project
from matfree_hier.packing import n_packed

for n_threads in (1, 2, 4):
    numba.set_num_threads(n_threads)
    digest = hashlib.sha256()
    for n, d, q, k, dtype in [(5000, 6, 3, 5, "f4"), (777, 10, 2, 16, "f8"), (20000, 3, 4, 1, "f4"),
                              (3, 4, 2, 33, "f8"), (300, 12, 4, 20, "f4")]:
        rng = np.random.default_rng(51)
        X, y = rng.standard_normal((n, d)).astype(dtype), rng.standard_normal(n)
        V = rng.standard_normal((n_packed(d, q), k))
        C = MomentOperator(X, y, degree=q)
        digest.update(np.ascontiguousarray(C @ V))
        digest.update(C.to_dense())
        digest.update(project(X, V, q))
        digest.update(adjoint(X, y, q))
    print(numba.get_num_threads(), digest.hexdigest())
"""


def test_every_number_of_threads_gives_the_same_bits() -> None:
    run = subprocess.run(
        [sys.executable, "-c", THREADS_SCRIPT],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "NUMBA_NUM_THREADS": "4"},
    )
    counts, digests = zip(*(line.split() for line in run.stdout.splitlines()), strict=True)
    assert counts == ("1", "2", "4")
    assert len(digests[0]) == hashlib.sha256().digest_size * 2
    assert len(set(digests)) == 1


# ---- project and adjoint ---------------------------------------------------------------------------------


@given(problem=problems())
def test_project_and_adjoint_agree_with_the_features(problem: Problem) -> None:
    X, y, V, q, dtype = problem
    phi, wide = oracle.features(X, q), V.astype(np.float64)
    assert_within(project(X, V, q, dtype), phi @ wide, np.abs(phi) @ np.abs(wide), dtype)
    G = y[:, None] * np.array([1.0, -3.0])
    W = adjoint(X, G, q, dtype)
    assert W.dtype == np.float64
    error = np.abs(W - phi.T @ G).max(axis=0)
    assert (error <= TOLERANCE[dtype] * (np.abs(phi.T) @ np.abs(G)).max(axis=0)).all()


def test_project_and_adjoint_keep_vectors_vectors_and_cross_chunks() -> None:
    X, y = samples(40_001, 2, "float32")
    v = block(3, 1)[:, 0]
    u, w = project(X, v, 2), adjoint(open_source((X, y)), y, 2)
    assert (u.shape, u.dtype, w.shape) == ((40_001,), np.float32, (3,))
    phi = oracle.features(X, 2)
    np.testing.assert_allclose(u, phi @ v, atol=2e-5)
    np.testing.assert_allclose(w, phi.T @ y, rtol=1e-4, atol=1e-1)
    assert project(X[:9], np.zeros((3, 0)), 2).shape == (9, 0)
    assert adjoint(X[:9], np.zeros((9, 0)), 2).shape == (3, 0)


# ---- refusals --------------------------------------------------------------------------------------------

X0, Y0 = samples(20, 4)


def spoilt(y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(y == Y0[7], np.inf, y)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: MomentOperator(X0, Y0, degree=9),
            ValueError,
            "`degree` must be an integer in 1..8, got 9.",
        ),
        (
            lambda: MomentOperator(X0, Y0, degree=2.0),
            ValueError,
            "`degree` must be an integer in 1..8, got 2.0.",
        ),
        (
            lambda: MomentOperator(X0, Y0, degree=2, dtype="float16"),
            ValueError,
            "`dtype` must be float32, float64 or None, got float16.",
        ),
        (
            lambda: MomentOperator(X0, Y0, degree=2, comm=object),
            TypeError,
            "`comm` must be a communicator of mpi4py or None, got type.",
        ),
        (
            lambda: MomentOperator(X0, degree=2),
            ValueError,
            "`y` must be given, or the source must have a target: there are no labels.",
        ),
        (
            lambda: MomentOperator(open_source((X0, Y0)), Y0, degree=2),
            ValueError,
            "`y` must be None when `X` is a source, which has its own labels.",
        ),
        (
            lambda: MomentOperator(X0, Y0, degree=2, label_transform=np.sum),
            ValueError,
            "`label_transform` must map (20,) real labels to as many, got () of float64.",
        ),
        (
            lambda: MomentOperator(
                X0, Y0, degree=2, label_transform=lambda y: np.where(y == Y0[7], np.inf, y)
            ),
            ValueError,
            "`label_transform` must be finite, got inf at row 7.",
        ),
        (
            lambda: operator().restricted(3, 3),
            ValueError,
            "`start` < `stop` must lie in 0..40, got 3 and 3.",
        ),
        (
            lambda: operator() @ np.ones(9),
            ValueError,
            "`V` must have shape (10,) or (10, k), got (9,).",
        ),
        (
            lambda: operator() @ np.ones((2, 10)),
            ValueError,
            "`V` must have shape (10,) or (10, k), got (2, 10).",
        ),
        (lambda: operator() @ (1j * np.ones(10)), TypeError, "`V` must be real, got dtype complex128."),
        (lambda: operator().matvec(["a"] * 10), TypeError, "`V` must be real, got dtype <U1."),
        (
            lambda: operator() @ np.where(np.arange(30).reshape(10, 3) == 13, np.nan, 1.0),
            ValueError,
            "`V` must be finite, got nan at row 4.",
        ),
        (
            lambda: operator().tensor() @ np.ones(10),
            ValueError,
            "`V` must have shape (16,) or (16, k), got (10,).",
        ),
        (
            lambda: project(X0, np.ones(11), 2),
            ValueError,
            "`V` must have shape (10,) or (10, k), got (11,).",
        ),
        (
            lambda: adjoint(X0, np.full(20, np.inf), 2),
            ValueError,
            "`G` must be finite, got inf at row 0.",
        ),
        (
            lambda: adjoint(X0, np.ones((19, 2)), 2),
            ValueError,
            "`G` must have shape (20,) or (20, k), got (19, 2).",
        ),
        (lambda: project(X0, np.ones(10), 0), ValueError, "`degree` must be an integer in 1..8, got 0."),
    ],
)
def test_wrong_arguments_are_named_in_one_sentence(call, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="0 sample"):
        MomentOperator(np.empty((0, 3)), np.empty(0), degree=2)
    with pytest.raises(ValueError, match="must have at least 1 sample, got 0"):
        MomentOperator(open_source((X0, Y0)).slice(3, 3), degree=2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_named_by_row(bad: float) -> None:
    X, y = samples(60, 4)
    X[43, 2] = bad
    for call in (
        lambda: MomentOperator(X, y, degree=2),
        lambda: project(X, np.ones(10), 2),
        lambda: adjoint(X, y, 2),
    ):
        with pytest.raises(InputError, match="row 43"):
            call()
    X, y = samples(60, 4)
    y[17] = bad
    for transform in (None, np.tanh):
        if np.isfinite(np.tanh(bad)) and transform:
            continue
        with pytest.raises(InputError, match="row 17"):
            MomentOperator(X, y, degree=2, label_transform=transform)


def test_overflow_is_refused_and_never_returned() -> None:
    X, y = samples(30, 3, "float32")
    with pytest.raises(FloatingPointError, match="overflow float32: scale the columns of `X` to unit"):
        MomentOperator(1e12 * X, y, degree=4, dtype="float32") @ np.ones(15)
    with pytest.raises(FloatingPointError, match="overflow float64"):
        MomentOperator(1e60 * X.astype(np.float64), y, degree=4)
    with pytest.raises(FloatingPointError, match="overflow float32"):
        MomentOperator(X, 1e30 * y, degree=2) @ np.full(6, 1e30)
    with pytest.raises(FloatingPointError, match="overflow float32"):
        project(1e12 * X, np.ones(15), 4)


def test_sizes_past_memory_and_int64_are_refused_with_the_number() -> None:
    X, y = np.ones((1, 100_000), np.float32), np.ones(1)
    with pytest.raises(ValueError, match=f"have {comb(100_004, 5)} packed coordinates"):
        MomentOperator(X, y, degree=5)
    with pytest.raises(MemoryError, match=r"^Vectors of 166671666700000 entries would take 2e\+06 GB, and "):
        MomentOperator(X, y, degree=3)
    C = MomentOperator(X[:, :150], y, degree=3)
    with pytest.raises(MemoryError, match=r"^The dense matrix of shape \(573800, 573800\) would take 5"):
        C.to_dense()
