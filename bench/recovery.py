"""Recovery: the overlap of each feature against the number of samples, beside what theory predicts.

Features are compared one by one with the span found (the paper's A.3) and never sorted: that strong ones come
first is a result. Theory is the resolvent of the labels and norms that the features have at finite d
(`theory.predict_spectrum`); the law of large n/D for Gaussian features stands beside it in the table.

Where the law is compared, labels are normalised (ranks less what |x| tells of them, over |F(x)|^2): no
sample then weighs much more than another, as the law for Gaussian features has it. With the paper's t = y,
labels and norms are heavy-tailed at finite d, and samples of large |y| |F(x)|^2 have eigenvalues of their
own. At d = 120, gamma = .4, n/D = 32 these lie among those of the features and take their places: of 11
features the last five have overlaps of .02 or less (the law: .51 to .67), at n/D = 64 the last two. A wider
span does not bring them back: the worst feature is .63 below the law in the span of 11 vectors, .56 in that
of 22, .49 in that of 32. The resolvent knows such samples only as part of the bulk, and is right once their
eigenvalues, which fall as 1/n, are below those of all features: at n/D = 128 all are found.
"""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from matfree_hier import packing, report, theory
from matfree_hier.bench.experiment import format_table
from matfree_hier.bench.grid import Check, Entry, Grid, Summary, columns_of, run_grid, solved
from matfree_hier.bench.measure import to_json
from matfree_hier.eigen import top_eigenpairs
from matfree_hier.labels import input_sizes
from matfree_hier.model import HierarchicalModel
from matfree_hier.operator import MomentOperator
from matfree_hier.recovery import overlaps
from matfree_hier.report import grid_of
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from matfree_hier.bench.experiment import Options
    from matfree_hier.bench.grid import Case, Point

    Array = NDArray[np.float64]

THEORY_SAMPLES = 40_000  # of their own: their means stand for expectations
MODEL = ("degree", "n_inputs", "n_features", "gamma", "link", "label_transform", "tol")
DEFAULTS = {"link": "identity", "label_transform": "clip", "tol": 1e-3}


def points(case: Case) -> list[Point]:
    """Return a point for each number of samples, ``ratios`` times D."""
    model = {name: case[name] for name in MODEL if name in case}
    size = n_packed(case)
    return [DEFAULTS | model | {"n_samples": round(ratio * size)} for ratio in case["ratios"]]


def compute(point: Point, seed: int) -> dict[str, Any]:
    """Draw teacher and samples, find as many eigenvectors as there are features, compare and predict."""
    teacher, C = draw(point, seed)
    found = solved(
        top_eigenpairs(C, k=point["n_features"], tol=point["tol"], stop="outliers", seed=seed, progress=False)
    )
    return {
        "weight": np.array(teacher.weights_),
        "overlap": overlaps(found.eigenvectors.T, teacher.features_),
        "n_passes": found.n_passes,
    } | predict(teacher, C, seed)


def n_packed(point: Point) -> int:
    """Return D."""
    return packing.n_packed(point["n_inputs"], point["degree"])


def draw(point: Point, seed: int) -> tuple[HierarchicalModel, MomentOperator]:
    """Return the teacher of a seed and the moment operator of its samples."""
    teacher = HierarchicalModel(
        point["n_inputs"],
        point["degree"],
        n_features=point["n_features"],
        gamma=point["gamma"],
        link=point["link"],
        seed=seed,
    )
    X, y = teacher.sample(point["n_samples"], seed=seed, dtype=np.float32)
    transform = None if point["label_transform"] == "identity" else point["label_transform"]
    return teacher, MomentOperator(X, y, degree=point["degree"], dtype="float32", label_transform=transform)


def predict(teacher: HierarchicalModel, C: MomentOperator, seed: int) -> dict[str, Any]:
    """Return what theory says of each feature, from means over samples that the operator does not have.

    ``predicted`` is the resolvent's overlap, ``law`` that of large n/D with Gaussian features.
    """
    t, h, norms = population(teacher, C, seed)
    centre = 1.0 if norms is None else norms[:, None]
    theta = t @ (h**2 - centre) / (len(t) * np.sqrt(2))  # of the trace-centred operator
    second_moment = float(np.mean(t**2))
    expected = theory.predict_spectrum(t, C.n_samples, teacher.n_packed, h, norms)
    return {
        "n_k": theory.recovery_threshold(theta, teacher.n_packed, second_moment),
        "predicted": expected.overlaps,
        "law": theory.overlap(theta, C.n_samples, teacher.n_packed, second_moment, t**2 @ h**2 / len(t)),
    }


def population(teacher: HierarchicalModel, C: MomentOperator, seed: int) -> tuple[Array, Array, Array | None]:
    """Return transformed labels (N,), latents (N, K) and |F|^2/D (N,) of samples of their own.

    The last is None for degree 1: x is exactly Gaussian, and theory knows how Gaussian vectors vary.
    """
    X, y = teacher.sample(THEORY_SAMPLES, seed=seed + 500_000)
    sizes = input_sizes(X, teacher.degree)
    t = y if C.label_transform is None else C.label_transform(y, sizes)
    return t, teacher.latents(X), None if teacher.degree == 1 else sizes.norms


