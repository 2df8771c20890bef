"""Samples made ready for the features: random parts of the rows, and inputs brought towards N(0, I).

Nothing here holds the data: parts and preparations are views of a `SampleSource` that work chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.preprocessing import QuantileTransformer

from matfree_hier.fitting.moments import BLOCK, Moments, column_scales, merged, shuffled_ranks
from matfree_hier.fitting.survey import Survey, survey
from matfree_hier.sources.arrays import ArraySource
from matfree_hier.sources.base import Mask, SampleSource
from matfree_hier.sources.chunks import Chunk, rechunk
from matfree_hier.sources.ranks import as_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Array: TypeAlias = NDArray[np.float64]

PREPARATIONS = ("none", "standardise", "whiten", "gaussianise")
_QUANTILES = 1000
_QUANTILE_ROWS = 100_000  # rows that decide the quantiles
_RANK_TOLERANCE = 1e-10  # of the correlation matrix, below which a direction does not vary


class RowPart(SampleSource):
    """A random part of the rows of a source, or all others, in their order; nothing is copied.

    In every block of 1024 rows `fraction` of them, drawn by `seed`, are in the part: the parts of sorted,
    grouped or slowly changing files are alike, and a chunk can be read without those before it.

    Parameters
    ----------
    parent : SampleSource
        The whole.
    fraction : float
        Share of the rows that is set aside, 0 < fraction < 1.
    seed : int
        Of the draw.
    inside : bool
        Whether this part is what was set aside (True) or what remains (False).
    offset : int
        Where the parent is a share of all rows: the number of its first row.
    n_rows : int, optional
        And how many rows there are in all.
    """

    def __init__(
        self,
        parent: SampleSource,
        fraction: float,
        seed: int,
        *,
        inside: bool,
        offset: int = 0,
        n_rows: int | None = None,
    ) -> None:
        self.parent, self.fraction, self.seed, self.inside = parent, fraction, seed, inside
        self.offset, self.n_rows = offset, parent.n_samples if n_rows is None else n_rows
        # Drawn once: a bit a row of the parent, and how many rows of the part come before every 1024 of them.
        step = 64 * BLOCK
        drawn = [
            self._drawn(first, min(first + step, parent.n_samples))
            for first in range(0, parent.n_samples, step)
        ]
        self._bits = np.concatenate([np.packbits(inside) for inside in drawn] or [np.empty(0, np.uint8)])
        counts = [int(i[k : k + BLOCK].sum()) for i in drawn for k in range(0, len(i), BLOCK)]
        self._before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        super().__init__(
            int(self._before[-1]),
            parent.input_names,
            parent.dtype,
            parent.target_name,
            has_target=parent.has_target,
            name=parent.name,
        )
        self._reads_like(parent)

    def validate(self) -> None:
        """Check the part, unless the whole is known to be finite."""
        self._validated = self._validated or self.parent._validated
        super().validate()

    def _drawn(self, start: int, stop: int) -> Mask:
        ranks, sizes = shuffled_ranks(start + self.offset, stop + self.offset, self.n_rows, self.seed)
        aside = ranks < np.round(self.fraction * sizes)
        return aside if self.inside else ~aside

    def rows(self, start: int, stop: int) -> Mask:
        """Which of rows start..stop-1 of the parent belong to the part."""
        first = start // 8
        bits = np.unpackbits(self._bits[first : -(-stop // 8)], count=stop - 8 * first)
        return bits[start - 8 * first :].view(np.bool_)

    def where(self, row: int, column: int | None) -> str:
        """Say in words where a value stands in the whole."""
        return self.parent.where(self._marked(row, row + 1)[0], column)

    def _marked(self, start: int, stop: int) -> tuple[int, Mask]:
        """Return rows ``start:stop`` of the part as marked rows of the parent, from a row on."""
        block, last = np.searchsorted(self._before, [start, stop - 1], side="right") - 1
        first = int(block) * BLOCK
        inside = self.rows(first, min((int(last) + 1) * BLOCK, self.parent.n_samples))
        wanted = np.flatnonzero(inside)[start - self._before[block] : stop - self._before[block]]
        return first + int(wanted[0]), inside[wanted[0] : wanted[-1] + 1]

    def _take(self, start: int, stop: int, keep: Mask | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        first, marked = self._marked(start, stop)
        if keep is not None:
            marked[marked] = keep
        return self.parent._take(first, first + len(marked), marked, dtype)

    def _blocks(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        if self.takes:
            yield from super()._blocks(start, stop, rows, labels)
        elif start < stop:
            yield from rechunk(self._streamed(start, stop, rows, labels), rows or self._natural_rows())

    def _streamed(self, start: int, stop: int, rows: int | None, labels: bool) -> Iterator[Chunk]:
        first, marked = self._marked(start, stop)
        position = start
        for chunk in self.parent._blocks(first, first + len(marked), rows, labels):
            keep = marked[chunk.start - first : chunk.start - first + len(chunk.X)]
            X = np.compress(keep, chunk.X, axis=0)
            if len(X):
                yield Chunk(position, X, None if chunk.y is None else chunk.y[keep])
            position += len(X)

    def _read_labels(self, start: int, stop: int) -> NDArray[np.float64]:
        if start == stop:
            return np.empty(0)
        first, marked = self._marked(start, stop)
        return self.parent._read_labels(first, first + len(marked))[marked]


def split(source: SampleSource, fraction: float, seed: int) -> tuple[SampleSource, SampleSource]:
    """Return the rows that remain and the share `fraction` that is set aside, as sources."""
    rest, aside = (
        source.shares.derive(_row_part, source.n_samples, fraction, seed, inside, placed=True)
        for inside in (False, True)
    )
    return as_source(rest), as_source(aside)


def _row_part(
    share: SampleSource, offset: int, n_rows: int, fraction: float, seed: int, inside: bool
) -> SampleSource:
    return RowPart(share, fraction, seed, inside=inside, offset=offset, n_rows=n_rows)


def select_inputs(source: SampleSource, names: tuple[str, ...]) -> SampleSource:
    """Return the source with these input columns in this order.

    Raises
    ------
    ValueError
        If one is missing.
    """
    if source.input_names == names:
        return source
    missing = [name for name in names if name not in source.input_names]
    if missing:
        msg = f"{source.name} must have the input columns of the fit, and lacks `{missing[0]}`."
        raise ValueError(msg)
    columns = [source.input_names.index(name) for name in names]
    return source.transformed(partial(_columns, columns), input_names=names)


def _columns(columns: list[int], X: NDArray[Any]) -> NDArray[Any]:
    return X[:, columns]


@dataclass(frozen=True, eq=False)
class Preparation:
    """A fitted map of the inputs, (m, d) -> (m, d), one row at a time.

    Attributes
    ----------
    name : str
        One of `PREPARATIONS`.
    arrays : dict of str to ndarray of float64
        "standardise": ``mean``, ``scale`` (d,); "whiten": ``mean`` (d,), ``matrix`` (d, d); "gaussianise":
        ``quantiles`` (m, d), ``references`` (m,), ``bound`` (), ``mean``, ``scale`` (d,).
    """

    name: str
    arrays: Mapping[str, Array]

    def __call__(self, X: ArrayLike) -> Array:
        """Return the prepared inputs, shape (m, d), float64."""
        if self.name == "none":
            return np.asarray(X, dtype=np.float64)
        Z = np.asarray(X)
        if self.name == "gaussianise":
            Z = _normal_scores(self.arrays, Z)
        Z = np.subtract(Z, self.arrays["mean"])
        if self.name == "whiten":
            # einsum, and not BLAS: the same bits for a row whatever the chunk it comes in.
            return np.asarray(np.einsum("ij,jk->ik", Z, self.arrays["matrix"]))
        Z /= self.arrays["scale"]
        return np.asarray(Z)


def column_moments(source: SampleSource) -> Moments:
    """Mean and scatter of the inputs, in one pass: O(n d^2) time and O(d^2) memory."""
    moments: Moments = merged(source.shares.each(_column_moments))
    return moments


def _column_moments(share: SampleSource) -> Moments:
    moments = Moments.zero(share.n_inputs)
    for chunk in share.chunks(labels=False):
        moments.add(np.asarray(chunk.X, dtype=np.float64))
    return moments


def fit_preparation(name: str, source: SampleSource, seed: int, known: Survey | None = None) -> Preparation:
    """Fit a preparation to the inputs of a source.

    "none" leaves them; "standardise" gives each column mean 0 and variance 1 (scikit-learn's
    `StandardScaler`); "whiten" gives uncorrelated columns of variance 1 (scikit-learn's `PCA` with
    ``whiten=True``, turned back so that each result is as close as can be to its own column and keeps its
    name); "gaussianise" maps each column through its ranks to normal scores (scikit-learn's
    `QuantileTransformer`, ties at their middle rank) and standardises; "auto" does what `advice` would
    advise of raw inputs, "none" where they are near standard normal. The quantiles come from at most 100,000
    rows. Columns that do not vary become 0.

    Parameters
    ----------
    name : str
        One of `PREPARATIONS` or "auto".
    source : SampleSource
        The samples; one or two passes, none for "none", one more for "auto".
    seed : int
        Of the rows that decide the quantiles.
    known : Survey, optional
        Of the samples, with the shapes of their columns: saves the pass of "auto".

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if name == "auto":
        name = next((option for option, _ in _departures(source, known)), "none")
    if name not in PREPARATIONS:
        msg = f"`prepare` must be one of auto, {', '.join(PREPARATIONS)}, got {name!r}."
        raise ValueError(msg)
    if name == "none":
        return Preparation(name, {})
    arrays: dict[str, Array] = {}
    if name == "gaussianise":
        arrays = _fit_quantiles(source, seed)
        source = source.transformed(partial(_normal_scores, dict(arrays)))
    moments = column_moments(source)
    scale, varies = column_scales(moments)
    arrays["mean"] = moments.mean
    if name == "whiten":
        arrays["matrix"] = _whitening(moments.covariance(), scale)
    else:
        arrays["scale"] = np.where(varies, scale, np.inf)
    return Preparation(name, arrays)


