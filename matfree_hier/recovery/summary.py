"""What the data alone say of a fit: all of it in one record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.recovery.forecast import Forecast, PowerLaw
from matfree_hier.recovery.quality import Quality

if TYPE_CHECKING:
    from collections.abc import Mapping

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Recovery:
    """How well a fit has recovered the features, and what more samples would bring, without ground truth.

    Attributes
    ----------
    quality : Quality
        Of each feature: overlap with an interval, debiased weight, whether it is resolved.
    law : PowerLaw
        Of the weights of the features resolved.
    forecast : Forecast
    """

    quality: Quality
    law: PowerLaw
    forecast: Forecast

    @property
    def count(self) -> int:
        """Number of features resolved."""
        return int(self.quality.resolved.sum())

    def taken(self, which: NDArray[Any]) -> Self:
        """Return the same of some of the features, by mask or positions."""
        return replace(self, quality=self.quality.taken(which))

    def to_values(self) -> dict[str, Any]:
        """Return all of it as what a run file holds."""
        law = vars(self.law) | {"interval": np.array(self.law.interval)}
        return {"quality": vars(self.quality), "law": law, "forecast": vars(self.forecast)}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_values` described."""
        low, high = values["law"]["interval"]
        law = PowerLaw(**(values["law"] | {"interval": (float(low), float(high))}))
        return cls(Quality(**values["quality"]), law, Forecast(**values["forecast"]))

    def lines(self) -> list[str]:
        """Return what it says of the whole, in words."""
        said = [f"{self.count} of {len(self.quality.overlaps)} features clearly there"]
        if np.isfinite(self.law.gamma):
            low, high = self.law.interval
            said.append(f"weights fall as k^-gamma, gamma = {self.law.gamma:.2f} ({low:.2f} to {high:.2f})")
        if np.isfinite(self.forecast.next_feature):
            said.append(f"next feature expected at n = {self.forecast.next_feature:.2g}")
        if np.isfinite(self.forecast.relative_mse).all():
            pairs = zip(self.forecast.relative_mse, self.forecast.n_samples, strict=True)
            errors = ", ".join(f"{error:.2g} at n = {n:.2g}" for error, n in pairs)
            said.append(f"error over variance of the labels to expect: {errors}")
        return said
