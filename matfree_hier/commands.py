"""What each command does with the arguments that the command line has parsed; it returns the exit status."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matfree_hier.comm import team_of
from matfree_hier.estimator import IN_MEMORY, LINEAR_INPUTS, HierarchicalSpectralRegressor
from matfree_hier.fitting.prepare import advice, split
from matfree_hier.fitting.spectral import n_candidates
from matfree_hier.fitting.stages import fit_linear
from matfree_hier.operator import adjoint, project
from matfree_hier.packing import check_memory, check_size, product_text
from matfree_hier.sources import SampleSource, open_source
from matfree_hier.sources.ranks import gathered, offer
from matfree_hier.status import InputError
from matfree_hier.store import RunFile

if TYPE_CHECKING:
    import argparse

    from numpy.typing import NDArray

DONE, MISSED, REFUSED, INTERRUPTED = 0, 1, 2, 130
_PREDICT_ROWS = 65_536
_LINEAR: dict[str, bool | str] = {"auto": "auto", "on": True, "off": False}
_TIMED_ROWS = 16_384
_USUAL_PASSES = 10  # that the outliers of a spectrum take


# --- words -------------------------------------------------------------------------------------------------


def speaks(comm: Any) -> bool:
    """Whether this process is the one of all ranks that prints."""
    return comm is None or comm.Get_rank() == 0


def complain(message: str, status: int, comm: Any = None) -> int:
    """Say what is wrong, once: what ends one rank ends all with the same words."""
    if speaks(comm):
        sys.stderr.write(f"matfree_hier: {one_line(message)}\n")
    return status


def one_line(message: str) -> str:
    """Return a message with its breaks and runs of spaces made single spaces."""
    return " ".join(message.split())


def _say(message: object) -> None:
    sys.stdout.write(f"{message}\n")


# --- fit ---------------------------------------------------------------------------------------------------


def fit(args: argparse.Namespace, comm: Any) -> int:
    """Fit a data file and say how well it predicts the rows held out; a call of every rank."""
    team = team_of(comm)
    if team is None:
        return _fit_to(args, _open(args))

    def run(offered: list[Any]) -> int:
        return _fit_to(args, gathered(team, offered))

    status: int = team.collective("fit", run, lambda: offer(team, _open(args)))
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
        return complain(model.status_.value, MISSED)
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


def predict(args: argparse.Namespace) -> int:
    """Write a file of predictions."""
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


def inspect(args: argparse.Namespace) -> int:
    """Print the spectrum and the features of a fit."""
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


def report(args: argparse.Namespace) -> int:
    """Write the page about a run."""
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
