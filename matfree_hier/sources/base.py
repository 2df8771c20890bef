"""What every source of samples offers: chunks, labels, slices, transformed views, a fingerprint."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from matfree_hier.comm import between_chunks
from matfree_hier.shares import LocalShares, Shares
from matfree_hier.sources.ahead import read_ahead
from matfree_hier.sources.chunks import Chunk, cut, rechunk
from matfree_hier.sources.convert import (
    as_chunk,
    as_labels,
    default_names,
    first_nonfinite,
    not_finite,
    to_float64,
)
from matfree_hier.status import InputError
from matfree_hier.wording import counted

__all__ = ["Chunk", "Mask", "SampleSource"]

Mask: TypeAlias = NDArray[np.bool_]

BLOCK_BYTES = 2**23  # what one chunk of inputs takes when the caller does not say how many rows
MIN_ROWS, MAX_ROWS = 256, 2**16  # and the bounds of such a chunk: what the kernels like
_SLAB_BYTES = 2**18  # of inputs that go through a function at a time
HASHED_WHOLE = 2**26  # inputs of up to this many bytes enter the fingerprint whole, larger ones by sample
HASHED_PIECES, HASHED_PIECE_BYTES = 64, 2**17


class SampleSource:
    """Samples (x, y) that are read in chunks, from any row on.

    A subclass gives `_blocks`, and `_read_labels` and `where` if it has better ones; C-contiguous inputs of
    `dtype` and float64 labels are its duty, sizes of chunks are not. One that can read any rows at no more
    than their cost gives `_take` and `_read_labels` instead, and sets `takes`.

    Attributes
    ----------
    n_samples, n_inputs : int
        n and d.
    dtype : numpy.dtype
        float32 or float64: that of the inputs in every chunk. Labels are always float64.
    input_names : tuple of str
        One name a column; ``x0``, ``x1``, ... where the data have none.
    target_name : str or None
        Name of the target.
    has_target : bool
        Whether there are labels.
    name : str
        What error messages call these data.
    identity : str or None
        What stands for the content in run files, where it was derived from other data in a way that says it
        all; numbers then may differ by rounding, as sums over another number of ranks do.
    computed : dict
        What others have computed of the inputs of every sample, kept with them.
    """

    takes = False  # True: has `_take`
    random_access = True  # False: to start at a row costs as much as to read everything before it
    reads_ahead = False  # True: chunks are read or decoded, which a thread does while the caller computes

    def __init__(
        self,
        n_samples: int,
        input_names: Sequence[str],
        dtype: DTypeLike,
        target_name: str | None = None,
        *,
        has_target: bool = True,
        name: str = "`X`",
        validated: bool = False,
    ) -> None:
        self.n_samples = n_samples
        self.input_names = tuple(input_names)
        self.n_inputs = len(self.input_names)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.has_target = has_target
        self.target_name = target_name if has_target else None
        self.name = name
        self._validated = validated
        self._labels: NDArray[np.float64] | None = None
        self._fingerprint: str | None = None
        self.identity: str | None = None
        self.computed: dict[Any, Any] = {}

    def __repr__(self) -> str:
        target = f", target `{self.target_name}`" if self.has_target else ", no target"
        return (
            f"<{type(self).__name__} {self.name}: {counted(self.n_samples, 'sample', 'd')}"
            f" of {counted(self.n_inputs, 'input', 'd')}, {self.dtype}{target}>"
        )

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        """Yield rows ``start:stop`` in order, cut as suits the storage; ``rows`` is what was asked for."""
        return self._taken(start, stop, rows or self._natural_rows(), labels, self.dtype)

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read the inputs of rows ``start:stop``, of those that `keep` marks if it is given, as `dtype`."""
        raise NotImplementedError

    def _taken(self, start: int, stop: int, rows: int, labels: bool, dtype: np.dtype[Any]) -> Iterator[Chunk]:
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            y = None
            if labels:
                y = self._read_labels(first, last) if self._labels is None else self._labels[first:last]
            yield Chunk(first, self._take(first, last, None, dtype), y)

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands, for error messages; ``column`` None is the target."""
        column_name = self.target_name if column is None else self.input_names[column]
        return f"{self.name}, row {row} (counted from 0), column `{column_name}`"

    def chunks(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        rows: int | None = None,
        labels: bool = True,
        dtype: DTypeLike | None = None,
    ) -> Iterator[Chunk]:
        """Read samples ``start:stop`` in order, chunk by chunk.

        Parameters
        ----------
        start, stop : int
            The range, 0 <= start <= stop <= n_samples; all by default.
        rows : int, optional
            Samples a chunk (the last is shorter). By default about 8 MiB, at most 65536 rows, cut where
            the storage reads best.
        labels : bool
            False leaves ``y`` None, which saves their cost where they are made or stored apart.
        dtype : numpy.dtype, optional
            float32 or float64, of the inputs; that of the source by default. The values are those of the
            source, rounded, but what is stored is converted only once.

        Yields
        ------
        Chunk
            ``X`` of shape (m, d) is C-contiguous and of ``dtype``. It is a view of the user's array where
            that has this layout, and then may be read-only: never write into it.

        Raises
        ------
        ValueError
            If the range or ``rows`` is out of bounds; raised by the call, before anything is read.
        InputError
            If the data cannot be read.
        """
        start, stop = self._range(start, stop)
        if rows is not None and operator.index(rows) < 1:
            msg = f"`rows` must be at least 1, got {rows}."
            raise ValueError(msg)
        kind, step = self.dtype if dtype is None else np.dtype(dtype), rows or self._natural_rows()
        labels = labels and self.has_target
        if self._can_take(labels):
            blocks = self._taken(start, stop, step, labels, kind)
        else:
            blocks = self._blocks(start, stop, rows, labels)
            blocks = cut(blocks, MAX_ROWS) if rows is None else rechunk(blocks, operator.index(rows))
            if kind != self.dtype:
                blocks = (chunk._replace(X=as_chunk(chunk.X, kind)) for chunk in blocks)
        return _watched(read_ahead(blocks) if self.reads_ahead and stop - start > step else blocks)

    def _can_take(self, labels: bool) -> bool:  # noqa: ARG002 - of those that make labels of inputs
        """Say whether chunks, with labels or without, are best put together by `_take`."""
        return self.takes

    @property
    def shares(self) -> Shares:
        """Where the samples are: here, or a share on each of several ranks."""
        return LocalShares(self)

    def inputs(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read the inputs of samples ``start:stop`` whole, shape (stop - start, d); a view where possible."""
        start, stop = self._range(start, stop)
        X = None
        for chunk in self._blocks(start, stop, stop - start, False):
            if len(chunk.X) == stop - start:
                return chunk.X
            X = np.empty((stop - start, self.n_inputs), self.dtype) if X is None else X
            X[chunk.start - start : chunk.start - start + len(chunk.X)] = chunk.X
        return np.empty((0, self.n_inputs), self.dtype) if X is None else X

    def labels(self) -> NDArray[np.float64]:
        """All labels, shape (n_samples,), float64, read-only; read once, then kept (8 bytes a sample)."""
        if not self.has_target:
            msg = f"{self.name} has no target."
            raise InputError(msg)
        if self._labels is None:
            self.keep_labels(self._read_labels(0, self.n_samples))
        labels = self._labels
        assert labels is not None
        return labels

    def keep_labels(self, y: NDArray[np.float64]) -> None:
        """Keep all labels, which the caller has read, shape (n_samples,), for `labels`."""
        self._labels = y.view()
        self._labels.flags.writeable = False

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        if self._labels is not None:
            return self._labels[start:stop]
        y = np.empty(stop - start)
        for chunk in self.chunks(start, stop):
            y[chunk.start - start : chunk.start - start + len(chunk.X)] = chunk.y
        return y

    def validate(self) -> None:
        """Read everything once and check that every input and label is finite; done once a source.

        Raises
        ------
        InputError
            Names the first row and column with NaN or infinity.
        """
        if self._validated:
            return
        self._scan()
        self._validated = True

    def _scan(self) -> None:
        for chunk in self.chunks():
            self._check_finite(chunk)

    def checked(self) -> Iterator[Chunk]:
        """Read everything in chunks of the same rows for every kind of source, and `validate` on the way.

        Raises
        ------
        InputError
            As `validate` does, before the chunk in question is given out.
        """
        for chunk in self.chunks(rows=self._natural_rows()):
            if not self._validated:
                self._check_finite(chunk)
            yield chunk
        self._validated = True

    def _check_finite(self, chunk: Chunk) -> None:
        bad = first_nonfinite(chunk.X)
        if bad is not None:
            row, column = bad
            msg = not_finite(self.where(chunk.start + row, column), chunk.X[row, column])
            raise InputError(msg)
        if chunk.y is not None and (bad := first_nonfinite(chunk.y[:, np.newaxis])) is not None:
            msg = not_finite(self.where(chunk.start + bad[0], None), chunk.y[bad[0]])
            raise InputError(msg)

    def slice(self, start: int = 0, stop: int | None = None) -> SampleSource:
        """Give samples ``start:stop`` as a source of their own, without a copy; row 0 is ``start``."""
        start, stop = self._range(start, stop)
        return self if (start, stop) == (0, self.n_samples) else _SliceSource(self, start, stop)

    def transformed(
        self,
        inputs_fn: Callable[[NDArray[Any]], ArrayLike] | None = None,
        *,
        labels_fn: Callable[[NDArray[Any], NDArray[np.float64]], ArrayLike] | None = None,
        input_names: Sequence[str] | None = None,
        dtype: DTypeLike | None = None,
    ) -> SampleSource:
        """Give a source whose chunks pass through functions when they are read.

        Parameters
        ----------
        inputs_fn : callable, optional
            ``(m, d) -> (m, d')``, each row by itself (a chunk may be any run of rows) and without writing
            into its argument: standardisation, whitening, ranks.
        labels_fn : callable, optional
            ``(X, y) -> (m,)`` from the inputs before ``inputs_fn``; to subtract a linear part, say.
        input_names : sequence of str, optional
            Names of the d' columns; the present ones by default if d' = d.
        dtype : numpy.dtype, optional
            float32 or float64; the present one by default.
        """
        return _TransformedSource(self, inputs_fn, labels_fn, input_names, dtype)

    def with_labels(self, y: ArrayLike, target_name: str = "y") -> SampleSource:
        """Give the same inputs with other labels: numbers of shape (n_samples,) or (n_samples, 1).

        Raises
        ------
        InputError
            If the labels are not real numbers or not as many as the samples.
        """
        return _RelabelledSource(self, as_labels(y, self.n_samples, "`y`", self.name), target_name)

    def fingerprint(self) -> str:
        """Give a hash of the content (32 hex digits), equal for equal samples in any kind of source.

        It covers n, d, the dtype, all labels, and the inputs: whole up to 64 MiB; beyond that 64 pieces
        of about 128 KiB spread evenly, first and last rows included, so a change between the pieces of
        a large file goes unseen. Names and file times do not enter. Cost: reading those pieces and
        the labels.
        """
        if self._fingerprint is None:
            self._fingerprint = _fingerprint(self)
        return self._fingerprint

    def _hash_labels(self, digest: Any) -> None:
        digest.update(np.ascontiguousarray(self.labels()).data)

    def _reads_like(self, parent: SampleSource) -> None:
        """Say of a source that reads another how it does so."""
        self.takes, self.random_access = parent.takes, parent.random_access
        self.reads_ahead = parent.reads_ahead

    def _natural_rows(self) -> int:
        wanted = BLOCK_BYTES // max(1, self.n_inputs * self.dtype.itemsize)
        return min(MAX_ROWS, max(MIN_ROWS, wanted))

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        first = operator.index(start)
        last = self.n_samples if stop is None else operator.index(stop)
        if not 0 <= first <= last <= self.n_samples:
            bounds = f"0 <= start <= stop <= {self.n_samples}"
            msg = f"`start` and `stop` must satisfy {bounds}, got {start}, {stop}."
            raise ValueError(msg)
        return first, last


