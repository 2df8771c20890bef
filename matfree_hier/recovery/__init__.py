"""How well features are recovered: against a known teacher (`known`), and without one.

Without a teacher: `counting` says which features stand out, `quality` how near each is to a true one, with an
interval, and what its weight is, `forecast` what more samples would bring.
"""

from matfree_hier.recovery.counting import (
    count_features,
    joint_coefficients,
    outliers,
    significance,
    t_statistics,
)
from matfree_hier.recovery.forecast import (
    Forecast,
    PowerLaw,
    fit_power_law,
    forecast_refined,
    forecast_spectral,
)
from matfree_hier.recovery.known import overlaps, projections
from matfree_hier.recovery.quality import HeldOut, Quality, assess_refined, assess_spectral
from matfree_hier.recovery.summary import Recovery

__all__ = [
    "Forecast",
    "HeldOut",
    "PowerLaw",
    "Quality",
    "Recovery",
    "assess_refined",
    "assess_spectral",
    "count_features",
    "fit_power_law",
    "forecast_refined",
    "forecast_spectral",
    "joint_coefficients",
    "outliers",
    "overlaps",
    "projections",
    "significance",
    "t_statistics",
]
