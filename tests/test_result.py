"""EigenResult and History: what is stored comes back, and failure is an exception when asked for."""

import pickle

import numpy as np
import pytest

from matfree_hier.result import EigenResult, History
from matfree_hier.status import NotConverged, Status


def a_result(status: Status = Status.CONVERGED, message: str = "") -> EigenResult:
    rng = np.random.default_rng(17)
    history = History()
    history.append(1.0, np.array([0.5]), np.array([0.1]), seconds=0.25, samples_per_second=4e3)
    history.append(1.5, np.array([0.6, -0.2]), np.array([1e-7, 2e-7]), seconds=0.5)
    return EigenResult(
        eigenvalues=np.array([0.6, -0.2]),
        eigenvectors=np.linalg.qr(rng.standard_normal((5, 2)))[0],
        residuals=np.array([1e-7, 2e-7]),
        norm=0.6,
        status=status,
        n_passes=2.5,
        history=history,
        method="krylov",
        message=message,
    )


def test_a_result_survives_the_round_trip_through_arrays_to_the_last_bit() -> None:
    result = a_result(Status.MAX_PASSES, "Stopped by the caller.")
    back = EigenResult.from_arrays(result.to_arrays())
    for name in ("eigenvalues", "eigenvectors", "residuals"):
        np.testing.assert_array_equal(getattr(back, name), getattr(result, name))
    assert (back.norm, back.status, back.n_passes) == (result.norm, result.status, result.n_passes)
    assert (back.method, back.message) == ("krylov", "Stopped by the caller.")
    assert back.history.passes == [1.0, 1.5]
    assert back.history.seconds == [0.25, 0.5]
    assert back.history.samples_per_second[0] == 4e3
    np.testing.assert_array_equal(back.history.ritz_values, [[0.5, np.nan], [0.6, -0.2]])


def test_an_empty_history_survives_the_round_trip() -> None:
    arrays = History().to_arrays()
    assert arrays["ritz_values"].shape == (0, 0)
    assert len(History.from_arrays(arrays)) == 0


def test_the_history_keeps_copies() -> None:
    values = np.array([1.0, 2.0])
    history = History()
    history.append(1, values, values, seconds=0.0)
    values[:] = 7.0
    np.testing.assert_array_equal(history.ritz_values[0], [1.0, 2.0])
    assert len(history) == 1


@pytest.mark.parametrize("status", [Status.CONVERGED, Status.OUTLIERS_RESOLVED])
def test_require_converged_returns_the_result_itself(status: Status) -> None:
    result = a_result(status)
    assert result.require_converged() is result


def test_require_converged_raises_with_the_partial_result() -> None:
    result = a_result(Status.OPERATOR_FAILED, "It raised OSError at pass 3.")
    with pytest.raises(
        NotConverged, match=r"after 2.5 passes with residuals up to 2.0e-07.*at pass 3"
    ) as caught:
        result.require_converged()
    assert caught.value.result is result
    assert isinstance(pickle.loads(pickle.dumps(caught.value)).result, EigenResult)


def test_the_short_form_says_how_the_run_ended() -> None:
    assert repr(a_result()) == (
        "EigenResult(2 pairs of size 5, CONVERGED by krylov in 2.5 passes, largest residual 2.0e-07)"
    )
