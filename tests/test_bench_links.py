from __future__ import annotations

import pytest

from matfree_hier.bench import links, recovery
from matfree_hier.bench.experiment import load_scenarios
from matfree_hier.bench.grid import Entry

TINY = {
    "degree": 1,
    "n_inputs": 30,
    "n_features": 2,
    "gamma": 0.4,
    "link": "tanh",
    "seeds": 1,
    "ratios": [4, 40],
}


@pytest.mark.parametrize(
    ("gamma", "verdict"), [(0.4, ": proved in the paper"), (1.0, ": NOT proved in the paper")]
)
def test_each_gamma_says_whether_it_is_proved(gamma, verdict):
    case = TINY | {"gamma": gamma}
    entries = [Entry(point, 5, links.GRID.compute(point, 5)) for point in recovery.points(case)]
    summary = links.summarise(case, entries)
    assert verdict in summary.lines[-1]
    title = summary.figures["recovery"].get_suptitle()
    assert title.endswith(f"labels: clip ({'NOT ' if gamma == 1.0 else ''}proved at this gamma)")


def test_every_scenario_is_nonlinear_and_both_sides_of_one_half_are_tried():
    table = load_scenarios("links")
    assert {"quick", "default", "large"} == set(table["presets"])
    assert {case for cases in table["presets"].values() for case in cases} == set(table["cases"])
    tried = {(c["link"], c["gamma"] < 0.5) for c in map(table["cases"].get, table["presets"]["default"])}
    assert tried == {(link, below) for link in ("tanh", "gelu") for below in (True, False)}
    assert all(case["link"] != "identity" for case in table["cases"].values())
