"""Speed of the product with the moment operator, as a share of the BLAS peak and beside peers."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.measure import Spread, blas_kernels, blas_product, run_isolated, time_interleaved
from matfree_hier.bench.reference import (
    apply_in_chunks,
    apply_with_features,
    error_scale,
    gathered_features,
    hermite_features,
    polynomial_features,
)
from matfree_hier.operator import MomentOperator, adjoint, project
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from matfree_hier.bench.experiment import Options
    from matfree_hier.bench.reference import MakeFeatures

# Rounding of one sum, relative to the sum of absolute values behind it: above this an answer is wrong.
ACCURACY = {"float32": 2e-6, "float64": 1e-13}
COMPILE_SECONDS = 10.0
CHECK_BYTES = 3e8  # of float64 features in the comparison with the reference
FORMED_BYTES = 1e9  # of features formed once and kept, for the peer that does
PEER_CHUNKS = (256, 1024)  # samples at a time; the faster one counts
SEED = 7919


@dataclass(frozen=True)
class Case:
    """One product to time: degree q, d inputs, k vectors, dtype; what is asked of it, if anything."""

    degree: int
    n_inputs: int
    n_vectors: int
    dtype: str
    target: float | None = None
    peer_target: float | None = None
    gigaflops: float = 40.0  # work of one timed product; sets the number of samples
    repeats: int = 5

    @property
    def n_features(self) -> int:
        """D, the number of packed features."""
        return comb(self.n_inputs + self.degree - 1, self.degree)

    @property
    def n_samples(self) -> int:
        """Samples that make one product take ``gigaflops``, at least 256."""
        return max(256, round(self.gigaflops * 1e9 / self.flops(1)))

    def flops(self, n_samples: int) -> float:
        """Return 4 n D k, the operations of one product."""
        return 4.0 * n_samples * self.n_features * self.n_vectors


def run(options: Options) -> list[str]:
    """Run the cases, print the table, return the answers that were wrong."""
    missed, rows = [], []
    for name, table in options.cases.items():
        print(f"{name}: checking and timing", file=sys.stderr, flush=True)
        arguments = {"case": dict(table), "seed": SEED if options.seed is None else options.seed}
        record = run_isolated("matfree_hier.bench.throughput:run_case", arguments, threads=options.threads)
        options.emit({"record": "throughput", "case": name, **table, **record})
        rows.append(_row(name, Case(**table), record))
        if not record["accurate"]:
            missed.append(
                f"{name}: the product's error {record['error']:.1e} is above {record['error_bound']:.1e}, "
                "so it was not timed."
            )
        blas = record["blas"]
    headers = ["case", "GFLOP/s", "share of BLAS", "target", "forward", "backward"]
    headers += ["x NumPy", "target", "x blocks", "x formed", "x sklearn", "error"]
    options.say(format_table(headers, rows))
    options.say()
    options.say("share: 4 n D k operations a second over those of a 2000 x 2000 product, median (range) over")
    options.say(
        "interleaved rounds. x NumPy: times faster than NumPy that makes the features in chunks, by index"
    )
    options.say(
        "arrays, and multiplies; x blocks: the same, features made in blocks by the rule of our kernels;"
    )
    options.say(
        "x formed: features made once and kept, n D numbers of memory; x sklearn: its PolynomialFeatures."
    )
    options.say(f"BLAS: {'; '.join(blas)}; {counted(options.threads, 'thread')} everywhere.")
    _run_compilation(options, sorted({table["dtype"] for table in options.cases.values()}))
    return missed


def _row(name: str, case: Case, record: dict[str, Any]) -> list[str]:
    if not record["accurate"]:
        return [name, *["inaccurate"] * 10, f"{record['error']:.1e}"]
    share, peers = record["share"], record["times_faster"]

    return [
        name,
        f"{record['gflops']['median']:.1f}",
        f"{Spread(**share):.2f}",
        _judged(share["median"], case.target),
        f"{record['forward_share']['median']:.2f}",
        f"{record['backward_share']['median']:.2f}",
        f"{peers['numpy']:.1f}",
        _judged(peers["numpy"], case.peer_target),
        f"{peers['numpy_blocks']:.1f}",
        f"{peers['numpy_formed']:.1f}",
        f"{peers['sklearn']:.1f}",
        f"{record['error']:.1e}",
    ]


def _judged(value: float, target: float | None) -> str:
    if target is None:
        return "-"
    return f"{target:g} {'met' if value >= target else 'missed'}"


def run_case(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """Check and time one case in this process; called through `run_isolated`."""
    job = Case(**case)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((job.n_samples, job.n_inputs)).astype(job.dtype)
    y = rng.standard_normal(job.n_samples)
    V = rng.standard_normal((job.n_features, job.n_vectors)).astype(job.dtype)
    bound = ACCURACY[job.dtype]
    error = _product_error(job, X, y, V)
    record: dict[str, Any] = {
        "n_samples": job.n_samples,
        "n_features": job.n_features,
        "error": error,
        "error_bound": bound,
        "accurate": bool(error <= bound),
        "blas": blas_kernels(),
    }
    if not record["accurate"]:
        return record
    C = MomentOperator(X, y, degree=job.degree, dtype=job.dtype, center_trace=False)
    t = y.astype(job.dtype)
    # The sums over all samples too, two columns of them, agree with NumPy's to the rounding of the dtype.
    chunked = apply_in_chunks(X, t, np.ascontiguousarray(V[:, :2]), job.degree, PEER_CHUNKS[0])
    difference = float(np.abs((C @ V)[:, :2] - chunked).max() / np.abs(chunked).max())
    if difference > 1e3 * bound:
        return record | {"accurate": False, "error": difference, "error_bound": 1e3 * bound}
    return record | _shares(job, C, V) | _peers(job, X, t, V, C)


def _product_error(job: Case, X: Any, y: Any, V: Any) -> float:
    """Compare on a few thousand samples with NumPy in float64, relative to the sums of absolute values."""
    rows = int(max(64, min(len(X), CHECK_BYTES / (8 * job.n_features))))
    X, y, few = X[:rows], y[:rows], V[:, :3]
    C = MomentOperator(X, y, degree=job.degree, dtype=job.dtype, center_trace=False)
    exact = (X.astype(np.float64), y, few.astype(np.float64), job.degree)
    reference = apply_in_chunks(*exact, rows=rows)
    product = (C @ V)[:, :3]
    return float(np.abs(product - reference).max() / error_scale(*exact))


def _shares(job: Case, C: Any, V: Any) -> dict[str, Any]:
    """Time the whole product and its halves against BLAS, round by round."""
    product, product_flops = blas_product(job.dtype)
    G = np.random.default_rng(SEED).standard_normal((job.n_samples, job.n_vectors)).astype(job.dtype)
    seconds = time_interleaved(
        {
            "blas": product,
            "whole": lambda: C @ V,
            "forward": lambda: project(C.source, V, job.degree, job.dtype),
            "backward": lambda: adjoint(C.source, G, job.degree, job.dtype),
        },
        repeats=job.repeats,
        pause=0.1,
    )
    peak = product_flops / seconds["blas"]
    flops = job.flops(job.n_samples)
    return {
        "blas_gflops": Spread.of(peak / 1e9).to_record(),
        "gflops": Spread.of(flops / seconds["whole"] / 1e9).to_record(),
        "share": Spread.of(flops / seconds["whole"] / peak).to_record(),
        "forward_share": Spread.of(flops / 2 / seconds["forward"] / peak).to_record(),
        "backward_share": Spread.of(flops / 2 / seconds["backward"] / peak).to_record(),
    }


def _peers(job: Case, X: Any, t: Any, V: Any, C: Any) -> dict[str, Any]:
    """Time peers on fewer samples (their time is linear in n), beside our product on all of them."""
    item = np.dtype(job.dtype).itemsize
    calls: dict[str, Callable[[], object]] = {"ours": lambda: C @ V}
    samples = {"ours": job.n_samples}

    def in_chunks(name: str, rows: int, chunk: int, make_features: MakeFeatures) -> None:
        samples[name] = min(rows, len(X))
        calls[name] = partial(apply_in_chunks, X[:rows], t[:rows], V, job.degree, chunk, make_features)

    for chunk in PEER_CHUNKS:
        in_chunks(f"gather {chunk}", 2048, chunk, gathered_features)
        in_chunks(f"blocks {chunk}", 4096, chunk, hermite_features)
    in_chunks("sklearn", 1024, PEER_CHUNKS[0], polynomial_features)
    formed = int(min(4096, len(X), FORMED_BYTES // (item * job.n_features)))
    features = hermite_features(X[:formed], job.degree)
    calls["formed"], samples["formed"] = lambda: apply_with_features(features, t[:formed], V), formed

    seconds = time_interleaved(calls, repeats=3, pause=0.1)
    each = {name: float(np.median(values)) / samples[name] for name, values in seconds.items()}
    times = {name: value / each["ours"] for name, value in each.items()}
    return {
        "seconds": each["ours"] * job.n_samples,
        "times_faster": {
            "numpy": min(times[f"gather {chunk}"] for chunk in PEER_CHUNKS),
            "numpy_blocks": min(times[f"blocks {chunk}"] for chunk in PEER_CHUNKS),
            "numpy_formed": times["formed"],
            "sklearn": times["sklearn"],
        },
        "formed_bytes": item * job.n_features * job.n_samples,
    }


# ---- compile time


def _run_compilation(options: Options, dtypes: list[str]) -> None:
    """Time the first product of a process without and with numba's cache, a process for each."""
    rows = []
    for dtype in dtypes:
        print(f"{dtype}: compiling in an empty cache", file=sys.stderr, flush=True)
        record: dict[str, Any] = {"record": "compilation", "dtype": dtype}
        with tempfile.TemporaryDirectory() as cache:
            for start in ("first", "second"):
                seconds = run_isolated(
                    "matfree_hier.bench.throughput:time_first_product",
                    {"dtype": dtype, "spawned": time.time()},
                    threads=options.threads,
                    environment={"NUMBA_CACHE_DIR": cache},
                )
                record |= {f"{start}_{key}": value for key, value in seconds.items()}
        options.emit(record)
        first, second = record["first_compile_seconds"], record["second_compile_seconds"]
        target = f"{COMPILE_SECONDS:g} {'met' if first <= COMPILE_SECONDS else 'missed'}"
        rows.append(
            [dtype, f"{first:.2f}", target, f"{second:.2f}", f"{record['second_import_seconds']:.2f}"]
        )
    options.say()
    options.say(format_table(["compile", "first start, s", "target", "second start, s", "import, s"], rows))


def time_first_product(dtype: str, spawned: float) -> dict[str, Any]:
    """Time what came since the process was spawned, and the first product beyond what it takes again."""
    imports = time.time() - spawned
    start = time.perf_counter()
    X = np.random.default_rng(SEED).standard_normal((512, 6)).astype(dtype)
    C = MomentOperator(X, X[:, 0] * X[:, 1], degree=3, dtype=dtype)
    V = np.ones((C.shape[0], 16), dtype)
    C @ V
    first = time.perf_counter()
    C @ V
    again = time.perf_counter() - first
    return {"import_seconds": imports, "compile_seconds": first - start - again}
