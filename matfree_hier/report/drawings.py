"""Figures of runs: of fits, solves and densities, and of the tables of experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from matfree_hier import figures
from matfree_hier.figures import comparison_tables, tables
from matfree_hier.report.runs import (
    Run,
    density_of,
    history_of,
    n_packed_of,
    read_run,
    scenario_of,
    spectrum_of,
    table_of,
    unit_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_spectrum(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the eigenvalues of a fit or a solve by rank; see `figures.plot_spectrum`.

    Raises
    ------
    RunFileError
        If the run holds no spectrum.
    """
    groups = read_run(run)
    predicted = groups.get("recovery", {}).get("predicted_eigenvalue")
    return figures.plot_spectrum(spectrum_of(groups)["eigenvalues"], predicted=predicted, axes=axes)


def plot_history(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the residuals of a fit's solve or of a solve by pass; see `figures.plot_history`.

    Raises
    ------
    RunFileError
        If the run holds no history.
    """
    return figures.plot_history(history_of(read_run(run)), axes=axes)


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
    unit = unit_of(groups)
    if scale is None and unit is not None:
        scale = (unit, "$n / d^q$")
    return tables.recovery(table_of(groups, "recovery"), scale=scale, axes=axes)


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
    table, unit = table_of(groups, "recovery"), unit_of(groups)
    if scale is None and unit is not None and {"weight", "n_k"} <= table.keys():
        scale = tables.paper_scale(table, unit)
    return tables.collapse(table, scale=scale, axes=axes)


def plot_errors(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the errors of estimators against the number of samples; see `figures.plot_curves`.

    Parameters
    ----------
    run : path or mapping
        With a table of a line for each estimator and number of samples: ``estimator`` (or ``model``, or
        ``variant``), ``n`` (or ``n_over_D``), ``relative_mse`` and, if known, ``relative_mse_sd``, its
        standard deviation over seeds (``sd`` will do in a table without ``overlap``), and ``theory``. Each
        ``gamma``, if there are several, has a panel; for those below 1/2 the part explained, 1 - error, is
        drawn. Points that are not ``in_fit`` are open. With a group ``table-laws``, as the bench's scaling
        has it, exponents are drawn too.
    axes : matplotlib Axes, optional
        Where to draw, for a single gamma; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    groups = read_run(run)
    return comparison_tables.errors(table_of(groups, "errors"), laws=groups.get("table-laws"), axes=axes)


def plot_overlaps(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw the mean overlap of several variants against the number of samples.

    Parameters
    ----------
    run : path or mapping
        With a table as in `plot_errors`, with ``overlap`` and ``overlap_sd`` in place of the error and, if
        known, ``recorded`` and ``recorded_sd``, what others found.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    return comparison_tables.overlaps(table_of(read_run(run), "overlaps"), axes=axes)


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
    table, seeds = table_of(groups, "transition"), scenario_of(groups).get("seeds")
    if seeds and "deviation" in table:  # of one seed, as the bench has it
        (deviation,) = tables.numbers(table, "deviation", what="A transition by size")
        table = {**table, "error": deviation / np.sqrt(seeds)}
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
    return comparison_tables.times(table_of(read_run(run), "times"), laws=laws, axes=axes)


def plot_efficiency(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw parallel efficiencies against the number of ranks; see `figures.plot_efficiency`.

    Parameters
    ----------
    run : path or mapping
        With a table of a line for each measurement: ``mode``, weak or strong, ``ranks``, ``efficiency`` and,
        if known, ``low`` and ``high``.
    axes : matplotlib Axes, optional
        Where to draw; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no such table.
    """
    return comparison_tables.efficiency(table_of(read_run(run), "efficiencies"), axes=axes)


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
    return comparison_tables.peers(table_of(read_run(run), "routes"), axes=axes)


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
    return tables.edges(table_of(read_run(run), "edges"), axes=axes)


def plot_density(run: Run, *, axes: Axes | None = None) -> Figure:
    """Draw a spectral density.

    Parameters
    ----------
    run : path or mapping
        A density stored as ``run.save("density", density.to_arrays())``. Or a run with a group
        ``table-density`` of a line for each number of samples and point, with the columns ``n``,
        ``eigenvalue``, ``density`` and, if known, ``standard_errors`` and ``predicted_density``: a panel for
        each n, with the places of a ``table`` as in `plot_edges`, if there is one, and of a ``table-tails``
        (``n``, ``seed``, ``eigenvalue``) of other eigenvalues outside the bulk.
    axes : matplotlib Axes, optional
        Where to draw, for a single density; a new Figure otherwise.

    Raises
    ------
    RunFileError
        If the run holds no density.
    """
    groups = read_run(run)
    if "table-density" in groups:
        return tables.densities(
            groups["table-density"],
            groups.get("table"),
            tails=groups.get("table-tails"),
            n_packed=n_packed_of(groups),
            axes=axes,
        )
    found = density_of(groups, "grid", "density", "standard_errors", "outliers")
    return figures.plot_density(
        found["grid"],
        found["density"],
        standard_errors=found["standard_errors"],
        outliers=found["outliers"],
        axes=axes,
    )
