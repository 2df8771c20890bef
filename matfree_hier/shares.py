"""Work done where the samples are: in this process, or on the ranks that hold a share of them each.

Sums over samples are written once, as functions of a source or of an object made of one. `LocalShares` calls
them; `RankShares` has every rank call them on its own share and brings the results together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from matfree_hier.comm import Team


class LocalShares:
    """One share, which is all.

    Parameters
    ----------
    target : object
        A source, or what is made of one.
    """

    count = 1

    def __init__(self, target: Any) -> None:
        self.target = target

    def each(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        by_row: Sequence[Any] = (),
        placed: bool = False,
    ) -> list[Any]:
        """Call ``function(target, *arguments, *by_row)`` on each share; the results in the order of samples.

        Parameters
        ----------
        function : callable
            That of a module.
        *arguments
            The same for all.
        by_row : sequence of ndarray
            Arrays of an entry a sample: each share gets those of its own samples.
        placed : bool
            Whether the number of the share's first sample goes before the arguments.
        """
        return [function(self.target, *((0,) if placed else ()), *arguments, *by_row)]

    def sum(self, function: Callable[..., Any], *arguments: Any, by_row: Sequence[Any] = ()) -> Any:
        """Return the sum of what the function returns: an array, or a tuple of arrays summed each."""
        return function(self.target, *arguments, *by_row)

    def derive(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        by_row: Sequence[Any] = (),
        placed: bool = False,
    ) -> Shares:
        """Return as shares what the function makes of each."""
        return LocalShares(self.each(function, *arguments, by_row=by_row, placed=placed)[0])


class RankShares:
    """The shares of the ranks of a team; only rank 0 has this.

    Parameters
    ----------
    team : Team
    key : int
        Of the ranks' objects.
    bounds : sequence of int
        Sample bounds[r] is the first of rank r; empty where ranks have no run of samples, but several.
    """

    def __init__(self, team: Team, key: int, bounds: Sequence[int]) -> None:
        self.team, self.key, self.bounds = team, key, [int(bound) for bound in bounds]
        self.count = team.size
        weakref.finalize(self, team.discard, key)

    def moved(self, bounds: Sequence[int]) -> RankShares:
        """Return the same objects as shares of other samples."""
        return self.derive(_itself, bounds=bounds)

    def each(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        by_row: Sequence[Any] = (),
        placed: bool = False,
    ) -> list[Any]:
        """Call the function on each rank, see `LocalShares.each`."""
        results: list[Any] = self.team.command(
            self.key, function, arguments, by_row, bounds=self.bounds, placed=placed
        )
        return results

    def on(self, rank: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function on one rank."""
        return self.team.command(self.key, function, arguments, bounds=self.bounds, only=rank)[0]

    def sum(self, function: Callable[..., Any], *arguments: Any, by_row: Sequence[Any] = ()) -> Any:
        """Return the sum over ranks, in an order of its own that is always the same."""
        return self.team.command(self.key, function, arguments, by_row, bounds=self.bounds, gather="sum")

    def derive(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        by_row: Sequence[Any] = (),
        placed: bool = False,
        bounds: Sequence[int] | None = None,
    ) -> RankShares:
        """Return as shares what the function makes of each; of other samples if other bounds are given."""
        key = self.team.command(
            self.key, function, arguments, by_row, bounds=self.bounds, gather="keep", placed=placed
        )
        return RankShares(self.team, key, self.bounds if bounds is None else bounds)


Shares = LocalShares | RankShares


def together(shares: Sequence[Shares], function: Callable[..., Any], *arguments: Any) -> Shares:
    """Return as shares ``function(sources, starts, *arguments)`` of several sources' shares on each rank.

    Parameters
    ----------
    shares : sequence of LocalShares or of RankShares
        Of a source each.
    function : callable
        That of a module; ``starts`` are the numbers of each source's first sample of the share, where the
        samples of the sources are counted one source after the other.
    *arguments
        The same for all.
    """
    first = shares[0]
    if isinstance(first, LocalShares):
        sources = [share.target for share in shares if isinstance(share, LocalShares)]
        ends = np.cumsum([source.n_samples for source in sources])
        return LocalShares(function(sources, [0, *ends[:-1].tolist()], *arguments))
    ranked = [share for share in shares if isinstance(share, RankShares)]
    before = np.cumsum([0] + [share.bounds[-1] for share in ranked[:-1]]).tolist()
    starts = [
        [start + share.bounds[rank] for start, share in zip(before, ranked, strict=True)]
        for rank in range(first.team.size)
    ]
    key = first.team.command(
        tuple(share.key for share in ranked), _on_rank, (starts, function, *arguments),
        bounds=range(first.team.size + 1), gather="keep", placed=True,
    )  # fmt: skip
    return RankShares(first.team, key, [])


def _on_rank(
    targets: Any, rank: int, starts: list[list[int]], function: Callable[..., Any], *arguments: Any
) -> Any:
    return function(list(targets), starts[rank], *arguments)


def _itself(target: Any) -> Any:
    return target


def joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays by sample one after another; a single one as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
