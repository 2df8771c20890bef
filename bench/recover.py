"""One case of the main job, in a process of its own: draw, solve, compare, time, write."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from matfree_hier import kernels
from matfree_hier.bench.main import RATE_VECTORS, SAFE_RATIO, Case
from matfree_hier.bench.measure import PeakMemory, Spread, blas_kernels, blas_product, time_interleaved
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.figures import plot_history, plot_recovery, plot_spectrum
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.recovery import overlaps
from matfree_hier.store import RunFile, provenance
from matfree_hier.theory import predict_spectrum, recovery_threshold

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from matfree_hier.result import EigenResult

RATE_ROWS = 65_536  # samples of the product that is timed against BLAS
THEORY_ROWS = 100_000  # samples whose means stand for expectations


def run_case(name: str, case: dict[str, Any], seed: int, out: str) -> dict[str, Any]:
    """Run one case in this process and write its files; called through `run_isolated`."""
    job = Case(**case)
    start = time.perf_counter()
    _say(f"{name}: compiling")
    # The whole job in miniature: what it compiles and imports is no part of the memory measured below.
    solve(replace(job, n_inputs=job.degree + 2, n_samples=500), seed, progress=False)
    _say(
        f"{name}: drawing {job.n_samples:,} samples of {job.n_inputs} inputs, solving at D = {job.n_packed:,}"
    )
    memory = PeakMemory()
    teacher, C, result, record = solve(job, seed, progress=True)
    record |= _evaluate(teacher, C, result)
    record["peak_bytes"] = memory.read()
    record["peak_bytes_beyond_data"] = record["peak_bytes"] - record["data_bytes"]
    _say(f"{name}: timing the product beside BLAS")
    record |= rate(C)
    record |= _write(name, job, seed, Path(out), C, result, record)
    seconds = record["seconds"]
    seconds["total"] = time.perf_counter() - start
    seconds["rest"] = seconds["total"] - seconds["sample"] - seconds["solve"]
    return record


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def solve(
    job: Case, seed: int, *, progress: bool
) -> tuple[HierarchicalModel, MomentOperator, EigenResult, dict[str, Any]]:
    """Draw the teacher and its samples and find the eigenpairs of largest |eigenvalue|."""
    clock = time.perf_counter()
    teacher = HierarchicalModel(job.n_inputs, job.degree, weights=job.weights, seed=seed)
    X, y = teacher.sample(job.n_samples, seed=seed + 1, dtype=job.dtype)
    sampled = time.perf_counter()
    C = MomentOperator(X, y, degree=job.degree, dtype=job.dtype, label_transform=job.label_transform)
    result = top_eigenpairs(
        C,
        k=job.n_features,
        method=job.method,
        tol=job.tol,
        max_passes=job.max_passes,
        seed=seed + 2,
        progress=progress,
    )
    solved = time.perf_counter()
    record = {
        "n_packed": job.n_packed,
        "data_bytes": X.nbytes + y.nbytes,
        "dense_bytes": 8 * job.n_inputs ** (2 * job.degree),
        "packed_bytes": 8 * job.n_packed**2,
        "n_passes": result.n_passes,
        "method": result.method,
        "status": result.status.value,
        "ok": result.status.ok,
        "largest_residual": float(result.residuals.max()),
        "seconds": {"sample": sampled - clock, "solve": solved - sampled},
    }
    return teacher, C, result, record


def _evaluate(teacher: HierarchicalModel, C: MomentOperator, result: EigenResult) -> dict[str, Any]:
    """Compare what was found with the teacher and with theory; one entry a feature."""
    t, latents, norms = _label_statistics(teacher, C)
    # The strength less what trace centring removes: with |F|^2/D in the place of 1, its mean over features.
    theta = t @ (latents**2 - norms[:, None]) / (len(t) * np.sqrt(2))
    second_moment = float(np.mean(t**2))
    thresholds = recovery_threshold(theta, C.shape[0], second_moment)
    predicted = predict_spectrum(t, C.n_samples, C.shape[0], latents, norms)
    found = overlaps(result.eigenvectors.T, teacher.features_)
    nearest = np.argmax((teacher.features_ @ result.eigenvectors) ** 2, axis=1)
    ratios = C.n_samples / thresholds
    features = [
        {
            "feature": k + 1,
            "weight": teacher.weights_[k],
            "theta": theta[k],
            "n_k": thresholds[k],
            "n_over_n_k": ratios[k],
            "qualifies": bool(ratios[k] >= SAFE_RATIO),
            "overlap": found[k],
            "predicted_overlap": predicted.overlaps[k],
            "eigenvalue": result.eigenvalues[nearest[k]],
            "predicted_eigenvalue": predicted.eigenvalues[k],
        }
        for k in range(teacher.n_features)
    ]
    return {
        "second_moment": second_moment,
        "bulk_edges": [predicted.edge_left, predicted.edge_right],
        "features": features,
    }


def _label_statistics(
    teacher: HierarchicalModel, C: MomentOperator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return t (m,), the true latents h (m, K) and |F|^2/D (m,) of the first samples."""
    rows = min(C.n_samples, THEORY_ROWS)
    X = np.ascontiguousarray(C.source.inputs(0, rows), dtype=np.float64)
    y = C.source.slice(0, rows).labels()
    t = y if C.label_transform is None else np.asarray(C.label_transform(y))
    norms = np.empty(rows)
    kernels.squared_norms(X, C.degree, norms)
    return t, teacher.latents(X), norms / C.shape[0]


