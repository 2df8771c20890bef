"""Smooth features: samples they take with and without a metric, products by preconditioner, multigrid."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from matfree_hier.bench.experiment import format_table, size_text
from matfree_hier.bench.main import alternating_weights
from matfree_hier.bench.measure import PeakMemory, run_isolated
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.fitting.spectral import with_operator_labels
from matfree_hier.metric import preconditioner, smoothness
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.recovery import overlaps
from matfree_hier.smooth import teacher
from matfree_hier.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matfree_hier.bench.experiment import Options

SEED = 40_867
SAME = 1e-6  # of the largest eigenvalue, by which values of two preconditioners may differ


@dataclass(frozen=True)
class Case:
    """One table: of samples, products or setups, on a path of inputs."""

    kind: Literal["samples", "products", "setup"]
    degree: int = 2
    n_inputs: list[int] = field(default_factory=lambda: [64])
    taus: list[float] = field(default_factory=lambda: [1e4])
    # samples
    teacher_tau: float = 0.0
    n_features: int = 2
    gamma: float = 0.0
    multiples: list[float] = field(default_factory=list)
    target: float = 0.8
    least_ratio: float = 0.0
    # products
    n_samples: int = 0
    k: int = 8
    tol: float = 1e-6
    solves: list[list[str]] = field(default_factory=list)
    max_passes: int = 1500
    most: dict[str, int] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)


def run(options: Options) -> list[str]:
    """Run the cases, print their tables, return what they missed."""
    missed: list[str] = []
    for name, table in options.cases.items():
        case = Case(**table)
        arguments = {"case": dict(table), "seed": SEED if options.seed is None else options.seed}
        target = f"matfree_hier.bench.smooth:measure_{case.kind}"
        record = run_isolated(target, arguments, threads=options.threads)
        sentences = [f"{name}: {sentence}" for sentence in judge(case, record)]
        options.emit({"record": "smooth", "case": name, **asdict(case), **record, "missed": sentences})
        options.say(f"\n{name}: {case.kind}, q = {case.degree}, d = {', '.join(map(str, case.n_inputs))}\n")
        options.say(format_table(record["headers"], record["rows"]))
        if case.kind == "samples":
            options.say(f"\nsamples for a mean overlap of {case.target:g}: {record['ratio']:.2f} times fewer")
        missed += sentences
    return missed


def judge(case: Case, record: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each thing that was asked of a case and not reached."""
    if case.kind == "samples" and not record["ratio"] >= case.least_ratio:
        return [f"{record['ratio']:.2f} times fewer samples suffice, {case.least_ratio:g} are asked for."]
    if case.kind == "products":
        products, errors = record["products"], record["errors"]
        wrong = [f"{how} ended as {record['statuses'][how]}." for how in products if errors[how] > SAME]
        wrong += [
            f"{how} took {products[how]:g}, above {n}." for how, n in case.most.items() if products[how] > n
        ]
        return wrong + [
            f"{how} took {products[how]:g}, below {n}." for how, n in case.least.items() if products[how] < n
        ]
    return []


# ---- samples


