"""What all files have in common: one sentence for everything that can be wrong with one."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from matfree_hier.status import InputError


class FileStamp:
    """Size and time of a file when it was opened, to notice that it was changed since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            self.size, self.time = self._now()

    def _now(self) -> tuple[int, int]:
        status = os.stat(self.path)
        return status.st_size, status.st_mtime_ns

    def check(self, start: int, stop: int) -> None:
        """Refuse a file that is not what it was when it was opened.

        Parameters
        ----------
        start, stop : int
            The rows that are being read, for the message.

        Raises
        ------
        InputError, FileNotFoundError
            If it was changed, or removed.
        """
        when = f"while it was in use, noticed at rows {start} to {stop - 1}."
        try:
            size, time = self._now()
        except FileNotFoundError:
            msg = f"{self.path} was removed {when}"
            raise FileNotFoundError(msg) from None
        except OSError as error:
            msg = f"{self.path} was made unreadable ({error.strerror}) {when}"
            raise InputError(msg) from None
        if size != self.size:
            msg = f"{self.path} was changed from {self.size} to {size} bytes {when}"
            raise InputError(msg)
        if time != self.time:
            msg = f"{self.path} was changed {when}"
            raise InputError(msg)


@contextmanager
def unchanged(stamps: Iterable[FileStamp], start: int, stop: int) -> Iterator[None]:
    """Read rows ``start:stop`` of files that must be what they were: also what fails is laid to a change."""
    try:
        yield
    except (InputError, OSError):
        for stamp in stamps:
            stamp.check(start, stop)
        raise
    for stamp in stamps:
        stamp.check(start, stop)


def check_file(path: Path) -> None:
    """Refuse a path that is no readable file with something in it."""
    with reading(path):
        if path.is_dir():
            msg = f"{path} is a folder, not a file."
            raise InputError(msg)
        with path.open("rb") as file:
            if not file.read(1):
                msg = f"{path} is empty."
                raise InputError(msg)


@contextmanager
def reading(path: Path, kind: str = "file") -> Iterator[None]:
    """Turn whatever a library raises about an unreadable file into one sentence."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        msg = f"There is no file {path}."
        raise FileNotFoundError(msg) from None
    except PermissionError:
        msg = f"{path} cannot be read: permission denied."
        raise PermissionError(msg) from None
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise InputError(_sentence(path, kind, error)) from error
    except (zipfile.BadZipFile, zlib.error, OverflowError) as error:
        raise InputError(_sentence(path, kind, error)) from error


def _sentence(path: Path, kind: str, error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return f"{path} cannot be read as a {kind}, it may be truncated or damaged: {reason}."