class _SliceSource(SampleSource):
    """Samples ``start:stop`` of another source."""

    def __init__(self, parent: SampleSource, start: int, stop: int) -> None:
        if isinstance(parent, _SliceSource):
            start, stop, parent = parent.start + start, parent.start + stop, parent.parent
        self.parent: SampleSource = parent
        self.start: int = start
        super().__init__(
            stop - start,
            parent.input_names,
            parent.dtype,
            parent.target_name,
            has_target=parent.has_target,
            name=parent.name,
        )
        self._reads_like(parent)

    def where(self, row: int, column: int | None) -> str:
        return self.parent.where(self.start + row, column)

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.parent._take(self.start + start, self.start + stop, keep, dtype)

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        for chunk in self.parent._blocks(self.start + start, self.start + stop, rows, labels):
            yield chunk._replace(start=chunk.start - self.start)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        return self.parent._read_labels(self.start + start, self.start + stop)

    def validate(self) -> None:
        self._validated = self._validated or self.parent._validated
        super().validate()


class _TransformedSource(SampleSource):
    """Another source whose chunks pass through functions."""

    def __init__(
        self,
        parent: SampleSource,
        inputs_fn: Callable[[NDArray[Any]], ArrayLike] | None,
        labels_fn: Callable[[NDArray[Any], NDArray[np.float64]], ArrayLike] | None,
        input_names: Sequence[str] | None,
        dtype: DTypeLike | None,
    ) -> None:
        kind = parent.dtype if dtype is None else np.dtype(dtype)
        if kind not in (np.float32, np.float64):
            msg = f"`dtype` must be float32 or float64, got {kind}."
            raise ValueError(msg)
        if labels_fn is not None and not parent.has_target:
            msg = f"`labels_fn` needs labels, and {parent.name} has no target."
            raise InputError(msg)
        if input_names is None:
            input_names = parent.input_names
            if inputs_fn is not None:
                probe = parent.inputs(0, 1) if parent.n_samples else np.zeros((1, parent.n_inputs), kind)
                n_outputs = np.shape(np.asarray(inputs_fn(probe)))[-1]
                if n_outputs != parent.n_inputs:
                    input_names = default_names(n_outputs)
        super().__init__(
            parent.n_samples,
            input_names,
            kind,
            parent.target_name,
            has_target=parent.has_target,
            name=parent.name,
        )
        self.parent, self.inputs_fn, self.labels_fn = parent, inputs_fn, labels_fn
        self._reads_like(parent)

    def _can_take(self, labels: bool) -> bool:
        return self.takes and (not labels or self.labels_fn is None or self._labels is not None)

    def where(self, row: int, column: int | None) -> str:
        place = "target" if column is None else f"column `{self.input_names[column]}`"
        return f"{self.name} after its transformation, row {row} (counted from 0), {place}"

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        for first, raw, y in self.parent._blocks(start, stop, rows, labels):
            if y is not None and self.labels_fn is not None:
                y = np.asarray(self.labels_fn(raw, y), dtype=np.float64).reshape(-1)
                self._check_shape(len(raw), (len(raw), self.n_inputs), y.size)
            yield Chunk(first, self._through(raw), y)

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        if self.inputs_fn is None:
            kind = dtype if self.dtype.itemsize >= self.parent.dtype.itemsize else self.dtype
            return as_chunk(self.parent._take(start, stop, keep, kind), dtype)
        return as_chunk(self._through(self.parent._take(start, stop, keep, self.parent.dtype)), dtype)

    def _through(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Return transformed inputs, made of some rows at a time: these stay in the cache on the way."""
        if self.inputs_fn is None:
            return as_chunk(raw, self.dtype)
        out = np.empty((len(raw), self.n_inputs), self.dtype)
        step = max(1, _SLAB_BYTES // (8 * max(self.n_inputs, raw.shape[1], 1)))
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(raw), step):
                rows = raw[first : first + step]
                X = np.asarray(self.inputs_fn(rows))
                self._check_shape(len(rows), np.shape(X), len(rows))
                out[first : first + step] = X
        return out

    def _check_shape(self, n_rows: int, inputs: tuple[int, ...], n_labels: int) -> None:
        if (inputs, n_labels) != ((n_rows, self.n_inputs), n_rows):
            msg = (
                f"The functions of a transformed source must return {n_rows} rows of {self.n_inputs}"
                f" inputs and as many labels here, got inputs of shape {inputs} and {n_labels} labels."
            )
            raise ValueError(msg)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        if self.labels_fn is None and self._labels is None:
            return self.parent._read_labels(start, stop)
        return super()._read_labels(start, stop)

    def validate(self) -> None:
        # Ranks and clipping make finite numbers of infinities: what went in is checked as well.
        self.parent.validate()
        super().validate()


class _RelabelledSource(SampleSource):
    """The inputs of another source with labels from an array."""

    def __init__(self, parent: SampleSource, y: Any, target_name: str) -> None:
        super().__init__(parent.n_samples, parent.input_names, parent.dtype, target_name, name=parent.name)
        self.parent, self.y = parent, y
        self._reads_like(parent)
        self.computed = parent.computed  # of the same inputs

    def where(self, row: int, column: int | None) -> str:
        if column is None:
            return f"Target `{self.target_name}`, row {row} (counted from 0)"
        return self.parent.where(row, column)

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        for chunk in self.parent._blocks(start, stop, rows, False):
            if labels:
                y = to_float64(self.y[chunk.start : chunk.start + len(chunk.X)])
                chunk = chunk._replace(y=y)
            yield chunk

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.parent._take(start, stop, keep, dtype)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        return to_float64(self.y[start:stop])

    def _scan(self) -> None:
        if self.parent._validated:
            self._check_finite(Chunk(0, np.empty((0, self.n_inputs)), self.labels()))
        else:
            super()._scan()


def _watched(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks, unless another rank's failure has made them useless."""
    for chunk in chunks:
        between_chunks()
        yield chunk


def _fingerprint(source: SampleSource) -> str:
    n, row_bytes = source.n_samples, source.n_inputs * source.dtype.itemsize
    ranges = [(0, n)]
    if n * row_bytes > HASHED_WHOLE:
        rows = max(1, HASHED_PIECE_BYTES // row_bytes)
        starts = sorted({k * (n - rows) // (HASHED_PIECES - 1) for k in range(HASHED_PIECES)})
        ranges = [(first, first + rows) for first in starts]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{n} {source.n_inputs} {source.dtype.name} {source.has_target}".encode())
    for X in _pieces(source, ranges):
        digest.update(X.data)
    if source.has_target:
        source._hash_labels(digest)
    return digest.hexdigest()


def _pieces(source: SampleSource, ranges: list[tuple[int, int]]) -> Iterator[NDArray[Any]]:
    """Yield the inputs of the ranges, which are in order; in one reading where a start anywhere is dear."""
    if source.random_access:
        for first, last in ranges:
            for chunk in source.chunks(first, last, labels=False):
                yield chunk.X
        return
    for start, X, _ in source.chunks(labels=False):
        for first, last in ranges:
            piece = X[max(0, first - start) : max(0, last - start)]
            if len(piece):
                yield piece