def measure_samples(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return mean overlaps by samples and tau; called through `run_isolated`."""
    job = Case(**case)
    d, q = job.n_inputs[0], job.degree
    weights = alternating_weights(job.n_features, job.gamma)
    model = teacher(d, q, job.n_features, tau=job.teacher_tau, weights=weights, seed=seed)
    counts = [round(multiple * model.n_packed) for multiple in job.multiples]
    X, y = model.sample(max(counts), seed + 1, dtype=np.float32)
    metrics = [smoothness("path", q, tau, n_inputs=d) for tau in job.taus]
    found = []
    for n in counts:
        labelled = with_operator_labels(
            open_source((X[:n], y[:n])), q, "normalised", residualise=True, dtype="float32", seed=seed
        )[0]
        C = MomentOperator(labelled, degree=q, dtype="float32")
        found.append([_mean_overlap(model, C, metric, job) for metric in metrics])
    plain, smooth = np.array(found)[:, 0], np.array(found)[:, 1:].max(axis=1)
    needed = [samples_needed(counts, curve, job.target) for curve in (plain, smooth)]
    return {
        "ratio": needed[0] / needed[1],
        "needed": needed,
        "overlaps": found,
        "headers": ["n", *(f"tau = {tau:g}" for tau in job.taus)],
        "rows": [[str(n), *(f"{o:.3f}" for o in row)] for n, row in zip(counts, found, strict=True)],
    }


def _mean_overlap(model: HierarchicalModel, C: MomentOperator, metric: Any, case: Case) -> float:
    pairs = top_eigenpairs(C, case.n_features, metric=metric, tol=1e-3)
    return float(overlaps(pairs.eigenvectors.T, model.features_).mean())


def samples_needed(counts: Sequence[int], curve: Any, target: float) -> float:
    """Return where a curve first reaches the target, between counts by the logarithm.

    A curve that is there from the first count on gets that count; one that never is gets the last, so that
    the ratio to it is at least as large.
    """
    logs = np.log(np.asarray(counts, dtype=np.float64))
    reached = np.flatnonzero(np.asarray(curve) >= target)
    if not reached.size or reached[0] == 0:
        return float(counts[0] if reached.size else counts[-1])
    i = int(reached[0])
    share = (target - curve[i - 1]) / (curve[i] - curve[i - 1])
    return float(np.exp(logs[i - 1] + share * (logs[i] - logs[i - 1])))


# ---- products


def measure_products(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the products each solver and preconditioner takes; called through `run_isolated`."""
    job = Case(**case)
    d, q = job.n_inputs[0], job.degree
    model = HierarchicalModel(d, q, 6, seed=seed)
    X, y = model.sample(job.n_samples, seed + 1)
    C = MomentOperator(X, y, degree=q, label_transform="clip").to_dense()
    metric = smoothness("path", q, job.taus[0], n_inputs=d)
    reference = None
    record: dict[str, Any] = {"products": {}, "errors": {}, "statuses": {}, "rows": []}
    for method, kind in job.solves:
        start = time.perf_counter()
        pairs = top_eigenpairs(
            C,
            job.k,
            method=method,
            tol=job.tol,
            metric=metric,
            preconditioner=kind,
            max_passes=job.max_passes,
        )
        seconds = time.perf_counter() - start
        reference = pairs.eigenvalues if reference is None else reference
        how = f"{method}-{kind}"
        record["products"][how] = pairs.n_passes
        record["errors"][how] = float(np.abs(pairs.eigenvalues - reference).max() / pairs.norm)
        record["statuses"][how] = pairs.status.name
        row = [how, f"{pairs.n_passes:g}", pairs.status.name, f"{seconds:.1f}"]
        record["rows"].append([*row, f"{record['errors'][how]:.0e}"])
    return record | {"headers": ["solver", "products", "status", "seconds", "difference of values"]}


# ---- multigrid


def measure_setup(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return time and memory of the lift and of multigrid against D; called through `run_isolated`."""
    job = Case(**case)
    rng = np.random.default_rng(seed)
    preconditioner(smoothness("path", job.degree, 1.0, n_inputs=5), "amg")  # imports
    sizes, rows = [], []
    for d in job.n_inputs:
        memory, start = PeakMemory(), time.perf_counter()
        metric = smoothness("path", job.degree, job.taus[0], n_inputs=d)
        lifted = time.perf_counter()
        lift_bytes = memory.read()
        memory = PeakMemory()
        inverse = preconditioner(metric, "amg")
        ready = time.perf_counter()
        amg_bytes = memory.read()
        error = rng.standard_normal((metric.size, 1))
        applied = time.perf_counter()
        inverse(error)
        seconds = time.perf_counter() - applied
        sizes.append(metric.size)
        rows.append(
            [
                f"{metric.size}",
                f"{lifted - start:.2f}",
                size_text(lift_bytes),
                f"{ready - lifted:.2f}",
                size_text(amg_bytes),
                f"{1e3 * seconds:.1f}",
            ]
        )
    headers = ["D", "lift, s", "peak", "multigrid, s", "peak", "one cycle, ms"]
    return {"sizes": sizes, "headers": headers, "rows": rows}
