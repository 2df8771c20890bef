"""Samples that the ranks of a team hold a share of each, as one source on rank 0."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from matfree_hier.comm import OFFERED, Team
from matfree_hier.messages import is_picklable
from matfree_hier.shares import LocalShares, RankShares, Shares
from matfree_hier.sources.base import SampleSource
from matfree_hier.sources.chunks import Chunk
from matfree_hier.sources.convert import as_labels
from matfree_hier.status import InputError

_UNITS = (2**14, 2**10, 1)  # samples that shares are multiples of, the largest of which there are enough
_ENOUGH = 16  # units a rank


class Description(NamedTuple):
    """What a rank says of the samples it was given."""

    n_samples: int
    input_names: tuple[str, ...]
    dtype: np.dtype[Any]
    target_name: str | None
    has_target: bool
    name: str
    validated: bool
    fingerprint: str


def offer(team: Team, source: SampleSource) -> Description:
    """Put this rank's samples where `gathered` takes them from, and describe them; on every rank."""
    team.objects[OFFERED] = source
    return _described(source, source.fingerprint())


def gathered(team: Team, offered: Sequence[Description]) -> SampleSource:
    """Return the samples of all ranks as one source, on rank 0.

    Where all ranks were given the same samples - the same file, the same teacher, the same array - each takes
    a slice of them. Otherwise the samples of each are its share.

    Parameters
    ----------
    team : Team
    offered : sequence of Description
        From `offer`, rank by rank.

    Raises
    ------
    InputError
        If columns differ, or some ranks but not all were given the same samples.
    """
    if len(offered) != team.size:
        msg = "`comm` must not be given where only rank 0 runs, as in a callback of a solve."
        raise RuntimeError(msg)
    first = offered[0]
    for rank, other in enumerate(offered):
        _check_alike(first, other, rank)
    prints = [each.fingerprint for each in offered]
    alike = len(set(prints)) == 1
    if not alike and len(set(prints)) < len(prints):
        again = next(rank for rank in range(1, team.size) if prints[rank] in prints[:rank])
        msg = (
            f"Ranks {prints.index(prints[again])} and {again} were given the same samples, and others were"
            " not: give all the same, or each its own."
        )
        raise InputError(msg)
    bounds = _cut(first.n_samples, team.size)
    if not alike:
        bounds = [0, *np.cumsum([each.n_samples for each in offered]).tolist()]
    ranks = range(team.size + 1)
    key = team.command(
        OFFERED, _taken, (bounds if alike else None,), bounds=ranks, gather="keep", placed=True
    )
    source = RankSource(RankShares(team, key, bounds), first)
    if alike:
        source._fingerprint = first.fingerprint
    return source


def _taken(source: SampleSource, rank: int, bounds: list[int] | None) -> SampleSource:
    if bounds is None:
        return source
    share = source.slice(bounds[rank], bounds[rank + 1])
    if share is not source and source._labels is not None:  # all, which the fingerprint took
        share.keep_labels(source._labels[bounds[rank] : bounds[rank + 1]].copy())
        source._labels = None
    return share


def _validate(source: SampleSource) -> None:
    source.validate()


def _cut(n_samples: int, size: int) -> list[int]:
    """Return where shares begin: at whole chunks of the kernels where there are many, for equal sums."""
    unit = next(u for u in _UNITS if n_samples >= u * size * _ENOUGH or u == 1)
    return [min(n_samples, round(n_samples * r / size / unit) * unit) for r in range(size)] + [n_samples]


def _check_alike(first: Description, other: Description, rank: int) -> None:
    for name in ("input_names", "dtype", "has_target", "target_name"):
        a, b = getattr(first, name), getattr(other, name)
        if a == b:
            continue
        if name == "input_names" and len(a) != len(b):
            name, a, b = "n_inputs", len(a), len(b)
        msg = f"All ranks must be given alike samples, got {name} {a} on rank 0 and {b} on rank {rank}."
        raise InputError(msg)


def as_source(shares: Shares) -> SampleSource:
    """Return shares of a `SampleSource` each as one source."""
    if isinstance(shares, LocalShares):
        source: SampleSource = shares.target
        return source
    counts = shares.each(_count)
    return RankSource(shares.moved([0, *np.cumsum(counts).tolist()]), shares.on(0, _described))


