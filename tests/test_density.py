"""Spectral density: against dense spectra, closed forms, and its own error bars."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import LinearOperator
from scipy.stats import norm, semicircular
from threadpoolctl import threadpool_limits

from matfree_hier import theory
from matfree_hier.density import SpectralDensity, spectral_density
from matfree_hier.operator import MomentOperator
from matfree_hier.store import RunFile


def rotated(eigenvalues, seed=5):
    """Return a dense symmetric matrix of these eigenvalues in a random basis."""
    w = np.asarray(eigenvalues, dtype=np.float64)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(w), len(w))))[0]
    A = (Q * w) @ Q.T
    return (A + A.T) / 2


def low_rank(size, eigenvalues, seed=5):
    """Return Q diag(w) Q^T of this rank, accurate to rounding in its null space too."""
    w = np.asarray(eigenvalues, dtype=np.float64)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, len(w))))[0]
    return (Q * w) @ Q.T


def wigner(size, seed):
    """Return a symmetric Gaussian matrix whose spectrum tends to the semicircle on [-1, 1]."""
    G = np.random.default_rng(seed).standard_normal((size, size))
    return (G + G.T) / np.sqrt(8 * size)


def smoothed(eigenvalues, found):
    """Return the density of eigenvalues, smoothed as that of `found`."""
    return norm.pdf(found.grid[:, None], eigenvalues, found.width).mean(axis=1)


class Counting(LinearOperator):
    """Counts products with blocks, refuses single vectors, and returns one buffer over and over."""

    def __init__(self, A):
        super().__init__(A.dtype, A.shape)
        self.A, self.blocks, self.buffer = A, [], None

    def _matmat(self, V):
        self.blocks.append(V.shape[1])
        assert V.dtype == self.dtype
        assert V.flags.c_contiguous
        if self.buffer is None or self.buffer.shape != V.shape:
            self.buffer = np.empty(V.shape, self.dtype)
        return np.matmul(self.A, V, out=self.buffer)

    def _matvec(self, v):
        pytest.fail("one vector at a time")


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 300])
@pytest.mark.parametrize("c", [3.0, -1e-12, 0.0, 7e12])
def test_a_multiple_of_the_identity_is_one_atom(size, c):
    found = spectral_density(c * np.eye(size), seed=31)
    np.testing.assert_allclose(found.bulk_edges, [c, c], rtol=1e-14)
    assert len(found.outliers) == 0
    if size > 1:
        np.testing.assert_allclose(found.atoms, [c], rtol=1e-14)
        np.testing.assert_array_equal(found.atom_counts, [size])
        np.testing.assert_array_equal(found.atom_errors, [0])
    assert found.weights.sum() == pytest.approx(1, abs=1e-14)
    assert np.trapezoid(found.density, found.grid) == pytest.approx(1, abs=1e-3)
    assert found.n_passes == 1


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_low_rank_is_an_atom_and_its_eigenvalues_with_their_multiplicities(scale):
    eigenvalues = np.array([5, 5, 5, 4, 3.9, 2, 0.1, -0.2, -3, -3]) * scale
    found = spectral_density(low_rank(400, eigenvalues), seed=32)
    expected, counts = np.unique(eigenvalues, return_counts=True)
    np.testing.assert_allclose(found.outliers, expected[::-1], rtol=1e-12)
    np.testing.assert_array_equal(found.outlier_counts, counts[::-1])
    np.testing.assert_array_equal(found.outlier_errors, 0)
    np.testing.assert_allclose(found.atoms, [0], atol=1e-14 * scale)
    np.testing.assert_array_equal(found.atom_counts, [390])
    np.testing.assert_allclose(found.bulk_edges, [0, 0], atol=1e-14 * scale)
    assert found.n_passes <= 9  # as many as there are distinct eigenvalues


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_low_rank_is_right_in_either_precision(dtype):
    found = spectral_density(low_rank(400, [2.0, 2.0, -1.0]).astype(dtype), seed=33)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found.outliers, [2, -1], rtol=100 * eps)
    np.testing.assert_array_equal(found.outlier_counts, [2, 1])
    np.testing.assert_allclose(found.atom_counts.sum() + found.outlier_counts.sum(), 400, rtol=1e-12)


def test_multiplicities_above_the_width_are_estimated_with_their_error():
    eigenvalues = np.repeat([3.0, 1.0, 0.0], [150, 300, 550])
    counts = []
    for seed in range(40, 60):
        found = spectral_density(np.diag(eigenvalues), n_probes=12, seed=seed)
        np.testing.assert_allclose(found.atoms, [3, 1, 0], atol=1e-12)
        assert found.atom_counts.sum() == pytest.approx(1000)
        assert found.n_passes == 3
        counts.append((found.atom_counts - [150, 300, 550]) / found.atom_errors)
    assert np.abs(counts).max() < 6  # Student's t of 11 degrees: P = 1e-4 each
    assert np.sqrt(np.mean(np.square(counts))) == pytest.approx(np.sqrt(11 / 9), rel=0.4)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 100, 400])
def test_a_complete_basis_gives_the_dense_spectrum(size):
    A = wigner(size, 61)
    found = spectral_density(A, seed=34)
    np.testing.assert_allclose(found.nodes, np.linalg.eigvalsh(A)[::-1], atol=1e-13)
    np.testing.assert_allclose(found.weights, 1 / size)
    np.testing.assert_array_equal(found.weight_errors, 0)
    np.testing.assert_allclose(found.density, smoothed(np.linalg.eigvalsh(A), found), rtol=1e-9, atol=1e-12)


def test_density_of_a_wigner_matrix_is_the_semicircle():
    found = spectral_density(wigner(1500, 62), seed=35)
    nodes = semicircular.ppf((np.arange(20_000) + 0.5) / 20_000)
    difference = np.abs(found.density - smoothed(nodes, found))
    assert (difference <= 5 * found.standard_errors + 0.01).all()
    assert 0 < found.standard_errors.max() < 0.05
    assert len(found.outliers) == 0
    np.testing.assert_allclose(found.bulk_edges, [-1, 1], atol=0.03)
    below = np.cumsum(found.weights[::-1]) - found.weights[::-1] / 2
    np.testing.assert_allclose(below, semicircular.cdf(found.nodes[::-1]), atol=0.02)


def test_error_bars_cover_the_dense_spectrum():
    eigenvalues = np.concatenate([np.linspace(-1, 0, 280), np.linspace(2, 3, 120)])
    A = rotated(eigenvalues)
    scaled = []
    for seed in range(70, 90):
        found = spectral_density(A, n_probes=8, n_steps=16, seed=seed)
        middle = np.searchsorted(found.grid, [-0.5, 2.5])
        exact = smoothed(eigenvalues, found)
        scaled.append((found.density - exact)[middle] / found.standard_errors[middle])
        np.testing.assert_allclose(found.density, exact, atol=0.12 * exact.max())
    assert np.sqrt(np.mean(np.square(scaled))) == pytest.approx(1.18, rel=0.4)  # Student's t of 7 degrees


def test_quadrature_gives_traces_within_its_error():
    A = wigner(900, 63) + np.diag(np.linspace(0, 1, 900))
    w = np.linalg.eigvalsh(A)
    found = spectral_density(A, n_steps=12, seed=36)
    for function in (np.exp, np.square, lambda x: 1 / (x + 3)):
        assert found.weights @ function(found.nodes) == pytest.approx(function(w).mean(), rel=0.05)


def test_steps_beyond_what_the_spectrum_needs_are_not_made():
    A = Counting(np.diag(np.repeat([1.0, 2.0, 4.0], 50)))
    found = spectral_density(A, seed=37)
    assert found.n_passes == found.n_steps == len(A.blocks) == 3
    assert found.n_probes == 16


def test_every_product_is_a_block_and_is_counted():
    A = Counting(wigner(600, 64))
    found = spectral_density(A, n_probes=6, n_steps=9, seed=38)
    assert A.blocks == [6] * 9
    assert found.n_passes == 9
    np.testing.assert_array_equal(
        found.nodes, spectral_density(A.A, n_probes=6, n_steps=9, seed=38).nodes
    )  # the reused buffer did no harm


@pytest.mark.parametrize(("size", "n_seeds"), [(60, 10), (300, 5), (900, 1)])
def test_outliers_above_and_below_are_flagged_and_no_others(size, n_seeds):
    for seed in range(90, 90 + n_seeds):
        A = wigner(size, seed)
        assert len(spectral_density(A, seed=seed).outliers) == 0
        planted = A + low_rank(size, [1.5, 1.5, 1.2, -2.0], seed)
        w = np.linalg.eigvalsh(planted)
        found = spectral_density(planted, seed=seed)
        np.testing.assert_allclose(found.outliers, [*w[:-4:-1], w[0]], rtol=1e-8)
        np.testing.assert_allclose(found.bulk_edges, [w[1], w[-4]], rtol=1e-3)
        np.testing.assert_array_equal(found.outlier_counts, 1)


@pytest.mark.parametrize("n_steps", [24, 32])
def test_edges_and_outliers_of_a_large_semicircle_are_found(n_steps):
    size = 8000
    w = semicircular.ppf((np.arange(size) + 0.5) / size)
    w[0], w[-2:] = -1.1, [1.08, 1.5]
    found = spectral_density(scipy.sparse.diags(w), n_steps=n_steps, seed=39)
    np.testing.assert_allclose(found.outliers, [1.5, 1.08, -1.1], rtol=1e-6)
    np.testing.assert_allclose(found.bulk_edges, [w[1], w[-3]], rtol=0.005)


def test_a_moment_operator_of_degree_one_shows_its_edges_and_every_outlier():
    size, n_features = 1275, 6
    n = 8 * size
    rng = np.random.default_rng(1275)
    X = rng.standard_normal((n, size), dtype=np.float32)
    weights = np.array([0.6, 0.45, -0.5, 0.38, -0.37, 0.1])
    h = X[:, :n_features].astype(np.float64)
    y = (h**2 - 1) @ weights / np.sqrt(2)
    C = MomentOperator(X, y, degree=1, label_transform="clip")
    t = C.label_transform(y)
    dense = (X.T @ (X * t.astype(np.float32)[:, None])).astype(np.float64) / (n * np.sqrt(2))
    w = np.linalg.eigvalsh((dense + dense.T) / 2 - np.trace(dense) / size * np.eye(size))
    law = theory.predict_spectrum(t, n, size, h)
    # Eigenvalues of a bulk reach some 1 % past its edge at this size; what is 3 % past it is an outlier.
    true = (w > 1.03 * law.edge_right) | (w < 1.03 * law.edge_left)
    unclear = (w > 1.015 * law.edge_right) | (w < 1.015 * law.edge_left)
    assert np.array_equal(true, unclear)
    assert true.sum() == 5  # one feature is too weak for this many samples

    found = spectral_density(C, seed=1276)
    np.testing.assert_allclose(found.outliers, w[true][::-1], rtol=1e-4)
    np.testing.assert_allclose(found.bulk_edges, [w[~true].min(), w[~true].max()], rtol=0.03)
    np.testing.assert_allclose(found.bulk_edges, [law.edge_left, law.edge_right], rtol=0.03)
    assert found.n_passes == C.n_applied == 32


def test_same_seed_same_bits_for_any_number_of_blas_threads():
    A = wigner(700, 65)
    bits = set()
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found = spectral_density(A, n_steps=8, seed=41)
        bits.add(b"".join(np.asarray(value).tobytes() for value in found.to_arrays().values()))
    assert len(bits) == 1
    other = spectral_density(A, n_steps=8, seed=43)
    assert not np.array_equal(other.density, found.density)


def test_a_density_shows_in_one_line_what_was_found():
    found = spectral_density(np.diag([5.0] + [1.0] * 199), seed=51)
    assert repr(found) == "SpectralDensity(size 200, bulk 1 to 1, 1 outlier, 2 passes)"


def test_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    spectral_density(np.eye(30), seed=44)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("exponent", [-12, 12])
def test_a_scaled_operator_has_a_scaled_spectrum(exponent):
    scale = 2.0 ** (exponent * 3)
    A = wigner(500, 66) + low_rank(500, [1.6])
    plain, scaled = (spectral_density(B, n_steps=12, seed=45) for B in (A, A * scale))
    for name in ("nodes", "grid", "bulk_edges", "outliers"):
        np.testing.assert_allclose(getattr(scaled, name), getattr(plain, name) * scale, rtol=1e-9)
    np.testing.assert_allclose(scaled.density * scale, plain.density, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "convert",
    [
        scipy.sparse.csr_array,
        np.asfortranarray,
        lambda A: A.astype(np.int64),
        lambda A: A.astype(np.float32),
        lambda A: A.tolist(),
    ],
    ids=["sparse", "Fortran", "int64", "float32", "list"],
)
def test_arrays_of_any_kind_are_taken(convert):
    A = np.diag(np.repeat([4.0, 1.0], [3, 97]))
    A[0, 5] = A[5, 0] = 2  # 4, 1 become 5, 0
    found = spectral_density(convert(A), seed=46)
    np.testing.assert_allclose(found.outliers, [5, 4, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.outlier_counts, [1, 2, 1])


def test_a_density_is_stored_in_a_run_file_and_comes_back(tmp_path):
    found = spectral_density(wigner(300, 67) + low_rank(300, [2.0]), seed=47)
    with RunFile(tmp_path / "run.h5") as run:
        run.save("density", found.to_arrays())
    with RunFile(tmp_path / "run.h5", mode="r") as run:
        again = SpectralDensity.from_arrays(run.load("density"))
    for name, value in found.to_arrays().items():
        assert type(getattr(again, name)) is type(value)
        np.testing.assert_array_equal(getattr(again, name), value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n_probes": 1}, "`n_probes` must be at least 2, got 1."),
        ({"n_steps": 0}, "`n_steps` must be at least 1, got 0."),
        ({"n_grid": 1}, "`n_grid` must be at least 2, got 1."),
    ],
)
def test_arguments_are_checked(arguments, sentence):
    with pytest.raises(ValueError, match="must be at least") as caught:
        spectral_density(np.eye(4), seed=48, **arguments)
    assert str(caught.value) == sentence


def test_operators_that_are_not_real_symmetric_matrices_are_refused():
    with pytest.raises(ValueError, match=r"`A` must be square and not empty, got shape \(3, 4\)\."):
        spectral_density(np.ones((3, 4)), seed=49)
    with pytest.raises(TypeError, match=r"`A` must be real, got dtype complex128\."):
        spectral_density(np.eye(3) * 1j, seed=49)
    with pytest.raises(ValueError, match="`A` must be symmetric; on the probes"):
        spectral_density(np.triu(np.ones((50, 50))), seed=49)
    with pytest.raises(ValueError, match=r"`A` must return finite values; at pass 1 it did not\."):
        spectral_density(np.full((5, 5), np.nan), seed=49)


def test_a_basis_larger_than_memory_is_refused():
    A = LinearOperator((10**11, 10**11), matmat=lambda V: V, matvec=lambda v: v, dtype=np.float64)
    with pytest.raises(MemoryError, match="Lanczos basis"):
        spectral_density(A, seed=50)