def cost(point: Point) -> float:
    """Return what is in proportion to the time: n D for blocks of one width."""
    return float(point["n_samples"]) * n_packed(point)


def table(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a line for each number of samples, seed and feature."""
    columns = ("weight", "n_k", "overlap", "predicted", "law")
    return [
        {"n": point["n_samples"], "seed": seed, "feature": k + 1}
        | {name: float(values[name][k]) for name in columns}
        for point, seed, values in entries
        for k in range(point["n_features"])
    ]


def summarise(case: Case, entries: list[Entry]) -> Summary:
    """Return the table of all overlaps, the distances to theory, and the figure."""
    rows = table(entries)
    columns = columns_of(rows)
    n, found = grid_of(columns, "overlap")
    size = n_packed(case)
    mean, predicted, law = (
        grid_of(columns, name)[1].mean(axis=0) for name in ("overlap", "predicted", "law")
    )
    far = n / size >= case.get("compared_from", 0.0) - 1e-9
    distance = np.abs(mean - predicted)
    lines = [
        title(case),
        "",
        format_table(
            ["n / D", *(f"k = {k + 1}" for k in range(found.shape[2])), "largest distance", "to the law"],
            [
                [f"{ratio:.3g}", *(f"{o:.3f} ({p:.3f})" for o, p in zip(mean[i], predicted[i], strict=True)),
                 f"{distance[i].max():.3f}", f"{np.abs(mean - law)[i].max():.3f}"]
                for i, ratio in enumerate(n / size)
            ],
        ),
        "",
        "squared overlap of feature k, mean over seeds, and (predicted); the law is 1 - n_k/n in its sharper",
        "form, for Gaussian features and large n/D.",
    ]  # fmt: skip
    checks = _distances(case, "max_distance", "predicted", mean[far], predicted[far])
    checks += _distances(case, "max_distance_to_law", "law", mean[far], law[far])
    checks += _disorder(case, found[:, far], grid_of(columns, "n_k")[1][:, far])
    return Summary(rows, lines, checks, {"recovery": _figure(case, columns)})


def title(case: Case) -> str:
    """Return the parameters of a scenario in one line."""
    size = n_packed(case)
    labels = case.get("label_transform", DEFAULTS["label_transform"])
    link = case.get("link", "identity")
    return (
        f"q = {case['degree']}, d = {case['n_inputs']}, D = {size:,}, gamma = {case['gamma']:g}, "
        f"{counted(case['n_features'], 'feature')}, {counted(case['seeds'], 'seed')}, "
        f"link: {link}, labels: {labels}"
    )


def _where(case: Case) -> str:
    return f"n/D >= {case.get('compared_from', 0.0):g}"


def _distances(case: Case, bound: str, expected: str, mean: Array, predicted: Array) -> list[Check]:
    """Return how far mean overlaps (m, K) may be from those of a theory, if the scenario asks by `bound`."""
    if bound not in case:
        return []
    least = case.get("compared_overlap", 0.0)
    distance = np.abs(mean - predicted)[predicted >= least]
    what = f"largest |mean overlap - {expected}|, {_where(case)}"
    if least:
        what += f", features predicted above {least:g}"
    return [Check(what, float(distance.max(initial=0.0)), case[bound])]


def _disorder(case: Case, found: Array, n_k: Array) -> list[Check]:
    """Return how far a feature may be above one that comes before it, if the scenario asks.

    Overlaps and thresholds are (seeds, m, K). Features come in order of |lambda|; with ``order =
    "threshold"`` in order of n_k in each seed, which theory has from samples of its own: a link that is not
    odd gives features of equal |lambda| and different sign different thresholds.
    """
    if "max_disorder" not in case:
        return []
    what = "a weaker feature"
    if case.get("order") == "threshold":
        found = np.take_along_axis(found, np.argsort(n_k, axis=2), axis=2)
        what = "a feature of a higher threshold n_k"
    mean = found.mean(axis=0)
    rise = float((mean - np.minimum.accumulate(mean, axis=1)).max())
    what = f"largest rise of the mean overlap to {what}, {_where(case)}"
    return [Check(what, rise, case["max_disorder"])]


def _figure(case: Case, columns: dict[str, Any]) -> Figure:
    """Draw the transition and its collapse; for one number of samples, overlap by n / n_k."""
    run = {"table": columns, "about": {"scenario": to_json(case)}}
    if len(np.unique(columns["n"])) == 1:
        figure, heading = report.plot_recovery(run), fill(title(case), 60)
    else:
        figure, heading = Figure(figsize=(12, 4.8), layout="constrained"), title(case)
        left, right = figure.subplots(1, 2)
        report.plot_recovery(run, axes=left)
        report.plot_collapse(run, axes=right)
    figure.suptitle(heading, fontsize=10)
    return figure


GRID = Grid("recovery", points, compute, summarise, cost)


def run(options: Options) -> list[str]:
    """Run the scenarios; see `grid.run_grid`."""
    return run_grid(GRID, options)