class RankSource(SampleSource):
    """The samples of all ranks, those of rank 0 first. Sums go through `shares`; chunks can be read as well.

    Parameters
    ----------
    shares : RankShares
        Of a `SampleSource` each.
    like : Description or SampleSource
        What the samples are called.
    """

    def __init__(self, shares: RankShares, like: Any) -> None:
        super().__init__(
            shares.bounds[-1],
            like.input_names,
            like.dtype,
            like.target_name,
            has_target=like.has_target,
            name=like.name,
        )
        self._shares = shares

    @property
    def shares(self) -> RankShares:
        """Where the samples are."""
        return self._shares

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands."""
        rank = bisect_right(self._shares.bounds, row, hi=self._shares.team.size) - 1
        place: str = self._shares.on(rank, _where, row - self._shares.bounds[rank], column)
        return place

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        step = rows or self._natural_rows()
        bounds = self._shares.bounds
        for rank in range(self._shares.team.size):
            first, last = max(start, bounds[rank]), min(stop, bounds[rank + 1])
            for begin in range(first, last, step):
                end = min(begin + step, last)
                X, y = self._shares.on(rank, _read, begin - bounds[rank], end - bounds[rank], labels)
                yield Chunk(begin, X, y)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        return np.concatenate(self._shares.each(_labels))[start:stop]

    def _scan(self) -> None:
        self._shares.each(_validate)

    def slice(self, start: int = 0, stop: int | None = None) -> SampleSource:
        """Give samples ``start:stop`` as a source of their own."""
        start, stop = self._range(start, stop)
        if (start, stop) == (0, self.n_samples):
            return self
        bounds = [min(max(bound, start), stop) - start for bound in self._shares.bounds]
        return RankSource(self._shares.derive(_sliced, start, stop, placed=True, bounds=bounds), self)

    def transformed(
        self,
        inputs_fn: Callable[[NDArray[Any]], ArrayLike] | None = None,
        *,
        labels_fn: Callable[[NDArray[Any], NDArray[np.float64]], ArrayLike] | None = None,
        input_names: Sequence[str] | None = None,
        dtype: DTypeLike | None = None,
    ) -> SampleSource:
        """Give a source whose chunks pass through functions when they are read, where they are read."""
        if not is_picklable((inputs_fn, labels_fn), self._shares.team.known):
            return super().transformed(inputs_fn, labels_fn=labels_fn, input_names=input_names, dtype=dtype)
        shares = self._shares.derive(_transformed, inputs_fn, labels_fn, input_names, dtype)
        return RankSource(shares, shares.on(0, _described))

    def with_labels(self, y: ArrayLike, target_name: str = "y") -> SampleSource:
        """Give the same inputs with other labels, which are sent to where the inputs are."""
        labels = np.ascontiguousarray(as_labels(y, self.n_samples, "`y`", self.name)[:], dtype=np.float64)
        shares = self._shares.derive(_relabelled, target_name, by_row=[labels])
        return RankSource(shares, shares.on(0, _described))


def _where(source: SampleSource, row: int, column: int | None) -> str:
    return source.where(row, column)


def _read(source: SampleSource, start: int, stop: int, labels: bool) -> tuple[NDArray[Any], Any]:
    _, X, y = next(source.chunks(start, stop, rows=stop - start, labels=labels))
    return X, y


def _count(source: SampleSource) -> int:
    return source.n_samples


def _labels(source: SampleSource) -> NDArray[np.float64]:
    return source.labels()


def _sliced(source: SampleSource, offset: int, start: int, stop: int) -> SampleSource:
    first, last = (min(max(row - offset, 0), source.n_samples) for row in (start, stop))
    return source.slice(first, last)


def _transformed(
    source: SampleSource, inputs_fn: Any, labels_fn: Any, input_names: Any, dtype: Any
) -> SampleSource:
    return source.transformed(inputs_fn, labels_fn=labels_fn, input_names=input_names, dtype=dtype)


def _relabelled(source: SampleSource, target_name: str, y: NDArray[np.float64]) -> SampleSource:
    return source.with_labels(y, target_name)


def _described(source: SampleSource, fingerprint: str = "") -> Description:
    return Description(
        source.n_samples,
        source.input_names,
        source.dtype,
        source.target_name,
        source.has_target,
        source.name,
        source._validated,
        fingerprint,
    )
