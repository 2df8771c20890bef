"""Shared pytest and Hypothesis settings."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "matfree_hier",
    deadline=None,  # the first example compiles
    max_examples=40,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("matfree_hier")
