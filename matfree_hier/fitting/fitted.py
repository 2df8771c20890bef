"""What a fit leaves: all that predictions need, its report, and how both are kept in a run file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matfree_hier.figures import plot_fit
from matfree_hier.fitting.prepare import Preparation
from matfree_hier.fitting.readout import Readout
from matfree_hier.labels import LabelTransform
from matfree_hier.links import NAMES, AnyLink, FittedLink, Link, ScaledLink, with_parameters
from matfree_hier.links import link as named_link
from matfree_hier.recovery import Recovery
from matfree_hier.result import EigenResult
from matfree_hier.status import RunFileError, Status
from matfree_hier.store import RunFile
from matfree_hier.wording import counted

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from matplotlib.figure import Figure

Array: TypeAlias = NDArray[np.float64]

_DONE = {
    "none": "as they are",
    "standardise": "standardised",
    "whiten": "whitened",
    "gaussianise": "gaussianised",
}


@dataclass(frozen=True, eq=False)
class FitReport:
    """What a fit did; prints as a table.

    Attributes
    ----------
    status : Status
        How it ended.
    estimator : str
    preparation : str
        What was done to the inputs.
    degree, n_samples, n_inputs, n_packed : int
        q, n, d and D.
    n_passes : float
        Passes over the samples of the features.
    n_features : int
        Features kept.
    n_steps : int
        Steps of the refinement, 0 where there was none or the spectral features did better.
    eigenvalues : ndarray of float64, shape (K,)
        Of the operator, one a feature; for "paper" those of the span, since its features are turned; NaN for
        refined features.
    weights, slopes : ndarray of float64, shape (K,)
        As in the estimator.
    linear_r2, feature_r2, spectral_r2 : float
        R^2, on samples not fitted to, of the linear part; and on what it leaves of the features, and of the
        spectral features before refinement.
    recovery : Recovery
        What the data alone say of the features, and of more samples.
    smoothness : float
        tau of the metric the features were found in; 0 is none.
    """

    status: Status
    estimator: str
    preparation: str
    degree: int
    n_samples: int
    n_inputs: int
    n_packed: int
    n_passes: float
    n_features: int
    n_steps: int
    eigenvalues: Array
    weights: Array
    slopes: Array
    linear_r2: float
    feature_r2: float
    spectral_r2: float
    recovery: Recovery
    smoothness: float = 0.0

    def summary(self) -> str:
        """Return the lines above the table."""
        inputs = f"{counted(self.n_inputs, 'input', 'd')} {_DONE[self.preparation]}"
        if self.smoothness:
            inputs += f", smoothness {self.smoothness:.3g}"
        r2 = f"{self.linear_r2:.4f} of the linear part, {self.feature_r2:.4f} of the features on the rest"
        if self.n_steps:
            r2 += f" ({self.spectral_r2:.4f} before {counted(self.n_steps, 'step', 'd')} of refinement)"
        return (
            f"{counted(self.n_features, 'feature', 'd')} by the {self.estimator} estimator"
            f" in {counted(self.n_passes, 'pass', '.3g')}."
            f"\n{self.status.value}"
            f"\ndegree {self.degree}, {inputs}, D = {self.n_packed}, n = {self.n_samples}"
            f"\ncross-validated R^2: {r2}"
        )

    def __str__(self) -> str:
        lines = [self.summary()]
        if self.n_features:
            lines += [line[0].upper() + line[1:] + "." for line in self.recovery.lines()]
            lines.append(
                f"{'feature':>7} {'eigenvalue':>11} {'weight':>11} {'slope':>11} {'overlap':>8} {'90 %':>14}"
                f" {'debiased':>11}"
            )
            lines += [self._row(k) for k in range(self.n_features)]
        return "\n".join(lines)

    def _row(self, k: int) -> str:
        quality = self.recovery.quality
        overlap, (low, high) = quality.overlaps[k], quality.intervals[k]
        between = "" if np.isnan(low) else f"{low:.3f} - {high:.3f}"
        return (
            f"{k:>7} {_number(self.eigenvalues[k]):>11} {self.weights[k]:>11.4g} {self.slopes[k]:>11.4g}"
            f" {_number(overlap, '.3f'):>8} {between:>14} {_number(quality.weights[k]):>11}"
        ).rstrip()

    def plot(self, *, figure: Figure | None = None) -> Figure:
        """Draw overlaps with intervals, weights with their power law, and the errors to expect.

        Parameters
        ----------
        figure : matplotlib Figure, optional
            An empty one to draw in; a new one otherwise.

        Returns
        -------
        matplotlib Figure
        """
        return plot_fit(self.recovery, self.n_samples, 1.0 - self.feature_r2, figure=figure)

    def to_values(self) -> dict[str, Any]:
        """Return all of it as what a run file holds."""
        return vars(self) | {"status": self.status.name, "recovery": self.recovery.to_values()}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_values` described."""
        recovery = Recovery.from_values(values["recovery"])
        return cls(**(dict(values) | {"status": Status[values["status"]], "recovery": recovery}))


