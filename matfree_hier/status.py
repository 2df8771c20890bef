"""How a run ended, as the sentence its user reads, and the errors of this package."""

from __future__ import annotations

import enum
from typing import Any

_MAX_PASSES = (
    "The passes over the data ran out before the residuals met `tol`. Likely causes: (a) `max_passes` is too"
    " small; (b) `k` asks for eigenvalues inside the bulk, where neighbours are close and carry no feature:"
    ' ask for fewer, or pass `stop="outliers"`; (c) the block is narrow for this spectrum: raise `block_size`'
    " or `max_basis`. The pairs found so far are kept: pass them as `start` to go on."
)
_DTYPE_LIMIT = (
    "The residuals stopped at what the precision of the operator allows, above `tol`. Pass"
    ' `dtype="float64"` for smaller residuals, or raise `tol`.'
)
_INTERRUPTED = (
    "The run was interrupted before the residuals met `tol`; the pairs found so far are kept. Call again with"
    " the same arguments and `run_file` to go on from the last checkpoint."
)
_OPERATOR_FAILED = (
    "The operator raised an error or returned values that are not finite. Likely causes: (a) the data file"
    " changed or became unreadable during the run; (b) a label transform returned NaN or infinity; (c) inputs"
    ' so large that their products overflow: standardise them, or pass `dtype="float64"`.'
)
_NO_FEATURE_FOUND = (
    "No eigenvalue stands above the bulk, so no feature was found and the prediction is the mean and the"
    " linear part. Likely causes: (a) few samples: the strongest feature needs about D E[t^2] / (2 theta^2)"
    " of them, theta its strength; (b) `degree` is not the degree of the target; (c) the inputs are far from"
    " standard normal: standardise, whiten or Gaussianise them. Pass an integer `n_features` to keep features"
    " regardless."
)
_MAX_STEPS = (
    "The steps of the refinement ran out while the held-out error was still falling, and the best features so"
    " far were fitted to all samples. Raise `max_steps` for better ones."
)


class Status(enum.Enum):
    """How a solve or a fit ended; the value of each member is the sentence its user reads."""

    CONVERGED = "Every residual asked for is at most `tol` times the norm of the operator."
    OUTLIERS_RESOLVED = (
        "Every eigenvalue clearly outside the bulk met `tol`; the others lie within the bulk or at its edge,"
        ' carry no feature or one that is mostly noise, and were left unconverged, as `stop="outliers"` asks.'
    )
    MAX_PASSES = _MAX_PASSES
    DTYPE_LIMIT = _DTYPE_LIMIT
    INTERRUPTED = _INTERRUPTED
    OPERATOR_FAILED = _OPERATOR_FAILED
    NO_FEATURE_FOUND = _NO_FEATURE_FOUND
    SETTLED = "The held-out error stopped falling, and the best features were fitted to all samples."
    MAX_STEPS = _MAX_STEPS

    @property
    def ok(self) -> bool:
        """Whether the run reached what it was asked for."""
        return self in (Status.CONVERGED, Status.OUTLIERS_RESOLVED, Status.SETTLED, Status.MAX_STEPS)

    def __str__(self) -> str:
        return self.value


class NotConverged(RuntimeError):  # noqa: N818 - a state of the run, not a fault of the call
    """A result was required to be converged and is not; ``result`` holds what was found.

    Parameters
    ----------
    message : str
        The sentence shown.
    result : object
        The partial result, usually an `EigenResult`.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[type[NotConverged], tuple[str, Any]]:
        # The default would pickle the message alone and lose the result between processes.
        return type(self), (self.args[0], self.result)


class RunFileError(RuntimeError):
    """A run file is damaged, locked, of another format version, or holds another configuration."""


class InputError(ValueError):
    """Data that cannot be used; the message names the file, the row and the column."""
