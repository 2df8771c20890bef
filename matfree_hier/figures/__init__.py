"""Figures of spectra, recovery, convergence and laws, drawn on `matplotlib.figure.Figure` objects.

Nothing here touches pyplot or the backend: the functions work without a display, in threads and in notebooks,
and leave the caller's settings alone. Each returns the Figure; ``figure.savefig(path)`` writes it.
"""

from matfree_hier.figures.comparisons import Curve as Curve
from matfree_hier.figures.comparisons import Law as Law
from matfree_hier.figures.comparisons import Ranges as Ranges
from matfree_hier.figures.comparisons import plot_curves as plot_curves
from matfree_hier.figures.comparisons import plot_efficiency as plot_efficiency
from matfree_hier.figures.comparisons import plot_peers as plot_peers
from matfree_hier.figures.comparisons import plot_times as plot_times
from matfree_hier.figures.curves import plot_density as plot_density
from matfree_hier.figures.curves import plot_edges as plot_edges
from matfree_hier.figures.curves import plot_law as plot_law
from matfree_hier.figures.fits import plot_fit as plot_fit
from matfree_hier.figures.solves import plot_history as plot_history
from matfree_hier.figures.solves import plot_recovery as plot_recovery
from matfree_hier.figures.solves import plot_spectrum as plot_spectrum
from matfree_hier.figures.transitions import plot_collapse as plot_collapse
from matfree_hier.figures.transitions import plot_smoothing as plot_smoothing
from matfree_hier.figures.transitions import plot_transition as plot_transition

__all__ = [
    "Curve",
    "Law",
    "Ranges",
    "plot_collapse",
    "plot_curves",
    "plot_density",
    "plot_edges",
    "plot_efficiency",
    "plot_fit",
    "plot_history",
    "plot_law",
    "plot_peers",
    "plot_recovery",
    "plot_smoothing",
    "plot_spectrum",
    "plot_times",
    "plot_transition",
]
