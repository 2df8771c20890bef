"""Figures of stored runs, and the page that shows a run: ``python -m matfree_hier report RUN``.

A run is what a run file holds: a fit, a solve of `top_eigenpairs`, a spectral density, or an experiment of
``matfree_hier.bench``. Functions take ``PATH``, ``PATH::NAME``, or the groups themselves, a mapping of
names to dicts of values, so that results that were never stored can be drawn too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from matfree_hier import figures
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.figures import tables
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

grid_of = tables.grid_of
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
        If it is damaged, holds no run of that name, or several where none is named.
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
    held = ", ".join(names)
    wanted = f"no run `{name}`, it has {held}" if "::" in os.fspath(run) else f"the runs {held}"
    msg = f"`{path}` holds {wanted}: name one as {path}::NAME."
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


def plot_recovery(run: Run, *, scale: tables.Scale | None = None, axes: Axes | None = None) -> Figure:
    """Draw how well each feature was recovered.

    Parameters
    ----------
    run : path or mapping
        A run of the bench's main job, whose group ``recovery`` has the columns ``overlap`` and, if known,
        ``n_over_n_k`` and ``predicted_overlap``: see `figures.plot_recovery`. Or a run with a group ``table``
        of a line for each number of samples, seed and feature, with the columns ``n``, ``seed``,
        ``feature``, ``overlap`` and, if known, ``predicted`` and ``n_k``: see `figures.plot_transition`, and
        `figures.plot_recovery` for a single number of samples.
    scale : tuple of float and str, optional
        A second axis of a table, n over this number, and its label. By default n / d^q where the run says
        what d and q were, as one of the bench does; otherwise none.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds neither, or a column is missing.
    """
    groups = read_run(run)
    if "recovery" in groups:
        (overlap,) = tables.required(groups["recovery"], "overlap", what="Recovery")
        return figures.plot_recovery(
            overlap,
            samples_over_threshold=groups["recovery"].get("n_over_n_k"),
            predicted=groups["recovery"].get("predicted_overlap"),
            axes=axes,
        )
    unit = _unit(groups)
    if scale is None and unit is not None:
        scale = (unit, "$n / d^q$")
    return tables.recovery(_table(groups, "recovery"), scale=scale, axes=axes)


def plot_collapse(run: Run, *, scale: tables.Scale | None = None, axes: Axes | None = None) -> Figure:
    """Draw squared overlaps against n / n_k; see `figures.plot_collapse`.

    Parameters
    ----------
    run : path or mapping
        With a table as in `plot_recovery`, with ``n_k``.
    scale : tuple of float and str, optional
        A second axis, n / n_k over this number, and its label. By default the paper's n lambda_k^2 / d^q
        where the table has ``weight``, lambda_k, and the run says what d and q were; otherwise none.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    groups = read_run(run)
    table, unit = _table(groups, "recovery"), _unit(groups)
    if scale is None and unit is not None and {"weight", "n_k"} <= table.keys():
        scale = tables.paper_scale(table, unit)
    return tables.collapse(table, scale=scale, axes=axes)