def rate(C: MomentOperator, n_vectors: int = RATE_VECTORS) -> dict[str, Any]:
    """Time the product on part of the samples against a square BLAS product, round by round."""
    part = C.restricted(0, min(C.n_samples, RATE_ROWS))
    V = np.random.default_rng(n_vectors).standard_normal((C.shape[0], n_vectors)).astype(C.dtype)
    product, product_flops = blas_product(C.dtype.name)
    seconds = time_interleaved({"blas": product, "ours": lambda: part @ V}, repeats=5, pause=0.1)
    ours = 4.0 * part.n_samples * C.shape[0] * n_vectors / seconds["ours"]
    peak = product_flops / seconds["blas"]
    return {
        "gflops": Spread.of(ours / 1e9),
        "blas_gflops": Spread.of(peak / 1e9),
        "share": Spread.of(ours / peak),
        "blas": blas_kernels(),
    }


def _write(
    name: str,
    job: Case,
    seed: int,
    out: Path,
    C: MomentOperator,
    result: EigenResult,
    record: dict[str, Any],
) -> dict[str, str]:
    """Write the run file's run of this name, and the figure."""
    columns = {key: [f[key] for f in record["features"]] for key in record["features"][0]}
    recovery = {key: np.array(values) for key, values in columns.items()}
    history = result.history.to_arrays()
    spectrum = {k: v for k, v in result.to_arrays().items() if not k.startswith("history_")}
    made_by = provenance(
        asdict(job), seed=seed, shape=(C.n_samples, C.n_inputs), fingerprint=C.source.fingerprint()
    )
    with RunFile(out / "run.h5", name) as run:
        run.save("spectrum", spectrum)
        run.save_series("history", history)
        run.save("recovery", recovery)
        run.save("provenance", made_by)
    figure = out / f"{name}.png"
    draw(figure, job, result, recovery, record["bulk_edges"])
    return {"run_file": f"{out / 'run.h5'}::{name}", "figure": str(figure)}


def draw(
    path: Path,
    job: Case,
    result: EigenResult,
    recovery: dict[str, NDArray[Any]],
    edges: tuple[float, float],
) -> None:
    """Write the figure of one case: recovery, spectrum, convergence."""
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    plot_recovery(
        recovery["overlap"],
        samples_over_threshold=recovery["n_over_n_k"],
        predicted=recovery["predicted_overlap"],
        axes=left,
    )
    plot_spectrum(result.eigenvalues, predicted=recovery["predicted_eigenvalue"], edges=edges, axes=middle)
    plot_history(result.history, tol=job.tol, axes=right)
    figure.suptitle(
        f"q = {job.degree}, d = {job.n_inputs}, D = {job.n_packed:,}, n = {job.n_samples:,}; "
        f"labels: {job.label_transform}"
    )
    figure.savefig(path, dpi=130)
