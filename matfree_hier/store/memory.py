"""The twin of a run file in memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from matfree_hier.status import RunFileError
from matfree_hier.store.encoding import Series, checked, checked_columns, checked_name, checked_series

if TYPE_CHECKING:
    from matfree_hier.store.runs import Mode


class MemoryRun:
    """The twin of `RunFile` in memory: same methods, same meaning, no file. Tests compare the two.

    Parameters
    ----------
    files : dict
        What a file would hold, by run: pass the same dict to open it again.
    name : str
        The run in it.
    mode : {"a", "r"}
        Open for changes, or to read only.
    """

    def __init__(self, files: dict[str, dict[str, Any]], name: str = "run", mode: Mode = "a") -> None:
        self.name = checked_name("`name`", name)
        self.mode = mode
        self._files = files
        self._closed = False
        self._groups = copy.deepcopy(files.get(name, {}))

    def names(self) -> list[str]:
        """Return the names of the runs, this one included once it holds a group, sorted."""
        self._require(writable=False)
        others = {name for name, groups in self._files.items() if groups and name != self.name}
        return sorted(others | ({self.name} if self._groups else set()))

    def groups(self) -> list[str]:
        """Return the names of this run's groups, sorted."""
        self._require(writable=False)
        return sorted(self._groups)

    def has(self, group: str) -> bool:
        """Whether this run holds `group`."""
        self._require(writable=False)
        return group in self._groups

    def save(self, group: str, values: Mapping[str, Any]) -> None:
        """See `RunFile.save`."""
        self._require(writable=True)
        self._groups[checked_name("`group`", group)] = checked("values", values)

    def save_series(self, group: str, columns: Mapping[str, Any]) -> None:
        """See `RunFile.save_series`."""
        self._require(writable=True)
        self._groups[checked_name("`group`", group)] = checked_series("columns", columns)

    def append(self, group: str, row: Mapping[str, Any]) -> None:
        """See `RunFile.append`."""
        self._require(writable=True)
        values = checked_columns("row", row, least_dim=0)
        if not self.has(checked_name("`group`", group)):
            self._groups[group] = Series({key: value[None][:0] for key, value in values.items()})
        if not isinstance(self._groups[group], Series):
            msg = f"`group` must be a series to append to, and {group!r} holds single values."
            raise TypeError(msg)
        self._groups[group].append(values)

    def load(self, group: str) -> dict[str, Any]:
        """See `RunFile.load`."""
        if not self.has(group):
            msg = f"The run `{self.name}` in memory has no group `{group}`; it has {self.groups()}."
            raise RunFileError(msg)
        value = copy.deepcopy(self._groups[group])
        return value.joined() if isinstance(value, Series) else dict(value)

    def delete(self, group: str) -> None:
        """See `RunFile.delete`."""
        self._require(writable=True)
        self._groups.pop(group, None)

    def commit(self) -> None:
        """Make the changes what the next opening sees."""
        self._require(writable=True)
        self._files[self.name] = copy.deepcopy(self._groups)

    def close(self) -> None:
        """Drop what is not committed."""
        self._closed = True

    def _require(self, *, writable: bool) -> None:
        if self._closed or (writable and self.mode == "r"):
            state = "closed" if self._closed else "open to read only"
            msg = f"The run `{self.name}` in memory is {state}."
            raise RunFileError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.mode == "a" and not self._closed:
            self.commit()
        self.close()