def plot_errors(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the errors of estimators against the number of samples; see `figures.plot_curves`.

    Parameters
    ----------
    run : path or mapping
        With a table of a line for each estimator and number of samples: ``estimator`` (or ``model``, or
        ``variant``), ``n`` (or ``n_over_D``), ``relative_mse`` and, if known, ``sd``, its standard deviation
        over seeds, and ``theory``. Each ``gamma``, if there are several, has a panel; for those below 1/2
        the part explained, 1 - error, is drawn. ``in_range``, where theory's law can hold, is shaded.
    axes : matplotlib Axes, optional
        Where to draw, for a single gamma; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    return tables.errors(_table(read_run(run), "errors"), axes=axes)


def plot_overlaps(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the mean overlap of several variants against the number of samples.

    Parameters
    ----------
    run : path or mapping
        With a table as in `plot_errors`, with ``overlap`` in place of the error and, if known, ``recorded``
        and ``recorded_sd``, what others found.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    return tables.overlaps(_table(read_run(run), "overlaps"), axes=axes)


def plot_smoothing(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the transition of one feature at several sizes; see `figures.plot_smoothing`.

    Parameters
    ----------
    run : path or mapping
        With a table of a line for each size and number of samples: ``n_packed``, ``ratio`` (samples over the
        threshold), ``overlap``, ``limit`` and, if known, ``error``, its standard error.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    groups = read_run(run)
    table, seeds = _table(groups, "transition"), _scenario(groups).get("seeds")
    if seeds and "deviation" in table:  # of one seed, as the bench has it
        table = {**table, "error": np.asarray(table["deviation"]) / np.sqrt(seeds)}
    return tables.smoothing(table, axes=axes)


def plot_times(
    run: Run, *, laws: Mapping[str, tuple[float, float]] | None = None, axes: Axes | None = None
) -> Figure:
    """Draw seconds against sizes, with their exponents; see `figures.plot_times`.

    Parameters
    ----------
    run : path or mapping
        With a table of a line for each measurement: ``varied``, the name of what was varied, ``size``,
        ``seconds`` and, if known, ``low`` and ``high``.
    laws : mapping of str to tuple of float, optional
        Constant and exponent by what was varied; otherwise fitted to the seconds.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    return tables.times(_table(read_run(run), "times"), laws=laws, axes=axes)


def plot_peers(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the seconds of several routes to one result; see `figures.plot_peers`.

    Parameters
    ----------
    run : path or mapping
        With a table of a line for each route: ``route``, ``seconds`` and, if known, ``outcome``,
        ``at_least`` and ``times``.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    return tables.peers(_table(read_run(run), "routes"), axes=axes)


def plot_edges(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the bulk's ends and the features' eigenvalues against samples; see `figures.plot_edges`.

    Parameters
    ----------
    run : path or mapping
        With a table of a line for each number of samples, seed and feature: ``n``, ``seed``, ``feature``,
        ``eigenvalue``, ``predicted``, ``left``, ``right``, ``predicted_left`` and ``predicted_right``.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    return tables.edges(_table(read_run(run), "edges"), axes=axes)


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


def _required(groups: Groups, name: str, what: str) -> Mapping[str, Any]:
    if name not in groups:
        msg = f"The run holds no {what}; it has the groups {', '.join(sorted(groups))}."
        raise RunFileError(msg)
    return groups[name]


def _table(groups: Groups, what: str) -> Mapping[str, Any]:
    return _required(groups, "table", f"table of {what}")


def _scenario(groups: Groups) -> dict[str, Any]:
    """Return the parameters that an experiment of the bench stores with its table."""
    about = groups.get("about", {})
    scenario: dict[str, Any] = json.loads(about["scenario"]) if "scenario" in about else {}
    return scenario


def _unit(groups: Groups) -> float | None:
    """Return d^q of an experiment of the bench."""
    scenario = _scenario(groups)
    if not {"n_inputs", "degree"} <= scenario.keys():
        return None
    return float(scenario["n_inputs"]) ** int(scenario["degree"])


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
    shown = {name: _sections(f"{path}::{name}", groups) for name, groups in runs.items()}
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


def _sections(run: str, groups: Groups) -> list[Section]:
    if "model" in groups:
        return _fit_sections(run, groups)
    return [build(groups) for name, build in _SECTIONS.items() if name in groups]


def _fit_sections(run: str, groups: Groups) -> list[Section]:
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
    table = groups["table"]
    title = str(groups.get("about", {}).get("experiment", "Results"))
    results = {"results": Table.of(_rows(table))}
    return Section(title, _scenario(groups), figures=_table_figures(groups), tables=results)


def _table_figures(groups: Groups) -> dict[str, Figure]:
    """Return the figures that the columns of a table allow."""
    table = groups["table"]
    drawn = {}
    if {"n", "seed", "feature", "overlap"} <= table.keys():
        drawn["recovery"] = plot_recovery(groups)
        if "n_k" in table and len(np.unique(table["n"])) > 1:
            drawn["collapse"] = plot_collapse(groups)
    if {"n_packed", "ratio", "overlap", "limit"} <= table.keys():
        drawn["transition"] = plot_smoothing(groups)
    return drawn | tables.drawable(table)


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
