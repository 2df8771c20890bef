"""The order of work of one contraction: which feature rows to make, which to contract, with what factor.

A *workspace* holds rows of ``lanes`` numbers, one lane a sample. Its first rows are ``1`` and the powers
``h_m(x_i)``; the plan's instructions make every other row and say which rows meet which rows of the block V:

``MULTIPLY dst, factor, src, length``
    ``work[dst + j] = work[factor] * work[src + j]``, j = 0..length-1.
``CONTRACT factor, src, length, slot``
    rows ``src..src+length-1``, each times ``work[factor]``, are the features in slots
    ``slot..slot+length-1``.

Slot j < hi - lo is feature lo + j. The slots behind are copies of scattered features: the pure powers
h_r(x_j) below one prefix are each a run of one row by themselves, and one long run when the rows of V
(or of W) that belong to them are put side by side.

Features come in the lexicographic order of ``itertools.combinations_with_replacement(range(d), q)``. Those
whose smallest index is i, m times, are then consecutive, and equal ``h_m(x_i)`` times *all* degree-(q-m)
features of the indices > i: the tail of the panel of degree q-m. So panels of degree below q, and long plain
products with their tails, are all that is ever made. Where the panel of degree q-1 outgrows the cache, the
rule is used again below the factor ``h_m(x_i)`` (a prefix of two or more indices), or the top panel is made
a block of rows at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

MULTIPLY = 0
CONTRACT = 1

TAIL_ROWS = 400
"""Most rows of a panel of high degree over the last indices alone: one long run in place of many short."""


@lru_cache(maxsize=2**16)
def n_features(n_inputs: int, degree: int) -> int:
    """Return C(n_inputs + degree - 1, degree), the multisets of `degree` indices."""
    return comb(n_inputs + degree - 1, degree) if n_inputs > 0 else int(degree == 0)


@dataclass(frozen=True)
class Plan:
    """Instructions for the features ``lo..hi-1`` of degree `degree` in `n_inputs` inputs.

    Attributes
    ----------
    program : ndarray of int64, shape (n_instructions, 5)
        Opcode and operands, see the module.
    scattered : ndarray of int64, shape (n_scattered,)
        The features less lo whose slots are hi - lo, hi - lo + 1, ...
    n_rows : int
        Rows of the workspace: row 0 is 1, row ``1 + (m-1) n_inputs + i`` is h_m(x_i).
    degree, n_inputs, lo, hi : int
    """

    program: np.ndarray
    scattered: np.ndarray
    n_rows: int
    degree: int
    n_inputs: int
    lo: int
    hi: int


class _Planner:
    """Walks the tree of prefixes once and writes the program down."""

    def __init__(self, n_inputs: int, degree: int, lo: int, hi: int, budget: int) -> None:
        self.d, self.q, self.lo, self.hi = n_inputs, degree, lo, hi
        self.instructions: list[tuple[int, int, int, int, int]] = []
        self.scattered: list[int] = []
        self.n_rows = 1 + degree * n_inputs
        self.prefix_row = self.n_rows  # one row for each level of the prefix below the first
        self.n_rows += degree
        self._choose_panels(budget)

    # -- panels ------------------------------------------------------------------------------------

    def _choose_panels(self, budget: int) -> None:
        """Set the top degree whose panel covers all indices, and where the panels above it begin.

        ``begin[r]``: first index of panel r; ``row[r]``: its workspace row; ``top``: highest degree with
        begin 0, made ``block`` rows at a time when it does not fit in `budget` rows.
        """
        d, q = self.d, self.q
        self.begin = [0] * (q + 1)
        self.row = [0] * (q + 1)
        self.row[0] = 0
        self.row[min(1, q)] = 1
        self.top = min(1, q)
        used = 0
        while self.top < q - 1 and used + (n_features(d, self.top) if self.top > 1 else 0) <= budget // 2:
            used += n_features(d, self.top) if self.top > 1 else 0
            self.top += 1
        for r in range(2, self.top):
            self.row[r] = self._allocate(n_features(d, r))
        for r in range(self.top + 1, q + 1):
            first = self.begin[r - 1]
            while first < d and n_features(d - first, r) > min(TAIL_ROWS, max(budget // 3, 1)):
                first += 1
            self.begin[r] = first
        total = n_features(d, self.top)
        self.block = total
        if self.top > 1:
            tail = n_features(d - self.begin[self.top + 1], self.top) if self.top < q else 0
            self.block = min(total, max(budget - used, tail, 64))
            self.row[self.top] = self._allocate(self.block)
        elif self.top == 1 and q > 1:
            self.block = min(total, max(budget, 64))
        for r in range(self.top + 1, q + 1):
            self.row[r] = self._allocate(n_features(d - self.begin[r], r))

    def _allocate(self, rows: int) -> int:
        row = self.n_rows
        self.n_rows += rows
        return row

    def _power(self, m: int, i: int) -> int:
        """Return the workspace row of h_m(x_i); that of 1 for m = 0."""
        return 1 + (m - 1) * self.d + i if m else 0

    def _offset(self, r: int) -> int:
        """Return how many features of degree r precede the first row kept of its panel."""
        if r == self.top and self.top > 1:
            return self.block_start
        return n_features(self.d, r) - n_features(self.d - self.begin[r], r)

    # -- program -----------------------------------------------------------------------------------

    def plan(self) -> Plan:
        d, q = self.d, self.q
        total = n_features(d, self.top)
        self.block_start = 0
        for r in range(2, self.top):
            self._make_panel(r, 0, n_features(d, r))
        # The last block first: the panels above `top` are made from its rows.
        stops = range(total, 0, -self.block)
        for stop in stops:
            self.block_start, self.block_stop = max(0, stop - self.block), stop
            self.first_block = stop == total
            mark = len(self.instructions)
            if self.top > 1:
                self._make_panel(self.top, self.block_start, stop)
            if self.first_block:
                for r in range(self.top + 1, q + 1):
                    skip = n_features(d, r) - n_features(d - self.begin[r], r)
                    self._make_panel(r, skip, n_features(d, r))
            if not self._visit(0, 0, q, 0, 0) and not self.first_block:
                del self.instructions[mark:]  # rows that no feature of the range is made from
        program = np.array(self.instructions, dtype=np.int64).reshape(-1, 5)
        scattered = np.array(self.scattered, dtype=np.int64)
        return Plan(program, scattered, self.n_rows, q, d, self.lo, self.hi)

    def _make_panel(self, r: int, start: int, stop: int) -> None:
        """Emit the features start..stop-1 of degree r, in the rows that its panel keeps for them."""
        base = self.row[r] - start
        for i in self._indices(r, range(self.begin[r], self.d), start, stop):
            position = n_features(self.d, r) - n_features(self.d - i, r)
            for m in range(r, 0, -1):
                length = n_features(self.d - i - 1, r - m)
                a, b = max(position, start), min(position + length, stop)
                if a < b:
                    src = self._panel_row(r - m, i + 1) + a - position
                    self._emit(MULTIPLY, base + a, self._power(m, i), src, b - a)
                position += length

    def _indices(self, r: int, among: range, start: int, stop: int) -> range:
        """Return the indices that are the smallest of some of the features start..stop-1 of degree r."""

        def position(i: int) -> int:
            return n_features(self.d, r) - n_features(self.d - i, r)

        low = bisect_right(among, start, key=position) - 1
        return among[max(low, 0) : bisect_left(among, stop, key=position)]

    def _panel_row(self, r: int, i: int) -> int:
        """Return the workspace row of the first feature of degree r in the indices >= i."""
        if r == 0:
            return 0
        position = n_features(self.d, r) - n_features(self.d - i, r)
        return self.row[r] + position - self._offset(r)

    def _visit(self, level: int, factor: int, r: int, i: int, first: int) -> bool:
        """Emit all features ``prefix * (degree r in the indices >= i)``, feature `first` onwards.

        `factor` is the row of the prefix. Return whether anything was emitted.
        """
        count = n_features(self.d - i, r)
        if count == 0 or first >= self.hi or first + count <= self.lo:
            return False
        if i >= self.begin[r] and r <= self.q:
            return self._contract(factor, r, i, first, count)
        emitted = self._scatter(factor, r, i, first) if self.first_block else False
        before = first + count - n_features(self.d, r)  # less than all features of degree r
        for j in self._indices(r, range(i, self.begin[r]), self.lo - before, self.hi - before):
            position = first + count - n_features(self.d - j, r) + 1  # after h_r(x_j) alone
            for m in range(r - 1, 0, -1):
                length = n_features(self.d - j - 1, r - m)
                if length and position < self.hi and position + length > self.lo:
                    emitted |= self._descend(level, factor, m, j, r - m, position)
                position += length
        rest = n_features(self.d - self.begin[r], r)
        return self._visit(level, factor, r, self.begin[r], first + count - rest) or emitted

    def _descend(self, level: int, factor: int, m: int, j: int, r: int, first: int) -> bool:
        """Visit below the prefix times h_m(x_j); its product is emitted only when something uses it."""
        if level == 0:
            return self._visit(1, self._power(m, j), r, j + 1, first)
        row = self.prefix_row + level
        mark = len(self.instructions)
        self._emit(MULTIPLY, row, factor, self._power(m, j), 1)
        if self._visit(level + 1, row, r, j + 1, first):
            return True
        del self.instructions[mark:]
        return False

    def _contract(self, factor: int, r: int, i: int, first: int, count: int) -> bool:
        a, b = max(0, self.lo - first), min(count, self.hi - first)
        position = n_features(self.d, r) - n_features(self.d - i, r)  # within the features of degree r
        if r == self.top and self.block < n_features(self.d, r):
            a = max(a, self.block_start - position)
            b = min(b, self.block_stop - position)
            row = self.row[r] + position - (self.block_start if r > 1 else 0)
        elif not self.first_block:
            return False
        else:
            row = self._panel_row(r, i)
        if a >= b:
            return False
        self._emit(CONTRACT, factor, row + a, b - a, first + a - self.lo)
        return True

    def _scatter(self, factor: int, r: int, i: int, first: int) -> bool:
        """Emit the pure powers h_r(x_j), j = i..begin[r]-1: single rows by themselves, one run together."""
        total = n_features(self.d - i, r)
        numbers = [first + total - n_features(self.d - j, r) for j in range(i, self.begin[r])]
        keep = [t for t, number in enumerate(numbers) if self.lo <= number < self.hi]
        if not keep:
            return False
        slot = self.hi - self.lo + len(self.scattered)
        self.scattered += [numbers[t] - self.lo for t in keep]
        self._emit(CONTRACT, factor, self._power(r, i + keep[0]), len(keep), slot)
        return True

    def _emit(self, opcode: int, a: int, b: int, c: int, e: int) -> None:
        self.instructions.append((opcode, a, b, c, e))


def make_plan(n_inputs: int, degree: int, lo: int, hi: int, budget: int) -> Plan:
    """Plan the features ``lo..hi-1``, panels kept within about `budget` workspace rows.

    Parameters
    ----------
    n_inputs, degree : int
        d >= 1 and q >= 1.
    lo, hi : int
        Range of packed features, 0 <= lo <= hi <= C(d+q-1, q).
    budget : int
        Rows that the panels of degree 2 and more may take.
    """
    return _Planner(n_inputs, degree, lo, hi, budget).plan()
