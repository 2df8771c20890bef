"""The plan of a contraction, read by a naive interpreter: every feature made once, in its own slot."""

from __future__ import annotations

import os
import subprocess
import sys
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from matfree_hier.kernels import contraction, launch, recurrence
from matfree_hier.kernels.plan import CONTRACT, MULTIPLY, TAIL_ROWS, Plan, make_plan, n_features
from tests import oracle, strategies


def interpret(plan: Plan, X: NDArray[Any]) -> NDArray[np.float64]:
    """Return the features lo..hi-1 of each sample, NaN where the plan makes none; refuse one made twice."""
    work = np.full((plan.n_rows, len(X)), np.nan)
    work[0] = 1
    for m in range(1, plan.degree + 1):
        for i in range(plan.n_inputs):
            work[1 + (m - 1) * plan.n_inputs + i] = oracle.hermite(m, X[:, i])
    features = np.full((plan.hi - plan.lo, len(X)), np.nan)
    for opcode, a, row, length, slot in plan.program:
        if opcode == MULTIPLY:
            work[a : a + slot] = work[row] * work[length : length + slot]
            continue
        assert opcode == CONTRACT
        for j in range(length):
            inside = slot + j < plan.hi - plan.lo
            target = slot + j if inside else plan.scattered[slot + j - (plan.hi - plan.lo)]
            assert np.isnan(features[target]).all(), "a feature is made twice"
            features[target] = work[a] * work[row + j]
    return features.T


@given(
    size=strategies.sizes(max_degree=8),
    budget=st.integers(1, 2000),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_every_feature_of_any_range_is_made_once_whatever_the_budget(
    size: tuple[int, int], budget: int, cut: tuple[float, float]
) -> None:
    d, q = size
    D = comb(d + q - 1, q)
    lo, hi = sorted(round(c * D) for c in cut)
    X = np.random.default_rng(71).standard_normal((3, d))
    made = interpret(make_plan(d, q, lo, hi, budget), X)
    np.testing.assert_allclose(made, oracle.features(X, q)[:, lo:hi], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("d", "q", "budget"), [(40, 3, 300), (40, 3, 5000), (100, 2, 64), (20, 4, 100), (14, 5, 64), (10, 7, 500)]
)
def test_a_plan_of_many_blocks_makes_every_feature_once(d: int, q: int, budget: int) -> None:
    X = np.random.default_rng(72).standard_normal((2, d))
    made = interpret(make_plan(d, q, 0, comb(d + q - 1, q), budget), X)
    np.testing.assert_allclose(made, oracle.features(X, q), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("d", "q"), [(40, 3), (100, 3), (300, 2), (50, 4), (12, 8), (30, 5), (200, 3), (90, 4)]
)
@pytest.mark.parametrize("budget", [500, 2000])
def test_panels_stay_within_the_budget_whatever_the_size(d: int, q: int, budget: int) -> None:
    plan = make_plan(d, q, 0, n_features(d, q), budget)
    fixed = 1 + q * d + q  # 1, the powers and one row for each level of prefixes
    tails = (q - 1) * min(TAIL_ROWS, budget // 3)
    assert plan.n_rows - fixed <= budget + tails


def test_runs_are_long() -> None:
    """Short runs are what the contraction is slow at: D / (number of runs) stays in the tens or more."""
    for d, q, least in ((40, 3, 150), (100, 2, 40), (20, 4, 80), (60, 3, 200), (12, 8, 60)):
        D = n_features(d, q)
        program = make_plan(d, q, 0, D, 1500).program
        assert D / (program[:, 0] == CONTRACT).sum() > least, (d, q)


@pytest.mark.parametrize(("d", "q"), [(100, 3), (200, 3), (100, 4)])
@pytest.mark.parametrize("place", [0.0, 0.4, 0.98])
def test_a_narrow_range_is_not_charged_for_the_panels_of_others(d: int, q: int, place: float) -> None:
    D = n_features(d, q)
    lo = int(place * D)
    program = make_plan(d, q, lo, lo + 200, 400).program
    made = program[program[:, 0] == MULTIPLY, 4].sum()
    used = program[program[:, 0] == CONTRACT, 3].sum()
    assert used == 200
    assert made < 2000


def test_sizes_are_python_integers_past_any_word() -> None:
    assert n_features(10**6, 8) == comb(10**6 + 7, 8) > 2**63
    assert n_features(0, 0) == 1
    assert n_features(0, 3) == 0


@pytest.mark.parametrize(
    "kernel",
    [
        contraction.forward_samples,
        contraction.backward_features,
        contraction._fill_powers,
        contraction._multiply,
        contraction._forward_rows,
        contraction._backward_rows,
        recurrence.gram_rows,
        recurrence.squared_norm_rows,
        recurrence.kernel_from_products,
    ],
)
def test_no_kernel_may_assume_that_there_are_no_nans(kernel: Any) -> None:
    """fastmath=True would drop NaN checks; kernels must also release the lock and be cached."""
    options = kernel.targetoptions
    flags = options.get("fastmath", set())
    assert flags is not True
    assert not {"nnan", "ninf", "fast"} & set(flags or ())
    assert options["nogil"]
    assert type(kernel._cache).__name__ == "FunctionCache"


def test_the_register_tile_follows_the_processor() -> None:
    lanes = contraction.GROUP_VECTORS * contraction.VECTOR_BYTES // 4
    assert contraction.VECTOR_BYTES in {16, 32, 64}
    assert lanes <= launch.BACKWARD_LANES


OTHER_PROCESSORS = [
    ({"NUMBA_CPU_NAME": "generic"}, 16),
    ({"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}, 16),
    ({"NUMBA_CPU_NAME": "sandybridge", "NUMBA_CPU_FEATURES": "+avx,+sse4.2"}, 32),
]
SCRIPT = """
import numpy as np
from matfree_hier import kernels
from matfree_hier.kernels import contraction
from tests.test_kernels import backward, block, error, forward, samples
from tests import oracle
assert contraction.VECTOR_BYTES == {width}
for dtype, tolerance in (("float32", 2e-6), ("float64", 1e-14)):
    X = samples(107, 6, dtype)
    phi = oracle.features(X, 3)
    for k in (1, 2, 3, 5, 17):
        V, G = block(56, k, dtype), block(107, k, dtype)
        assert error(forward(X, V, 3), phi, V) < tolerance
        assert error(backward(X, G, 3), phi.T, G) < tolerance
"""


@pytest.mark.long
@pytest.mark.parametrize(("variables", "width"), OTHER_PROCESSORS)
def test_other_processors_get_right_code(variables: dict[str, str], width: int) -> None:
    """Narrower vectors, and no fused multiply-add, on the same machine."""
    subprocess.run(
        [sys.executable, "-c", SCRIPT.format(width=width)],
        check=True,
        env=os.environ | variables,
        timeout=280,
    )


@pytest.mark.long
@pytest.mark.skipif("avx512f" not in str(contraction.get_host_cpu_features()), reason="no AVX-512 here")
def test_a_processor_without_avx512_gets_right_code() -> None:
    features = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+avx,+fma,+sse4.2"}
    subprocess.run(
        [sys.executable, "-c", SCRIPT.format(width=32)], check=True, env=os.environ | features, timeout=280
    )
