"""What the command line hands to an experiment, and the experiments there are."""

from __future__ import annotations

import ast
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.resources import files
from typing import IO, TYPE_CHECKING, Any

from matfree_hier.bench.measure import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

# Name of each experiment: the module of that name (with _ for -) has run(Options), scenarios/NAME.toml its
# scenarios.
EXPERIMENTS = {
    "main": "recover the features of a teacher whose moment matrix could never be formed",
    "throughput": "speed of one product with the moment operator, beside BLAS, NumPy and scikit-learn",
    "links": "recovery under nonlinear links, at gamma below 1/2 (proved) and above (not proved)",
    "recovery": "overlap of each feature against the number of samples, beside theory",
    "smoothing": "how finite sizes round the transition, and the law of that",
    "spectrum": "density of the moment operator, its edges and outliers, beside theory",
    "smooth": "samples and products that smooth features take, by metric and preconditioner",
    "solvers": "passes, time and memory of eigensolvers on the same operator to the same accuracy",
    "scaling": "the error against the number of samples: exponents of the paper and ours beside theory",
    "authors": "the overlaps that the paper's authors recorded, met, and what else the same samples hold",
    "kernels-baseline": "kernel ridge regression and the hierarchical estimators on the same samples",
    "peers": "the whole task, from samples to features, by ours and by PyTorch, SciPy and scikit-learn",
    "mpi": "products with samples on several MPI ranks: efficiency, communication, agreement",
    "outofcore": "samples in files: speed beside memory, memory against n, files larger than memory",
    "limits": "time against n, D and the number of vectors; features of 10^6 coordinates",
}


class GridInterrupted(KeyboardInterrupt):
    """A grid of entries was interrupted; those done are kept, and starting it again goes on."""


@dataclass(frozen=True)
class Options:
    """One run of an experiment.

    Attributes
    ----------
    cases : mapping of str to mapping
        The scenarios to run, by name.
    out : Path
        Folder for what the run writes; it exists.
    seed : int or None
        In place of the scenarios' own.
    threads : int
        Threads of the kernels and of BLAS.
    presets : mapping of str to sequence of str
        All presets of the experiment with the names of their scenarios.
    records : list of dict
        Every record emitted so far.
    """

    cases: Mapping[str, Mapping[str, Any]]
    out: Path
    threads: int
    seed: int | None = None
    presets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    as_json: bool = False
    stream: IO[str] = field(default_factory=lambda: sys.stdout)
    records: list[Mapping[str, Any]] = field(default_factory=list)

    def emit(self, record: Mapping[str, Any]) -> None:
        """Keep a record for the file of this run; with --json, print it as one line."""
        self.records.append(record)
        if self.as_json:
            self._print(to_json(record))

    def say(self, text: str = "") -> None:
        """Print a line of the report; nothing with --json."""
        if not self.as_json:
            self._print(text)

    def _print(self, text: str) -> None:
        with suppress(BrokenPipeError):  # a reader that has seen enough, `head` say, does not end the run
            print(text, file=self.stream, flush=True)


def module_name(experiment: str) -> str:
    """Return the name of the module of an experiment."""
    return experiment.replace("-", "_")


def load_runner(experiment: str) -> Callable[[Options], list[str]]:
    """Return the function that runs an experiment and returns what it missed, one sentence each."""
    module = import_module(f"matfree_hier.bench.{module_name(experiment)}")
    run: Callable[[Options], list[str]] = module.run
    return run


def load_scenarios(experiment: str) -> dict[str, Any]:
    """Return the table of ``scenarios/EXPERIMENT.toml``: ``presets`` and ``cases``."""
    text = files("matfree_hier.bench").joinpath("scenarios", f"{experiment}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def describe(experiment: str) -> str:
    """Return the first paragraph of what an experiment's module says of itself."""
    path = files("matfree_hier.bench").joinpath(f"{module_name(experiment)}.py")
    text = (
        ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    )  # an import would take seconds
    return text.partition("\n\n")[0]


def choose_cases(experiment: str, preset: str) -> dict[str, dict[str, Any]]:
    """Return the scenarios of a preset by name.

    Raises
    ------
    ValueError
        If there is no such experiment, or it has no such preset; the message lists those there are.
    """
    _require_one_of("`EXPERIMENT`", experiment, EXPERIMENTS)
    table = load_scenarios(experiment)
    presets: dict[str, list[str]] = table["presets"]
    _require_one_of(f"`--preset` of {experiment}", preset, presets)
    return {name: table["cases"][name] for name in presets[preset]}


def _require_one_of(what: str, name: str, known: Iterable[str]) -> None:
    known = list(known)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        msg = f"{what} must be one of {', '.join(known)}, got {name}.{hint}"
        raise ValueError(msg)


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned table, the first column to the left and the others to the right."""
    table = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def count_of_seconds(spent: Mapping[str, float]) -> str:
    """Return ``seconds`` and ``processor_seconds`` in words."""
    return f"{spent['seconds']:,.1f} s ({spent['processor_seconds']:,.1f} s of processor time)"


def size_text(n_bytes: float) -> str:
    """Return a size in decimal units: 32.8 GB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(n_bytes) >= scale:
            return f"{n_bytes / scale:.3g} {unit}"
    return f"{n_bytes:.0f} B"
