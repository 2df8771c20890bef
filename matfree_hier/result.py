"""What a solve returns: the pairs, how good they are, how the run ended, and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from matfree_hier.status import NotConverged, Status
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = NDArray[np.float64]


@dataclass(eq=False)
class History:
    """One record for each pass over the data, in order.

    Attributes
    ----------
    passes : list of float
        Passes spent when the record was made: samples touched / n, so a half pass counts 0.5.
    seconds : list of float
        Wall time since the solve began (a resumed run adds to the time of the run it continues).
    samples_per_second : list of float
        Throughput of the products of this pass; NaN for an operator without samples.
    ritz_values : list of ndarray of float64, shape (k,)
        Best approximations of the eigenvalues asked for, NaN where there were fewer.
    residuals : list of ndarray of float64, shape (k,)
        Their residuals ``||C v - w v|| / ||C||``, NaN where not known.
    """

    passes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    samples_per_second: list[float] = field(default_factory=list)
    ritz_values: list[Array] = field(default_factory=list)
    residuals: list[Array] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.passes)

    def append(
        self,
        passes: float,
        ritz_values: Array,
        residuals: Array,
        *,
        seconds: float,
        samples_per_second: float = float("nan"),
    ) -> None:
        """Add the record of one pass; the arrays are copied.

        Parameters
        ----------
        passes : float
            Passes spent so far.
        ritz_values, residuals : ndarray of float64, shape (k,)
            As in the attributes.
        seconds : float
            Wall time since the solve began.
        samples_per_second : float
            Throughput of this pass.
        """
        self.passes.append(float(passes))
        self.seconds.append(float(seconds))
        self.samples_per_second.append(float(samples_per_second))
        self.ritz_values.append(np.array(ritz_values, dtype=np.float64))
        self.residuals.append(np.array(residuals, dtype=np.float64))

    def to_arrays(self) -> dict[str, Array]:
        """Return the records as arrays, to be stored.

        Returns
        -------
        dict
            ``passes``, ``seconds``, ``samples_per_second`` of shape (m,); ``ritz_values`` and
            ``residuals`` of shape (m, k), short rows filled with NaN.
        """
        return {
            "passes": np.array(self.passes, dtype=np.float64),
            "seconds": np.array(self.seconds, dtype=np.float64),
            "samples_per_second": np.array(self.samples_per_second, dtype=np.float64),
            "ritz_values": _padded(self.ritz_values),
            "residuals": _padded(self.residuals),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Rebuild a history from what `to_arrays` returned.

        Parameters
        ----------
        arrays : mapping
            Names to arrays; others than those of `to_arrays` are ignored.
        """
        return cls(
            passes=[float(x) for x in np.asarray(arrays["passes"])],
            seconds=[float(x) for x in np.asarray(arrays["seconds"])],
            samples_per_second=[float(x) for x in np.asarray(arrays["samples_per_second"])],
            ritz_values=[np.array(row, dtype=np.float64) for row in np.asarray(arrays["ritz_values"])],
            residuals=[np.array(row, dtype=np.float64) for row in np.asarray(arrays["residuals"])],
        )


@dataclass(frozen=True, eq=False)
class EigenResult:
    """Eigenpairs of a symmetric operator, with residuals recomputed by a product of their own.

    Attributes
    ----------
    eigenvalues : ndarray of float64, shape (k,)
        Sorted as asked: ``|w|`` descending for "LM", descending for "LA" and "BE", ascending for "SA".
    eigenvectors : ndarray of float64, shape (D, k)
        Orthonormal columns, in the metric where there is one; the entry of largest size of each is positive.
    residuals : ndarray of float64, shape (k,)
        ``||C v - w v|| / ||C||``, with a metric B ``||C v - w B v||`` over the largest ``|w|``.
    norm : float
        Estimate of ``||C||`` (largest absolute Ritz value seen), which residuals are relative to.
    status : Status
        How the run ended; its value is the sentence to show.
    n_passes : float
        Passes over the data, the final residual check included.
    history : History
        Ritz values, residuals and time by pass.
    method : str
        The method that ran, after "auto" was resolved.
    message : str
        What the status leaves open: which pass failed and why, what limited the run; empty if nothing.
    """

    eigenvalues: Array
    eigenvectors: Array
    residuals: Array
    norm: float
    status: Status
    n_passes: float
    history: History
    method: str
    message: str = ""

    def __repr__(self) -> str:
        n_rows, k = self.eigenvectors.shape
        worst = float(self.residuals.max()) if k else 0.0
        return (
            f"EigenResult({counted(k, 'pair', 'd')} of size {n_rows}, {self.status.name} by {self.method} "
            f"in {counted(self.n_passes, 'pass', '.4g')}, largest residual {worst:.1e})"
        )

    def require_converged(self) -> Self:
        """Return the result itself if the run reached what it was asked for.

        Raises
        ------
        NotConverged
            Otherwise; its ``result`` is this object.
        """
        if self.status.ok:
            return self
        worst = float(self.residuals.max()) if len(self.residuals) else 0.0
        passes = counted(self.n_passes, "pass", ".4g")
        sentences = [
            f"The eigensolver stopped after {passes} with residuals up to {worst:.1e}.",
            self.status.value,
            self.message,
        ]
        raise NotConverged(" ".join(s for s in sentences if s), self)

    def to_arrays(self) -> dict[str, Any]:
        """Return the fields, the history's with the prefix ``history_``, to be stored.

        Returns
        -------
        dict
            Names to arrays, floats and strings.
        """
        stored: dict[str, Any] = {
            "eigenvalues": self.eigenvalues,
            "eigenvectors": self.eigenvectors,
            "residuals": self.residuals,
            "norm": self.norm,
            "status": self.status.name,
            "n_passes": self.n_passes,
            "method": self.method,
            "message": self.message,
        }
        return stored | {f"history_{name}": a for name, a in self.history.to_arrays().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Rebuild a result from what `to_arrays` returned.

        Parameters
        ----------
        arrays : mapping
            Names to arrays, floats and strings.
        """
        prefix = "history_"
        records = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        return cls(
            eigenvalues=np.asarray(arrays["eigenvalues"], dtype=np.float64),
            eigenvectors=np.asarray(arrays["eigenvectors"], dtype=np.float64),
            residuals=np.asarray(arrays["residuals"], dtype=np.float64),
            norm=float(arrays["norm"]),
            status=Status[str(arrays["status"])],
            n_passes=float(arrays["n_passes"]),
            history=History.from_arrays(records),
            method=str(arrays["method"]),
            message=str(arrays["message"]),
        )


def _padded(rows: list[Array]) -> Array:
    """Stack rows of different lengths, filled with NaN on the right."""
    width = max((len(row) for row in rows), default=0)
    out = np.full((len(rows), width), np.nan)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
