"""The command ``python -m matfree_hier.bench``."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from matfree_hier.bench.experiment import (
    EXPERIMENTS,
    GridInterrupted,
    Options,
    choose_cases,
    load_runner,
    load_scenarios,
)
from matfree_hier.bench.measure import ChildError, machine, to_json, usable_cpus, versions
from matfree_hier.status import NotConverged, RunFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROGRAM = "python -m matfree_hier.bench"
DEFAULT_OUT = "matfree_hier_bench"
DONE, MISSED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Reports a bad argument in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        prog=PROGRAM,
        description="Measure matfree_hier on this machine, and repeat the experiments of arXiv 2605.14567.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "experiment", nargs="?", default="main", metavar="EXPERIMENT", help="what to run, see below (main)"
    )
    parser.add_argument("--preset", default="default", metavar="NAME", help="how large, see below (default)")
    parser.add_argument(
        "--out", type=Path, default=Path(DEFAULT_OUT), metavar="DIR", help=f"folder for files ({DEFAULT_OUT})"
    )
    parser.add_argument("--seed", type=_at_least(0), metavar="N", help="seed in place of the scenario's own")
    parser.add_argument(
        "--threads",
        type=_at_least(1),
        metavar="N",
        help="threads of kernels and BLAS (all processors)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line and no table")
    parser.add_argument("--versions", action="store_true", help="print the versions of all that is measured")
    parser.add_argument("--version", action="version", version=f"matfree-hier {versions()['matfree-hier']}")
    return parser


def _at_least(bound: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = bound - 1
        if value < bound:
            msg = f"must be an integer of at least {bound}, got {text}."
            raise argparse.ArgumentTypeError(msg)
        return value

    return integer


def _epilog() -> str:
    lines = ["experiments and their presets:"]
    for name, summary in EXPERIMENTS.items():
        lines.append(f"  {name:<12} {summary}")
        lines.extend(
            f"    {preset:<10} {', '.join(cases)}"
            for preset, cases in load_scenarios(name)["presets"].items()
        )
    lines += [
        "",
        "files written to DIR: EXPERIMENT.jsonl (every record), and by main run.h5 (spectra, recovery,",
        "provenance; one named run a scenario) and a figure NAME.png a scenario. Experiments of the paper",
        "keep each result in EXPERIMENT.h5 and go on from it when started again; they write EXPERIMENT.html,",
        "and to the folder EXPERIMENT a table CASE.csv, figures CASE-FIGURE.png and about.json.",
        "",
        "exit status: 0 done; 1 an accuracy that was asked for is missed; 2 bad arguments; 130 interrupted.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.versions:
        print("\n".join(f"{name} {version}" for name, version in versions().items()))
        return DONE
    try:
        cases = choose_cases(options.experiment, options.preset)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return BAD_USAGE
    job = Options(
        cases=cases,
        out=options.out,
        threads=options.threads or usable_cpus(),
        seed=options.seed,
        presets=load_scenarios(options.experiment)["presets"],
        as_json=options.json,
    )
    try:
        with _terminate_as_interrupt():
            return _run(options.experiment, job)
    except RunFileError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt as stop:
        again = " ".join([PROGRAM, *(sys.argv[1:] if arguments is None else arguments)])
        how = f"{stop}; to resume, type" if isinstance(stop, GridInterrupted) else "to run it again"
        print(f"{PROGRAM}: interrupted; {how}: {again}", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: the process of a measurement must not outlive this one."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(experiment: str, job: Options) -> int:
    """Run an experiment, write its records, and say what it missed."""
    job.emit(machine() | {"experiment": experiment, "threads": job.threads})
    try:
        missed = _missed(experiment, job)
        job.emit({"record": "verdict", "experiment": experiment, "passed": not missed, "missed": missed})
    finally:  # what was measured before an interruption is kept
        lines = "".join(f"{to_json(record)}\n" for record in job.records)
        (job.out / f"{experiment}.jsonl").write_text(lines, encoding="utf-8")
    for sentence in missed:
        print(f"{PROGRAM}: {sentence}", file=sys.stderr)
    return MISSED if missed else DONE


def _missed(experiment: str, job: Options) -> list[str]:
    try:
        return load_runner(experiment)(job)
    except (ChildError, NotConverged) as error:
        return [f"{error}"]


if __name__ == "__main__":
    sys.exit(main())
