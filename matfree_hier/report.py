"""Figures of stored runs, and the page that shows a run: ``python -m matfree_hier report RUN``.

A run is what a run file holds: a fit, a solve of `top_eigenpairs`, a spectral density, or an experiment of
``matfree_hier.bench``. Functions take ``PATH``, ``PATH::NAME``, or the groups themselves, a mapping of
names to dicts of values, so that results that were never stored can be drawn too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from matfree_hier import figures
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.packing import product_text
from matfree_hier.page import Section, Table, page
from matfree_hier.result import History
from matfree_hier.status import RunFileError, Status
from matfree_hier.store import RunFile
from matfree_hier.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Groups: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The groups of a run by name, each the values it holds."""
Run: TypeAlias = str | os.PathLike[str] | Groups
"""A run file's path, ``PATH::NAME``, or its groups."""

_TERMS = 4  # products shown of a feature


def read_run(run: Run) -> Groups:
    """Return the groups of a run by name.

    Parameters
    ----------
    run : path or mapping
        ``PATH``, ``PATH::NAME``, or groups, which are returned as they are. A path without a name takes the
        run called "run", or the only one in the file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    RunFileError
        If it is damaged, or holds no run of that name.
    """
    if isinstance(run, Mapping):
        return run
    path, name = RunFile.parse(run)
    with RunFile(path, name, mode="r") as file:
        names = file.names()
        groups = {group: file.load(group) for group in file.groups()}
    if groups:
        return groups
    if "::" not in os.fspath(run) and len(names) == 1:
        return read_run(f"{path}::{names[0]}")
    msg = f"`{path}` holds no run {name}, it has {', '.join(names)}: name one as {path}::NAME."
    raise RunFileError(msg)


# --- figures -----------------------------------------------------------------------------------------------


