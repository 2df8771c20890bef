"""The layers put together as a scikit-learn estimator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from matfree_hier.eigen import top_eigenpairs
from matfree_hier.kernels import squared_norms
from matfree_hier.links import FittedLink
from matfree_hier.links import link as named_link
from matfree_hier.moments import FoldedMoments, fit_ridge
from matfree_hier.operator import MomentOperator, project, single_threaded_blas
from matfree_hier.packing import check_size, multi_index
from matfree_hier.prepare import Preparation, fit_preparation, materialised, split
from matfree_hier.readout import FitReport, Readout, read_paper, read_squares
from matfree_hier.recovery import outliers
from matfree_hier.result import EigenResult
from matfree_hier.sources import SampleSource, open_source
from matfree_hier.sources.convert import default_names
from matfree_hier.status import NotConverged, RunFileError, Status
from matfree_hier.store import RunFile, provenance
from matfree_hier.theory import predict_spectrum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array: TypeAlias = NDArray[np.float64]
Samples: TypeAlias = SampleSource | str | os.PathLike[str] | ArrayLike

ESTIMATORS = ("paper", "spectral")
AUTO_PAIRS = 32  # eigenpairs among which "auto" counts features
LINEAR_INPUTS = 2048  # with more, `linear="auto"` is off: the ridge costs O(d^3)
IN_MEMORY = 2**28  # bytes of prepared samples kept in memory rather than prepared again each pass
_BULK_ROWS = 20_000  # samples from which the bulk's edges are predicted
_DEFAULT_SEED = 20_260_514
_HELD_OUT = {"paper": 0.5, "spectral": 0.2}  # share of the samples kept for the readout


class HierarchicalSpectralRegressor(TransformerMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression through the top eigenvectors of the moment operator of Hermite features.

    The target is modelled as a linear part plus g(h2), h2 = sum_k w_k (h_k^2 - 1)/sqrt 2, where the latent
    features h_k = <A_k, F(x)> are Hermite polynomials of one degree. The A_k are eigenvectors of
    C = (1/n) sum t_i (F_i F_i^T - I)/sqrt 2, found without forming C: each pass over the data costs
    4 n D k operations for k vectors of D = C(d+q-1, q) entries. Memory is O(D k + d^2) and the labels.
    One part of the samples finds the features, the rest (a fifth, the paper's estimator a half) reads them
    out. Inputs should be near standard normal: see `prepare`.

    Parameters
    ----------
    degree : int, default 2
        Degree q of the features, 1..8.
    n_features : "auto" or int
        Number of features, 1..D; "auto" counts the eigenvalues outside the bulk among the 32 largest.
    estimator : {"spectral", "paper"}
        "paper" is the estimator of the paper: labels as they are, no trace centring, no linear part, the
        readout of its equations (2.12) to (2.14). "spectral" clips labels, centres the trace and fits the
        readout by least squares, on h_k^2 and, where cross-validation says that it helps, on h_k; features
        that do not help get no weight.
    label_transform : "auto", str or callable
        What becomes of the labels in the operator; "auto" is "identity" for "paper", "clip" otherwise.
    center_trace : "auto" or bool
        Subtract tr(C)/D from the spectrum; "auto" is True but for "paper".
    residualize : {"auto", False}
        Reserved.
    linear : "auto" or bool
        Ridge regression on the raw columns first, features on what it leaves. "auto": if it beats the mean
        in cross-validation and d <= 2048; never for "paper".
    link : "auto", str or callable
        g: "auto" fits one where it helps; a name as "identity"; or a callable.
    prepare : {"none", "standardise", "whiten", "gaussianise"}
        What is done to the inputs first, fitted on the data of `fit`.
    dtype : {"float32", "float64"}
        Of the features; readout and predictions are in float64.
    tol : float
        Residuals of the eigenpairs relative to the norm of C.
    max_passes : int
        Passes over the data at most.
    smoothness, graph, comm
        Reserved: 0.0, None, None.
    run_file : str or path, optional
        PATH or PATH::NAME of a run file: the fit can be resumed from it, and `load` reads it.
    progress : None or bool
        Show progress on standard error; None on a terminal only.
    random_state : None, int, numpy Generator or RandomState
        The same number gives the same bits; None is a number that is always the same.

    Attributes
    ----------
    features_ : ndarray of float64, shape (K, D)
        Orthonormal rows in packed coordinates; K = 0 if none was found.
    weights_, slopes_ : ndarray of float64, shape (K,)
        Weights of (h_k^2 - 1)/sqrt 2 and of h_k.
    link_ : Link or FittedLink
    coef_ : ndarray of float64, shape (d,)
        The linear part, on raw columns.
    intercept_ : float
    spectrum_ : EigenResult
    preparation_ : Preparation
    report_ : FitReport
    status_ : Status
    n_features_in_, feature_names_in_
        As in scikit-learn.

    References
    ----------
    arXiv:2605.14567, doi:10.48550/arXiv.2605.14567; section 3.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(5).standard_normal((4000, 4))
    >>> y = (X[:, 0] * X[:, 1]) ** 2
    >>> model = HierarchicalSpectralRegressor(degree=2, n_features=1).fit(X, y)
    >>> model.top_terms(k=0, m=1)[0][0]
    ('x0', 'x1')
    """

    def __init__(
        self,
        degree: int = 2,
        n_features: int | str = "auto",
        estimator: str = "spectral",
        label_transform: Any = "auto",
        center_trace: bool | str = "auto",
        residualize: bool | str = "auto",
        linear: bool | str = "auto",
        link: Any = "auto",
        prepare: str = "none",
        dtype: str = "float32",
        tol: float = 1e-4,
        max_passes: int = 100,
        smoothness: float = 0.0,
        graph: Any = None,
        run_file: Any = None,
        progress: Any = None,
        comm: Any = None,
        random_state: Any = None,
    ) -> None:
        self.degree = degree
        self.n_features = n_features
        self.estimator = estimator
        self.label_transform = label_transform
        self.center_trace = center_trace
        self.residualize = residualize
        self.linear = linear
        self.link = link
        self.prepare = prepare
        self.dtype = dtype
        self.tol = tol
        self.max_passes = max_passes
        self.smoothness = smoothness
        self.graph = graph
        self.run_file = run_file
        self.progress = progress
        self.comm = comm
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Without the linear part a linear target, such as scikit-learn's checks have, is not in the model.
        tags.regressor_tags.poor_score = self.estimator == "paper" or self.linear is False
        tags.transformer_tags.preserves_dtype = []
        return tags

    # --- fitting -------------------------------------------------------------------------------------------

    def fit(self, X: Samples, y: ArrayLike | None = None) -> Self:
        """Find the features and read them out.

        Parameters
        ----------
        X : array_like of shape (n, d), data frame, SampleSource or path
            Inputs, n >= 2; a source or a file with its own labels.
        y : array_like of shape (n,), optional
            Labels, only with arrays and data frames.

        Raises
        ------
        ValueError, TypeError
            If an argument is out of its range, or the data are not finite, real and of matching lengths.
        NotConverged
            If the operator failed; `result` holds the pairs so far.
        KeyboardInterrupt
            If interrupted; with a `run_file` the same call resumes.
        """
        self._check_options()
        if self.run_file is not None:
            with RunFile(self.run_file):
                pass  # what cannot be written is refused before the work
        source = self._open_for_fit(X, y)
        seeds = [int(s) for s in np.random.SeedSequence(self._seed()).generate_state(4, np.uint64)]
        with single_threaded_blas():
            self._fit_linear(source, seeds[0])
            self.preparation_ = fit_preparation(self.prepare, source, seeds[1])
            train, held_out = (
                materialised(
                    part.transformed(self.preparation_, labels_fn=self._left_by_linear, dtype=self.dtype),
                    self.dtype,
                    IN_MEMORY,
                )
                for part in split(source, _HELD_OUT[self.estimator], seeds[2])
            )
            features = self._find_features(train, seeds[3])
            if self.estimator == "paper":
                readout = read_paper(held_out, features, self.degree, self.link)
            else:
                readout = read_squares(held_out, features, self.degree, self.link, seeds[0])
        self._settle(readout, source.n_samples)
        if self.run_file is not None:
            self._save(source)
        return self

    def _check_options(self) -> None:
        def refuse(name: str, bound: str) -> None:
            msg = f"`{name}` must be {bound}, got {getattr(self, name)!r}."
            raise ValueError(msg)

        if self.estimator == "refined":
            msg = f"`estimator` must be one of {', '.join(ESTIMATORS)}: 'refined' is not available yet."
            raise ValueError(msg)
        if self.estimator not in ESTIMATORS:
            refuse("estimator", f"one of {', '.join(ESTIMATORS)}")
        if self.n_features != "auto" and not (_is_int(self.n_features) and self.n_features >= 1):  # type: ignore[operator]
            refuse("n_features", '"auto" or an integer of at least 1')
        for name in ("linear", "center_trace"):
            if getattr(self, name) not in ("auto", True, False):
                refuse(name, '"auto", True or False')
        if self.estimator == "paper" and self.linear is True:
            refuse("linear", '"auto" or False for the paper\'s estimator')
        if self.residualize not in ("auto", False):
            refuse("residualize", '"auto" or False')
        if self.smoothness != 0.0:
            refuse("smoothness", "0.0")
        for name in ("graph", "comm"):
            if getattr(self, name) is not None:
                refuse(name, "None")
        if np.dtype(self.dtype) not in (np.float32, np.float64):
            refuse("dtype", "float32 or float64")
        if not (isinstance(self.link, str) and self.link == "auto"):
            named_link(self.link)

    def _seed(self) -> int:
        state = self.random_state
        if state is None:
            return _DEFAULT_SEED
        if isinstance(state, np.random.Generator):
            return int(state.integers(2**63))
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
        if not _is_int(state) or state < 0:
            msg = f"`random_state` must be None, a generator or an integer of at least 0, got {state!r}."
            raise ValueError(msg)
        return int(state)

    def _open_for_fit(self, X: Samples, y: ArrayLike | None) -> SampleSource:
        if isinstance(X, SampleSource | str | os.PathLike):
            if y is not None:
                msg = "`y` must be None when `X` is a source or a path, which has its own labels."
                raise ValueError(msg)
            source = X if isinstance(X, SampleSource) else open_source(X)
            if not source.has_target:
                msg = f"`X` must have a target to fit: {source.name} has none."
                raise ValueError(msg)
            if source.n_samples < 2:
                msg = f"`X` must have at least 2 samples, got {source.n_samples}."
                raise ValueError(msg)
            source.validate()
            self.n_features_in_ = source.n_inputs
            if source.input_names != tuple(default_names(source.n_inputs)):
                self.feature_names_in_ = np.array(source.input_names, dtype=object)
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        else:
            X, y = validate_data(
                self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2, y_numeric=True
            )
            names = getattr(self, "feature_names_in_", None)
            source = open_source((X, y)) if names is None else open_source((X, y), inputs=list(names))
        self.input_names_ = source.input_names
        n_packed = check_size(source.n_inputs, self.degree)
        if self.n_features != "auto" and self.n_features > n_packed:  # type: ignore[operator]
            msg = (
                f"`n_features` must be in 1..{n_packed} for {source.n_inputs} inputs and degree"
                f" {self.degree}, got {self.n_features}."
            )
            raise ValueError(msg)
        return source

    def _fit_linear(self, source: SampleSource, seed: int) -> None:
        """Set the linear part, or the mean where there is none."""
        wanted = self.linear is True or (
            self.linear == "auto" and self.estimator != "paper" and source.n_inputs <= LINEAR_INPUTS
        )
        moments = FoldedMoments(source.n_inputs * wanted + 1, source.n_samples, seed)
        for chunk in source.chunks():
            y = np.asarray(chunk.y)[:, np.newaxis]
            moments.add(chunk.start, np.hstack([chunk.X, y]) if wanted else y)
        self.coef_ = np.zeros(source.n_inputs)
        self.intercept_ = float(moments.total().mean[-1])
        self._linear_r2 = 0.0
        if wanted:
            fit = fit_ridge(moments)
            if fit.helps or self.linear is True:
                self.coef_, self.intercept_ = fit.coefficients, fit.intercept
                self._linear_r2 = 1.0 - fit.error / fit.error_of_mean if fit.error_of_mean > 0.0 else 0.0

    def _left_by_linear(self, X: NDArray[Any], y: Array) -> Array:
        return np.asarray(y - self.intercept_ - np.asarray(X, dtype=np.float64) @ self.coef_)

    def n_pairs(self, n_packed: int) -> int:
        """Return how many eigenpairs a fit asks for when there are `n_packed` Hermite features."""
        return min(AUTO_PAIRS, n_packed) if self.n_features == "auto" else int(self.n_features)

    def _find_features(self, train: SampleSource, seed: int) -> Array:
        """Return the features as rows, the largest |eigenvalue| first; sets the spectrum and the status."""
        automatic = self.n_features == "auto"
        paper = self.estimator == "paper"
        transform = (
            ("identity" if paper else "clip") if self.label_transform == "auto" else self.label_transform
        )
        operator = MomentOperator(
            train,
            degree=self.degree,
            dtype=self.dtype,
            label_transform=transform,
            center_trace=not paper if self.center_trace == "auto" else bool(self.center_trace),
        )
        k = self.n_pairs(operator.shape[0])
        self.spectrum_ = top_eigenpairs(
            operator,
            k,
            which="LM",
            tol=self.tol,
            stop="outliers" if automatic else "residual",
            max_passes=self.max_passes,
            seed=seed,
            run_file=self.run_file,
            progress=self.progress,
        )
        self.status_ = self.spectrum_.status
        if self.status_ is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if self.status_ is Status.OPERATOR_FAILED:
            raise NotConverged(f"{self.status_.value} {self.spectrum_.message}".strip(), self.spectrum_)
        kept = _above_bulk(operator, self.spectrum_.eigenvalues) if automatic else slice(None)
        self._eigenvalues = self.spectrum_.eigenvalues[kept]
        return np.ascontiguousarray(self.spectrum_.eigenvectors[:, kept].T)

    def _settle(self, readout: Readout, n_samples: int) -> None:
        """Set the fitted attributes from the readout."""
        if self.n_features == "auto" and self.estimator != "paper":
            used = np.flatnonzero((readout.weights != 0.0) | (readout.slopes != 0.0))
            kept = slice(0, used[-1] + 1 if len(used) else 0)
        else:
            kept = slice(None)
        self.features_ = np.ascontiguousarray(readout.features[kept])
        self.weights_, self.slopes_ = readout.weights[kept], readout.slopes[kept]
        self._eigenvalues = self._eigenvalues[kept]
        self.link_ = readout.link
        self.intercept_ += readout.intercept
        if self.status_.ok and not len(self.features_):
            self.status_ = Status.NO_FEATURE_FOUND
        self.report_ = FitReport(
            self.status_,
            self.estimator,
            self.degree,
            n_samples,
            self.n_features_in_,
            check_size(self.n_features_in_, self.degree),
            self.spectrum_.n_passes,
            len(self.features_),
            self._eigenvalues,
            self.weights_,
            self.slopes_,
            self._linear_r2,
            readout.r2,
        )

    # --- using it ------------------------------------------------------------------------------------------

    def predict(self, X: Samples) -> Array:
        """Predict labels, shape (n,), float64: O(n D K) time, O(n + D K) memory.

        Parameters
        ----------
        X : array_like of shape (n, d), data frame, SampleSource or path
            Inputs; of a source or file the columns are matched by name.
        """
        parts = [raw @ self.coef_ + self._from_features(H) for raw, H in self._latents(X)]
        return np.concatenate(parts) if parts else np.empty(0)

    def transform(self, X: Samples) -> Array:
        """Return the latents h_k, shape (n, K), float64: O(n D K) time.

        Parameters
        ----------
        X : array_like of shape (n, d), data frame, SampleSource or path
            As in `predict`.
        """
        parts = [H for _, H in self._latents(X)]
        return np.concatenate(parts) if parts else np.empty((0, len(self.features_)))

    def score(self, X: Samples, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> float:
        """Return R^2 = 1 - squared error / squared deviations from the mean.

        Parameters
        ----------
        X : array_like of shape (n, d), data frame, SampleSource or path
        y : array_like of shape (n,), optional
            Labels; None takes those of a source or file.
        sample_weight : array_like of shape (n,), optional
        """
        if y is None:
            check_is_fitted(self)
            X = X if isinstance(X, SampleSource) else open_source(X)
            y = X.labels()
        return float(super().score(X, y, sample_weight))

    def top_terms(self, k: int = 0, m: int = 10) -> list[tuple[tuple[str, ...], float]]:
        """Return the m largest products of feature k: names of their inputs and their coefficient.

        A name that occurs r times stands for the Hermite polynomial of degree r of that input. Squares of
        the coefficients of a feature add up to 1.

        Parameters
        ----------
        k : int
            Number of the feature, 0..K-1.
        m : int
            Products at most.
        """
        check_is_fitted(self)
        found = len(self.features_)
        if not 0 <= k < found:
            msg = f"`k` must be below {found}, the number of features found, and at least 0, got {k}."
            raise ValueError(msg)
        row = self.features_[k]
        order = np.argsort(-np.abs(row), kind="stable")[:m]
        d = self.n_features_in_
        return [
            (tuple(self.input_names_[i] for i in multi_index(int(p), d, self.degree)), float(row[p]))
            for p in order
        ]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:  # noqa: ARG002
        """Return the names of the columns of `transform`: latent0, latent1, ..."""
        check_is_fitted(self)
        return np.array([f"latent{k}" for k in range(len(self.features_))], dtype=object)

    def _from_features(self, H: Array) -> Array:
        """Return intercept and the part of the features from latents, (m, K) -> (m,)."""
        readout = Readout(self.features_, self.weights_, self.slopes_, self.intercept_, self.link_, 0.0)
        return readout(H)

    def _latents(self, X: Samples) -> Iterator[tuple[Array, Array]]:
        """Yield raw inputs (m, d) and latents (m, K), float64, chunk by chunk."""
        check_is_fitted(self)
        source = self._open_for_predict(X)
        for chunk in source.chunks(labels=False):
            raw = np.asarray(chunk.X, dtype=np.float64)
            H = np.zeros((len(raw), len(self.features_)))
            if H.size:
                H = project(self.preparation_(raw), self.features_.T, self.degree, np.float64)
            yield raw, H

    def _open_for_predict(self, X: Samples) -> SampleSource:
        if not isinstance(X, SampleSource | str | os.PathLike):
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
            return open_source(X)
        source = X
        if not isinstance(source, SampleSource):
            source = open_source(source, False, inputs=list(self.input_names_))
        return select_inputs(source, self.input_names_)

    # --- storing -------------------------------------------------------------------------------------------

    def _save(self, source: SampleSource) -> None:
        fitted = isinstance(self.link_, FittedLink)
        callable_link = not fitted and not isinstance(self.link, str)
        values = {
            "features": self.features_,
            "weights": self.weights_,
            "slopes": self.slopes_,
            "eigenvalues": self._eigenvalues,
            "coef": self.coef_,
            "intercept": self.intercept_,
            "input_names": list(self.input_names_),
            "named": hasattr(self, "feature_names_in_"),
            "link": "fitted" if fitted else "callable" if callable_link else self.link_.name,
            "link_parameters": self.link_.parameters if isinstance(self.link_, FittedLink) else {},
            "preparation": self.preparation_.name,
            "preparation_arrays": dict(self.preparation_.arrays),
            "status": self.status_.name,
            "linear_r2": self.report_.linear_r2,
            "feature_r2": self.report_.feature_r2,
            "n_samples": source.n_samples,
            "spectrum": self.spectrum_.to_arrays(),
        }
        arguments = {name: value for name, value in self.get_params(deep=False).items() if name != "progress"}
        with RunFile(self.run_file) as run:
            run.save("model", values)
            run.save(
                "model_provenance",
                provenance(
                    arguments,
                    seed=self.random_state,
                    shape=(source.n_samples, source.n_inputs),
                    fingerprint=source.fingerprint(),
                ),
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, link: Callable[[Array], Array] | None = None) -> Self:
        """Read a fitted estimator from the run file of its fit.

        Parameters
        ----------
        path : str or path
            PATH or PATH::NAME.
        link : callable, optional
            The link again, if it was a callable: functions are not stored.

        Raises
        ------
        FileNotFoundError, RunFileError
            If there is no such file, or it is damaged or holds no finished fit.
        """
        with RunFile(path, mode="r") as run:
            if not run.has("model"):
                msg = f"The run `{run.name}` of `{run.path}` holds no finished fit."
                raise RunFileError(msg)
            values, arguments = run.load("model"), run.load("model_provenance")["arguments"]
        if values["link"] == "callable" and link is None:
            msg = "`link` must be given again: this model was fitted with a callable, which is not stored."
            raise ValueError(msg)
        known = cls().get_params(deep=False)
        model = cls(**{name: value for name, value in arguments.items() if name in known})
        if link is not None:
            model.link = link
        model._restore(values)
        return model

    def _restore(self, values: dict[str, Any]) -> None:
        self.input_names_ = tuple(values["input_names"])
        self.n_features_in_ = len(self.input_names_)
        if values["named"]:
            self.feature_names_in_ = np.array(self.input_names_, dtype=object)
        self.coef_ = values["coef"]
        self.intercept_ = 0.0
        self._linear_r2 = values["linear_r2"]
        self._eigenvalues = values["eigenvalues"]
        self.preparation_ = Preparation(values["preparation"], values["preparation_arrays"])
        self.spectrum_ = EigenResult.from_arrays(values["spectrum"])
        self.status_ = Status[values["status"]]
        if values["link"] == "fitted":
            link: Any = FittedLink.from_parameters(values["link_parameters"])
        else:
            link = named_link(self.link if values["link"] == "callable" else values["link"])
        self._settle(
            Readout(
                values["features"],
                values["weights"],
                values["slopes"],
                values["intercept"],
                link,
                values["feature_r2"],
            ),
            values["n_samples"],
        )


def _above_bulk(operator: MomentOperator, eigenvalues: Array) -> NDArray[np.bool_]:
    """Say which eigenvalues stand outside the bulk that the labels and the norms of the features predict."""
    step = -(-operator.n_samples // _BULK_ROWS)
    size = operator.shape[0]
    labels, norms = [], []
    for chunk in operator.source.chunks():
        rows = slice(-chunk.start % step, None, step)
        y, X = np.asarray(chunk.y)[rows], np.ascontiguousarray(chunk.X[rows], dtype=np.float64)
        labels.append(y if operator.label_transform is None else operator.label_transform(y))
        norms.append(np.empty(len(X)))
        squared_norms(X, operator.degree, norms[-1])
    bulk = predict_spectrum(
        np.concatenate(labels), operator.n_samples, size, norms=np.concatenate(norms) / size
    )
    shift = 0.0 if operator.center_trace else operator.trace() / size
    return outliers(eigenvalues - shift, bulk.edge_left, bulk.edge_right, size)


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
    return source.transformed(lambda X: X[:, columns], input_names=names)


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
