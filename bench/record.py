"""How results were made: what every entry took, and the record of each case beside its tables."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from matfree_hier.bench.experiment import count_of_seconds
from matfree_hier.bench.measure import machine, processor_seconds, to_json
from matfree_hier.bench.revision import package_digest
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


TIMES = ("seconds", "processor_seconds")


class Made(NamedTuple):
    """How an entry was made.

    Attributes
    ----------
    date : str
        Of UTC, as 2026-05-14.
    seconds : float
    processor_seconds : float
        With those of processes that it started.
    threads : int
        Of the kernels and of BLAS, at most.
    source : str
        Digest of the package, but for the bench.
    """

    date: str
    seconds: float
    processor_seconds: float
    threads: int
    source: str

    def to_text(self) -> str:
        """Return it as JSON, which takes a run file less room than values of their own."""
        return to_json(self._asdict())

    @classmethod
    def from_text(cls, text: str) -> Made:
        """Return what `to_text` was called on."""
        return cls(**json.loads(text))


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._started = time.monotonic(), processor_seconds()

    def read(self) -> Made:
        """Return what was spent so far."""
        wall, processor = (
            round(now - then, 3)
            for now, then in zip((time.monotonic(), processor_seconds()), self._started, strict=True)
        )
        date = datetime.now(UTC).date().isoformat()
        return Made(date, wall, processor, self._threads, package_digest())


def this_machine() -> dict[str, Any]:
    """Return machine and versions in one mapping, without what names a machine or a person."""
    found = machine()
    gigabytes = None if found["memory_bytes"] is None else round(found["memory_bytes"] / 1e9)
    return {
        "processor": found["processor"],
        "cpus": found["cpus"],
        "memory_gb": gigabytes,
        "versions": found["versions"],
    }


def case_record(
    case: Mapping[str, Any], first_seed: int, made: Sequence[Made], where: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how the entries of a case were made.

    Parameters
    ----------
    case : mapping
        The scenario.
    first_seed : int
    made : sequence of Made
        Of each of its entries.
    where : mapping
        As from `this_machine`.
    """
    dates = sorted({entry.date for entry in made})
    record = {
        "parameters": dict(case),
        "first_seed": first_seed,
        "seeds": case["seeds"],
        "entries": len(made),
        "computed": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        "seconds": round(sum(entry.seconds for entry in made), 3),
        "processor_seconds": round(sum(entry.processor_seconds for entry in made), 3),
        "threads": _one_or_all({entry.threads for entry in made}),
        "source": _one_or_all({entry.source for entry in made}),
        **where,
    }
    plain: dict[str, Any] = json.loads(to_json(record))
    return plain


def _one_or_all(values: set[Any]) -> Any:
    return min(values) if len(values) == 1 else sorted(values)


def sentence(record: Mapping[str, Any]) -> str:
    """Return in one line how a case was made."""
    presets = record["presets"]
    threads, source = (
        value if isinstance(value, list) else [value] for value in (record["threads"], record["source"])
    )
    used = f"{' and '.join(map(str, threads))} {'thread' if threads == [1] else 'threads'}"
    parts = [
        f"{'preset' if len(presets) == 1 else 'presets'} {', '.join(presets)}" if presets else "",
        f"first seed {record['first_seed']}, {counted(record['seeds'], 'seed')}",
        f"computed {record['computed']} in {count_of_seconds(record)}, {used}",
        f"matfree-hier {record['versions']['matfree-hier']}, source {' and '.join(source)}",
    ]
    return "made: " + "; ".join(part for part in parts if part)


def read_about(path: Path) -> dict[str, Any]:
    """Return the records of the cases in ``about.json``; none if there is no such file or it is of old.

    What is no record of a case, with the times it took, is skipped.
    """
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"].items()
        return {name: case for name, case in cases if _has_times(case)}
    return {}


def _has_times(case: Any) -> bool:
    return isinstance(case, dict) and all(isinstance(case.get(key), int | float) for key in TIMES)


def write_about(
    path: Path, experiment: str, cases: Mapping[str, Any], presets: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Write the records of all cases, and what each preset took of which all are there; return the latter."""
    totals = {
        preset: {
            "cases": len(names),
            **{key: round(sum(cases[n][key] for n in names), 3) for key in TIMES},
        }
        for preset, names in presets.items()
        if set(names) <= cases.keys()
    }
    about = {"experiment": experiment, "presets": totals, "cases": dict(cases)}
    path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return totals
