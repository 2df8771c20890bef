"""Shared pytest and Hypothesis settings, and fixtures."""

import json

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "matfree_hier",
    deadline=None,  # the first example compiles
    max_examples=40,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("matfree_hier")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """`data.csv` of a teacher's samples, in the current folder."""
    from commandline import table_of  # scikit-learn with it, which few tests need

    monkeypatch.chdir(tmp_path)
    return table_of(tmp_path)


@pytest.fixture
def tiny(monkeypatch):
    """Put one small case in the place of the scenarios of an experiment of the bench."""
    from matfree_hier.bench import experiment

    def use(case):
        table = {"presets": {"default": ["tiny"]}, "cases": {"tiny": case}}
        monkeypatch.setattr(experiment, "load_scenarios", lambda _: table)

    return use


@pytest.fixture
def in_process(monkeypatch):
    """Measure in this process: a new one has to import everything again."""
    from matfree_hier.bench import main, measure, solvers, throughput

    def run(target, arguments, **_):
        if target.endswith("time_first_product"):
            return {"import_seconds": 0.5, "compile_seconds": 12.0}
        return json.loads(measure.to_json(measure.resolve(target)(**arguments)))

    for module in (main, throughput, solvers):
        monkeypatch.setattr(module, "run_isolated", run)
