"""The page that shows a run: what it found, its figures and tables, how it was made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from matfree_hier import figures
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.figures import comparison_tables, tables
from matfree_hier.packing import product_text
from matfree_hier.page import Section, Table, how_made, page, rows_of
from matfree_hier.report.drawings import (
    plot_collapse,
    plot_density,
    plot_edges,
    plot_efficiency,
    plot_errors,
    plot_overlaps,
    plot_peers,
    plot_recovery,
    plot_smoothing,
    plot_spectrum,
    plot_times,
)
from matfree_hier.report.runs import (
    Groups,
    complete,
    density_of,
    further_tables,
    history_of,
    read_run,
    record_of,
    required,
    scenario_of,
    spectrum_of,
)
from matfree_hier.status import RunFileError, Status
from matfree_hier.store import RunFile
from matfree_hier.wording import check_sentence, counted

_TERMS = 4  # products shown of a feature


def run_page(run: str | os.PathLike[str]) -> str:
    """Return a self-contained HTML page of a run: what it found, its figures, parameters and versions.

    Parameters
    ----------
    run : path
        ``PATH::NAME``; or ``PATH`` for all runs in the file, one after the other.

    Raises
    ------
    FileNotFoundError, RunFileError
        If there is no such run, or none that holds something to show.
    """
    path, name = RunFile.parse(run)
    names = [name]
    if "::" not in os.fspath(run):
        with RunFile(path, mode="r") as file:
            names = file.names()
    runs = {name: read_run(f"{path}::{name}") for name in names}
    shown = {name: _shown(f"{path}::{name}", groups) for name, groups in runs.items()}
    if not any(shown.values()):
        held = sorted({group for groups in runs.values() for group in groups})
        msg = f"`{os.fspath(run)}` holds nothing to report; its groups are {', '.join(held)}."
        raise RunFileError(msg)
    sections = []
    for name, parts in shown.items():
        if len(shown) > 1:
            parts = [replace(part, title=f"{name}: {part.title}") for part in parts]
            parts = parts or [Section(name, lines=["nothing to report yet"])]
        sections += parts
    made = next((about for about in map(_versions, runs.values()) if about), {})
    return page(f"matfree_hier: {os.path.basename(os.fspath(run))}", sections, made)


def _shown(run: str, groups: Groups) -> list[Section]:
    """Return the sections of a run, or say which run cannot be shown and why."""
    try:
        return _sections(run, groups)
    except (RunFileError, ValueError) as error:
        msg = f"`{run}`: {error}"
        raise RunFileError(msg) from error


def _sections(run: str, groups: Groups) -> list[Section]:
    if "model" in groups:
        return _fit_sections(run, groups)
    return [build(groups) for name, build in _SECTIONS.items() if name in groups]


def _fit_sections(run: str, groups: Groups) -> list[Section]:
    # Functions are not stored: where the link was one, nothing that is shown here calls it.
    linked = complete(groups["model"], "link", what="A fit")["link"] == "callable"
    model = HierarchicalSpectralRegressor.load(run, link=np.positive if linked else None)
    report, made = model.report_, required(groups, "model_provenance", "provenance of its fit")
    complete(made, "arguments", "seed", "fingerprint", what="The provenance of a fit")
    features = [
        {"feature": k, "weight": a, "slope": b, "largest products": _products(model, k)}
        for k, (a, b) in enumerate(zip(report.weights, report.slopes, strict=True))
    ]
    tables = {"features": Table.of(features), "eigenpairs": _pairs(spectrum_of(groups))}
    if "held_out" in groups:
        held_out = complete(groups["held_out"], "n_rows", "r2", what="A score on held-out rows")
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
    needed = ("status", "message", "n_passes", "method")
    spectrum = complete(spectrum_of(groups), *needed, what="A spectrum")
    if spectrum["status"] not in Status.__members__:
        msg = (
            f"A spectrum's `status` must be one of {', '.join(Status.__members__)}, got {spectrum['status']}."
        )
        raise RunFileError(msg)
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
        configuration: Mapping[str, Any] = complete(
            groups["spectrum_configuration"], "configuration", what="A solve"
        )["configuration"]
        return configuration
    made = groups.get("provenance", {})
    identity = {name: made[name] for name in ("seed", "fingerprint") if name in made}
    return {**made.get("arguments", {}), **identity}


def _recovery_section(groups: Groups) -> Section:
    table = Table.of(_rows(groups["recovery"]))
    return Section("Recovery", figures={"recovery": plot_recovery(groups)}, tables={"features": table})


def _density_section(groups: Groups) -> Section:
    found = density_of(groups, "bulk_edges", "outliers")
    complete(found, "size", "n_passes", what="A spectral density")
    low, high = found["bulk_edges"]
    lines = [
        f"bulk from {low:.5g} to {high:.5g}; {counted(len(found['outliers']), 'outlier')}",
        f"D = {found['size']}, {counted(found['n_passes'], 'pass', '.4g')} over the data",
    ]
    return Section("Spectral density", lines=lines, figures={"density": plot_density(groups)})


def _table_section(groups: Groups) -> Section:
    table = groups["table"]
    title = str(groups.get("about", {}).get("experiment", "Results"))
    tables.required(table, what="A page")  # columns of one length
    drawn, notes = table_figures(groups)
    record = record_of(groups)
    return Section(
        title,
        scenario_of(groups) | (how_made(record) if record else {}),
        notes,
        [(check_sentence(**check), check["met"]) for check in record.get("checks", ())],
        figures=drawn,
        tables={"results": Table.of(_rows(table))}
        | {name: Table.of(_rows(further)) for name, further in further_tables(groups).items()},
    )


def table_figures(groups: Groups) -> tuple[dict[str, Figure], list[str]]:
    """Return the figures that the columns of a table allow, and why others of them cannot be drawn."""
    table = groups["table"]
    wanted = {name: draw for name, (draw, columns) in _TABLE_FIGURES.items() if tables.has(table, *columns)}
    if "recovery" in wanted and "n_k" in table and len(np.unique(table["n"])) > 1:
        wanted["collapse"] = plot_collapse
    if "table-density" in groups:
        wanted["density"] = plot_density
    tried = {name: _tried(draw, groups) for name, draw in wanted.items()}
    notes = {found for found in tried.values() if isinstance(found, str)}
    return {name: found for name, found in tried.items() if isinstance(found, Figure)}, sorted(notes)


def _tried(draw: Callable[[Groups], Figure], groups: Groups) -> Figure | str:
    """Return a figure, or why the lines of a table do not make it: a page shows what there is."""
    try:
        return draw(groups)
    except RunFileError as error:
        return str(error)
    except ValueError as error:  # of what cannot be drawn, such as text for a number
        return f"{draw.__name__}: {error}"


_TABLE_FIGURES: Mapping[str, tuple[Callable[[Groups], Figure], tuple[str | tuple[str, ...], ...]]] = {
    "recovery": (plot_recovery, ("n", "seed", "feature", "overlap")),
    "transition": (plot_smoothing, ("n_packed", "ratio", "overlap", "limit")),
    "errors": (plot_errors, (comparison_tables.PLACES, comparison_tables.NAMES, "relative_mse")),
    "overlaps": (plot_overlaps, (comparison_tables.PLACES, comparison_tables.NAMES, "overlap")),
    "times": (plot_times, ("varied", "size", "seconds")),
    "efficiency": (plot_efficiency, ("mode", "ranks", "efficiency")),
    "seconds": (plot_peers, ("route", "seconds")),
    "edges": (plot_edges, ("n", "seed", "feature", "left", "right", "predicted", "eigenvalue")),
}
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
    if np.any(spectrum_of(groups)["eigenvalues"]):
        plot_spectrum(groups, axes=left)
        drawn += 1
    history = history_of(groups)
    if len(history):
        figures.plot_history(history, axes=right)
        drawn += 1
    return {"spectrum and convergence": figure} if drawn == 2 else {}


def _pairs(spectrum: Mapping[str, Any]) -> Table:
    columns = {"eigenvalue": spectrum["eigenvalues"], "residual / ||C||": spectrum["residuals"]}
    return Table.of(_rows({"rank": np.arange(1, np.size(columns["eigenvalue"]) + 1)} | columns))


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    if any(map(np.size, columns.values())):  # a solve may have found nothing
        tables.required(columns, what="A page")
    return rows_of(columns)


def _versions(groups: Groups) -> dict[str, Any]:
    """Return machine, versions and date of whichever part of the run says them."""
    for made in (
        groups.get("model_provenance"),
        groups.get("spectrum_configuration", {}).get("provenance"),
        groups.get("provenance"),
    ):
        if made:
            return {
                name: made[name] for name in ("created", "platform", "processor", "versions") if name in made
            }
    record = record_of(groups)
    if record:
        return {
            name: record[name] for name in ("processor", "cpus", "memory_gb", "versions") if name in record
        }
    versions = groups.get("about", {}).get("versions")
    return {"versions": versions} if versions else {}
