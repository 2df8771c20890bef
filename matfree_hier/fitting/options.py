"""The arguments of the estimator, checked before any work."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import validate_data

from matfree_hier.links import link as named_link
from matfree_hier.metric import graph_weights
from matfree_hier.operands import MAX_DEGREE
from matfree_hier.packing import check_size
from matfree_hier.sources import SampleSource, open_source
from matfree_hier.sources.convert import default_names

Samples: TypeAlias = SampleSource | str | os.PathLike[str] | ArrayLike

ESTIMATORS = ("paper", "spectral", "refined")
METHODS = ("auto", "power")
_DEFAULT_SEED = 20_260_514


def check_options(model: Any) -> None:
    """Refuse parameters of an estimator that are out of their range, whatever the data.

    Raises
    ------
    ValueError, TypeError
        Names the parameter, its bound and the value.
    """
    refuse = partial(_refuse, model)
    if model.estimator not in ESTIMATORS:
        refuse("estimator", f"one of {', '.join(ESTIMATORS)}")
    if not is_int(model.degree) or not 1 <= model.degree <= MAX_DEGREE:
        refuse("degree", f"an integer in 1..{MAX_DEGREE}")
    if model.n_features != "auto" and not (is_int(model.n_features) and model.n_features >= 1):
        refuse("n_features", '"auto" or an integer of at least 1')
    for name in ("linear", "center_trace", "residualize"):
        if getattr(model, name) not in ("auto", True, False):
            refuse(name, '"auto", True or False')
    if model.estimator == "paper" and model.linear is True:
        refuse("linear", '"auto" or False for the paper\'s estimator')
    if np.dtype(model.dtype) not in (np.float32, np.float64):
        refuse("dtype", "float32 or float64")
    if not (isinstance(model.link, str) and model.link == "auto"):
        named_link(model.link)
    _check_solver(model)


def _check_solver(model: Any) -> None:
    """Refuse a method or a smoothness that the other parameters do not allow."""
    refuse = partial(_refuse, model)
    if model.method not in METHODS:
        refuse("method", f"one of {', '.join(METHODS)}")
    if model.method == "power" and model.n_features == "auto":
        refuse("method", '"auto" where `n_features` is "auto"')
    if model.method == "power" and model.smoothness != 0.0:
        refuse("method", '"auto" where `smoothness` is not 0.0')
    if model.smoothness != "auto" and not (is_real(model.smoothness) and 0.0 <= model.smoothness < np.inf):
        refuse("smoothness", '"auto" or a finite number of at least 0')
    if model.estimator == "paper" and model.smoothness != 0.0:
        refuse("smoothness", "0.0 for the paper's estimator")


def _refuse(model: Any, name: str, bound: str) -> NoReturn:
    msg = f"`{name}` must be {bound}, got {getattr(model, name)!r}."
    raise ValueError(msg)


def seed_of(state: Any) -> int:
    """Return the seed that a `random_state` stands for; None is one that is always the same.

    Raises
    ------
    ValueError
        If it is neither None, a generator nor an integer of at least 0.
    """
    if state is None:
        return _DEFAULT_SEED
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**63))
    if isinstance(state, np.random.RandomState):
        return int(state.randint(2**31))
    if not is_int(state) or state < 0:
        msg = f"`random_state` must be None, a generator or an integer of at least 0, got {state!r}."
        raise ValueError(msg)
    return int(state)


def open_for_fit(model: Any, X: Samples, y: ArrayLike | None) -> SampleSource:
    """Return checked samples with labels, and set the names and the number of inputs on the estimator.

    Raises
    ------
    ValueError, TypeError
        If they are not finite, real and of matching lengths, or too few for the parameters.
    """
    if isinstance(X, SampleSource | str | os.PathLike):
        source = _open_source(X, y)
        model.n_features_in_ = source.n_inputs
        if source.input_names != tuple(default_names(source.n_inputs)):
            model.feature_names_in_ = np.array(source.input_names, dtype=object)
        elif hasattr(model, "feature_names_in_"):
            del model.feature_names_in_
    else:
        X, y = validate_data(
            model, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2, y_numeric=True
        )
        names = getattr(model, "feature_names_in_", None)
        source = open_source((X, y)) if names is None else open_source((X, y), inputs=list(names))
    n_packed = check_size(source.n_inputs, model.degree)
    if model.graph is not None:
        graph_weights(model.graph, source.n_inputs)
    if model.n_features != "auto" and model.n_features > n_packed:
        msg = (
            f"`n_features` must be in 1..{n_packed} for {source.n_inputs} inputs and degree"
            f" {model.degree}, got {model.n_features}."
        )
        raise ValueError(msg)
    return source


def _open_source(X: SampleSource | str | os.PathLike[str], y: ArrayLike | None) -> SampleSource:
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
    return source


def is_real(value: object) -> bool:
    """Whether a value is a real number and no truth value."""
    return is_int(value) or isinstance(value, (float, np.floating))


def is_int(value: object) -> bool:
    """Whether a value is an integer and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
