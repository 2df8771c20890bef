"""The command line: fit, predict, inspect, report. Exit status 0, 1, 2 or 130, as `--help` says."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from tqdm import tqdm

from matfree_hier import __version__
from matfree_hier.comm import team_of
from matfree_hier.estimator import IN_MEMORY, LINEAR_INPUTS, HierarchicalSpectralRegressor
from matfree_hier.fitting.options import ESTIMATORS
from matfree_hier.fitting.prepare import PREPARATIONS, advice, split
from matfree_hier.fitting.spectral import n_candidates
from matfree_hier.fitting.stages import fit_linear
from matfree_hier.launcher import world
from matfree_hier.links import NAMES as LINKS
from matfree_hier.operands import MAX_DEGREE
from matfree_hier.operator import adjoint, project
from matfree_hier.packing import check_memory, check_size, product_text
from matfree_hier.sources import SampleSource, open_source
from matfree_hier.sources.ranks import gathered, offer
from matfree_hier.status import InputError, NotConverged, RunFileError
from matfree_hier.store import RunFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

DONE, MISSED, REFUSED, INTERRUPTED = 0, 1, 2, 130
_REFUSALS = (ValueError, OSError, MemoryError, RunFileError, ImportError)
_PREDICT_ROWS = 65_536
_LINEAR: dict[str, bool | str] = {"auto": "auto", "on": True, "off": False}
_TIMED_ROWS = 16_384
_USUAL_PASSES = 10  # that the outliers of a spectrum take

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
        self.exit(REFUSED, f"matfree_hier: {_one_line(message)}\n")


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
        status: int = DONE if _is_idle(args, comm) else args.run(args)
        sys.stdout.flush()
    except SystemExit as stop:  # of argparse: --help, --version, bad arguments
        return stop.code if isinstance(stop.code, int) else REFUSED
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        command = shlex.join(["python", "-m", "matfree_hier", *arguments])
        ranks = "" if comm is None else ", by mpiexec with any number of ranks"
        return _complain(f"Interrupted. To resume, type{ranks}: {command}", INTERRUPTED, comm)
    except NotConverged as error:
        return _complain(str(error), MISSED, comm)
    except _REFUSALS as error:
        return _complain(_words(error), REFUSED, comm)
    except BaseException:
        if comm is not None:  # the other ranks may wait for this one
            traceback.print_exc()
            comm.Abort(MISSED)
        raise
    return status


@contextmanager
def _heard_once(comm: Any) -> Iterator[None]:
    """Let rank 0 alone print what the parser has to say."""
    if comm is None or comm.Get_rank() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _is_idle(args: argparse.Namespace, comm: Any) -> bool:
    """Whether this process has nothing to do: only a fit has work for every rank."""
    return args.run is not _fit and comm is not None and comm.Get_rank() > 0


def _say(message: object) -> None:
    sys.stdout.write(f"{message}\n")


def _complain(message: str, status: int, comm: Any = None) -> int:
    """Say what is wrong, once: what ends one rank ends all with the same words."""
    if comm is None or comm.Get_rank() == 0:
        sys.stderr.write(f"matfree_hier: {_one_line(message)}\n")
    return status


def _one_line(message: str) -> str:
    return " ".join(message.split())


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
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_fit(commands)
    _add_predict(commands)
    _add_inspect(commands)
    _add_report(commands)
    return parser


def _add_fit(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="fit a data file and store the run",
        description="Fit a data file, store the run and print R^2 on rows held out of the fit. On the run\n"
        "file of an interrupted fit of the same data and options, go on from there.",
        epilog=f"{_DATA}\n\n{_EXIT}",
    )
    parser.set_defaults(run=_fit)
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


def _add_predict(commands: Any) -> None:
    parser = commands.add_parser(
        "predict",
        help="predict with a stored run",
        description="Predict each row of a data file and write a CSV file with the column `prediction`.\n"
        "Columns of tables are matched by name, others are ignored; arrays are matched by position.",
        epilog=f"{_DATA}\n\n{_EXIT}",
    )
    parser.set_defaults(run=_predict)
    parser.add_argument("model", metavar="RUN", help="run file of a fit, FILE or FILE::NAME")
    parser.add_argument("data", metavar="DATA", help="the data file; no target is needed")
    parser.add_argument("--out", required=True, metavar="FILE.csv", help="file to write")
    parser.add_argument("--inputs-name", metavar="NAME", help="array of inputs in .npz and HDF5 (default X)")


def _add_inspect(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="show what a stored run found",
        description="Show the spectrum of a stored run and its features, each by its largest products of\n"
        "input columns; h2(x), h3(x) are the normalised Hermite polynomials of column x.",
        epilog=_EXIT,
    )
    parser.set_defaults(run=_inspect)
    parser.add_argument("model", metavar="RUN", help="run file of a fit, FILE or FILE::NAME")
    parser.add_argument(
        "--features", type=_integer(0), default=5, metavar="K", help="features to show (default 5)"
    )
    parser.add_argument(
        "--terms", type=_integer(1), default=4, metavar="M", help="products to show of each (default 4)"
    )


def _add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="write a page about a stored run",
        description="Write one self-contained HTML page about a stored run (a fit, a solve, an\n"
        "experiment of the bench): tables, figures, parameters, versions. It needs no network to be read.",
        epilog=_EXIT,
    )
    parser.set_defaults(run=_report)
    parser.add_argument("model", metavar="RUN", help="run file, FILE or FILE::NAME")
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


# --- fit ---------------------------------------------------------------------------------------------------


def _fit(args: argparse.Namespace) -> int:
    team = team_of(world())
    if team is None:
        return _fit_to(args, _open(args))
    ranks = team

    def run(offered: list[Any]) -> int:
        return _fit_to(args, gathered(ranks, offered))

    status: int = ranks.collective("fit", run, lambda: offer(ranks, _open(args)))
    return status


def _open(args: argparse.Namespace) -> SampleSource:
    """Open the data of a fit, and check what can be told of them without reading."""
    if args.target is not None and args.target_name is not None:
        msg = "--target and --target-name say the same: give one."
        raise InputError(msg)
    source = open_source(args.data, args.target, inputs_name=args.inputs_name, target_name=args.target_name)
    if not source.has_target:
        msg = f"{args.data} has no target: name one with --target or --target-name."
        raise InputError(msg)
    size = check_size(source.n_inputs, args.degree)
    if args.features != "auto" and args.features > size:
        msg = f"--features must be auto or in 1..{size}, got {args.features}."
        raise InputError(msg)
    return source


def _fit_to(args: argparse.Namespace, source: SampleSource) -> int:
    source.validate()
    train, held_out = split(source, args.holdout, args.seed) if args.holdout else (source, None)
    if train.n_samples < 2 or (held_out is not None and held_out.n_samples < 2):
        msg = f"{args.data} must hold enough rows for the fit and for --holdout, got {source.n_samples}."
        raise InputError(msg)
    model = HierarchicalSpectralRegressor(
        degree=args.degree,
        n_features=args.features,
        estimator=args.estimator,
        prepare=args.prepare,
        linear=_LINEAR[args.linear],
        link=args.link,
        dtype=args.dtype,
        tol=args.tol,
        max_passes=args.max_passes,
        run_file=args.out,
        random_state=args.seed,
    )
    sentence = None if args.prepare == "auto" and args.estimator != "paper" else advice(train, args.prepare)
    if sentence is not None:
        sys.stderr.write(f"matfree_hier: {sentence}\n")
    if args.dry_run:
        _say(_forecast(model, train))
        return DONE
    started = time.perf_counter()
    model.fit(train)
    _say(model.report_)
    _say(f"{time.perf_counter() - started:.1f} s; run file {args.out}")
    if held_out is not None:
        _report_held_out(model, train, held_out, args)
    if not model.status_.ok:
        return _complain(model.status_.value, MISSED)
    return DONE


def _forecast(model: HierarchicalSpectralRegressor, train: SampleSource) -> str:
    """Say what a fit would take, from the sizes and from timing both products on a few rows."""
    n, d, degree = train.n_samples, train.n_inputs, model.degree
    size = check_size(d, degree)
    k = n_candidates(n, size) if model.n_features == "auto" else int(model.n_features)
    item = np.dtype(model.dtype).itemsize
    blocks = size * k * (4 * item + 16)  # the basis of a few blocks, one product of it in float64
    samples = min(n * d * item, IN_MEMORY) + 16 * n
    check_memory(blocks + samples, f"A fit with {k} vectors of {size} entries")
    X = train.inputs(0, min(n, _TIMED_ROWS))
    block = np.random.default_rng(5).standard_normal((size, k)).astype(model.dtype)
    for rows in (X[:1], X):  # the first call compiles
        started = time.perf_counter()
        adjoint(rows, project(rows, block, degree, model.dtype), degree, model.dtype)
        seconds = (time.perf_counter() - started) * n / len(X) / train.shares.count
    dense, tensor = (_bytes(float(side) ** 2 * item) for side in (size, d**degree))
    memory, passes = _bytes(blocks + samples), _USUAL_PASSES
    return f"""{n} rows to fit, {d} inputs, degree {degree}: D = {size}, {k} vectors
