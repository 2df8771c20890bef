"""The main job: recover a teacher's features where the moment matrix could never be formed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from matfree_hier.bench.experiment import format_table, size_text
from matfree_hier.bench.measure import Spread, run_isolated, total_memory

if TYPE_CHECKING:
    from matfree_hier.bench.experiment import Options
    from matfree_hier.eigen import Method

SAFE_RATIO = 4.0  # from n = 4 n_k on, a feature counts
MIN_OVERLAP = 0.6  # and has to be found at least this well
SEED = 2_605_145
RATE_VECTORS = 16  # of the product that is timed against BLAS


@dataclass(frozen=True)
class Case:
    """A teacher, a number of samples, a solve, and what the outcome has to be."""

    degree: int
    n_inputs: int
    n_samples: int
    n_features: int
    gamma: float
    label_transform: str = "clip"
    dtype: str = "float32"
    method: Method = "krylov"
    tol: float = 1e-3
    max_passes: int = 100
    min_qualifying: int = 3
    min_top_overlap: float = 0.0
    max_bytes_beyond_data: int | None = None

    @property
    def n_packed(self) -> int:
        """D."""
        return comb(self.n_inputs + self.degree - 1, self.degree)

    @property
    def weights(self) -> list[float]:
        """lambda_k."""
        return alternating_weights(self.n_features, self.gamma)


def alternating_weights(n_features: int, gamma: float) -> list[float]:
    """Return lambda_k in proportion to k^-gamma, squares adding to 1, signs alternating.

    Alternating, so that both ends of the spectrum are in use whatever the seed; features of one sign
    make the labels skew, and need about twice as many samples.
    """
    size = sum(k ** (-2 * gamma) for k in range(1, n_features + 1)) ** 0.5
    return [(-1) ** (k + 1) * k**-gamma / size for k in range(1, n_features + 1)]


def run(options: Options) -> list[str]:
    """Run the cases, print their tables, return what they missed."""
    missed: list[str] = []
    for name, table in options.cases.items():
        arguments = {
            "name": name,
            "case": dict(table),
            "seed": SEED if options.seed is None else options.seed,
            "out": str(options.out),
        }
        record = run_isolated("matfree_hier.bench.recover:run_case", arguments, threads=options.threads)
        case = Case(**table)
        sentences = judge(name, case, record)
        options.emit({"record": "main", "case": name, **asdict(case), **record, "missed": sentences})
        options.say(report(name, case, record))
        missed += sentences
    return missed


def judge(name: str, case: Case, record: dict[str, Any]) -> list[str]:
    """Return a sentence for each thing that was asked of a case and not reached."""
    features = record["features"]
    qualifying = [f for f in features if f["qualifies"]]
    missed = []
    if len(qualifying) < case.min_qualifying:
        missed.append(
            f"{name}: {len(qualifying)} features have n >= {SAFE_RATIO:g} n_k, at least "
            f"{case.min_qualifying} are needed."
        )
    missed += [
        f"{name}: feature {f['feature']} has squared overlap {f['overlap']:.3f} at n = {f['n_over_n_k']:.1f} "
        f"n_k, at least {MIN_OVERLAP} is needed."
        for f in qualifying
        if not f["overlap"] >= MIN_OVERLAP
    ]
    if features[0]["overlap"] < case.min_top_overlap:
        missed.append(
            f"{name}: the first feature has squared overlap {features[0]['overlap']:.3f}, at least "
            f"{case.min_top_overlap} is needed."
        )
    beyond, limit = record["peak_bytes_beyond_data"], case.max_bytes_beyond_data
    if limit is not None and beyond > limit:
        missed.append(
            f"{name}: {size_text(beyond)} of memory beyond the data, the limit is {size_text(limit)}."
        )
    if not record["ok"]:
        missed.append(f"{name}: {record['status']}")
    return missed


def report(name: str, case: Case, record: dict[str, Any]) -> str:
    """Return the text of one case: the features, then cost and memory."""
    rows = [
        [
            str(f["feature"]),
            f"{f['weight']:+.3f}",
            f"{f['n_k']:,.0f}",
            f"{f['n_over_n_k']:.1f}",
            f"{f['overlap']:.3f}",
            _number(f["predicted_overlap"], ".3f"),
            f"{f['eigenvalue']:+.4f}",
            _number(f["predicted_eigenvalue"], "+.4f"),
            ("found" if f["overlap"] >= MIN_OVERLAP else "MISSED") if f["qualifies"] else "-",
        ]
        for f in record["features"]
    ]
    headers = ["feature", "lambda", "n_k", "n/n_k", "overlap^2", "predicted", "eigenvalue", "predicted"]
    headers.append(f"n >= {SAFE_RATIO:g} n_k")
    title = (
        f"{name}: q = {case.degree}, d = {case.n_inputs}, D = {case.n_packed:,}, n = {case.n_samples:,} "
        f"({case.n_samples / case.n_packed:.3g} D), {case.dtype}, labels: {case.label_transform}"
    )
    facts = [f"{label:<22} {text}" for label, text in _facts(record).items()]
    return "\n".join(["", title, "", format_table(headers, rows), "", *facts])


def _facts(record: dict[str, Any]) -> dict[str, str]:
    """Return what a case cost, a line each."""
    seconds, memory = record["seconds"], total_memory()
    low, high = record["bulk_edges"]
    share = Spread(**record["share"])
    return {
        "bulk, predicted": f"{low:+.4f} to {high:+.4f} (predictions use the measured labels and norms)",
        "passes over the data": f"{record['n_passes']:.4g} in {seconds['solve']:.1f} s by "
        f"{record['method']}, largest residual {record['largest_residual']:.1e} ||C||",
        f"C @ V of {RATE_VECTORS} vectors": f"{record['gflops']['median']:.1f} GFLOP/s, {share:.2f} of the "
        f"BLAS peak of {record['blas_gflops']['median']:.1f} GFLOP/s",
        "BLAS": "; ".join(record["blas"]),
        "peak memory": f"{size_text(record['peak_bytes'])}: data {size_text(record['data_bytes'])}, "
        f"beyond them {size_text(record['peak_bytes_beyond_data'])}",
        "a dense matrix": f"{size_text(record['dense_bytes'])} (d^q x d^q), "
        f"{size_text(record['packed_bytes'])} (packed, D x D)"
        + ("" if memory is None else f"; this machine has {size_text(memory)}"),
        "time": f"{seconds['total']:.1f} s: samples {seconds['sample']:.1f}, solve {seconds['solve']:.1f}, "
        f"the rest {seconds['rest']:.1f}",
        "status": record["status"],
        "written": f"{record['run_file']}, {record['figure']}",
    }


def _number(value: float | None, spec: str) -> str:
    return "none" if value is None else format(value, spec)