def _whitening(covariance: Array, scale: Array) -> Array:
    """Return the symmetric square root of the inverse correlation, after scaling; shape (d, d)."""
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    varies = values > _RANK_TOLERANCE * values[-1]
    root = np.where(varies, 1.0 / np.sqrt(np.where(varies, values, 1.0)), 0.0)
    return np.asarray((vectors * root) @ vectors.T / scale[:, np.newaxis])


def _fit_quantiles(source: SampleSource, seed: int) -> dict[str, Array]:
    share = _QUANTILE_ROWS / source.n_samples
    rows = source if share >= 1.0 else split(source, share, seed)[1]
    X = np.asarray(rows.inputs(), dtype=np.float64)
    fitted = QuantileTransformer(n_quantiles=min(_QUANTILES, len(X)), subsample=None).fit(X)
    return {
        "quantiles": fitted.quantiles_,
        "references": fitted.references_,
        "bound": np.array(ndtri(1.0 - 0.5 / len(X))),
    }


def _normal_scores(arrays: Mapping[str, Array], X: NDArray[Any]) -> Array:
    """Map each column to the normal scores of its ranks, ties at their middle rank.

    `QuantileTransformer` itself sends a value tied with the smallest, such as most of a column of
    rainfall, to its most extreme score: hence this reading of its quantiles.
    """
    X = np.asarray(X, dtype=np.float64)
    Z = np.empty(X.shape)
    references = arrays["references"]
    for j in range(X.shape[1]):
        quantiles = arrays["quantiles"][:, j]
        above = np.interp(X[:, j], quantiles, references)
        below = -np.interp(-X[:, j], -quantiles[::-1], -references[::-1])
        Z[:, j] = ndtri((above + below) / 2.0)
    return np.clip(Z, -arrays["bound"], arrays["bound"])


