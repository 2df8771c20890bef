"""A source that is dear to read and small when decoded, kept in memory after its first reading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.base import SampleSource
from matfree_hier.sources.chunks import Chunk


class CachedSource(SampleSource):
    """The samples of another source, whose inputs are read once and kept, n d itemsize bytes.

    Parameters
    ----------
    parent : SampleSource
        The source.
    X : ndarray of the parent's dtype, shape (n, d), optional
        Its inputs, if they are at hand; read at the first use otherwise.
    """

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

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        if self.X is None:
            self.X = self.parent.inputs()
        y = self.labels() if labels else None
        step = rows or self._natural_rows()
        for first in range(start, stop, step):
            last = min(first + step, stop)
            yield Chunk(first, self.X[first:last], None if y is None else y[first:last])

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        return self.parent._read_labels(start, stop)
