"""Runs of samples, and how they are cut and joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Chunk(NamedTuple):
    """Consecutive samples: the position of the first, inputs (m, d) and labels (m,) or None."""

    start: int
    X: NDArray[Any]
    y: NDArray[np.float64] | None

    def rows(self, first: int, last: int) -> Chunk:
        """Rows ``first:last`` of this chunk, as views."""
        return Chunk(self.start + first, self.X[first:last], None if self.y is None else self.y[first:last])


def cut(blocks: Iterator[Chunk], rows: int) -> Iterator[Chunk]:
    """Cut long blocks into views of at most ``rows`` rows."""
    for block in blocks:
        for first in range(0, len(block.X), rows):
            yield block if len(block.X) <= rows else block.rows(first, first + rows)


def rechunk(blocks: Iterator[Chunk], rows: int) -> Iterator[Chunk]:
    """Cut and join blocks of any sizes into chunks of ``rows`` rows; copies at the seams only."""
    parts: list[Chunk] = []
    missing = rows
    for block in blocks:
        first = 0
        while first < len(block.X):
            part = block.rows(first, first + missing)
            parts.append(part)
            first += len(part.X)
            missing -= len(part.X)
            if missing == 0:
                yield _join(parts)
                parts, missing = [], rows
    if parts:
        yield _join(parts)


def _join(parts: list[Chunk]) -> Chunk:
    if len(parts) == 1:
        return parts[0]
    y = [part.y for part in parts if part.y is not None]
    X = np.concatenate([part.X for part in parts])
    return Chunk(parts[0].start, X, np.concatenate(y) if y else None)
