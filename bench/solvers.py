"""Eigensolvers on the same operator, to the same accuracy, in one run: what each costs."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from matfree_hier.bench.experiment import format_table, size_text
from matfree_hier.bench.main import alternating_weights
from matfree_hier.bench.measure import ChildError, Spread, run_isolated
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matfree_hier.bench.experiment import Options

# How each is run: with these arguments of `top_eigenpairs`, or as the authors' power iteration.
SOLVERS: Mapping[str, Mapping[str, Any]] = {
    "krylov": {"method": "krylov"},
    "auto-outliers": {"method": "auto", "stop": "outliers", "block_size": None},
    "krylov-outliers": {"method": "krylov", "stop": "outliers", "block_size": None},
    "gram": {"method": "gram"},
    "dense": {"method": "dense"},
    "lobpcg": {"method": "lobpcg"},
    "arpack": {"method": "arpack"},
    "primme": {"method": "primme"},
    "power": {"restarted": False},
    "power-restarted": {"restarted": True},
}
OPTIONAL = ("primme",)
OURS = ("krylov", "auto-outliers", "krylov-outliers", "gram", "dense")
SEED = 6_151


@dataclass(frozen=True)
class Case:
    """An operator, the pairs wanted of it, the accuracy, the solvers, and what is asked of ours."""

    degree: int
    n_inputs: int
    n_samples: int
    solvers: list[str] = field(default_factory=lambda: ["krylov"])
    n_features: int = 12
    gamma: float = 1.0
    label_transform: str = ""
    dtype: str = "float64"
    k: int = 12
    width: int = 16
    tol: float = 1e-6
    peer_tol: float | None = None
    value_tol: float = 1e-9
    vector_tol: float = 1e-3
    accuracy: Literal["residual", "outliers"] = "residual"
    reference: bool = True
    max_passes: float = 400
    repeats: int = 3
    max_passes_of_ours: float | None = None
    aim: float | None = None
    times_fewer: float | None = None
    faster_than_arpack: bool = False

    @property
    def n_packed(self) -> int:
        """D."""
        return comb(self.n_inputs + self.degree - 1, self.degree)

    @property
    def weights(self) -> list[float]:
        """lambda_k."""
        return alternating_weights(self.n_features, self.gamma)

    def shortfall(self, errors: Mapping[str, Any]) -> str:
        """Say what is wrong with an answer of these errors; nothing if it is accurate."""
        if errors["n_found"] < self.k:
            return f"{errors['n_found']} of {self.k} pairs"
        if self.accuracy == "outliers":
            limits = {"vector_error": self.vector_tol}
        else:
            limits = {"residual": self.tol, "orthogonality": self.tol, "value_error": self.value_tol}
        wrong = [
            f"{name.replace('_', ' ')} {errors[name]:.1e} above {limit:.0e}"
            for name, limit in limits.items()
            if name in errors and not errors[name] <= limit
        ]
        return ", ".join(wrong)


@dataclass(frozen=True)
class Target:
    """A bar, and what was measured."""

    what: str
    measured: str
    asked: str
    met: bool
    is_gate: bool
    """Whether a miss is exit status 1: times depend on the machine, counts do not."""


def run(options: Options) -> list[str]:
    """Run the cases, print their tables, return what they missed."""
    missed: list[str] = []
    for name, table in options.cases.items():
        case = Case(**table)
        seed = SEED if options.seed is None else options.seed
        with tempfile.TemporaryDirectory(dir=options.out) as folder:
            reference = None
            summary: dict[str, Any] = {}
            if case.reference:
                _say(f"{name}: the dense matrix, and numpy.linalg.eigh of it")
                reference = str(Path(folder) / "reference.npz")
                to_write = {"case": dict(table), "seed": seed, "path": reference}
                summary = _isolated("write_reference", to_write, options.threads)
            arguments = {"case": dict(table), "seed": seed, "reference": reference}
            records = [_measure(name, solver, arguments, options.threads) for solver in case.solvers]
        if reference is None:
            withhold_where_pairs_are_missing(case, records)
        bars = targets(case, records)
        sentences = judge(name, records, bars)
        if case.accuracy == "outliers" and not summary["outliers"]:
            sentences.append(f"{name}: no eigenvalue is outside the bulk, so nothing was compared.")
        for record in records:
            options.emit({"record": "solver", "case": name} | record)
        options.emit(
            {"record": "solvers", "case": name, "n_packed": case.n_packed, "n_samples": case.n_samples}
            | dict(table)
            | summary
            | {"targets": [vars(bar) for bar in bars], "missed": sentences}
        )
        options.say(report(name, case, records, bars, summary, options.threads))
        missed += sentences
    return missed


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _isolated(function: str, arguments: dict[str, Any], threads: int) -> dict[str, Any]:
    return run_isolated(f"matfree_hier.bench.solve:{function}", arguments, threads=threads)


def _measure(name: str, solver: str, arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Run one solver in a process of its own; a solver that breaks is a record too."""
    if solver in OPTIONAL and find_spec(solver) is None:
        return {"solver": solver, "shortfall": "not installed"}
    _say(f"{name}: {solver}")
    try:
        return _isolated("run_solver", {"solver": solver} | dict(arguments), threads)
    except ChildError as error:
        return {"solver": solver, "shortfall": f"{error}"}


