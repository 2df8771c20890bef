"""Samples in several files, one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matfree_hier.sources.base import Mask, SampleSource
from matfree_hier.sources.chunks import Chunk
from matfree_hier.sources.convert import as_chunk
from matfree_hier.status import InputError


class JoinedSource(SampleSource):
    """Sources one after another; errors name the part and the row in it.

    Parameters
    ----------
    parts : sequence of SampleSource
        At least one; all with the same input columns in the same order, and all with labels or none.

    Raises
    ------
    InputError
        If the parts do not fit together.
    """

    def __init__(self, parts: Sequence[SampleSource]) -> None:
        first = parts[0]
        for part in parts[1:]:
            _check_alike(first, part)
        super().__init__(
            sum(part.n_samples for part in parts),
            first.input_names,
            np.result_type(*{part.dtype for part in parts}),
            first.target_name,
            has_target=first.has_target,
            name=f"{first.name} and {len(parts) - 1} more",
        )
        self.parts = tuple(parts)
        self.starts = [0, *np.cumsum([part.n_samples for part in parts])[:-1].tolist()]
        self.random_access = all(part.random_access for part in parts)
        self.takes = all(part.takes for part in parts)
        self.reads_ahead = any(part.reads_ahead for part in parts)

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands."""
        number = bisect_right(self.starts, row) - 1
        return self.parts[number].where(row - self.starts[number], column)

    def validate(self) -> None:
        """Check every part."""
        for part in self.parts:
            part.validate()
        self._validated = True

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        for part, offset, first, last in self._overlapping(start, stop):
            for chunk in part._blocks(first, last, rows, labels):
                yield Chunk(chunk.start + offset, as_chunk(chunk.X, self.dtype), chunk.y)

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        runs = []
        for part, offset, first, last in self._overlapping(start, stop):
            marked = None if keep is None else keep[offset + first - start : offset + last - start]
            # What a part has rounded stays rounded, as in `_blocks`.
            kind = dtype if part.dtype == self.dtype else part.dtype
            runs.append(as_chunk(part._take(first, last, marked, kind), dtype))
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        read = [part._read_labels(first, last) for part, _, first, last in self._overlapping(start, stop)]
        return np.concatenate(read) if read else np.empty(0)

    def _overlapping(self, start: int, stop: int) -> Iterator[tuple[SampleSource, int, int, int]]:
        """Yield the parts that hold rows of ``start:stop``, their offset, and the range of their own rows."""
        for part, offset in zip(self.parts, self.starts, strict=True):
            first, last = max(start - offset, 0), min(stop - offset, part.n_samples)
            if first < last:
                yield part, offset, first, last


def _check_alike(first: SampleSource, part: SampleSource) -> None:
    if part.n_inputs != first.n_inputs:
        msg = f"{part.name} has {part.n_inputs} inputs where {first.name} has {first.n_inputs}."
        raise InputError(msg)
    if part.input_names != first.input_names:
        a, b = next((a, b) for a, b in zip(part.input_names, first.input_names, strict=True) if a != b)
        msg = f"{part.name} has the column `{a}` where {first.name} has `{b}`."
        raise InputError(msg)
    if (part.has_target, part.target_name) != (first.has_target, first.target_name):
        shown = [f"`{s.target_name}`" if s.has_target else "none" for s in (part, first)]
        msg = f"{part.name} has the target {shown[0]} where {first.name} has {shown[1]}."
        raise InputError(msg)
