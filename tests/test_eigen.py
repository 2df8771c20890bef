"""top_eigenpairs: right pairs for every method, honest statuses."""

from __future__ import annotations

import signal
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest
from matrices import Counted, assert_pairs, expected, two_sided, with_spectrum
from scipy.sparse.linalg import LinearOperator

from matfree_hier.eigen import top_eigenpairs
from matfree_hier.operator import MomentOperator
from matfree_hier.result import EigenResult
from matfree_hier.solvers.peers import work_dense, work_gram, work_krylov
from matfree_hier.status import Status

Array = Any
METHODS = ("krylov", "lobpcg", "arpack", "dense", "auto")


@pytest.mark.parametrize("which", ["LM", "LA", "SA", "BE"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_pairs_asked_for(method: Any, which: Any) -> None:
    A = two_sided()
    for k in (1, 5):
        result = top_eigenpairs(Counted(A), k, which, method, max_passes=2000)
        assert_pairs(result, A, k, which)
        assert 0.5 < result.norm / 5.0 < 1 + 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_every_product_is_counted(method: Any) -> None:
    C = Counted(two_sided())
    result = top_eigenpairs(C, 3, method=method, max_passes=2000)
    assert result.n_passes == C.n_products
    assert result.history.passes[-1] == result.n_passes


@pytest.mark.parametrize("method", METHODS)
def test_a_matrix_of_low_rank_gives_its_pairs_and_zeros(method: Any) -> None:
    for rank in (5, 14, 20):
        values = np.zeros(160)
        values[:rank] = np.linspace(3, 2, rank) * (-1.0) ** np.arange(rank)
        A = with_spectrum(values)
        result = top_eigenpairs(Counted(A), 12, method=method, max_passes=2000)
        assert_pairs(result, A, 12)
        if rank < 12:
            assert (np.abs(result.eigenvalues[rank:]) <= 10 * np.finfo(float).eps * 3).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_zero_operator_is_converged_and_said_to_be_zero(method: Any) -> None:
    result = top_eigenpairs(Counted(np.zeros((150, 150))), 4, method=method)
    assert result.status is Status.CONVERGED
    assert result.message == "The operator is zero."
    np.testing.assert_array_equal(result.eigenvalues, np.zeros(4))
    np.testing.assert_allclose(result.eigenvectors.T @ result.eigenvectors, np.eye(4), atol=1e-13)


@pytest.mark.parametrize("method", ["krylov", "lobpcg", "dense", "auto"])
def test_repeated_eigenvalues_are_found_with_their_multiplicity(method: Any) -> None:
    A = with_spectrum(np.concatenate([[5, 5, 5, -4.9, 4, 4], np.linspace(-1, 1, 194)]))
    assert_pairs(top_eigenpairs(Counted(A), 6, method=method, max_passes=2000), A, 6)


@pytest.mark.parametrize("block_size", [3, 16, None])
def test_multiplicity_may_exceed_the_block(block_size: int | None) -> None:
    A = 3.0 * np.eye(90)
    assert_pairs(top_eigenpairs(Counted(A), 20, method="krylov", block_size=block_size), A, 20)
    values = np.concatenate([np.full(20, 5.0), np.full(3, -4.0), np.linspace(-1, 1, 177)])
    A = with_spectrum(values)
    result = top_eigenpairs(Counted(A), 22, method="krylov", block_size=block_size, max_passes=400)
    assert_pairs(result, A, 22)


def test_clusters_spaced_below_the_tolerance_are_found() -> None:
    A = with_spectrum(np.concatenate([2 + 1e-6 * np.arange(6), np.linspace(-1, 1, 194)]))
    result = top_eigenpairs(Counted(A), 6, method="krylov", tol=1e-9)
    assert_pairs(result, A, 6, tol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_all_pairs_of_a_small_matrix_can_be_asked_for(method: Any, size: int) -> None:
    A = with_spectrum(np.random.default_rng(size).standard_normal(size))
    for k in {1, size}:
        assert_pairs(top_eigenpairs(Counted(A), k, method=method), A, k)


@pytest.mark.parametrize("which", ["LM", "LA", "SA", "BE"])
def test_krylov_finds_the_pairs_within_a_small_basis(which: Any) -> None:
    A = with_spectrum([*np.linspace(-1, 1, 190), 5, 4, 3, 2.5, 2, -5.5, -4.5, -3.5, -3, -2.2])
    result = top_eigenpairs(Counted(A), 5, which, method="krylov", block_size=6, max_basis=22, max_passes=400)
    assert_pairs(result, A, 5, which)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_operator_changes_nothing(scale: float) -> None:
    A = two_sided()
    plain = top_eigenpairs(Counted(A), 5, method="krylov")
    scaled = top_eigenpairs(Counted(scale * A), 5, method="krylov")
    assert scaled.n_passes == plain.n_passes
    assert_pairs(scaled, scale * A, 5)
    for method in ("lobpcg", "arpack", "dense"):
        assert_pairs(top_eigenpairs(Counted(scale * A), 5, method=method, max_passes=2000), scale * A, 5)


def test_primme_is_called_as_it_wants_to_be_where_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the signature of primme 3.2, which takes minutes to build, and LAPACK inside."""

    def eigsh(
        A: Any, k: int, which: str, v0: Array, tol: float, maxiter: int,
        return_unconverged: bool, raise_for_unconverged: bool, **other: int,
    ) -> tuple[Array, Array]:  # fmt: skip
        assert v0.shape[0] == A.shape[0]
        assert isinstance(maxiter, int)
        assert set(other) == {"maxBlockSize"}
        w, V = np.linalg.eigh(A.matmat(np.eye(A.shape[0])))
        order = {"LM": np.argsort(-np.abs(w)), "LA": np.argsort(-w), "SA": np.argsort(w)}[which][:k]
        return w[order], V[:, order]

    monkeypatch.setitem(sys.modules, "primme", types.SimpleNamespace(eigsh=eigsh))
    A = two_sided()
    for which in ("LM", "LA", "SA", "BE"):
        assert_pairs(top_eigenpairs(Counted(A), 5, which, "primme"), A, 5, which)
    monkeypatch.setitem(sys.modules, "primme", None)
    with pytest.raises(ValueError, match='`method` "primme" needs the package primme: python -m pip install'):
        top_eigenpairs(A, 5, method="primme")


# --- starts ------------------------------------------------------------------------------------------------


def vectors(A: Array, which: str, k: int) -> Array:
    w, V = np.linalg.eigh(A)
    order = {"LM": np.argsort(-np.abs(w)), "LA": np.argsort(-w), "SA": np.argsort(w)}[which]
    return V[:, order[:k]]


def test_exact_eigenvectors_as_a_start_take_three_passes() -> None:
    A = two_sided()
    for k in (3, 5):
        C = Counted(A)
        result = top_eigenpairs(C, k, method="krylov", start=vectors(A, "LM", k))
        assert_pairs(result, A, k)
        assert result.n_passes <= 3


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("which", ["LM", "LA"])
def test_eigenvectors_of_the_other_end_as_a_start_do_no_harm(which: Any, noise: float) -> None:
    A = two_sided()
    other = vectors(A, "SA" if which == "LA" else "LM", 20)[:, -5:]
    start = other + noise * np.random.default_rng(4).standard_normal(other.shape)
    assert_pairs(top_eigenpairs(Counted(A), 5, which, method="krylov", start=start), A, 5, which)


def test_a_start_of_any_kind_is_taken_and_never_written_to() -> None:
    A = two_sided()
    rng = np.random.default_rng(6)
    base = np.round(3 * rng.standard_normal((200, 4)))
    duplicated = np.hstack([base, base, np.zeros((200, 1))])
    for start in (
        base.astype(np.int64), base.astype(np.float16), np.asfortranarray(base), base[:, 0], duplicated,
        base[::-1, ::-1], rng.standard_normal((200, 40)),
    ):  # fmt: skip
        copy = start.copy()
        start.flags.writeable = False
        assert_pairs(top_eigenpairs(Counted(A), 5, method="krylov", start=start), A, 5)
        np.testing.assert_array_equal(start, copy)


@pytest.mark.parametrize("method", ["lobpcg", "arpack"])
def test_other_methods_do_not_write_to_the_start_either(method: Any) -> None:
    A = two_sided()
    start = np.random.default_rng(6).standard_normal((200, 5))
    copy = start.copy()
    start.flags.writeable = False
    assert_pairs(top_eigenpairs(Counted(A), 5, method=method, start=start, max_passes=2000), A, 5)
    np.testing.assert_array_equal(start, copy)


def test_a_result_can_be_the_next_start() -> None:
    A = two_sided()
    found = top_eigenpairs(Counted(A), 5, method="krylov", tol=1e-2)
    again = top_eigenpairs(Counted(A), 5, method="krylov", start=found.eigenvectors)
    fresh = top_eigenpairs(Counted(A), 5, method="krylov")
    assert_pairs(again, A, 5)
    assert again.n_passes <= fresh.n_passes


# --- operators that misbehave ------------------------------------------------------------------------------


class Faulty(Counted):
    """Does something at one of its products."""

    def __init__(self, A: Array, at: int, action: Any) -> None:
        super().__init__(A)
        self.at, self.action = at, action

    def _matmat(self, V: Array) -> Array:
        W = super()._matmat(V)
        return self.action(W) if self.n_products == self.at else W


def raises(error: BaseException) -> Any:
    def action(W: Array) -> Array:
        raise error

    return action


@pytest.mark.parametrize("method", ["krylov", "lobpcg", "arpack", "dense"])
def test_nan_at_a_pass_ends_with_the_pass_named(method: Any) -> None:
    A = two_sided(400)
    C = Faulty(A, 3 if method == "dense" else 6, lambda W: np.where(W.max() == W, np.nan, W))
    result = top_eigenpairs(C, 5, method=method, max_passes=2000)
    assert result.status is Status.OPERATOR_FAILED
    assert result.message == f"The operator returned values that are not finite at pass {C.at}."
    if method == "krylov":
        assert result.eigenvectors.shape == (400, 5)
        assert abs(result.eigenvalues[0] - 5.0) < 2.0
        V, w = result.eigenvectors, result.eigenvalues
        np.testing.assert_allclose(np.linalg.norm(A @ V - V * w, axis=0), result.residuals * result.norm)


def test_an_exception_inside_the_operator_ends_with_the_pairs_so_far() -> None:
    C = Faulty(two_sided(), 4, raises(OSError("disk gone")))
    result = top_eigenpairs(C, 5, method="krylov")
    assert result.status is Status.OPERATOR_FAILED
    assert result.message == "The operator raised OSError at pass 4: disk gone"
    assert len(result.eigenvalues) == 5
    first = top_eigenpairs(Faulty(two_sided(), 1, raises(OSError("no"))), 5, method="krylov")
    assert first.status is Status.OPERATOR_FAILED
    assert first.eigenvectors.shape == (200, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_pairs_so_far(number: int) -> None:
    before = signal.getsignal(number)

    def interrupt(W: Array) -> Array:
        signal.raise_signal(number)
        return W

    result = top_eigenpairs(Faulty(two_sided(), 4, interrupt), 5, method="krylov")
    assert result.status is Status.INTERRUPTED
    assert len(result.eigenvalues) == 5
    assert result.n_passes == 3
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("method", "stop_at"), [("lobpcg", 12), ("lobpcg", 45), ("arpack", 30)])
@pytest.mark.parametrize("fails", [True, False])
def test_other_solvers_cut_short_leave_the_best_pairs_of_their_products(
    method: str, stop_at: int, fails: bool
) -> None:
    def interrupt(W: Array) -> Array:
        if fails:
            msg = "disk gone"
            raise OSError(msg)
        signal.raise_signal(signal.SIGINT)
        return W

    A = two_sided()
    result = top_eigenpairs(Faulty(A, stop_at, interrupt), 5, method=method, tol=1e-12, block_size=8)
    assert result.status is (Status.OPERATOR_FAILED if fails else Status.INTERRUPTED)
    V, w = result.eigenvectors, result.eigenvalues
    np.testing.assert_allclose(V.T @ V, np.eye(5), atol=1e-9)
    np.testing.assert_allclose(
        np.linalg.norm(A @ V - V * w, axis=0), result.residuals * result.norm, atol=1e-8
    )
    assert abs(w[0] - 5.0) < 0.1
    assert result.residuals.min() < 0.1


@pytest.mark.parametrize("method", ["dense", "gram"])
def test_methods_without_pairs_before_their_end_say_so_when_interrupted(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    C = moments(60, 8, 3)
    apply = C._apply

    def interrupted(V: Array) -> Array:
        signal.raise_signal(signal.SIGTERM)
        return apply(V)

    monkeypatch.setattr(C, "_apply", interrupted)
    monkeypatch.setattr(C, "to_dense", lambda: interrupted(np.eye(120)))
    result = top_eigenpairs(C, 5, method=method)
    assert result.status is Status.INTERRUPTED
    assert result.eigenvectors.shape == (120, 0)
    assert result.message == f'The method "{method}" has no pairs before its end.'


def test_an_operator_may_reuse_its_buffer_and_write_to_its_argument() -> None:
    A = two_sided()
    buffers: dict[int, Array] = {}

    def rude(V: Array) -> Array:
        buffer = buffers.setdefault(V.shape[1], np.empty(V.shape))
        buffer[:] = A @ V
        V[:] = 7.0
        return buffer

    for method in ("krylov", "lobpcg", "dense"):
        C = LinearOperator(A.shape, matvec=lambda v: A @ v, matmat=rude, dtype=np.float64)
        assert_pairs(top_eigenpairs(C, 5, method=method, max_passes=2000), A, 5)


def test_an_operator_that_is_not_symmetric_is_refused() -> None:
    A = two_sided().copy()
    A[3, 5] += 0.5
    with pytest.raises(ValueError, match=r"`C` must be symmetric; for two random vectors"):
        top_eigenpairs(Counted(A), 5)
    with pytest.raises(ValueError, match=r"`C` must be symmetric"):
        top_eigenpairs(A, 5, method="dense")


def test_what_is_complex_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`C` must be real, got dtype complex128."):
        top_eigenpairs(np.eye(5) * 1j, 1)
    with pytest.raises(TypeError, match=r"`start` must hold real numbers, got dtype complex128."):
        top_eigenpairs(np.eye(5), 1, start=np.ones((5, 1)) * 1j)
    liar = LinearOperator((5, 5), matvec=lambda v: v * 1j, matmat=lambda v: v * 1j, dtype=np.float64)
    result = top_eigenpairs(liar, 1)
    assert result.status is Status.OPERATOR_FAILED
    assert "complex128" in result.message


def test_float32_at_an_impossible_tolerance_says_so_and_ends() -> None:
    A = two_sided()
    result = top_eigenpairs(Counted(A, np.float32), 5, method="krylov", tol=1e-12)
    assert result.status is Status.DTYPE_LIMIT
    assert result.n_passes < 30
    assert result.residuals.max() < 1e-5
    assert "float32" in result.message
    np.testing.assert_allclose(result.eigenvalues, expected(A, 5), rtol=1e-5)
    for method in ("lobpcg", "arpack", "dense"):
        assert (
            top_eigenpairs(Counted(A, np.float32), 5, method=method, tol=1e-12).status is Status.DTYPE_LIMIT
        )


def test_float64_at_an_impossible_tolerance_says_so_and_ends() -> None:
    result = top_eigenpairs(Counted(two_sided()), 5, method="krylov", tol=1e-17)
    assert result.status is Status.DTYPE_LIMIT
    assert result.n_passes < 40


def test_too_few_passes_end_with_the_pairs_so_far() -> None:
    A = two_sided(400)
    for max_passes in (1, 2, 3, 7):
        C = Counted(A)
        result = top_eigenpairs(C, 5, method="krylov", tol=1e-10, max_passes=max_passes)
        assert result.status is Status.MAX_PASSES
        assert C.n_products <= max(max_passes, 2)  # the residuals are of products too
        assert len(result.eigenvalues) == (5 if max_passes > 1 else 0) or max_passes == 1
        V, w = result.eigenvectors, result.eigenvalues
        np.testing.assert_allclose(
            np.linalg.norm(A @ V - V * w, axis=0), result.residuals * result.norm, atol=1e-12
        )


# --- reproducibility, callbacks ----------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_no_global_generator_is_touched() -> None:
    A = two_sided()
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    for method in METHODS:
        first = top_eigenpairs(Counted(A), 5, method=method, seed=11, max_passes=2000)
        again = top_eigenpairs(Counted(A), 5, method=method, seed=11, max_passes=2000)
        np.testing.assert_array_equal(first.eigenvectors, again.eigenvectors)
    other = top_eigenpairs(Counted(A), 5, method="krylov", seed=12)
    assert (other.eigenvectors != first.eigenvectors).any()
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]  # noqa: NPY002


def test_no_warning_leaks() -> None:
    A = two_sided()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in METHODS:
            result = top_eigenpairs(Counted(A), 5, method=method, max_passes=12, tol=1e-10)
            assert len(result.eigenvalues) == 5


def test_the_callback_sees_every_pass_and_can_end_the_run() -> None:
    seen: list[EigenResult] = []

    def stop_at_four(result: EigenResult) -> bool:
        seen.append(result)
        return len(seen) == 4

    result = top_eigenpairs(Counted(two_sided()), 5, method="krylov", callback=stop_at_four)
    assert [r.n_passes for r in seen] == [1, 2, 3, 4]
    assert result.status is Status.INTERRUPTED
    assert result.message == "The callback asked to stop."
    assert len(result.history) == 4
    np.testing.assert_array_equal(result.eigenvalues, seen[-1].eigenvalues)


def test_the_history_holds_every_pass() -> None:
    result = top_eigenpairs(Counted(two_sided()), 5, method="krylov")
    history = result.history
    assert history.passes[:2] == [1.0, 2.0]
    assert history.passes[-1] == result.n_passes
    np.testing.assert_array_equal(history.residuals[-1], result.residuals)
    np.testing.assert_array_equal(history.ritz_values[-1], result.eigenvalues)
    assert (np.diff(history.seconds) >= 0).all()


def test_progress_is_silent_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    top_eigenpairs(Counted(two_sided()), 5, method="krylov")
    assert capfd.readouterr() == ("", "")
    top_eigenpairs(Counted(two_sided()), 5, method="krylov", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "passes" in err
    assert "left" in err


# --- moment operators --------------------------------------------------------------------------------------


def moments(n: int, d: int, degree: int, **kwargs: Any) -> MomentOperator:
    rng = np.random.default_rng(21)
    X = rng.standard_normal((n, d))
    y = X[:, 0] * X[:, 1] + (X[:, 0] ** 2 - 1) + 0.3 * rng.standard_normal(n)
    return MomentOperator(X, y, degree=degree, **kwargs)


@pytest.mark.parametrize("center_trace", [True, False])
def test_every_method_agrees_on_a_moment_operator(center_trace: bool) -> None:
    C = moments(60, 8, 3, center_trace=center_trace)
    A = C.to_dense()
    which: Any = "LM" if center_trace else "BE"
    for method in ("gram", "krylov", "lobpcg", "arpack", "dense", "auto"):
        result = top_eigenpairs(C, 12, which, method=method, tol=1e-8, max_passes=3000)
        assert_pairs(result, A, 12, which, tol=1e-8)


@pytest.mark.parametrize("n", [1, 5, 60])
def test_fewer_samples_than_pairs_leave_the_shift_as_eigenvalue(n: int) -> None:
    C = moments(n, 8, 3)
    A = C.to_dense()
    for method in ("gram", "krylov"):
        for k in (12, 100, 120):
            assert_pairs(top_eigenpairs(C, k, method=method), A, k)


def test_a_moment_operator_is_not_probed() -> None:
    C = moments(3000, 9, 2, label_transform=np.sign)
    result = top_eigenpairs(C, 3, method="krylov")
    assert C.n_applied == result.n_passes
    assert result.history.samples_per_second[0] > 0


def test_constant_centred_labels_make_the_operator_zero() -> None:
    X = np.random.default_rng(3).standard_normal((50, 6))
    y = np.full(50, 2.0)
    for method in ("krylov", "dense", "gram", "auto"):
        result = top_eigenpairs(MomentOperator(X, y - y.mean(), degree=2), 3, method=method)
        assert result.status is Status.CONVERGED
        assert result.message == "The operator is zero."


def test_constant_labels_have_a_bulk_and_no_outlier() -> None:
    X = np.random.default_rng(3).standard_normal((2500, 150))
    C = MomentOperator(X, np.full(2500, 2.0), degree=1)
    result = top_eigenpairs(C, 5, method="krylov", stop="outliers")
    assert result.status is Status.OUTLIERS_RESOLVED
    assert "0 of 5 eigenvalues lie outside the bulk" in result.message


def test_one_input_of_degree_one_is_made_zero_by_trace_centring() -> None:
    X = np.random.default_rng(3).standard_normal((50, 1))
    for method in ("auto", "krylov"):
        result = top_eigenpairs(MomentOperator(X, X[:, 0] ** 2, degree=1), 1, method=method)
        assert result.status is Status.CONVERGED
        assert "operator is zero" in result.message
        assert abs(result.eigenvalues[0]) < 1e-15


def test_outliers_of_a_small_operator_are_exact_after_eight_passes_and_after_two_by_the_matrix() -> None:
    C = moments(3000, 16, 2, label_transform="clip")
    A = C.to_dense()
    for method, most in (("auto", 2), ("krylov", 8)):
        result = top_eigenpairs(C, 12, method=method, stop="outliers")
        assert_pairs(result, A, 12, tol=1e-9)
        assert result.n_passes <= most


def test_the_choice_of_method_follows_the_work() -> None:
    def chosen(n: int, d: int, degree: int) -> str:
        C = moments(n, d, degree)
        return top_eigenpairs(C, 2, tol=0.5).method

    assert chosen(2000, 5, 2) == "dense"
    assert chosen(40, 12, 3) == "gram"
    assert chosen(2000, 14, 3) == "krylov"


def test_the_cost_model_grows_with_what_it_should() -> None:
    from matfree_hier.solvers.arguments import resolved_options

    def works(n: int, d: int) -> tuple[float, float, float]:
        C = moments(n, d, 2)
        options = resolved_options(C, 4, "LM", 1e-6, None, None, 100, 3)
        return work_krylov(C, options), work_dense(C, options), work_gram(C, options)

    few, many, wide = works(100, 30), works(1000, 30), works(1000, 50)
    assert few[2] < few[0] < few[1]
    assert many[2] == np.inf
    assert many[0] < 10 * few[0]
    assert wide[1] / many[1] > wide[0] / many[0]