def _number(value: float, form: str = ".4g") -> str:
    return "" if np.isnan(value) else format(value, form)


@dataclass(frozen=True, eq=False)
class Fitted:
    """All that a fitted estimator knows.

    Attributes
    ----------
    readout : Readout
        On prepared inputs; its intercept is that of the whole model.
    coef : ndarray of float64, shape (d,)
        The linear part, on raw columns.
    preparation : Preparation
    label_transform : LabelTransform or None
        None for a callable that was stored.
    input_names : tuple of str
    named : bool
        Whether the data brought those names.
    spectrum : EigenResult
    report : FitReport
    """

    readout: Readout
    coef: Array
    preparation: Preparation
    label_transform: LabelTransform | None
    input_names: tuple[str, ...]
    named: bool
    spectrum: EigenResult
    report: FitReport

    def to_values(self) -> dict[str, Any]:
        """Return all of it as what a run file holds."""
        return readout_values(self.readout) | {
            "coef": self.coef,
            "preparation": self.preparation.name,
            "preparation_arrays": dict(self.preparation.arrays),
            "label_transform": "callable" if self.label_transform is None else self.label_transform.name,
            "label_parameters": {} if self.label_transform is None else dict(self.label_transform.parameters),
            "input_names": list(self.input_names),
            "named": self.named,
            "spectrum": self.spectrum.to_arrays(),
            "report": self.report.to_values(),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], link: Any = None) -> tuple[Self, dict[str, Any]]:
        """Read a fit and its estimator's arguments from a run file; a callable link is to be given again.

        Raises
        ------
        FileNotFoundError, RunFileError
            If there is no such file, or it is damaged or holds no finished fit.
        ValueError
            If the link was a callable and is not given.
        """
        with RunFile(path, mode="r") as run:
            if not run.has("model"):
                msg = f"The run `{run.name}` of `{run.path}` holds no finished fit."
                raise RunFileError(msg)
            values, arguments = run.load("model"), run.load("model_provenance")["arguments"]
        if values["link"] == "callable":
            if link is None:
                msg = (
                    "`link` must be given again: this model was fitted with a callable, which is not stored."
                )
                raise ValueError(msg)
            arguments["link"] = link
        return cls._from_values(values, link), arguments

    @classmethod
    def _from_values(cls, values: Mapping[str, Any], link: Any) -> Self:
        return cls(
            readout_from(values, link),
            values["coef"],
            Preparation(values["preparation"], values["preparation_arrays"]),
            None
            if values["label_transform"] == "callable"
            else LabelTransform.from_parameters(values["label_transform"], values["label_parameters"]),
            tuple(values["input_names"]),
            values["named"],
            EigenResult.from_arrays(values["spectrum"]),
            FitReport.from_values(values["report"]),
        )


def readout_values(readout: Readout) -> dict[str, Any]:
    """Return a readout as what a run file holds."""
    link = readout.link
    return {
        "features": readout.features,
        "weights": readout.weights,
        "slopes": readout.slopes,
        "intercept": readout.intercept,
        "r2": readout.r2,
        "offset": readout.offset,
        "link": _kind(link),
        "link_parameters": {} if isinstance(link, Link) else dict(link.parameters),
    }


def readout_from(values: Mapping[str, Any], link: Any = None) -> Readout:
    """Return the readout that `readout_values` described, with the user's link if it has one."""
    name = values["link"]
    known = {"fitted": "identity", "callable": link}  # a fitted link is all in its parameters
    return Readout(
        values["features"],
        values["weights"],
        values["slopes"],
        values["intercept"],
        with_parameters(named_link(known.get(name, name)), values["link_parameters"]),
        values["r2"],
        values["offset"],
    )


def _kind(link: AnyLink) -> str:
    """Return the name of a link of ours, else that it was fitted or is the user's and cannot be stored."""
    if isinstance(link, ScaledLink):
        link = link.base
    if isinstance(link, FittedLink):
        return "fitted"
    return link.name if link.name in NAMES and named_link(link.name) is link else "callable"
