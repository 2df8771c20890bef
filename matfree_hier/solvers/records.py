"""What passes between the eigensolvers: what is asked, the state on the way, the pairs found."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.result import History
from matfree_hier.solvers.stopping import RitzValues

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from matfree_hier.status import Status

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """What a solve is asked for; see `top_eigenpairs`. Sizes are resolved: no None."""

    k: int
    which: str
    tol: float
    block_size: int
    max_basis: int
    max_passes: float
    seed: int


@dataclass(eq=False)
class State:
    """All that a solve needs to go on, besides what it was asked for."""

    V: Array
    """(D, m), orthonormal, Fortran order."""
    W: Array
    """(D, m), C V."""
    H: Array
    """(m, m), V^T C V."""
    block: Array
    """(D, b), orthonormal and off V: what C is applied to next."""
    stage: str = "begin"
    """What comes next: begin, expand, judge, prepare."""
    norm: float = 0.0
    """Largest absolute Ritz value seen."""
    noise: float = 0.0
    """Error of a column of W, estimated."""
    low: float = np.inf
    high: float = -np.inf
    """Range of the Ritz values not asked for, of all passes."""
    coefficients: Array = field(default_factory=lambda: np.empty((0, 2)))
    """By pass: mean of the block's diagonal, mean square of its coupling to the basis."""
    n_random: int = 0
    """Random directions put in so far: the most copies of an eigenvalue that can show."""
    depth: int = 0
    """Products since random directions were last called for."""
    worst: float = np.inf
    """Largest residual over what is allowed, in the pass before."""
    n_failed_checks: int = 0
    passes: float = 0.0
    """Passes when the stage began."""
    seconds: float = 0.0
    history: History = field(default_factory=History)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, arrays not copied and in their memory order, to be stored."""
        return vars(self) | {"history": self.history.to_arrays()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> State:
        """Rebuild a state from what `to_dict` returned."""
        known = {f.name: values[f.name] for f in fields(cls)}
        return cls(**known | {"history": History.from_arrays(values["history"])})


@dataclass(frozen=True, eq=False)
class Ritz(RitzValues):
    """Ritz pairs of the basis as it is: coefficients S (m, m), residual vectors R (D, r)."""

    S: Array
    R: Array


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a solve ended: pairs ranked, not yet signed."""

    values: Array
    vectors: Array
    residuals: Array
    norm: float
    status: Status
    message: str
