"""Figures of spectra, recovery, convergence and laws, drawn on `matplotlib.figure.Figure` objects.

Nothing here touches pyplot or the backend: the functions work without a display, in threads and in notebooks,
and leave the caller's settings alone. Each returns the Figure; ``figure.savefig(path)`` writes it.
"""

from matfree_hier.figures.curves import Band as Band
from matfree_hier.figures.curves import plot_collapse as plot_collapse
from matfree_hier.figures.curves import plot_density as plot_density
from matfree_hier.figures.curves import plot_law as plot_law
from matfree_hier.figures.curves import plot_transition as plot_transition
from matfree_hier.figures.fits import plot_fit as plot_fit
from matfree_hier.figures.solves import plot_history as plot_history
from matfree_hier.figures.solves import plot_recovery as plot_recovery
from matfree_hier.figures.solves import plot_spectrum as plot_spectrum

__all__ = [
    "Band",
    "plot_collapse",
    "plot_density",
    "plot_fit",
    "plot_history",
    "plot_law",
    "plot_recovery",
    "plot_spectrum",
    "plot_transition",
]
