"""The layers put together as a scikit-learn estimator."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from matfree_hier.blas import single_threaded_blas
from matfree_hier.comm import team_of
from matfree_hier.fitting.assess import OperatorLabels, assess_candidates, assess_refinement
from matfree_hier.fitting.fitfile import FitFile
from matfree_hier.fitting.fitted import FitReport, Fitted
from matfree_hier.fitting.options import Samples, check_options, open_for_fit, seed_of
from matfree_hier.fitting.prepare import Preparation, fit_preparation, materialised, select_inputs, split
from matfree_hier.fitting.readout import read_paper, read_squares
from matfree_hier.fitting.smoothing import find_smooth
from matfree_hier.fitting.spectral import Candidates, find_candidates, with_operator_labels
from matfree_hier.fitting.stages import LinearPart, Outcome, fit_linear, refine_readout
from matfree_hier.fitting.survey import survey
from matfree_hier.labels import LabelTransform, forget_sizes
from matfree_hier.operator import MomentOperator, project
from matfree_hier.packing import check_size, multi_index
from matfree_hier.recovery import Recovery
from matfree_hier.shares import joined
from matfree_hier.sources import SampleSource, open_source
from matfree_hier.sources.ranks import gathered, offer
from matfree_hier.status import Status
from matfree_hier.store import RunFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array: TypeAlias = NDArray[np.float64]

_NEARLY = 0.95  # of the steps allowed: a refinement that took as many did not end by itself
LINEAR_INPUTS = 2048  # with more, `linear="auto"` is off: the ridge costs O(d^3)
STEPS = 0.4  # of the passes allowed, for one refinement: there may be two or three
IN_MEMORY = 2**28  # bytes of prepared samples kept in memory rather than prepared again each pass


class HierarchicalSpectralRegressor(TransformerMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression through the top eigenvectors of the moment operator of Hermite features.

    The target is modelled as a linear part plus g(h2), h2 = sum_k w_k (h_k^2 - 1)/sqrt 2, where the latent
    features h_k = <A_k, F(x)> are Hermite polynomials of one degree. The A_k are eigenvectors of
    C = (1/n) sum t_i (F_i F_i^T - I)/sqrt 2, found without forming C: each pass over the data costs
    4 n D k operations for k vectors of D = C(d+q-1, q) entries. Memory is O(D k + d^2) and the labels.
    One part of the samples finds the features, the rest (a tenth, more of few samples and less of many; the
    paper's estimator a half) reads them out and judges them. Inputs should be near standard normal: see
    `prepare`.

    Parameters
    ----------
    degree : int, default 2
        Degree q of the features, 1..8.
    n_features : "auto" or int
        Number of features, 1..D; "auto" looks among the 32 to 128 largest eigenvalues outside the bulk for
        those that count on held-out samples.
    estimator : {"refined", "spectral", "paper"}
        "paper" is the estimator of the paper: labels as they are, no trace centring, no linear part, the
        readout of its equations (2.12) to (2.14). "spectral" normalises labels, centres the trace and reads
        out by ridge regression on h_k^2 and, where cross-validation says that it helps, on h_k; features
        that do not help get no weight.
        "refined" then fits the model itself to the labels by least squares from the spectral features, with
        as many components as held-out samples tell (`refine.refine`), and keeps the better of both.
    label_transform : "auto", str or callable
        What becomes of the labels in the operator, see `labels.fit_label_transform`; "auto" is "identity"
        for "paper", "normalised" otherwise.
    center_trace : "auto" or bool
        Subtract tr(C)/D from the spectrum; "auto" is True but for "paper".
    residualize : "auto" or bool
        Subtract the low even chaoses from the labels of the operator where that takes variance away
        (`residualize.residualize`); "auto" is True but for "paper".
    linear : "auto" or bool
        Ridge regression on the raw columns first, features on what it leaves. "auto": if it beats the mean
        in cross-validation and d <= 2048; never for "paper".
    link : "auto", str or callable
        g: "auto" fits one where it helps; a name as "identity"; or a callable. One that is given is so but
        for the units of the labels, whose scale and offset are fitted ("paper" takes it as it is).
    prepare : {"auto", "none", "standardise", "whiten", "gaussianise"}
        What is done to the inputs first, fitted on the data of `fit` (`prepare.fit_preparation`); "auto" does
        what brings them near standard normal, where they are not, and never for "paper".
    dtype : {"float32", "float64"}
        Of the features; readout and predictions are in float64.
    tol : float
        Residuals of the eigenpairs relative to the norm of C.
    max_passes : int
        Passes over the data at most, a step of a refinement being about one; of those a refinement takes at
        most four in ten.
    method : {"auto", "power"}
        How eigenvectors are found: by what takes the fewest operations to `tol`; or by the block power
        iteration of the paper's authors (`top_eigenpairs`), for a given number of features: with
        ``max_passes=16`` its 15 passes and the one that makes eigenvalues, and less than is in the samples.
    smoothness : float or "auto"
        tau: features are solutions of C v = w (I + tau L) v, L the Laplacian of `graph` lifted to packed
        coordinates, so that neighbouring inputs act alike and noise counts less. "auto" takes the one of six
        values, 0 among them, whose features predict held-out samples best; each costs a solve. Preparations
        keep their columns, whose neighbours these are. Not for "paper".
    graph : None, str, tuple of int or array_like of shape (d, d)
        Which inputs are neighbours, see `metric.graph_weights`: "path", which None is, "cycle", the rows and
        columns of a grid, or weights.
    comm : mpi4py.MPI.Comm, optional
        Samples on several ranks, each of which calls `fit`. A file, a teacher or arrays that are the same on
        all ranks are divided between them; others are a share each. All ranks are fitted alike, by rank 0,
        which alone writes the run file. Predictions are each rank's own affair.
    run_file : str or path, optional
        PATH or PATH::NAME of a run file: a fit that was stopped goes on from it, to the same bits, a finished
        one is taken from it, one of other data or options is refused; `load` reads it.
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
    link_ : Link, FittedLink or ScaledLink
    coef_ : ndarray of float64, shape (d,)
        The linear part, on raw columns.
    intercept_ : float
    spectrum_ : EigenResult
    preparation_ : Preparation
    label_transform_ : LabelTransform or None
        Of the labels less the linear part; None for a callable that was stored.
    report_ : FitReport
        Prints as a table, and draws itself (`FitReport.plot`); its `recovery` says how near features are to
        true ones, with intervals.
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
        estimator: str = "refined",
        label_transform: Any = "auto",
        center_trace: bool | str = "auto",
        residualize: bool | str = "auto",
        linear: bool | str = "auto",
        link: Any = "auto",
        prepare: str = "auto",
        dtype: str = "float32",
        tol: float = 1e-4,
        max_passes: int = 100,
        method: str = "auto",
        smoothness: float | str = 0.0,
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
        self.method = method
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
        team = team_of(self.comm)
        if team is None:
            check_options(self)
            self._check_run_file()
            self._adopt(self._fitted_to(open_for_fit(self, X, y)))
            return self
        ranks = team

        def opened() -> Any:
            check_options(self)
            if ranks.rank == 0:
                self._check_run_file()
            else:
                seed_of(self.random_state)  # which draws from a generator, on rank 0 in `_fitted_to`
            return offer(ranks, open_for_fit(self, X, y))

        def run(offered: list[Any]) -> Fitted:
            return self._fitted_to(gathered(ranks, offered))

        known = {"link": self.link, "label_transform": self.label_transform}
        known["slope"] = getattr(self.link, "derivative", None)
        self._adopt(team.collective("HierarchicalSpectralRegressor.fit", run, opened, known))
        return self

    def _check_run_file(self) -> None:
        """Refuse a run file that cannot be written, before the work."""
        if self.run_file is not None:
            with RunFile(self.run_file):
                pass

    def _fitted_to(self, source: SampleSource) -> Fitted:
        """Fit, or take what the run file has."""
        seed = seed_of(self.random_state)
        file = None
        if self.run_file is not None:
            source.validate()  # before the file says whose it is; otherwise in the first reading
            file = FitFile(self.run_file, self.get_params(deep=False), seed, source)
        fitted = None if file is None else file.finished(self.link)
        if fitted is None:
            seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(5, np.uint64)]
            with single_threaded_blas():
                fitted = self._fit(source, seeds, file)
            if file is not None:
                file.save(fitted, self.random_state)
        return fitted

    def _fit(self, source: SampleSource, seeds: list[int], file: FitFile | None) -> Fitted:
        paper = self.estimator == "paper"
        prepare = "none" if paper and self.prepare == "auto" else self.prepare
        wanted = self.linear is True or (
            self.linear == "auto" and not paper and source.n_inputs <= LINEAR_INPUTS
        )
        known = survey(source, seeds[0], linear=wanted, shapes=prepare == "auto")
        linear = fit_linear(source, wanted=wanted, forced=self.linear is True, seed=seeds[0], known=known)
        preparation = fit_preparation(prepare, source, seeds[1], known)
        share = 0.5 if paper else _held_out_share(source.n_samples)
        train, held_out = (
            materialised(
                part.transformed(preparation, labels_fn=linear.residuals, dtype=self.dtype),
                self.dtype,
                IN_MEMORY,
            )
            for part in split(source, share, seeds[2])
        )
        found, labels = self._find(train, held_out, seeds, None if file is None else file.identity)
        train.shares.each(forget_sizes)
        if paper:
            readout = read_paper(held_out, found.features[found.outside], self.degree, self.link)
        else:
            readout = read_squares(
                held_out,
                found.features,
                self.degree,
                self.link,
                seeds[0],
                outside=found.outside,
                train=train,
            )
        outcome = Outcome(readout)
        if self.estimator == "refined":
            outcome = refine_readout(
                train,
                held_out,
                found,
                readout,
                degree=self.degree,
                link=self.link,
                n_features=self._n_features(),
                max_steps=max(1, int(STEPS * self.max_passes)),
                max_passes=self.max_passes - found.n_passes,
                dtype=self.dtype,
                seed=seeds[4] % 2**32,
                progress=self.progress,
                file=file,
            )
        if outcome.n_steps:
            recovery = assess_refinement(
                outcome.readout,
                held_out,
                n_samples=train.n_samples + held_out.n_samples,
                degree=self.degree,
                settled=outcome.n_steps < _NEARLY * STEPS * self.max_passes,
            )
        else:
            recovery = assess_candidates(found, readout, held_out, labels, degree=self.degree, turned=paper)
        return self._settled(
            source, linear, preparation, labels.transform, found, readout.r2, outcome, recovery
        )

    def _n_features(self) -> int | None:
        return None if self.n_features == "auto" else int(self.n_features)

    def _find(
        self, train: SampleSource, held_out: SampleSource, seeds: list[int], identity: str | None
    ) -> tuple[Candidates, OperatorLabels]:
        paper, seed = self.estimator == "paper", seeds[3]
        transform = self.label_transform
        if isinstance(transform, str) and transform == "auto":
            transform = "identity" if paper else "normalised"
        labelled, fitted, n_passes = with_operator_labels(
            train,
            self.degree,
            transform,
            residualise=self.residualize is True or (self.residualize == "auto" and not paper),
            dtype=self.dtype,
            seed=seed,
        )
        labelled.identity = identity
        operator = MomentOperator(
            labelled,
            degree=self.degree,
            dtype=self.dtype,
            center_trace=not paper if self.center_trace == "auto" else bool(self.center_trace),
        )
        find = partial(
            find_candidates,
            operator,
            self._n_features(),
            tol=self.tol,
            seed=seed,
            method=self.method,
            progress=self.progress,
        )
        if self.smoothness == 0.0:
            found = find(max_passes=self.max_passes, run_file=self.run_file)
            return replace(found, n_passes=found.n_passes + n_passes), OperatorLabels.of(operator, fitted)

        def judge(found: Candidates) -> float:
            return read_squares(
                held_out, found.features, self.degree, self.link, seeds[0], outside=found.outside
            ).r2

        found = find_smooth(
            find,
            self.smoothness,
            self.graph,
            n_inputs=train.n_inputs,
            degree=self.degree,
            max_passes=self.max_passes,
            run_file=self.run_file,
            judge=judge,
        )
        return replace(found, n_passes=found.n_passes + n_passes), OperatorLabels.of(operator, fitted)

    def _settled(
        self,
        source: SampleSource,
        linear: LinearPart,
        preparation: Preparation,
        label_transform: LabelTransform,
        found: Candidates,
        spectral_r2: float,
        outcome: Outcome,
        recovery: Recovery,
    ) -> Fitted:
        """Put the parts together; where the number of features is ours, without those of no weight."""
        paper, readout = self.estimator == "paper", outcome.readout
        eigenvalues = found.eigenvalues[found.outside if paper else slice(None)]
        if outcome.n_steps:
            eigenvalues = np.full(len(readout.features), np.nan)
        kept = np.ones(len(readout.features), dtype=bool)
        if self.n_features == "auto" and not paper:
            kept = (readout.weights != 0.0) | (readout.slopes != 0.0)
        readout = replace(
            readout,
            features=np.ascontiguousarray(readout.features[kept]),
            weights=readout.weights[kept],
            slopes=readout.slopes[kept],
            intercept=readout.intercept + linear.intercept,
        )
        status = found.spectrum.status
        report = FitReport(
            status=Status.NO_FEATURE_FOUND if status.ok and not kept.any() else status,
            estimator=self.estimator,
            preparation=preparation.name,
            degree=self.degree,
            n_samples=source.n_samples,
            n_inputs=source.n_inputs,
            n_packed=check_size(source.n_inputs, self.degree),
            n_passes=found.n_passes + outcome.n_passes,
            n_features=len(readout.features),
            n_steps=outcome.n_steps,
            eigenvalues=eigenvalues[kept],
            weights=readout.weights,
            slopes=readout.slopes,
            linear_r2=linear.r2,
            feature_r2=readout.r2,
            spectral_r2=spectral_r2,
            recovery=recovery.taken(kept),
            smoothness=found.smoothness,
        )
        named = hasattr(self, "feature_names_in_")
        return Fitted(
            readout,
            linear.coef,
            preparation,
            label_transform,
            source.input_names,
            named,
            found.spectrum,
            report,
        )

    def _adopt(self, fitted: Fitted) -> None:
        """Set the fitted attributes."""
        self._fitted = fitted
        self.input_names_ = fitted.input_names
        self.n_features_in_ = len(fitted.input_names)
        if fitted.named:
            self.feature_names_in_ = np.array(fitted.input_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        readout = fitted.readout
        self.features_, self.weights_, self.slopes_ = readout.features, readout.weights, readout.slopes
        self.link_, self.intercept_, self.coef_ = readout.link, readout.intercept, fitted.coef
        self.spectrum_, self.preparation_ = fitted.spectrum, fitted.preparation
        self.label_transform_ = fitted.label_transform
        self.report_, self.status_ = fitted.report, fitted.report.status

    # --- using it ------------------------------------------------------------------------------------------

    def predict(self, X: Samples) -> Array:
        """Predict labels, shape (n,), float64: O(n D K) time, O(n + D K) memory.

        Parameters
        ----------
        X : array_like of shape (n, d), data frame, SampleSource or path
            Inputs; of a source or file the columns are matched by name.
        """
        check_is_fitted(self)
        return joined(self._open_for_predict(X).shares.each(_predicted, self._fitted, self.degree))

    def transform(self, X: Samples) -> Array:
        """Return the latents h_k, shape (n, K), float64: O(n D K) time.

        Parameters
        ----------
        X : array_like of shape (n, d), data frame, SampleSource or path
            As in `predict`.
        """
        check_is_fitted(self)
        return joined(self._open_for_predict(X).shares.each(_latents, self._fitted, self.degree))

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

    def _open_for_predict(self, X: Samples) -> SampleSource:
        if not isinstance(X, SampleSource | str | os.PathLike):
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
            return open_source(X)
        source = X
        if not isinstance(source, SampleSource):
            source = open_source(source, False, inputs=list(self.input_names_))
        return select_inputs(source, self.input_names_)

    # --- storing -------------------------------------------------------------------------------------------

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
        fitted, arguments = Fitted.load(path, link)
        known = cls().get_params(deep=False)
        model = cls(**{name: value for name, value in arguments.items() if name in known})
        model._adopt(fitted)
        return model


def _latent_chunks(source: SampleSource, fitted: Fitted, degree: int) -> Iterator[tuple[Array, Array]]:
    """Yield raw inputs (m, d) and latents (m, K), float64, chunk by chunk."""
    features = fitted.readout.features
    for chunk in source.chunks(labels=False):
        raw = np.asarray(chunk.X, dtype=np.float64)
        H = np.zeros((len(raw), len(features)))
        if H.size:
            H = project(fitted.preparation(raw), features.T, degree, np.float64)
        yield raw, H


def _predicted(source: SampleSource, fitted: Fitted, degree: int) -> Array:
    parts = [raw @ fitted.coef + fitted.readout(H) for raw, H in _latent_chunks(source, fitted, degree)]
    return np.concatenate([np.empty(0), *parts])


def _latents(source: SampleSource, fitted: Fitted, degree: int) -> Array:
    parts = [H for _, H in _latent_chunks(source, fitted, degree)]
    return np.concatenate([np.empty((0, len(fitted.readout.features))), *parts])


def _held_out_share(n_samples: int) -> float:
    """Return the share of samples that read features out, unseen: 1000 to 10,000 of them, 2 to 20 %."""
    return min(max(1000.0 / n_samples, 0.1), 0.2) if n_samples < 100_000 else max(1e4 / n_samples, 0.02)
