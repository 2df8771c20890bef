"""What made a result, and what tells it from another."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from matfree_hier.store.encoding import checked


def differences(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Say by name what differs between two configurations; an empty text where nothing does."""
    return "; ".join(
        f"`{name}` was {stored.get(name)!r} and is {ours.get(name)!r}"
        for name in sorted(stored.keys() | ours.keys())
        if stored.get(name) != ours.get(name)
    )


def provenance(
    arguments: Mapping[str, Any], *, seed: Any, shape: tuple[int, ...], fingerprint: str
) -> dict[str, Any]:
    """Return what it takes to know later how a result was made, ready to be saved.

    Parameters
    ----------
    arguments : mapping
        What was asked for. Values a run file cannot hold are kept as text, callables by their name.
    seed : int or None
        The seed of the run.
    shape : tuple of int
        The shape of the data, (n, d).
    fingerprint : str
        The hash of the data.

    Returns
    -------
    dict
        The above, ``versions`` (of Python and the packages that compute), ``platform``, ``processor`` and
        ``created`` (UTC, ISO 8601).
    """
    return {
        "arguments": {key: _storable(value) for key, value in arguments.items()},
        "seed": _storable(seed),
        "shape": np.array(shape, dtype=np.int64),
        "fingerprint": fingerprint,
        "versions": {
            "python": platform.python_version(),
            "matfree_hier": str(importlib.import_module("matfree_hier").__version__),
            **{name: importlib.metadata.version(name) for name in ("numpy", "scipy", "numba", "h5py")},
        },
        "platform": platform.platform(),
        "processor": _processor(),
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _storable(value: Any) -> Any:
    try:
        return checked("arguments", value)
    except (TypeError, ValueError):
        name = f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)
        return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
