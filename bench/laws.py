"""Power laws fitted to measured values, with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import linregress, t

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

CONFIDENCE = 0.95


@dataclass(frozen=True)
class PowerLaw:
    """``constant * x ** exponent``, and the interval that holds the exponent with 95 % confidence."""

    exponent: float
    low: float
    high: float
    constant: float

    def __str__(self) -> str:
        return f"{self.exponent:.3f} [{self.low:.3f}, {self.high:.3f}]"


def fit_power_law(x: ArrayLike, values: ArrayLike) -> PowerLaw:
    """Fit a power law by least squares of logarithms, all repeats together.

    Parameters
    ----------
    x : array_like of float > 0, shape (m,)
        Places, at least two of them different.
    values : array_like of float > 0, shape (s, m) or (m,)
        Values of s repeats at each place; s m >= 3, or the interval is not finite.

    Returns
    -------
    PowerLaw
        Its interval is that of Student's t for the slope of a line through independent points.
    """
    repeats = np.atleast_2d(np.asarray(values, dtype=np.float64))
    places = np.broadcast_to(np.log(np.asarray(x, dtype=np.float64)), repeats.shape).ravel()
    line = linregress(places, np.log(repeats).ravel())
    freedom = places.size - 2
    half = float(t.ppf(0.5 + CONFIDENCE / 2, freedom) * line.stderr) if freedom > 0 else np.inf
    slope = float(line.slope)
    return PowerLaw(slope, slope - half, slope + half, float(np.exp(line.intercept)))