memory: about {memory} beyond the program and the data as stored
  (the D x D matrix alone would take {dense}, the d^q x d^q one {tensor})
time: about {seconds:.3g} s a pass; {passes} passes are usual: {passes * seconds:.3g} s"""


def _bytes(count: float) -> str:
    units = iter(("B", "kB", "MB", "GB", "TB", "PB", "EB"))
    unit = next(units)
    while count >= 1000.0 and (larger := next(units, None)) is not None:
        count, unit = count / 1000.0, larger
    return f"{count:.3g} {unit}"


def _report_held_out(
    model: HierarchicalSpectralRegressor,
    train: SampleSource,
    held_out: SampleSource,
    args: argparse.Namespace,
) -> None:
    """Print R^2 on the rows held out, beside ridge regression and the mean, and store it."""
    y = held_out.labels()
    predictions = {"this fit": model.predict(held_out)}
    if train.n_inputs <= LINEAR_INPUTS:  # beyond, the O(d^3) of a ridge is not worth its while
        predictions["ridge on raw columns"] = _ridge(train, held_out, args.seed)
    predictions["mean"] = np.full(len(y), train.labels().mean())
    spread = float(np.mean((y - y.mean()) ** 2))
    scores = {
        name: 1.0 - float(np.mean((y - p) ** 2)) / spread if spread > 0.0 else 0.0
        for name, p in predictions.items()
    }
    with RunFile(args.out) as run:
        run.save("held_out", {"n_rows": len(y), "r2": scores})
    _say(_held_out_table(len(y), scores))


def _held_out_table(n_rows: int, scores: dict[str, float]) -> str:
    lines = [f"R^2 on {n_rows} rows held out of the fit:"]
    return "\n".join(lines + [f"  {name:<22}{score:8.4f}" for name, score in scores.items()])


def _ridge(train: SampleSource, held_out: SampleSource, seed: int) -> NDArray[np.float64]:
    """Return predictions of ridge regression on the raw columns, its strength chosen by cross-validation."""
    linear = fit_linear(train, wanted=True, forced=True, seed=seed)
    return held_out.labels() - held_out.transformed(labels_fn=linear.residuals).labels()


# --- predict -----------------------------------------------------------------------------------------------


def _predict(args: argparse.Namespace) -> int:
    out = Path(args.out)
    if not out.parent.is_dir():
        msg = f"--out must lie in an existing folder, got {args.out}."
        raise FileNotFoundError(msg)
    if out.exists() and Path(args.data).exists() and out.samefile(args.data):
        msg = f"--out must not be the data file itself, got {args.out}."
        raise InputError(msg)
    model = HierarchicalSpectralRegressor.load(args.model)
    source = open_source(args.data, False, inputs=list(model.input_names_), inputs_name=args.inputs_name)
    source.validate()
    temporary = out.with_name(out.name + ".tmp")
    try:
        with temporary.open("w", encoding="ascii") as file, _progress(source.n_samples) as bar:
            file.write("prediction\n")
            for start in range(0, source.n_samples, _PREDICT_ROWS):
                part = source.slice(start, min(start + _PREDICT_ROWS, source.n_samples))
                file.writelines(f"{value!r}\n" for value in model.predict(part).tolist())
                bar.update(part.n_samples)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    _say(f"{source.n_samples} predictions written to {args.out}")
    return DONE


def _progress(total: int) -> Any:
    return tqdm(total=total, unit="row", unit_scale=True, disable=None, file=sys.stderr, delay=1.0)


# --- inspect -----------------------------------------------------------------------------------------------


def _inspect(args: argparse.Namespace) -> int:
    model = HierarchicalSpectralRegressor.load(args.model)
    with RunFile(args.model, mode="r") as run:
        made = run.load("model_provenance")
        held_out = run.load("held_out") if run.has("held_out") else None
    _say(f"{args.model}: made {made['created']} by matfree_hier {made['versions']['matfree_hier']}")
    _say(model.report_.summary())
    if held_out is not None:
        _say(_held_out_table(held_out["n_rows"], held_out["r2"]))
    spectrum = model.spectrum_
    _say(f"spectrum: {len(spectrum.eigenvalues)} eigenvalues of largest size, residuals relative to ||C||")
    pairs = list(zip(spectrum.eigenvalues, spectrum.residuals, strict=True))
    for first in range(0, len(pairs), 4):
        _say("  " + "  ".join(f"{w:>10.4g} ({r:.0e})" for w, r in pairs[first : first + 4]))
    shown = min(args.features, len(model.features_))
    for k in range(shown):
        _say(f"feature {k}: weight {model.weights_[k]:.4g}, slope {model.slopes_[k]:.4g}")
        _say("  " + "  ".join(product_text(*term) for term in model.top_terms(k, args.terms)))
    if shown < len(model.features_):
        _say(f"({len(model.features_) - shown} more: --features {len(model.features_)})")
    return DONE


# --- report ------------------------------------------------------------------------------------------------


def _report(args: argparse.Namespace) -> int:
    from matfree_hier.report import run_page  # with matplotlib, which nothing else here needs

    path, name = RunFile.parse(args.model)
    out = Path(args.out or Path(path).with_suffix(f".{name}.html" if "::" in args.model else ".html"))
    if not out.parent.is_dir():
        msg = f"--out must lie in an existing folder, got {out}."
        raise FileNotFoundError(msg)
    if out.exists() and Path(path).exists() and out.samefile(path):
        msg = f"--out must not be the run file itself, got {out}."
        raise InputError(msg)
    out.write_text(run_page(args.model), encoding="utf-8")
    _say(f"report written to {out}")
    return DONE
