"""Whole files: written beside the old one and put in its place, checked when opened; and the lock.

A process killed while it changes a file leaves it half changed. So no file here is ever modified in place: a
new one is written under a temporary name in the same folder, flushed to disk, renamed over the old one, and
the folder is flushed. Whoever opens the path finds the old content or the new, complete. A header holds kind,
format version, length and checksum, so that a file damaged later is refused and never misread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from matfree_hier.status import RunFileError

FORMAT_VERSION = 1
_HEADER_BYTES = 512  # HDF5 readers look for their signature at 0, 512, 1024, ... and skip what comes before
_BLOCK_BYTES = 1 << 24


class CommitError(OSError):
    """A commit did not reach the disk (full, quota, I/O error); the file keeps its last complete state.

    What was staged stays staged, so a later ``commit()`` can succeed. ``errno`` is the system's.
    """

    def __str__(self) -> str:
        return f"`{self.filename}` could not be written ({self.strerror}); it keeps its last complete state."


def write_whole(path: Path, kind: str, parts: Iterable[memoryview | bytes]) -> None:
    """Write header and `parts` as a new file and put it in the place of `path`, or leave `path` as it was."""
    temporary = temporary_path(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            _write_all(descriptor, bytes(_HEADER_BYTES))
            n_bytes = checksum = 0
            for part in parts:
                _write_all(descriptor, part)
                checksum = zlib.crc32(part, checksum)
                n_bytes += len(part)
            os.lseek(descriptor, 0, os.SEEK_SET)
            _write_all(descriptor, _header(kind, n_bytes, checksum))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except OSError as error:
        raise CommitError(error.errno, os.strerror(error.errno or errno.EIO), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _header(kind: str, n_bytes: int, checksum: int) -> bytes:
    text = f"{kind}\nformat_version {FORMAT_VERSION}\nbytes {n_bytes}\ncrc32 {checksum:08x}\n"
    return text.encode().ljust(_HEADER_BYTES, b"\0")


def temporary_path(path: Path) -> Path:
    """Return the name a new file is written under; one is enough, since whoever writes holds the lock."""
    return path.with_name(path.name + ".tmp")


def _write_all(descriptor: int, part: memoryview | bytes) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(descriptor, rest[:_BLOCK_BYTES]) :]


def _flush_folder(folder: Path) -> None:
    """Make a rename in `folder` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def verified(path: Path, kind: str) -> Iterator[IO[bytes]]:
    """Open a file of `write_whole`, after its header, once version, length and checksum are found right."""
    if path.is_dir():
        msg = f"`{path}` is a folder, not a {kind}."
        raise RunFileError(msg)
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        lines = header.rstrip(b"\0").split(b"\n")
        if lines[0] != kind.encode():
            msg = f"`{path}` is not a {kind}."
            raise RunFileError(msg)
        damaged = f"`{path}` is damaged: "
        try:
            version, expected = (int(line.split(b" ")[1]) for line in lines[1:3])
        except (ValueError, IndexError):
            raise RunFileError(damaged + "its header cannot be read.") from None
        if version != FORMAT_VERSION:
            msg = f"`{path}` has format version {version}; this matfree_hier reads {FORMAT_VERSION}."
            raise RunFileError(msg)
        n_bytes = os.fstat(file.fileno()).st_size - _HEADER_BYTES
        if n_bytes != expected:
            raise RunFileError(damaged + f"it should hold {expected} bytes of content, and holds {n_bytes}.")
        checksum = 0
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
        if header != _header(kind, n_bytes, checksum):
            raise RunFileError(damaged + "its content does not match its checksum.")
        file.seek(_HEADER_BYTES)
        yield file


class Lock:
    """An exclusive lock: a file of its own beside the run file, held by flock until released or killed."""

    def __init__(self, run_path: Path) -> None:
        self._path = run_path.with_name(run_path.name + ".lock")
        self._pid = os.getpid()
        while True:
            self._file = self._path.open("a+b", buffering=0)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.seek(0)
                holder = self._file.read(32).decode(errors="replace").strip() or "unknown"
                self._file.close()
                msg = f"`{run_path}` is in use by another run (process {holder}); wait for it or stop it."
                raise RunFileError(msg) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                    break
            self._file.close()  # its last holder removed it between our open and our lock: take the new one
        with contextlib.suppress(OSError):  # the number only serves the message: a full disk must not matter
            self._file.truncate(0)
            self._file.write(str(self._pid).encode())

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if not self._file.closed:
            if os.getpid() == self._pid:  # a forked child shares the lock and must not remove it
                with contextlib.suppress(OSError):
                    self._path.unlink()
            self._file.close()
