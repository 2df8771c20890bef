"""Progress on standard error, with the time left: of a solve in passes, of a grid in entries."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

_WINDOW = 4  # records that the rate of convergence is taken from
_QUIET = 30.0  # seconds at least between two lines where standard error is no terminal


class SolveProgress:
    """A line that counts passes and says the largest residual and the time left, as far as it can be told.

    Parameters
    ----------
    show : bool or None
        None: on a terminal only, and only if the solve lasts.
    max_passes : float
        Passes that may be spent.
    """

    def __init__(self, show: bool | None, max_passes: float) -> None:
        shown = sys.stderr.isatty() if show is None else show
        self._max_passes = max_passes
        self._records: list[tuple[float, float]] = []
        self._bar: Any = tqdm(
            desc="eigenpairs",
            unit="pass",
            file=sys.stderr,
            delay=2.0 if show is None else 0.0,
            disable=not shown,
            bar_format="{desc}: {n:.4g} passes [{elapsed}{postfix}]",
        )

    def update(self, passes: float, ratios: NDArray[np.float64]) -> None:
        """Show the state after a pass; `ratios` are the residuals over what is allowed."""
        worst = float(ratios.max()) if len(ratios) else math.inf
        self._records.append((passes, worst))
        self._bar.n = passes
        left = self._passes_left()
        seconds = self._bar.format_dict["elapsed"] / passes * left if passes else math.inf
        text = f"residuals {worst:.1e} times what is asked"
        if math.isfinite(seconds):
            text += f", about {tqdm.format_interval(seconds)} left"
        self._bar.set_postfix_str(text, refresh=True)

    def _passes_left(self) -> float:
        """Extrapolate the residuals of the last passes to what is asked for."""
        recent = self._records[-_WINDOW:]
        (first, high), (last, low) = recent[0], recent[-1]
        limit = max(self._max_passes - last, 0.0)
        if len(recent) < 2 or not 0.0 < low < high < math.inf:
            return limit
        rate = math.log(high / low) / (last - first)
        return min(max(math.log(low), 0.0) / rate + 1.0, limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class GridProgress:
    """A line that counts the entries of a grid and says the time left, from what those so far have cost.

    Where standard error is no terminal, as in a job's log, a new line after an entry, at most one in 30 s.

    Parameters
    ----------
    name : str
        What is running.
    costs : sequence of float
        Of each entry in order, in any unit.
    show : bool, optional
        Whether to draw the line over and over; by default on a terminal only. False: say nothing.
    """

    def __init__(self, name: str, costs: Sequence[float], show: bool | None = None) -> None:
        self._name, self._costs = name, costs
        self._lines = show is None and not sys.stderr.isatty()
        self._done = 0
        self._warm = False  # the first entry computed may have had to compile
        self._spent = self._seconds = 0.0
        self._bar: Any = tqdm(
            desc=name,
            total=len(costs),
            file=sys.stderr,
            disable=None if show is None else not show,
            bar_format="{desc}: {n_fmt} of {total_fmt} |{bar:24}| [{elapsed}{postfix}]",
        )
        self._started = self._told = self._clock = time.monotonic()

    def update(self, *, computed: bool) -> None:
        """Count one more entry; those read from a file say nothing about the time that others take."""
        now = time.monotonic()
        self._done += 1
        if computed and self._warm:
            self._spent += self._costs[self._done - 1]
            self._seconds += now - self._clock
        self._warm |= computed
        self._clock = now
        left = ""
        if self._spent > 0.0:
            seconds = self._seconds / self._spent * sum(self._costs[self._done :])
            left = f", about {tqdm.format_interval(seconds)} left"
            self._bar.set_postfix_str(left, refresh=False)
        self._bar.update()
        if self._lines and now - self._told >= _QUIET:
            self._told = now
            count = f"{self._done} of {len(self._costs)}"
            spent = tqdm.format_interval(now - self._started)
            sys.stderr.write(f"{self._name}: {count} [{spent}{left}]\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
