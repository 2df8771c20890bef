"""Figures of stored runs, and the page that shows a run: ``python -m matfree_hier report RUN``.

A run is what a run file holds: a fit, a solve of `top_eigenpairs`, a spectral density, or an experiment of
``matfree_hier.bench``. Functions take ``PATH``, ``PATH::NAME``, or the groups themselves, a mapping of
names to dicts of values, so that results that were never stored can be drawn too.
"""

from matfree_hier.figures.tables import grid_of as grid_of
from matfree_hier.report.drawings import plot_collapse as plot_collapse
from matfree_hier.report.drawings import plot_density as plot_density
from matfree_hier.report.drawings import plot_edges as plot_edges
from matfree_hier.report.drawings import plot_efficiency as plot_efficiency
from matfree_hier.report.drawings import plot_errors as plot_errors
from matfree_hier.report.drawings import plot_history as plot_history
from matfree_hier.report.drawings import plot_overlaps as plot_overlaps
from matfree_hier.report.drawings import plot_peers as plot_peers
from matfree_hier.report.drawings import plot_recovery as plot_recovery
from matfree_hier.report.drawings import plot_smoothing as plot_smoothing
from matfree_hier.report.drawings import plot_spectrum as plot_spectrum
from matfree_hier.report.drawings import plot_times as plot_times
from matfree_hier.report.pages import run_page as run_page
from matfree_hier.report.runs import Groups as Groups
from matfree_hier.report.runs import Run as Run
from matfree_hier.report.runs import read_run as read_run

__all__ = [
    "Groups",
    "Run",
    "grid_of",
    "plot_collapse",
    "plot_density",
    "plot_edges",
    "plot_efficiency",
    "plot_errors",
    "plot_history",
    "plot_overlaps",
    "plot_peers",
    "plot_recovery",
    "plot_smoothing",
    "plot_spectrum",
    "plot_times",
    "read_run",
    "run_page",
]
