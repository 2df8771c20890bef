"""The command ``python -m matfree_hier.bench``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import textwrap
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from matfree_hier.bench.experiment import (
    EXPERIMENTS,
    GridInterrupted,
    Options,
    choose_cases,
    describe,
    load_runner,
    load_scenarios,
)
from matfree_hier.bench.measure import ChildError, machine, to_json, usable_cpus, versions
from matfree_hier.bench.revision import package_digest
from matfree_hier.page import cell
from matfree_hier.status import NotConverged, RunFileError
from matfree_hier.store import CommitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PROGRAM = "python -m matfree_hier.bench"
DEFAULT_EXPERIMENT = "main"
DEFAULT_OUT = "matfree_hier_bench"
DONE, MISSED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
WIDTH = 106  # of lines of help
FILES_AND_STATUS = """\
files written to DIR: EXPERIMENT.jsonl, every record (those of cases that are not run again stay); by main
also run.h5 (spectra, recovery, provenance; one named run a case) and a figure CASE.png. Experiments whose
progress is in entries keep each entry in EXPERIMENT.h5: started again with the same DIR they go on from
there, and what is done is not computed again, only written: tables, figures and page. They write
EXPERIMENT.html, and to the folder EXPERIMENT for each case CASE.csv, CASE.txt (what is printed) and
CASE-FIGURE.png, and for all about.json: parameters, seeds, date, time taken, machine, versions, checks.

exit status: 0 done; 1 an accuracy that was asked for is missed, or a case has no result; 2 bad arguments,
or a file that cannot be used; 130 interrupted."""


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
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "experiment",
        nargs="?",
        metavar="EXPERIMENT",
        help=f"what to run, one of those below ({DEFAULT_EXPERIMENT})",
    )
    parser.add_argument(
        "--preset",
        default="default",
        metavar="NAME",
        help="how large: quick, default, large, or others that EXPERIMENT --help names (default)",
    )
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
    parser.add_argument(
        "-h", "--help", action="store_true", help="this help; after EXPERIMENT, its presets and cases"
    )
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
    return "\n".join(["experiments:", *_two_columns(EXPERIMENTS), "", FILES_AND_STATUS])


def _two_columns(texts: Mapping[str, str]) -> list[str]:
    """Return names and texts, wrapped beside the longest of the names."""
    width = max(map(len, texts))
    lines: list[str] = []
    for name, text in texts.items():
        first, *rest = textwrap.wrap(text, WIDTH - width - 4, break_on_hyphens=False) or [""]
        lines.append(f"  {name:<{width}}  {first}".rstrip())
        lines += [f"{'':<{width + 4}}{line}" for line in rest]
    return lines


def experiment_help(experiment: str) -> str:
    """Return what an experiment is, its presets and its cases."""
    table = load_scenarios(experiment)
    cases = {
        name: "; ".join(f"{key} {cell(value)}" for key, value in case.items())
        for name, case in table["cases"].items()
    }
    return "\n".join(
        [
            f"usage: {PROGRAM} {experiment} [--preset NAME] ...; options are those of {PROGRAM} --help",
            "",
            *textwrap.wrap(describe(experiment), WIDTH),
            "",
            "presets:",
            *_two_columns({name: ", ".join(names) for name, names in table["presets"].items()}),
            "",
            "cases:",
            *_two_columns(cases),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    status = _ended(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _ended(given: Sequence[str]) -> int:
    """Run the command, say why it ended if it was not done, and return its exit status."""
    try:
        return _command(given)
    except RunFileError as error:
        return _refuse(str(error))
    except OSError as error:
        named = error.filename is not None and not isinstance(error, CommitError)
        return _refuse(f"`{error.filename}` cannot be used ({error.strerror})." if named else str(error))
    except KeyboardInterrupt as stop:
        again = shlex.join(["python", "-m", "matfree_hier.bench", *given])
        how = f"{stop}; to resume, type" if isinstance(stop, GridInterrupted) else "to run it again"
        print(f"{PROGRAM}: interrupted; {how}: {again}", file=sys.stderr)
        return INTERRUPTED


def _refuse(sentence: str) -> int:
    print(f"{PROGRAM}: {sentence}", file=sys.stderr)
    return BAD_USAGE


def _command(arguments: Sequence[str]) -> int:
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.versions:
        found = versions() | {"source": package_digest()}
        _show("\n".join(f"{name} {version}" for name, version in found.items()))
        return DONE
    if options.help and options.experiment is None:
        _show(parser.format_help().rstrip("\n"))
        return DONE
    experiment = DEFAULT_EXPERIMENT if options.experiment is None else options.experiment
    try:
        cases = choose_cases(experiment, options.preset)
        if not options.help:
            _make_folder(options.out)
    except ValueError as error:
        return _refuse(str(error))
    if options.help:
        _show(experiment_help(experiment))
        return DONE
    job = Options(
        cases=cases,
        out=options.out,
        threads=options.threads or usable_cpus(),
        seed=options.seed,
        presets=load_scenarios(experiment)["presets"],
        as_json=options.json,
    )
    with _terminate_as_interrupt():
        return _run(experiment, options.preset, job)


def _show(text: str) -> None:
    with suppress(BrokenPipeError):  # `main` closes what is left of it
        print(text)


def _make_folder(path: Path) -> None:
    """Make the folder for files, or raise ValueError with why it cannot be one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        why = "this is a file" if isinstance(error, FileExistsError) else error.strerror
        msg = f"`--out` must be a folder to write to, or a name for a new one, got {path} ({why})."
        raise ValueError(msg) from error


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


def _run(experiment: str, preset: str, job: Options) -> int:
    """Run an experiment, write its records, and say what it missed."""
    asked = {"experiment": experiment, "preset": preset, "seed": job.seed, "threads": job.threads}
    job.emit(machine() | asked | {"date": datetime.now(UTC).isoformat(timespec="seconds")})
    path = job.out / f"{experiment}.jsonl"
    try:
        missed = _missed(experiment, job)
        job.emit({"record": "verdict", "experiment": experiment, "passed": not missed, "missed": missed})
    finally:  # what was measured before an interruption is kept
        path.write_text("".join([*_of_other_cases(path, job), *_lines(job.records)]), encoding="utf-8")
    with suppress(BrokenPipeError):  # of `2>&1 | head`; the status tells it as well
        for sentence in missed:
            print(f"{PROGRAM} {experiment}: {sentence}", file=sys.stderr)
    return MISSED if missed else DONE


def _lines(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{to_json(record)}\n" for record in records]


def _of_other_cases(path: Path, job: Options) -> list[str]:
    """Return what earlier runs wrote of cases that this one has no records of, with their machines."""
    mine = [record["case"] for record in job.records if "case" in record]
    kept: list[dict[str, Any]] = []
    for record in _records_of(path):
        if record.get("record") == "machine":
            if kept and kept[-1].get("record") == "machine":
                kept.pop()  # nothing of that run is left
            kept.append(record)
        elif "case" in record and record["case"] not in mine:
            kept.append(record)
    if kept and kept[-1].get("record") == "machine":
        kept.pop()
    return _lines(kept)


def _records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in a file of them; lines that are something else, one cut short say, are skipped."""
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    yield record


def _missed(experiment: str, job: Options) -> list[str]:
    try:
        return load_runner(experiment)(job)
    except (ChildError, NotConverged) as error:
        return [f"{error}"]
    except MemoryError as error:
        return [f"out of memory: {error}"]


if __name__ == "__main__":
    sys.exit(main())
