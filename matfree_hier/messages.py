"""Objects between processes: pickled, with their arrays apart, and errors that keep their type."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from matfree_hier import buffers

_SMALL = 2**16  # bytes that travel with the announcement


@dataclass(frozen=True, eq=False)
class Message:
    """An object as bytes: its pickle, and the memory of its arrays, which is not copied.

    Attributes
    ----------
    pickled : bytes
    parts : list of ndarray of uint8
    """

    pickled: bytes
    parts: list[Any]

    def announcement(self) -> tuple[Any, ...]:
        """Return what a receiver has to know first; all of a small message."""
        sizes = [part.size for part in self.parts]
        if len(self.pickled) + sum(sizes) <= _SMALL:
            return (self.pickled, [part.tobytes() for part in self.parts])
        return (len(self.pickled), sizes)

    def blocks(self) -> list[Any]:
        """Return the arrays of bytes that follow the announcement."""
        if isinstance(self.announcement()[0], bytes):
            return []
        return [np.frombuffer(self.pickled, np.uint8), *self.parts]


def pack(value: Any, known: Mapping[str, Any] | None = None) -> Message:
    """Turn an object into a message.

    Parameters
    ----------
    value : object
        Picklable but for what is `known`.
    known : mapping of str to object, optional
        Objects that every rank has, such as functions of the user's that do not pickle: they go by name.

    Raises
    ------
    TypeError
        If it cannot be pickled.
    """
    parts: list[Any] = []

    def apart(buffer: pickle.PickleBuffer) -> None:
        parts.append(np.frombuffer(buffer.raw(), np.uint8))

    file = io.BytesIO()
    try:
        _Pickler(file, apart, known or {}).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        msg = f"An object cannot be sent to the other ranks, since it cannot be pickled: {error}"
        raise TypeError(msg) from error
    return Message(file.getvalue(), parts)


def unpack(pickled: Any, parts: list[Any], known: Mapping[str, Any] | None = None) -> Any:
    """Return the object of a message."""
    return _Unpickler(io.BytesIO(bytes(pickled)), parts, known or {}).load()


def is_picklable(value: Any, known: Mapping[str, Any] | None = None) -> bool:
    """Whether an object can be sent."""
    try:
        pack(value, known)
    except TypeError:
        return False
    return True


def received(announcement: tuple[Any, ...], fill: Any, known: Mapping[str, Any] | None = None) -> Any:
    """Return the object whose announcement has come.

    Parameters
    ----------
    announcement : tuple
        As from `Message.announcement`.
    fill : callable
        Overwrites an array of bytes with the next block that comes.
    known : mapping, optional
        As in `pack`.
    """
    pickled, parts = announcement
    if isinstance(pickled, bytes):
        return unpack(pickled, [bytearray(part) for part in parts], known)
    data = [np.empty(size, np.uint8) for size in (pickled, *parts)]
    for block in data:
        fill(block)
    return unpack(data[0], data[1:], known)


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, apart: Any, known: Mapping[str, Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=apart)
        self._names = {id(value): name for name, value in known.items() if callable(value)}

    def persistent_id(self, value: Any) -> str | None:
        return self._names.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, parts: list[Any], known: Mapping[str, Any]) -> None:
        super().__init__(file, buffers=parts)
        self._known = known

    def persistent_load(self, name: str) -> Any:
        return self._known[name]


def portable(error: BaseException) -> BaseException:
    """Return an error that can be sent: itself, or one with its words."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return copy if str(copy) == str(error) else RuntimeError(f"{type(error).__name__}: {error}")


def from_rank(error: BaseException, rank: int) -> BaseException:
    """Return the error with the rank where it came up, of the same type where that takes one sentence."""
    text = f"Rank {rank}: {error}" if str(error) else f"Rank {rank}: {type(error).__name__}"
    try:
        named = type(error)(text)
    except Exception:
        return RuntimeError(text)
    return named if str(named) == text else RuntimeError(text)


def send_blocks(comm: Any, message: Message, rank: int) -> None:
    """Send the blocks of a message whose announcement the rank has."""
    for block in message.blocks():
        buffers.send(comm, block, rank)
