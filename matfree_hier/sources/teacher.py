"""Samples of a seeded teacher, made anew whenever they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from matfree_hier.model import BLOCK, HierarchicalModel
from matfree_hier.sources.base import SampleSource
from matfree_hier.sources.chunks import Chunk
from matfree_hier.sources.convert import default_names


class TeacherSource(SampleSource):
    """The first ``n_samples`` samples that a model draws from a seed; nothing is stored.

    Each reading costs what sampling costs, 2 n D d_1 flops for the labels.

    Parameters
    ----------
    model : HierarchicalModel
        The teacher.
    n_samples : int
        n >= 1.
    seed : int
        Seed of the samples, >= 0.
    dtype : numpy.dtype
        float32 or float64, of the inputs given out.
    """

    def __init__(
        self, model: HierarchicalModel, n_samples: int, seed: int, *, dtype: DTypeLike = np.float64
    ) -> None:
        if n_samples < 1:
            msg = f"`n_samples` must be at least 1, got {n_samples}."
            raise ValueError(msg)
        if np.dtype(dtype) not in (np.float32, np.float64):
            msg = f"`dtype` must be float32 or float64, got {np.dtype(dtype)}."
            raise ValueError(msg)
        name = f"teacher with seed {seed}"
        super().__init__(n_samples, default_names(model.n_inputs), dtype, "y", name=name, validated=True)
        self.model, self.seed = model, seed

    def _blocks(
        self,
        start: int,
        stop: int,
        rows: int | None,  # noqa: ARG002 - cut as the samples are made
        labels: bool,
    ) -> Iterator[Chunk]:
        # The model makes whole blocks of rows: to cut along them makes none of them twice.
        step = max(1, self._natural_rows() // BLOCK) * BLOCK
        first = start
        while first < stop:
            last = min((first // step + 1) * step, stop)
            X, y = self.model.sample_range(first, last, self.seed, self.dtype)
            chunk = Chunk(first, X, y)
            self._check_finite(chunk)  # a link of the user's may overflow; cheap beside making the samples
            yield chunk if labels else chunk._replace(y=None)
            first = last

    def _hash_labels(self, digest: Any) -> None:
        """Labels of a few thousand samples stand for all: the model and the seed make the rest."""
        for chunk in self.chunks(0, min(self.n_samples, 4096)):
            digest.update(np.ascontiguousarray(chunk.y).data)
