"""Read what a run holds, and say what it lacks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from matfree_hier.packing import n_packed
from matfree_hier.result import History
from matfree_hier.status import RunFileError
from matfree_hier.store import RunFile

Groups: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The groups of a run by name, each the values it holds."""
Run: TypeAlias = str | os.PathLike[str] | Groups
"""A run file's path, ``PATH::NAME``, or its groups."""


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


def required(groups: Groups, name: str, what: str) -> Mapping[str, Any]:
    """Return a group of a run, or refuse a run without it."""
    if name not in groups:
        msg = f"The run holds no {what}; it has the groups {', '.join(sorted(groups))}."
        raise RunFileError(msg)
    return groups[name]


def complete(group: Mapping[str, Any], *names: str, what: str) -> Mapping[str, Any]:
    """Return a group that holds all of some values, or refuse it."""
    for name in names:
        if name not in group:
            msg = f"{what} needs `{name}`; its group holds {', '.join(group) or 'nothing'}."
            raise RunFileError(msg)
    return group


def arrays(group: Mapping[str, Any], *names: str, what: str, axes: int = 1) -> Mapping[str, Any]:
    """Return a group that holds arrays of so many axes by some names, or refuse it."""
    for name in names:
        shape = np.shape(complete(group, name, what=what)[name])
        if len(shape) != axes:
            msg = f"{what} needs `{name}` with {axes} {'axis' if axes == 1 else 'axes'}, got shape {shape}."
            raise RunFileError(msg)
    return group


def table_of(groups: Groups, what: str) -> Mapping[str, Any]:
    """Return the table of a run."""
    return required(groups, "table", f"table of {what}")


def further_tables(groups: Groups) -> dict[str, Mapping[str, Any]]:
    """Return the tables that an experiment of the bench stores beside its first one, by name."""
    prefix = "table-"
    return {name.removeprefix(prefix): table for name, table in groups.items() if name.startswith(prefix)}


def scenario_of(groups: Groups) -> dict[str, Any]:
    """Return the parameters that an experiment of the bench stores with its table."""
    return _parsed(groups, "scenario")


def record_of(groups: Groups) -> dict[str, Any]:
    """Return the record of how an experiment of the bench was made, and what it checked."""
    return _parsed(groups, "record")


def _parsed(groups: Groups, name: str) -> dict[str, Any]:
    """Return what a text of the group ``about`` says; nothing without it."""
    text = groups.get("about", {}).get(name, "{}")
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        msg = f"`{name}` in the group `about` is not JSON: {error}."
        raise RunFileError(msg) from error
    if not isinstance(found, dict):
        msg = f"`{name}` in the group `about` must hold names and values, got {text}."
        raise RunFileError(msg)
    return found


def unit_of(groups: Groups) -> float | None:
    """Return d^q of an experiment of the bench."""
    size = _size_of(groups)
    return None if size is None else float(size[0]) ** size[1]


def n_packed_of(groups: Groups) -> int | None:
    """Return D of an experiment of the bench."""
    size = _size_of(groups)
    return None if size is None else n_packed(*size)


def _size_of(groups: Groups) -> tuple[int, int] | None:
    """Return d and q of an experiment of the bench."""
    scenario = scenario_of(groups)
    if not {"n_inputs", "degree"} <= scenario.keys():
        return None
    return int(scenario["n_inputs"]), int(scenario["degree"])


def spectrum_of(groups: Groups) -> Mapping[str, Any]:
    """Return the eigenpairs of a fit or a solve."""
    if "model" in groups:
        spectrum = complete(groups["model"], "spectrum", what="A fit")["spectrum"]
    else:
        spectrum = required(groups, "spectrum", "spectrum")
    return arrays(spectrum, "eigenvalues", "residuals", what="A spectrum")


def density_of(groups: Groups, *names: str) -> Mapping[str, Any]:
    """Return a spectral density that holds vectors by some names."""
    return arrays(required(groups, "density", "spectral density"), *names, what="A spectral density")


def history_of(groups: Groups) -> History:
    """Return the history of a fit's solve or of a solve."""
    for name in ("spectrum_history", "history"):
        if name in groups:
            return _history(groups[name])
    spectrum = spectrum_of(groups)
    prefix = "history_"
    return _history(
        {name.removeprefix(prefix): values for name, values in spectrum.items() if name.startswith(prefix)}
    )


def _history(group: Mapping[str, Any]) -> History:
    what = "A history"
    arrays(group, "passes", "seconds", "samples_per_second", what=what)
    return History.from_arrays(arrays(group, "ritz_values", "residuals", what=what, axes=2))
