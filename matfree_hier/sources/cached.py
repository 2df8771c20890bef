"""A source that is dear to read and small when decoded, kept in memory after its first reading."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.base import Mask, SampleSource
from matfree_hier.sources.convert import as_chunk


class CachedSource(SampleSource):
    """The samples of another source, whose inputs are read once and kept, n d itemsize bytes.

    Parameters
    ----------
    parent : SampleSource
        The source.
    X : ndarray of the parent's dtype, shape (n, d), optional
        Its inputs, if they are at hand; read at the first use otherwise.
    """

    takes = True

    def __init__(self, parent: SampleSource, X: NDArray[Any] | None = None) -> None:
        super().__init__(
            parent.n_samples,
            parent.input_names,
            parent.dtype,
            parent.target_name,
            has_target=parent.has_target,
            name=parent.name,
            validated=parent._validated,
        )
        self.parent, self.X = parent, X

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands."""
        return self.parent.where(row, column)

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        if self.X is None:
            self.X = self.parent.inputs()
        block = self.X[start:stop] if keep is None else np.compress(keep, self.X[start:stop], axis=0)
        return as_chunk(block, dtype)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        if self._labels is None:
            self._labels = self.parent.labels()
        return self._labels[start:stop]
