"""Measurements, ``python -m matfree_hier.bench [EXPERIMENT]``: a file and a table of scenarios for each."""