def withhold_where_pairs_are_missing(case: Case, records: Iterable[dict[str, Any]]) -> None:
    """Where no dense matrix says which pairs are the largest, hold solvers against each other.

    The i-th largest |value| of true pairs is at most that of the spectrum: whoever is below the best found
    by anybody has missed a pair.
    """
    found = {r["solver"]: sorted(map(abs, r["values"]), reverse=True) for r in records if not r["shortfall"]}
    best = [max(column) for column in zip(*found.values(), strict=True)]
    for record in records:
        if record["solver"] in found:
            ours = found[record["solver"]]
            worst = max((b - a) / best[0] for a, b in zip(ours, best, strict=True))
            record["value_error"] = worst
            if worst > 2 * case.tol:
                record["shortfall"] = f"a pair is missing that others found: {worst:.1e}"
                record.pop("seconds", None)


# ---- what was asked


def targets(case: Case, records: Iterable[Mapping[str, Any]]) -> list[Target]:
    """Return the bars of a case with what was measured; the first solver is the one they are for."""
    by_name = {record["solver"]: record for record in records}
    ours = by_name[case.solvers[0]]
    passes = ours.get("n_passes", float("inf"))
    bars = []
    if case.max_passes_of_ours is not None:
        aim = "" if case.aim is None else f" (aim {case.aim:g} {_met(passes <= case.aim)})"
        within = not ours["shortfall"] and passes <= case.max_passes_of_ours
        asked = f"at most {case.max_passes_of_ours:g}{aim}"
        bars.append(Target(f"passes of {ours['solver']}", f"{passes:.4g}", asked, within, True))
    if case.times_fewer is not None and "lobpcg" in by_name:
        ratio = by_name["lobpcg"].get("n_passes", 0.0) / passes
        asked = f"at least {case.times_fewer:g}"
        met = ratio >= case.times_fewer
        bars.append(Target("passes of lobpcg over them", f"{ratio:.3g}", asked, met, True))
    mine, theirs = (r.get("seconds") for r in (ours, by_name.get("arpack", {})))
    if case.faster_than_arpack and mine is not None and theirs is not None:
        ratio = theirs["median"] / mine["median"]
        bars.append(Target("time of arpack over ours", f"{ratio:.3g}", "above 1", ratio > 1, False))
    return bars


def judge(name: str, records: Iterable[Mapping[str, Any]], bars: Iterable[Target]) -> list[str]:
    """Return a sentence for each gate missed, answer of ours that is wrong, and claim that is false."""
    missed = []
    for record in records:
        solver, shortfall = record["solver"], record["shortfall"]
        claims = record.get("claims", "")
        if shortfall and solver in OURS:
            missed.append(f"{name}: {solver} missed the accuracy: {shortfall}.")
        elif shortfall and claims == "CONVERGED":
            missed.append(f"{name}: {solver} says it converged and did not: {shortfall}.")
        if record.get("n_products", 0) > record.get("n_passes", 0):
            missed.append(
                f"{name}: {solver} counts {record['n_passes']:.4g} passes and made "
                f"{record['n_products']:.4g} products."
            )
    missed += [
        f"{name}: {bar.what}: {bar.measured}, {bar.asked} is asked."
        for bar in bars
        if bar.is_gate and not bar.met
    ]
    return missed


def _met(yes: bool) -> str:
    return "met" if yes else "missed"


# ---- the report


def report(
    name: str,
    case: Case,
    records: Sequence[Mapping[str, Any]],
    bars: Iterable[Target],
    summary: Mapping[str, Any],
    threads: int,
) -> str:
    """Return the text of one case: a row a solver, then the bars."""
    errors = [("residual", "residual"), ("value_error", "eigenvalues")]
    wanted = f"the {case.k} pairs of largest |eigenvalue|"
    if case.accuracy == "outliers":
        count = len(summary["outliers"])
        wanted += f", of which the {count} outside the bulk count: eigenvectors to {case.vector_tol:g}"
        errors.append(("vector_error", "outliers"))
    else:
        wanted += f" to residuals of {case.tol:g} ||C||"
        wanted += f", eigenvalues to {case.value_tol:g}" if case.reference else ""
    title = (
        f"{name}: q = {case.degree}, d = {case.n_inputs}, D = {case.n_packed:,}, n = {case.n_samples:,}, "
        f"{case.dtype}, labels: {case.label_transform or 'as they are'}; blocks of {case.width}, "
        f"{counted(threads, 'thread')}\n{wanted}"
    )
    headers = ["solver", "passes", "vectors", "seconds", "memory", *(text for _, text in errors), "outcome"]
    rows = [_row(record, [key for key, _ in errors]) for record in records]
    lines = ["", title, "", format_table(headers, rows), ""]
    lines += [f"{record['solver']}: {record['shortfall']}" for record in records if record["shortfall"]]
    lines.append("passes: products with all samples, whatever the number of vectors, and shares of them;")
    lines.append("vectors: columns multiplied; memory: peak beyond data and imports; residuals by NumPy;")
    lines.append(
        "eigenvalues: relative error against numpy.linalg.eigh of the dense matrix."
        if case.reference
        else "eigenvalues: how far below the best that any solver found."
    )
    asked = [[bar.what, bar.measured, bar.asked, _met(bar.met)] for bar in bars]
    if asked:
        lines += ["", format_table(["target", "measured", "asked", ""], asked)]
    return "\n".join(lines)


def _row(record: Mapping[str, Any], errors: Sequence[str]) -> list[str]:
    if "n_passes" not in record:
        return [record["solver"], *["-"] * (4 + len(errors)), "none"]
    seconds = record.get("seconds")
    return [
        record["solver"],
        f"{record['n_passes']:.4g}",
        f"{record['n_vectors']:,}",
        "-" if seconds is None else f"{Spread(**seconds):.2f}",
        size_text(record["peak_bytes"]),
        *("-" if record.get(key) is None else f"{record[key]:.1e}" for key in errors),
        "inaccurate" if record["shortfall"] else "accurate",
    ]
