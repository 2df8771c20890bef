"""The command line: fit, predict, inspect, report. Exit status 0, 1, 2 or 130, as `--help` says."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, NoReturn

from matfree_hier import __version__, commands
from matfree_hier.commands import DONE, INTERRUPTED, MISSED, REFUSED, complain, one_line, speaks
from matfree_hier.fitting.options import ESTIMATORS
from matfree_hier.fitting.prepare import PREPARATIONS
from matfree_hier.launcher import world
from matfree_hier.links import NAMES as LINKS
from matfree_hier.operands import MAX_DEGREE
from matfree_hier.status import NotConverged, RunFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_REFUSALS = (ValueError, OSError, MemoryError, RunFileError, ImportError)

_EXIT = """exit status:
  0    done
  1    did not reach what was asked: not converged, or no feature found
  2    bad arguments or input
  130  interrupted; the message says what to type to resume"""

_DATA = """data:
  .csv, .tsv       a header line; every column but the target is an input, the target is the last column
                   unless --target names one
  .parquet         the same (needs pyarrow)
  .npz, .h5        arrays X (n, d) and y (n,), or those that --inputs-name and --target-name name
  .npy             a matrix; --target is the number of a column (-1 is the last) or another .npy file"""


class _Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line, without the usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"matfree_hier: {one_line(message)}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    comm: Any = None
    try:
        comm = world()
        with _heard_once(comm):
            args = _parser().parse_args(arguments)
        status = _run(args, comm)
        sys.stdout.flush()
    except SystemExit as stop:  # of argparse: --help, --version, bad arguments
        return stop.code if isinstance(stop.code, int) else REFUSED
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        command = shlex.join(["python", "-m", "matfree_hier", *arguments])
        ranks = "" if comm is None else ", by mpiexec with any number of ranks"
        return complain(f"Interrupted. To resume, type{ranks}: {command}", INTERRUPTED, comm)
    except NotConverged as error:
        return complain(str(error), MISSED, comm)
    except _REFUSALS as error:
        return complain(_words(error), REFUSED, comm)
    except BaseException:
        if comm is not None:  # the other ranks may wait for this one
            traceback.print_exc()
            comm.Abort(MISSED)
        raise
    return status


@contextmanager
def _heard_once(comm: Any) -> Iterator[None]:
    """Let rank 0 alone print what the parser has to say."""
    if speaks(comm):
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _run(args: argparse.Namespace, comm: Any) -> int:
    """Run a command: a fit on every rank, any other on the one that speaks."""
    status: int = DONE
    if args.run is commands.fit:
        status = commands.fit(args, comm)
    elif speaks(comm):
        status = args.run(args)
    return status


def _words(error: BaseException) -> str:
    if type(error).__str__ is OSError.__str__ and isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


# --- arguments ---------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m matfree_hier",
        description="Find the latent features of a target in data files, and predict with them.",
        epilog=_EXIT,
    )
    parser.add_argument("--version", action="version", version=f"matfree_hier {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_fit(subparsers)
    _add_predict(subparsers)
    _add_inspect(subparsers)
    _add_report(subparsers)
    return parser


def _add_fit(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="fit a data file and store the run",
        description="Fit a data file, store the run and print R^2 on rows held out of the fit. On the run\n"
        "file of an interrupted fit of the same data and options, go on from there.",
        epilog=f"{_DATA}\n\n{_EXIT}",
    )
    parser.set_defaults(run=commands.fit)
    parser.add_argument("data", metavar="DATA", help="the data file")
    _add_names(parser)
    parser.add_argument(
        "--degree", type=_integer(1, MAX_DEGREE), default=2, help="degree of the features, 1..8 (default 2)"
    )
    parser.add_argument(
        "--features",
        type=_auto_or_count,
        default="auto",
        metavar="auto|K",
        help="number of features, 1..D with D = C(d + degree - 1, degree) for d inputs, or auto (default):"
        " as many as stand above the noise",
    )
    parser.add_argument(
        "--estimator",
        choices=ESTIMATORS,
        default="refined",
        help="refined (default): the spectral features, then the model fitted to the labels itself; spectral:"
        " normalised labels, a linear part, ridge readout; paper: that of arXiv 2605.14567",
    )
    parser.add_argument(
        "--prepare",
        choices=("auto", *PREPARATIONS),
        default="auto",
        help="what is done to the inputs, which should be near standard normal: none, standardise (mean 0,"
        " variance 1), whiten (uncorrelated too), gaussianise (normal scores of the ranks); auto (default) is"
        " what they need",
    )
    parser.add_argument(
        "--linear",
        choices=("auto", "on", "off"),
        default="auto",
        help="ridge regression on the raw columns first: auto (default) if it helps",
    )
    parser.add_argument(
        "--link",
        choices=("auto", *LINKS),
        default="auto",
        help="link from the features' sum to the target; auto (default) fits one where it helps",
    )
    parser.add_argument(
        "--holdout",
        type=_fraction,
        default=0.2,
        metavar="FRACTION",
        help="share of the rows, drawn by --seed, kept out of the fit to measure R^2; 0 for none"
        " (default 0.2)",
    )
    parser.add_argument(
        "--out",
        default="run.h5",
        metavar="FILE[::NAME]",
        help="run file to write, several named runs may share one (default run.h5)",
    )
    parser.add_argument("--seed", type=_integer(0), default=20260514, help="seed of everything random")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="precision of the features (default float32)",
    )
    parser.add_argument(
        "--tol",
        type=_tolerance,
        default=1e-4,
        help="residuals of the eigenpairs relative to the norm of the operator (default 1e-4)",
    )
    parser.add_argument(
        "--max-passes", type=_integer(1), default=100, help="passes over the data at most (default 100)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="read the data, forecast memory and time, and fit nothing"
    )


def _add_predict(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "predict",
        help="predict with a stored run",
        description="Predict each row of a data file and write a CSV file with the column `prediction`.\n"
        "Columns of tables are matched by name, others are ignored; arrays are matched by position.",
        epilog=f"{_DATA}\n\n{_EXIT}",
    )
    parser.set_defaults(run=commands.predict)
    parser.add_argument("model", metavar="RUN", help="run file of a fit, FILE or FILE::NAME")
    parser.add_argument("data", metavar="DATA", help="the data file; no target is needed")
    parser.add_argument("--out", required=True, metavar="FILE.csv", help="file to write")
    parser.add_argument("--inputs-name", metavar="NAME", help="array of inputs in .npz and HDF5 (default X)")


def _add_inspect(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="show what a stored run found",
        description="Show the spectrum of a stored run and its features, each by its largest products of\n"
        "input columns; h2(x), h3(x) are the normalised Hermite polynomials of column x.",
        epilog=_EXIT,
    )
    parser.set_defaults(run=commands.inspect)
    parser.add_argument("model", metavar="RUN", help="run file of a fit, FILE or FILE::NAME")
    parser.add_argument(
        "--features", type=_integer(0), default=5, metavar="K", help="features to show (default 5)"
    )
    parser.add_argument(
        "--terms", type=_integer(1), default=4, metavar="M", help="products to show of each (default 4)"
    )


def _add_report(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write a page about a stored run",
        description="Write one self-contained HTML page about a stored run (a fit, a solve, an\n"
        "experiment of the bench): tables, figures, parameters, versions. It needs no network to be read.",
        epilog=_EXIT,
    )
    parser.set_defaults(run=commands.report)
    parser.add_argument("model", metavar="RUN", help="run file: FILE for all its runs, FILE::NAME for one")
    parser.add_argument("--out", metavar="FILE.html", help="page to write (default: beside the run file)")


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="NAME", help="column, array or file of the target")
    parser.add_argument("--inputs-name", metavar="NAME", help="array of inputs in .npz and HDF5 (default X)")
    parser.add_argument("--target-name", metavar="NAME", help="array of labels in .npz and HDF5 (default y)")


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    bound = f"an integer in {low}..{high}" if high is not None else f"an integer of at least {low}"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            msg = f"must be {bound}, got {text}."
            raise argparse.ArgumentTypeError(msg)
        return value

    return convert


def _auto_or_count(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return _integer(1)(text)
    except argparse.ArgumentTypeError:
        msg = f"must be auto or an integer of at least 1, got {text}."
        raise argparse.ArgumentTypeError(msg) from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _fraction(text: str) -> float:
    if not 0.0 <= _number(text) <= 0.9:
        msg = f"must be in 0..0.9, got {text}."
        raise argparse.ArgumentTypeError(msg)
    return _number(text)


def _tolerance(text: str) -> float:
    if not 0.0 < _number(text) < 1.0:
        msg = f"must be above 0 and below 1, got {text}."
        raise argparse.ArgumentTypeError(msg)
    return _number(text)