def advice(source: SampleSource, prepare: str = "none") -> str | None:
    """Say in a sentence how far inputs are from standard normal and what helps; None if they are near.

    Compared are means (.25), variances (a factor 1.5), excess kurtosis (3) and correlations (.5), each with
    an allowance of five standard errors. One pass over the inputs, O(n d^2).

    Parameters
    ----------
    source : SampleSource
        Inputs as the features see them.
    prepare : str
        The preparation they have been through: it is not advised again, nor one that does less.
    """
    rest = {"standardise": ("gaussianise", "whiten"), "whiten": ("gaussianise",), "gaussianise": ()}
    for option, departure in _departures(source, None):
        if option in rest.get(prepare, PREPARATIONS):
            return (
                f"The inputs are far from standard normal ({departure}): `--prepare {option}` may find more."
            )
    return None


def _departures(source: SampleSource, known: Survey | None) -> Iterator[tuple[str, str]]:
    """Yield what helps and what is wrong, the gravest first."""
    _, moments, powers = known or survey(source, 0, linear=False, shapes=True)
    assert moments is not None
    assert powers is not None
    scale, varies = column_scales(moments)
    fourth = powers / scale**4
    slack = 5.0 / np.sqrt(moments.count)
    names, covariance = source.input_names, moments.covariance()
    kurtosis = np.where(varies, fourth / moments.count - 3.0, 0.0)
    j = int(np.argmax(np.abs(kurtosis)))
    if abs(kurtosis[j]) > 3.0 + slack * np.sqrt(24.0):
        yield "gaussianise", f"column `{names[j]}` has excess kurtosis {kurtosis[j]:.3g}"
    ratio = np.where(varies, np.abs(np.log(scale**2)), 0.0)
    j = int(np.argmax(ratio))
    if ratio[j] > np.log(1.5) + 2.0 * slack:
        yield "standardise", f"column `{names[j]}` has variance {covariance[j, j]:.3g}"
    j = int(np.argmax(np.abs(moments.mean)))
    if abs(moments.mean[j]) > 0.25 + slack:
        yield "standardise", f"column `{names[j]}` has mean {moments.mean[j]:.3g}"
    correlation = np.triu(covariance / np.outer(scale, scale), 1)
    i, j = divmod(int(np.argmax(np.abs(correlation))), source.n_inputs)
    if abs(correlation[i, j]) > 0.5 + slack:
        yield "whiten", f"columns `{names[i]}` and `{names[j]}` have correlation {correlation[i, j]:.2g}"


def materialised(source: SampleSource, dtype: Any, limit: int) -> SampleSource:
    """Return the samples as arrays of `dtype` if they take at most `limit` bytes, else the source itself."""
    return as_source(source.shares.derive(_materialised, dtype, limit))


def _materialised(source: SampleSource, dtype: Any, limit: int) -> SampleSource:
    n_bytes = source.n_samples * source.n_inputs * np.dtype(dtype).itemsize
    if n_bytes > limit or not source.n_samples:  # none is what a rank may have of a small part
        return source
    X = np.empty((source.n_samples, source.n_inputs), dtype)
    y = np.empty(source.n_samples)
    for chunk in source.chunks():
        X[chunk.start : chunk.start + len(chunk.X)] = chunk.X
        y[chunk.start : chunk.start + len(chunk.X)] = chunk.y
    return ArraySource(X, y, input_names=source.input_names, name=source.name, validated=True)
