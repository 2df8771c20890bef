"""Ranks in rows and columns, and the features that each works on and keeps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from matfree_hier.checks import integer
from matfree_hier.comm import Team, team_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_grids: list[Grid] = []


class Grid:
    """R rows of C columns of ranks: rank r C + c stands at row r, column c.

    The ranks of a row have the same samples, those of a column work on the same range of features. Each of
    the R ranks of a column keeps a part of the column's range, so that all ranks together hold each entry
    of a vector once.

    Parameters
    ----------
    team : Team
        Of R C ranks.
    rows, columns : int
        R and C.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        All ranks.
    row, column : int
        Where this rank stands.
    along_row, along_column : mpi4py.MPI.Comm
        The ranks of this row, by column, and of this column, by row.
    """

    def __init__(self, team: Team, rows: int, columns: int) -> None:
        self.team, self.comm = team, team.comm
        self.rows, self.columns = rows, columns
        self.row, self.column = divmod(team.rank, columns)
        self.along_row = self.comm.Split(self.row, self.column)
        self.along_column = self.comm.Split(self.column, self.row)

    def parts(self, size: int, column: int) -> list[tuple[int, int]]:
        """Return what each rank of a column keeps of D = `size` features, by row: all of the column's range.

        Returns
        -------
        list of (int, int)
            Consecutive ranges lo..hi-1 of packed features.
        """
        lo, hi = (size * c // self.columns for c in (column, column + 1))
        cuts = [lo + (hi - lo) * r // self.rows for r in range(self.rows + 1)]
        return list(pairwise(cuts))


def grid_of(comm: Any, shape: Sequence[int]) -> Grid:
    """Return the grid of a communicator, made at the first call, which every rank must make.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Of R C ranks.
    shape : (int, int)
        R and C.

    Raises
    ------
    TypeError, ValueError
        If it is no communicator, or has another number of ranks.
    """
    if comm is None:
        msg = "`comm` must be a communicator of mpi4py, got None."
        raise TypeError(msg)
    team = team_of(comm) or Team(comm)
    rows, columns = (integer("grid", sides, 1) for sides in shape)
    if rows * columns != team.size:
        msg = f"`grid` must have as many places as there are ranks, {team.size}, got {rows} x {columns}."
        raise ValueError(msg)
    for grid in _grids:
        if grid.team is team and (grid.rows, grid.columns) == (rows, columns):
            return grid
    _grids.append(Grid(team, rows, columns))
    return _grids[-1]
