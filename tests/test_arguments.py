"""Arguments of a solve are checked before any product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matfree_hier.eigen import top_eigenpairs
from matfree_hier.metric import smoothness


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, r"`k` must be in 1..6, got 0."),
        ({"k": 7}, r"`k` must be in 1..6, got 7."),
        ({"k": 2, "which": "SM"}, r"`which` must be one of LM, LA, SA, BE, got 'SM'."),
        ({"k": 2, "method": "qr"}, r"`method` must be one of auto, krylov, .*, got 'qr'."),
        ({"k": 2, "stop": "never"}, r"`stop` must be one of residual, outliers, got 'never'."),
        ({"k": 2, "tol": 0.0}, r"`tol` must be above 0 and below 1, got 0.0."),
        ({"k": 2, "tol": float("nan")}, r"`tol` must be above 0 and below 1, got nan."),
        ({"k": 2, "block_size": 0}, r"`block_size` must be at least 1, got 0."),
        ({"k": 2, "block_size": 2, "max_basis": 3}, r"`max_basis` must be at least 4, got 3."),
        ({"k": 2, "max_passes": 0}, r"`max_passes` must be at least 1, got 0."),
        ({"k": 2, "seed": -1}, r"`seed` must be at least 0, got -1."),
        ({"k": 2, "start": np.ones((5, 1))}, r"`start` must have shape \(6,\) or \(6, s\) with s in 1..6"),
        ({"k": 2, "start": np.full((6, 1), np.nan)}, r"`start` must be finite, got nan at row 0, column 0."),
        ({"k": 2, "method": "gram"}, r'`method` "gram" needs a MomentOperator, got ndarray.'),
        ({"k": 2, "preconditioner": "ilu"}, r"`preconditioner` must be one of none, jacobi, amg, exact, got"),
        ({"k": 2, "preconditioner": "amg"}, r'`preconditioner` must be None or "none" without a `metric`'),
        ({"k": 2, "metric": smoothness("path", 1, 1.0, n_inputs=5)}, r"`metric` must be of .* size 6, got 5"),
        (
            {"k": 2, "metric": smoothness("path", 1, 1.0, n_inputs=6), "method": "arpack"},
            r'`method` must be "auto", "krylov", "lobpcg" or "dense" with a `metric`, got \'arpack\'',
        ),
        (
            {"k": 2, "metric": smoothness("path", 1, 1.0, n_inputs=6), "stop": "outliers"},
            r'`stop` must be "residual" with a `metric`, got \'outliers\'',
        ),
        (
            {"k": 2, "method": "arpack", "stop": "outliers"},
            r'`stop` must be "residual" for `method` "arpack"',
        ),
    ],
)
def test_arguments_out_of_bounds_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_eigenpairs(np.eye(6), **arguments)


def test_a_metric_must_be_one() -> None:
    with pytest.raises(
        TypeError, match=r"`metric` must be None or come from `metric.smoothness`, got ndarray"
    ):
        top_eigenpairs(np.eye(6), 2, metric=np.eye(6))  # type: ignore[arg-type]


def test_what_is_not_a_square_matrix_of_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`C` must be square and not empty, got shape \(2, 3\)."):
        top_eigenpairs(np.ones((2, 3)), 1)
    A = np.eye(3)
    A[1, 2] = np.inf
    with pytest.raises(ValueError, match=r"`C` must be finite, got inf at row 1, column 2."):
        top_eigenpairs(A, 1)
    with pytest.raises(TypeError, match=r"`C` must hold numbers, got dtype <U1."):
        top_eigenpairs(np.array([["a"]]), 1)
    with pytest.raises(TypeError, match=r"`k` must be an integer in 1..3, got 1.5."):
        top_eigenpairs(np.eye(3), 1.5)  # type: ignore[arg-type]