def plot_spectrum(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the eigenvalues of a fit or a solve by rank; see `figures.plot_spectrum`.

    Raises
    ------
    RunFileError
        If the run holds no spectrum.
    """
    groups = read_run(run)
    predicted = groups.get("recovery", {}).get("predicted_eigenvalue")
    return figures.plot_spectrum(_spectrum(groups)["eigenvalues"], predicted=predicted, axes=axes)


def plot_history(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the residuals of a fit's solve or of a solve by pass; see `figures.plot_history`.

    Raises
    ------
    RunFileError
        If the run holds no history.
    """
    return figures.plot_history(_history(read_run(run)), axes=axes)


def plot_recovery(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw how well each feature was recovered.

    Parameters
    ----------
    run : path or mapping
        A run of the bench's main job, whose group ``recovery`` has the columns ``overlap`` and, if known,
        ``n_over_n_k`` and ``predicted_overlap``: see `figures.plot_recovery`. Or a run with a group ``table``
        of a line for each number of samples, seed and feature, with the columns ``n``, ``seed``,
        ``feature``, ``overlap`` and, if known, ``predicted`` and ``n_k``: see `figures.plot_transition`.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds neither.
    """
    groups = read_run(run)
    if "recovery" in groups:
        found = groups["recovery"]
        return figures.plot_recovery(
            found["overlap"],
            samples_over_threshold=found.get("n_over_n_k"),
            predicted=found.get("predicted_overlap"),
            axes=axes,
        )
    table = _required(groups, "table", "recovery")
    n, overlaps = grid_of(table, "overlap")
    predicted = thresholds = None
    if "predicted" in table:
        predicted = (n, grid_of(table, "predicted")[1].mean(axis=0))
    if "n_k" in table:
        thresholds = grid_of(table, "n_k")[1][:, -1].mean(axis=0)  # known best where samples are many
    return figures.plot_transition(n, overlaps, predicted=predicted, thresholds=thresholds, axes=axes)


def plot_collapse(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw squared overlaps against n / n_k; `run` has a table as in `plot_recovery`, with ``n_k``.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    table = _required(read_run(run), "table", "recovery")
    n, overlaps = grid_of(table, "overlap")
    thresholds = grid_of(table, "n_k")[1].mean(axis=0)
    return figures.plot_collapse(n[:, None] / thresholds, overlaps, axes=axes)


def plot_density(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw a spectral density, stored as ``run.save("density", density.to_arrays())``.

    Raises
    ------
    RunFileError
        If the run holds no density.
    """
    found = _required(read_run(run), "density", "spectral density")
    return figures.plot_density(
        found["grid"],
        found["density"],
        standard_errors=found["standard_errors"],
        outliers=found["outliers"],
        axes=axes,
    )


def grid_of(table: Mapping[str, Any], column: str) -> tuple[Any, Any]:
    """Return the numbers of samples (m,) and a column as an array (seeds, m, features).

    Parameters
    ----------
    table : mapping of str to array_like
        Columns ``n``, ``seed``, ``feature`` and others, a line for each combination, in any order.
    column : str

    Raises
    ------
    ValueError
        If a combination is missing or occurs twice.
    """
    axes, places = zip(
        *(np.unique(np.asarray(table[name]), return_inverse=True) for name in ("seed", "n", "feature")),
        strict=True,
    )
    values = np.full([len(axis) for axis in axes], np.nan)
    shape = tuple(len(axis) for axis in axes)
    flat = np.ravel_multi_index(tuple(np.asarray(place).reshape(-1) for place in places), shape)
    if len(flat) != values.size or len(np.unique(flat)) != values.size:
        msg = (
            f"`table` must have one line for each of {shape[0]} seeds, {shape[1]} numbers of samples and "
            f"{shape[2]} features, got {len(flat)} lines."
        )
        raise ValueError(msg)
    values.flat[flat] = np.asarray(table[column], dtype=np.float64)
    return axes[1], values


def _required(groups: Groups, name: str, what: str) -> Mapping[str, Any]:
    if name not in groups:
        msg = f"The run holds no {what}; it has the groups {', '.join(sorted(groups))}."
        raise RunFileError(msg)
    return groups[name]


def _spectrum(groups: Groups) -> Mapping[str, Any]:
    if "model" in groups:
        spectrum: Mapping[str, Any] = groups["model"]["spectrum"]
        return spectrum
    return _required(groups, "spectrum", "spectrum")


def _history(groups: Groups) -> History:
    for name in ("spectrum_history", "history"):
        if name in groups:
            return History.from_arrays(groups[name])
    spectrum = _spectrum(groups)
    prefix = "history_"
    return History.from_arrays(
        {name.removeprefix(prefix): values for name, values in spectrum.items() if name.startswith(prefix)}
    )


# --- the page ----------------------------------------------------------------------------------------------


def run_page(run: str | os.PathLike[str]) -> str:
    """Return a self-contained HTML page of a run: what it found, its figures, parameters and versions.

    Parameters
    ----------
    run : path
        ``PATH`` or ``PATH::NAME``.

    Raises
    ------
    FileNotFoundError, RunFileError
        If there is no such run, or it holds nothing that can be shown.
    """
    groups = read_run(run)
    if "model" in groups:
        sections = _fit_sections(run, groups)
    else:
        sections = [build(groups) for name, build in _SECTIONS.items() if name in groups]
    if not sections:
        msg = f"`{os.fspath(run)}` holds nothing to report; its groups are {', '.join(sorted(groups))}."
        raise RunFileError(msg)
    return page(f"matfree_hier: {os.path.basename(os.fspath(run))}", sections, _versions(groups))


def _fit_sections(run: str | os.PathLike[str], groups: Groups) -> list[Section]:
    # Functions are not stored: where the link was one, nothing that is shown here calls it.
    linked = groups["model"]["link"] == "callable"
    model = HierarchicalSpectralRegressor.load(run, link=np.positive if linked else None)
    report, made = model.report_, groups["model_provenance"]
    features = [
        {"feature": k, "weight": a, "slope": b, "largest products": _products(model, k)}
        for k, (a, b) in enumerate(zip(report.weights, report.slopes, strict=True))
    ]
    tables = {"features": Table.of(features), "eigenpairs": _pairs(groups["model"]["spectrum"])}
    if "held_out" in groups:
        held_out = groups["held_out"]
        scores = [{"model": name, "R^2": value} for name, value in held_out["r2"].items()]
        tables = {f"rows held out of the fit: {held_out['n_rows']}": Table.of(scores)} | tables
    asked = {name: value for name, value in made["arguments"].items() if name != "run_file"}  # this one
    parameters = asked | {"seed": made["seed"], "data": made["fingerprint"]}
    lines = [*report.summary().split("\n"), *report.recovery.lines()]
    drawn = {"features": report.plot()} | _solve_figures(groups)
    return [Section("Fit", parameters, lines, figures=drawn, tables=tables)]


def _products(model: HierarchicalSpectralRegressor, k: int) -> str:
    return "  ".join(product_text(*term) for term in model.top_terms(k, _TERMS))


def _solve_section(groups: Groups) -> Section:
    spectrum = groups["spectrum"]
    sentence = f"{Status[spectrum['status']].value} {spectrum['message']}".strip()
    lines = [
        sentence,
        f"{counted(spectrum['n_passes'], 'pass', '.4g')} over the data by {spectrum['method']}",
    ]
    return Section(
        "Eigenpairs",
        _asked(groups),
        lines,
        figures=_solve_figures(groups),
        tables={"eigenpairs": _pairs(spectrum)},
    )


def _asked(groups: Groups) -> Mapping[str, Any]:
    """Return the parameters of a solve or of the bench's main job."""
    if "spectrum_configuration" in groups:
        configuration: Mapping[str, Any] = groups["spectrum_configuration"]["configuration"]
        return configuration
    made = groups.get("provenance", {})
    identity = {name: made[name] for name in ("seed", "fingerprint") if name in made}
    return {**made.get("arguments", {}), **identity}


def _recovery_section(groups: Groups) -> Section:
    table = Table.of(_rows(groups["recovery"]))
    return Section("Recovery", figures={"recovery": plot_recovery(groups)}, tables={"features": table})


def _density_section(groups: Groups) -> Section:
    found = groups["density"]
    low, high = found["bulk_edges"]
    lines = [
        f"bulk from {low:.5g} to {high:.5g}; {counted(len(found['outliers']), 'outlier')}",
        f"D = {found['size']}, {counted(found['n_passes'], 'pass', '.4g')} over the data",
    ]
    return Section("Spectral density", lines=lines, figures={"density": plot_density(groups)})


def _table_section(groups: Groups) -> Section:
    table, about = groups["table"], groups.get("about", {})
    scenario = json.loads(about["scenario"]) if "scenario" in about else {}
    drawn = {}
    if {"n", "seed", "feature", "overlap"} <= table.keys():
        drawn["recovery"] = plot_recovery(groups)
        if "n_k" in table:
            drawn["collapse"] = plot_collapse(groups)
    title = str(about.get("experiment", "Results"))
    return Section(title, scenario, figures=drawn, tables={"results": Table.of(_rows(table))})


_SECTIONS: Mapping[str, Callable[[Groups], Section]] = {
    "spectrum": _solve_section,
    "recovery": _recovery_section,
    "density": _density_section,
    "table": _table_section,
}


def _solve_figures(groups: Groups) -> dict[str, Figure]:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    drawn = 0
    if np.any(_spectrum(groups)["eigenvalues"]):
        plot_spectrum(groups, axes=left)
        drawn += 1
    history = _history(groups)
    if len(history):
        figures.plot_history(history, axes=right)
        drawn += 1
    return {"spectrum and convergence": figure} if drawn == 2 else {}


def _pairs(spectrum: Mapping[str, Any]) -> Table:
    columns = {"eigenvalue": spectrum["eigenvalues"], "residual / ||C||": spectrum["residuals"]}
    return Table.of(_rows({"rank": np.arange(1, len(columns["eigenvalue"]) + 1)} | columns))


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, line, strict=True)) for line in zip(*columns.values(), strict=True)]


def _versions(groups: Groups) -> dict[str, Any]:
    """Return machine, versions and date of whichever part of the run says them."""
    for made in (
        groups.get("model_provenance"),
        groups.get("spectrum_configuration", {}).get("provenance"),
        groups.get("provenance"),
    ):
        if made:
            return {name: made[name] for name in ("created", "platform", "processor", "versions")}
    versions = groups.get("about", {}).get("versions")
    return {"versions": versions} if versions else {}
