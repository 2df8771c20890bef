"""Shared pytest and Hypothesis settings, and fixtures."""

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
