"""What theory predicts: thresholds, eigenvalues, overlaps, the bulk's edge, scaling laws.

D is the number of packed coordinates, n the number of samples, t the transformed label, and
theta_k = E[t (h_k^2 - 1)]/sqrt 2 the strength of feature k (lambda_k for t = y and the identity link).
"Overlap" is the squared projection of the true feature on the one found. The features F(x) are treated as
Gaussian: exact for degree 1, the limit of large d for others, with first corrections in `finite_size`.

`simple` holds closed forms for n/D above some 30, `resolvent` and `bulk` the laws for every n/D, `finite` the
corrections of degree 2, `errors` the laws of the error, `transforms` simulated labels and the best transform
of them, `curves` all of it together against the number of samples.
"""

from matfree_hier.theory.bulk import bulk_density
from matfree_hier.theory.curves import RecoveryCurve, recovery_curve
from matfree_hier.theory.errors import mse_exponent, mse_law, refined_mse, relative_mse
from matfree_hier.theory.finite import FiniteSize, finite_size
from matfree_hier.theory.resolvent import BulkEnd, Spectrum, predict_spectrum
from matfree_hier.theory.simple import (
    bulk_edge,
    expected_count,
    outlier_eigenvalue,
    overlap,
    recovery_threshold,
)
from matfree_hier.theory.transforms import (
    conditional_signal,
    optimal_threshold,
    optimal_transform,
    simulate_labels,
    strengths,
)

__all__ = [
    "BulkEnd",
    "FiniteSize",
    "RecoveryCurve",
    "Spectrum",
    "bulk_density",
    "bulk_edge",
    "conditional_signal",
    "expected_count",
    "finite_size",
    "mse_exponent",
    "mse_law",
    "optimal_threshold",
    "optimal_transform",
    "outlier_eigenvalue",
    "overlap",
    "predict_spectrum",
    "recovery_curve",
    "recovery_threshold",
    "refined_mse",
    "relative_mse",
    "simulate_labels",
    "strengths",
]
