"""Experiments and measurements: ``python -m matfree_hier.bench``."""
