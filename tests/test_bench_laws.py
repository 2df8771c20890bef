from __future__ import annotations

import numpy as np
import pytest

from matfree_hier.bench.laws import fit_power_law


def test_an_exact_law_is_found_and_its_interval_closes():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    law = fit_power_law(x, [3.0 * x**-0.5] * 2)
    assert law.exponent == pytest.approx(-0.5)
    assert law.constant == pytest.approx(3.0)
    assert law.high - law.low < 1e-6


def test_the_interval_holds_the_exponent_of_noisy_laws_as_often_as_it_says():
    rng = np.random.default_rng(23)
    x = 2.0 ** np.arange(5)
    held = 0
    for _ in range(400):
        law = fit_power_law(x, x**0.7 * np.exp(0.1 * rng.standard_normal((2, 5))))
        held += law.low <= 0.7 <= law.high
    assert 0.91 < held / 400 < 0.99


def test_two_places_alone_leave_the_interval_open():
    law = fit_power_law([1.0, 4.0], [1.0, 2.0])
    assert law.exponent == pytest.approx(0.5)
    assert law.high == np.inf
