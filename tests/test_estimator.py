import pickle
import tracemalloc
from dataclasses import replace

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from matfree_hier import metric, smooth
from matfree_hier.estimator import HierarchicalSpectralRegressor
from matfree_hier.labels import fit_label_transform
from matfree_hier.links import FittedLink
from matfree_hier.model import HierarchicalModel
from matfree_hier.sources import open_source
from matfree_hier.status import NotConverged, RunFileError, Status
from matfree_hier.theory import simulate_labels

TEACHER = HierarchicalModel(8, 2, weights=[0.8, -0.5, 0.33], seed=23)  # D = 36
# Of degree 1 latents are exactly normal, and every feature is found: no correction of order 1/d.
EXACT = HierarchicalModel(20, 1, weights=[0.8, -0.5, 0.33], seed=23)


def samples(n=6000, seed=29, noise=0.1, teacher=TEACHER):
    X, y = teacher.sample(n, seed)
    return X, y + noise * np.random.default_rng(seed).standard_normal(n)


def linear_samples(n=2000, d=5, seed=31):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X @ np.arange(1.0, d + 1) + 7 + rng.standard_normal(n)


def overlaps(found, true):
    """Squared norm of each true feature's projection on the span found."""
    Q = np.linalg.qr(found.T)[0]
    return np.sum((true @ Q) ** 2, axis=1)


# --- scikit-learn's conventions ----------------------------------------------------------------------------


@parametrize_with_checks(
    [
        HierarchicalSpectralRegressor(),
        HierarchicalSpectralRegressor(estimator="spectral"),
        HierarchicalSpectralRegressor(estimator="paper"),
        HierarchicalSpectralRegressor(degree=1, n_features=1, prepare="whiten", dtype="float64"),
    ]
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


def test_pipelines_grid_search_clones_and_pickles_work():
    X, y = samples(2000)
    pipeline = make_pipeline(StandardScaler(), HierarchicalSpectralRegressor(degree=2))
    search = GridSearchCV(pipeline, {"hierarchicalspectralregressor__degree": [1, 2]}, cv=2).fit(X, y)
    assert search.best_params_ == {"hierarchicalspectralregressor__degree": 2}
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert_array_equal(again.predict(X), search.predict(X))
    assert not hasattr(clone(search.best_estimator_[-1]), "features_")


def test_power_iteration_is_told_by_its_status_and_finds_what_its_passes_allow():
    X, y = samples()
    options = {"degree": 2, "n_features": 3, "estimator": "paper", "dtype": "float64"}
    converged = HierarchicalSpectralRegressor(**options).fit(X, y)
    few = HierarchicalSpectralRegressor(**options, method="power", max_passes=3).fit(X, y)
    many = HierarchicalSpectralRegressor(**options, method="power", max_passes=1000).fit(X, y)
    assert few.status_ is Status.MAX_PASSES
    assert few.spectrum_.method == "power"
    assert few.report_.n_passes == 3
    shared = overlaps(many.features_, converged.features_)
    np.testing.assert_allclose(shared, 1.0, atol=1e-5)
    assert overlaps(few.features_, converged.features_).min() < 0.999


def test_frames_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, y = samples(3000)
    frame = pandas.DataFrame(X, columns=list("abcdefgh"))
    model = HierarchicalSpectralRegressor().fit(frame, y)
    assert_array_equal(model.feature_names_in_, list("abcdefgh"))
    assert_array_equal(model.predict(frame), HierarchicalSpectralRegressor().fit(X, y).predict(X))
    assert set(model.top_terms()[0][0]) <= set("abcdefgh")
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[list("hgfedcba")])


# --- what is found -----------------------------------------------------------------------------------------


def test_the_teachers_features_and_weights_are_found():
    model = HierarchicalSpectralRegressor(degree=1).fit(*samples(20_000, teacher=EXACT))
    assert model.features_.shape == (3, 20)
    assert overlaps(model.features_, EXACT.features_).min() > 0.97
    assert_allclose(model.features_ @ model.features_.T, np.eye(3), atol=1e-6)
    assert_allclose(model.weights_, EXACT.weights_, atol=0.05)
    assert model.score(*samples(3000, seed=37, teacher=EXACT)) > 0.97
    assert model.status_ in (Status.CONVERGED, Status.OUTLIERS_RESOLVED)


def test_the_papers_estimator_finds_them_too_and_normalised_labels_find_more():
    X, y = samples(3000, teacher=EXACT)
    found = [
        overlaps(
            HierarchicalSpectralRegressor(1, n_features=3, estimator=name).fit(X, y).features_,
            EXACT.features_,
        )
        for name in ("paper", "spectral")
    ]
    assert found[0][0] > 0.9
    assert (found[1] > found[0]).all()


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("degree", [1, 2])
def test_refined_features_predict_better_than_spectral_ones(degree, noise):
    teacher = HierarchicalModel(20 if degree == 1 else 8, degree, 6, 0.7, seed=23)
    X, y = samples(40 * teacher.n_packed, teacher=teacher, noise=noise)
    X_test, y_test = teacher.sample(4000, 37)
    errors = {}
    for estimator in ("spectral", "refined"):
        model = HierarchicalSpectralRegressor(degree, estimator=estimator).fit(X, y)
        errors[estimator] = np.mean((y_test - model.predict(X_test)) ** 2)
    assert errors["refined"] < (0.7 if noise else 0.05) * errors["spectral"]
    assert model.report_.n_steps > 0
    assert model.report_.feature_r2 > model.report_.spectral_r2
    assert f"before {model.report_.n_steps} steps of refinement" in str(model.report_)
    assert np.isnan(model.report_.eigenvalues).all()
    assert_allclose(model.features_ @ model.features_.T, np.eye(len(model.features_)), atol=1e-6)


def test_a_refinement_that_is_no_better_is_not_taken(monkeypatch):
    import matfree_hier.fitting.stages as module

    refine = module.refine

    def spoilt(*args, **options):
        found = refine(*args, **options)
        return replace(found, held_out=found.held_out[::-1], features=found.features[:, ::-1])

    X, y = samples(3000)
    monkeypatch.setattr(module, "refine", spoilt)
    model = HierarchicalSpectralRegressor().fit(X, y)
    plain = HierarchicalSpectralRegressor(estimator="spectral").fit(X, y)
    assert_array_equal(model.predict(X), plain.predict(X))
    assert model.report_.n_steps == 0
    assert model.report_.n_passes > plain.report_.n_passes


@pytest.mark.parametrize("n_features", [1, 4])
def test_a_given_number_of_features_is_kept_by_the_refinement(n_features):
    X, y = samples(3000)
    model = HierarchicalSpectralRegressor(n_features=n_features, link="identity").fit(X, y)
    assert model.report_.n_steps > 0
    assert np.count_nonzero(model.weights_) == n_features


def test_a_given_link_is_refined_through():
    X, y = samples(6000)
    model = HierarchicalSpectralRegressor(link=np.tanh).fit(X, np.tanh(y) + 2.0)
    assert model.report_.n_steps > 0
    X, y = TEACHER.sample(3000, 37)
    assert model.score(X, np.tanh(y) + 2.0) > 0.95


def test_an_interrupted_refinement_raises_keyboard_interrupt(monkeypatch):
    import matfree_hier.fitting.stages as module

    refine = module.refine
    monkeypatch.setattr(module, "refine", lambda *a, **k: replace(refine(*a, **k), status=Status.INTERRUPTED))
    with pytest.raises(KeyboardInterrupt):
        HierarchicalSpectralRegressor().fit(*samples(2000))


def test_transform_gives_the_latents_that_predict_uses():
    X, y = samples()
    model = HierarchicalSpectralRegressor(n_features=2, linear=True, link="identity").fit(X, y)
    H = model.transform(X[:50])
    z = (H**2 - 1) / np.sqrt(2) @ model.weights_ + H @ model.slopes_
    assert_allclose(model.predict(X[:50]), X[:50] @ model.coef_ + model.intercept_ + z, atol=1e-12)
    assert_array_equal(model.get_feature_names_out(), ["latent0", "latent1"])


def test_the_papers_estimator_has_no_linear_part_and_an_untouched_operator():
    X, y = samples()
    model = HierarchicalSpectralRegressor(n_features=3, estimator="paper", link="identity").fit(X, y + 5)
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(np.mean(y) + 5)
    H = model.transform(X)
    assert_allclose(model.predict(X), model.intercept_ + (H**2 - 1) / np.sqrt(2) @ model.weights_, atol=1e-12)
    assert isinstance(
        HierarchicalSpectralRegressor(n_features=3, estimator="paper").fit(X, y).link_, FittedLink
    )
    assert model.score(*samples(3000, seed=37)) < 1.0


def test_a_linear_part_and_features_add_up():
    slopes = np.arange(20.0) / 10
    X, y = samples(20_000, teacher=EXACT)
    model = HierarchicalSpectralRegressor(degree=1).fit(X, y + X @ slopes)
    assert_allclose(model.coef_, slopes, atol=0.05)
    assert overlaps(model.features_, EXACT.features_).min() > 0.95
    X, y = samples(3000, seed=37, teacher=EXACT)
    assert model.score(X, y + X @ slopes) > 0.97


@pytest.mark.parametrize("estimator", ["refined", "spectral", "paper"])
def test_the_report_says_how_near_each_feature_is_prints_and_draws_itself(estimator):
    model = HierarchicalSpectralRegressor(1, estimator=estimator).fit(*samples(20_000, teacher=EXACT))
    report = pickle.loads(pickle.dumps(model.report_))
    quality = report.recovery.quality
    assert report.recovery.count == 3
    true = overlaps(EXACT.features_, model.features_)
    assert_allclose(quality.overlaps, true, atol=0.03)
    assert_allclose(np.abs(quality.weights), np.abs(EXACT.weights_), rtol=0.1)
    assert "3 of 3 features clearly there." in str(report)
    assert f"{quality.overlaps[0]:.3f}" in str(report).split("\n")[-3]
    assert len(report.plot().axes) == 3


def test_a_linear_target_is_ridge_regression_and_no_feature():
    X, y = linear_samples()
    model = HierarchicalSpectralRegressor().fit(X, y)
    ridge = RidgeCV(np.logspace(-3, 3, 13)).fit(X, y)
    test, labels = linear_samples(seed=41)
    assert model.score(test, labels) > ridge.score(test, labels) - 1e-3
    assert model.status_ is Status.NO_FEATURE_FOUND
    assert model.features_.shape == (0, 15)
    assert model.transform(test).shape == (2000, 0)
    assert "No eigenvalue stands above the bulk" in str(model.report_)
    assert model.report_.recovery.count == 0
    assert len(model.report_.plot().axes) == 3


@pytest.mark.parametrize("seed", range(50, 58))
def test_features_never_make_it_worse_than_the_linear_part_by_more_than_noise(seed):
    X, y = linear_samples(n=300, d=10, seed=seed)
    X_test, y_test = linear_samples(n=5000, d=10, seed=seed + 100)
    model = HierarchicalSpectralRegressor(n_features=4).fit(X, y)
    linear = X_test @ model.coef_ + y.mean() - X.mean(axis=0) @ model.coef_
    error, error_linear = np.mean((y_test - model.predict(X_test)) ** 2), np.mean((y_test - linear) ** 2)
    assert error < 1.1 * error_linear


@pytest.mark.parametrize("y", [np.full(50, 3.0), np.zeros(50)])
def test_constant_labels_are_predicted(y):
    X = np.random.default_rng(5).standard_normal((50, 4))
    for estimator in ("refined", "spectral", "paper"):
        model = HierarchicalSpectralRegressor(estimator=estimator).fit(X, y)
        assert_allclose(model.predict(X), y, atol=1e-12)


def test_one_input_of_degree_one_has_a_packed_size_of_one():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((3000, 1))
    model = HierarchicalSpectralRegressor(degree=1).fit(X, X[:, 0] ** 2)
    assert model.report_.n_packed == 1
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_scale_of_the_labels_does_not_matter(scale):
    X, y = samples(3000)
    plain = HierarchicalSpectralRegressor(n_features=2, dtype="float64").fit(X, y)
    scaled = HierarchicalSpectralRegressor(n_features=2, dtype="float64").fit(X, scale * y)
    assert_allclose(scaled.predict(X) / scale, plain.predict(X), rtol=1e-4, atol=1e-4)


# --- data of every kind ------------------------------------------------------------------------------------


def test_arrays_sources_and_files_give_the_same_bits(tmp_path):
    X, y = samples(3000)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["X"], file["y"] = X, y
    expected = HierarchicalSpectralRegressor().fit(X, y).predict(X)
    for data in (open_source((X, y)), tmp_path / "data.npz", str(tmp_path / "data.h5")):
        model = HierarchicalSpectralRegressor().fit(data)
        assert_array_equal(model.predict(data), expected)
        assert model.score(data) == pytest.approx(model.score(X, y), abs=1e-12)


def test_columns_of_tables_are_matched_by_name(tmp_path):
    X, y = samples(3000)
    names = list("abcdefgh")

    def table(path, columns):
        values = np.column_stack([y if name == "y" else X[:, names.index(name)] for name in columns])
        np.savetxt(path, values, fmt="%.17g", delimiter=",", header=",".join(columns), comments="")
        return path

    model = HierarchicalSpectralRegressor().fit(table(tmp_path / "fit.csv", [*names, "y"]))
    expected = model.predict(tmp_path / "fit.csv")
    assert_array_equal(model.predict(table(tmp_path / "other.csv", list("hgfyedcba"))), expected)
    assert_array_equal(model.predict(open_source(tmp_path / "other.csv", "y")), expected)
    with pytest.raises(ValueError, match="`d`"):
        model.predict(table(tmp_path / "less.csv", list("hgfecba")))
    with pytest.raises(ValueError, match="must have the input columns of the fit, and lacks `d`"):
        model.predict(open_source(tmp_path / "less.csv", False))


def test_data_prepared_anew_each_pass_give_the_same_model(monkeypatch):
    X, y = samples(3000)
    X = np.exp(X)
    options = {"prepare": "gaussianise", "n_features": 3, "dtype": "float64"}
    kept = HierarchicalSpectralRegressor(**options).fit(X, y)
    monkeypatch.setattr("matfree_hier.estimator.IN_MEMORY", 0)
    streamed = HierarchicalSpectralRegressor(**options).fit(X, y)
    assert_allclose(streamed.predict(X), kept.predict(X), atol=1e-8)


def test_gaussianised_inputs_find_what_skewed_ones_hide():
    X, y = samples(20_000)
    plain = HierarchicalSpectralRegressor(n_features=3, prepare="none").fit(np.exp(2 * X), y)
    ranked = HierarchicalSpectralRegressor(n_features=3).fit(np.exp(2 * X), y)
    assert ranked.preparation_.name == "gaussianise"
    X, y = samples(3000, seed=37)
    assert ranked.score(np.exp(2 * X), y) > 0.7 > plain.score(np.exp(2 * X), y) + 0.2


def test_the_same_random_state_gives_the_same_bits():
    X, y = samples(2000)
    first, second, other = (
        HierarchicalSpectralRegressor(random_state=seed).fit(X, y).predict(X) for seed in (3, 3, 4)
    )
    assert_array_equal(first, second)
    assert (first != other).any()
    for state in (np.random.default_rng(3), np.random.RandomState(3)):
        HierarchicalSpectralRegressor(random_state=state).fit(X, y)


# --- labels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["identity", "clip", "tanh", "rank", "normalised", np.arcsinh])
def test_every_label_transform_finds_features_and_stays_with_the_fit(tmp_path, transform):
    X, y = samples(4000, teacher=EXACT)
    model = HierarchicalSpectralRegressor(1, label_transform=transform, run_file=tmp_path / "run.h5").fit(
        X, y
    )
    assert overlaps(model.features_, EXACT.features_).min() > 0.9
    fitted = model.label_transform_
    again = HierarchicalSpectralRegressor.load(tmp_path / "run.h5").label_transform_
    if callable(transform):
        assert fitted.function is transform
        assert again is None
    else:
        assert again.name == fitted.name == transform
        assert again.mean == fitted.mean


def test_the_best_label_transform_of_a_known_model_can_be_given():
    X, y = samples(4000, teacher=EXACT)
    model = simulate_labels(EXACT.weights_, 100_000, 41)
    best = fit_label_transform("optimal", y, model=(model[0], model[1][:, 0]))
    model = HierarchicalSpectralRegressor(1, label_transform=best).fit(X, y)
    assert model.label_transform_ is best
    assert overlaps(model.features_, EXACT.features_).min() > 0.9


# --- links -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["refined", "spectral"])
def test_a_link_is_fitted_where_it_helps(estimator):
    X, y = samples(10_000)
    y = np.tanh(2 * y)
    model = HierarchicalSpectralRegressor(n_features=3, estimator=estimator).fit(X, y)
    assert isinstance(model.link_, FittedLink)
    plain = HierarchicalSpectralRegressor(n_features=3, estimator=estimator, link="identity").fit(X, y)
    X, y = samples(3000, seed=37)
    assert model.score(X, np.tanh(2 * y)) > plain.score(X, np.tanh(2 * y)) + 0.03


# --- run files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepare", ["none", "whiten", "gaussianise"])
@pytest.mark.parametrize("estimator", ["refined", "spectral", "paper"])
def test_a_stored_fit_comes_back_to_the_last_bit(tmp_path, prepare, estimator):
    X, y = samples(2000)
    path = f"{tmp_path / 'run.h5'}::mine"
    model = HierarchicalSpectralRegressor(
        n_features=2, estimator=estimator, prepare=prepare, run_file=path, random_state=3
    ).fit(X, y)
    again = HierarchicalSpectralRegressor.load(path)
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.top_terms(1, 3) == model.top_terms(1, 3)
    assert str(again.report_) == str(model.report_)
    assert_array_equal(again.report_.recovery.quality.intervals, model.report_.recovery.quality.intervals)
    assert again.get_params() == model.get_params()
    assert_array_equal(again.spectrum_.eigenvalues, model.spectrum_.eigenvalues)
    assert again.label_transform_.name == ("identity" if estimator == "paper" else "normalised")
    for name, value in model.label_transform_.parameters.items():
        assert_array_equal(again.label_transform_.parameters[name], value)


def test_fits_without_features_and_with_names_are_stored(tmp_path):
    X, y = linear_samples()
    source = open_source((X, y), inputs=list("abcde"))
    model = HierarchicalSpectralRegressor(run_file=tmp_path / "run.h5").fit(source)
    again = HierarchicalSpectralRegressor.load(tmp_path / "run.h5")
    assert_array_equal(again.feature_names_in_, list("abcde"))
    assert_array_equal(again.predict(source), model.predict(source))
    assert again.status_ is Status.NO_FEATURE_FOUND


def test_a_callable_link_has_to_be_given_again(tmp_path):
    X, y = samples(2000)
    model = HierarchicalSpectralRegressor(n_features=2, link=np.tanh, run_file=tmp_path / "run.h5").fit(X, y)
    with pytest.raises(ValueError, match="`link` must be given again"):
        HierarchicalSpectralRegressor.load(tmp_path / "run.h5")
    again = HierarchicalSpectralRegressor.load(tmp_path / "run.h5", link=np.tanh)
    assert_array_equal(again.predict(X), model.predict(X))


def test_loading_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no run file"):
        HierarchicalSpectralRegressor.load(tmp_path / "none.h5")
    X, y = samples(500)
    HierarchicalSpectralRegressor(n_features=1, run_file=tmp_path / "run.h5").fit(X, y)
    with pytest.raises(RunFileError, match=r"The run `other` of .* holds no finished fit"):
        HierarchicalSpectralRegressor.load(f"{tmp_path / 'run.h5'}::other")


class KilledError(Exception):
    """Stands for a kill -9: nothing after it is run."""


@pytest.mark.parametrize("link", ["auto", "identity"])
def test_a_killed_refinement_goes_on_to_the_same_bits(tmp_path, monkeypatch, link):
    import matfree_hier.fitting.stages as module

    monkeypatch.setattr("matfree_hier.fitting.fitfile._SECONDS", 0.0)
    monkeypatch.setattr("matfree_hier.fitting.stages.is_curved", lambda *a: True)  # "auto" refines twice
    refine = module.refine
    X, y = samples(2000)
    expected = HierarchicalSpectralRegressor(link=link).fit(X, y)
    steps = []

    def killed(*args, callback, state, **options):
        def watch(values):
            callback(values)
            steps.append((options.get("link"), values["step"], None if state is None else state["step"]))
            if len(steps) % 3 == 0:
                raise KilledError

        return refine(*args, callback=watch, state=state, **options)

    monkeypatch.setattr(module, "refine", killed)
    model = HierarchicalSpectralRegressor(link=link, run_file=tmp_path / "run.h5")
    for _ in range(9):
        try:
            model.fit(X, y)
            break
        except KilledError:
            continue
    assert len(steps) > 3
    assert len({step[:2] for step in steps}) >= len(steps) - 2  # a step is taken twice only where killed
    assert_array_equal(model.predict(X), expected.predict(X))
    assert str(model.report_) == str(expected.report_)
    assert sorted(path.name for path in tmp_path.iterdir() if "refinement" in path.name) == []


def test_a_finished_fit_is_taken_from_its_file(tmp_path, monkeypatch):
    X, y = samples(2000)
    options = {"link": np.tanh, "run_file": tmp_path / "run.h5"}
    expected = HierarchicalSpectralRegressor(**options).fit(X, y)

    def untouched(*args, **kwargs):
        pytest.fail("A finished fit needs no pass.")

    monkeypatch.setattr("matfree_hier.fitting.spectral.top_eigenpairs", untouched)
    again = HierarchicalSpectralRegressor(**options).fit(X, y)
    assert_array_equal(again.predict(X), expected.predict(X))


@pytest.mark.parametrize(
    ("options", "scale", "message"),
    [
        ({"link": "identity"}, 1.0, "`link` was 'auto' and is 'identity'"),
        ({"degree": 1}, 1.0, "`degree` was 2 and is 1"),
        ({"random_state": 5}, 1.0, "`seed` was 20260514 and is 5"),
        ({}, 2.0, "`data` was '"),
    ],
)
def test_a_run_file_of_another_fit_is_refused(tmp_path, options, scale, message):
    X, y = samples(500)
    HierarchicalSpectralRegressor(run_file=tmp_path / "run.h5").fit(X, y)
    before = (tmp_path / "run.h5").read_bytes()
    other = HierarchicalSpectralRegressor(run_file=tmp_path / "run.h5", **options)
    with pytest.raises(RunFileError, match=f"run.h5::run` holds another fit: {message}"):
        other.fit(X, scale * y)
    assert (tmp_path / "run.h5").read_bytes() == before
    other.set_params(run_file=f"{tmp_path / 'run.h5'}::other").fit(X, scale * y)


# --- ends of a run -----------------------------------------------------------------------------------------


def ending(monkeypatch, status):
    import matfree_hier.fitting.spectral as module

    solve = module.top_eigenpairs
    monkeypatch.setattr(
        module, "top_eigenpairs", lambda *a, **k: replace(solve(*a, **k), status=status, message="Pass 3.")
    )


def test_an_interrupted_fit_raises_keyboard_interrupt(monkeypatch):
    ending(monkeypatch, Status.INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        HierarchicalSpectralRegressor().fit(*samples(500))


def test_a_failed_operator_raises_with_the_pairs_so_far(monkeypatch):
    ending(monkeypatch, Status.OPERATOR_FAILED)
    with pytest.raises(NotConverged, match=r"Pass 3\.") as caught:
        HierarchicalSpectralRegressor(n_features=2).fit(*samples(500))
    assert caught.value.result.eigenvectors.shape == (36, 2)


def test_an_unconverged_fit_says_so_and_predicts(monkeypatch):
    ending(monkeypatch, Status.MAX_PASSES)
    model = HierarchicalSpectralRegressor(n_features=2).fit(*samples(500))
    assert model.status_ is model.report_.status is Status.MAX_PASSES


# --- smooth features ---------------------------------------------------------------------------------------


SMOOTH = smooth.teacher(20, 1, 2, tau=30.0, weights=[0.8, -0.6], seed=23)


def test_smoothness_finds_smooth_features_from_fewer_samples():
    X, y = samples(150, teacher=SMOOTH)
    options = {"degree": 1, "n_features": 2, "estimator": "spectral", "prepare": "none"}
    found = {
        tau: HierarchicalSpectralRegressor(smoothness=tau, graph="path", **options).fit(X, y)
        for tau in (0.0, 10.0)
    }
    plain, smoothed = (overlaps(model.features_, SMOOTH.features_).mean() for model in found.values())
    assert smoothed > plain + 0.1
    assert_allclose(found[10.0].features_ @ found[10.0].features_.T, np.eye(2), atol=1e-9)
    assert found[10.0].report_.smoothness == 10.0
    assert "smoothness 10" in str(found[10.0].report_)


def test_without_smoothness_a_graph_makes_no_difference():
    X, y = samples(600)
    plain = HierarchicalSpectralRegressor().fit(X, y)
    zero = HierarchicalSpectralRegressor(smoothness=0.0, graph="cycle").fit(X, y)
    assert_array_equal(plain.features_, zero.features_)
    assert_array_equal(plain.predict(X), zero.predict(X))


def test_auto_smoothness_smooths_what_is_smooth_and_little_else():
    options = {"degree": 1, "n_features": 2, "estimator": "spectral", "prepare": "none"}
    chosen = []
    for teacher in (SMOOTH, HierarchicalModel(20, 1, weights=[0.8, -0.6], seed=23)):
        X, y = samples(400, teacher=teacher)
        model = HierarchicalSpectralRegressor(smoothness="auto", **options).fit(X, y)
        chosen.append(model.report_.smoothness)
        again = HierarchicalSpectralRegressor(smoothness="auto", **options).fit(X, y)
        assert_array_equal(again.features_, model.features_)
    assert chosen[0] >= 0.3
    assert chosen[1] < chosen[0]


def test_a_smooth_fit_is_kept_in_a_run_file_and_another_graph_is_refused(tmp_path):
    X, y = samples(600, teacher=SMOOTH)
    options = {"degree": 1, "n_features": 2, "smoothness": 3.0, "run_file": tmp_path / "run.h5"}
    weights = metric.path(20)
    model = HierarchicalSpectralRegressor(graph=weights, **options).fit(X, y)
    again = HierarchicalSpectralRegressor(graph=weights, **options).fit(X, y)
    assert_array_equal(again.features_, model.features_)
    loaded = HierarchicalSpectralRegressor.load(tmp_path / "run.h5")
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.report_.smoothness == 3.0
    with pytest.raises(RunFileError, match="`graph` was"):
        HierarchicalSpectralRegressor(graph=metric.cycle(20), **options).fit(X, y)


@pytest.mark.parametrize("estimator", ["spectral", "refined"])
def test_features_of_a_smooth_fit_are_judged_by_the_bulk_of_the_metric(estimator):
    X, y = samples(1500, teacher=SMOOTH)
    model = HierarchicalSpectralRegressor(1, smoothness=3.0, estimator=estimator).fit(X, y)
    assert 1 <= len(model.features_) <= 4
    assert overlaps(model.features_, SMOOTH.features_).min() > 0.7


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degree": 9}, "`degree` must be an integer in 1..8, got 9"),
        ({"n_features": 0}, '`n_features` must be "auto" or an integer of at least 1, got 0'),
        ({"n_features": True}, '`n_features` must be "auto" or an integer of at least 1, got True'),
        ({"n_features": 37}, r"`n_features` must be in 1\.\.36 for 8 inputs and degree 2, got 37"),
        ({"estimator": "pca"}, "`estimator` must be one of paper, spectral, refined, got 'pca'"),
        (
            {"prepare": "pca"},
            "`prepare` must be one of auto, none, standardise, whiten, gaussianise, got 'pca'",
        ),
        ({"linear": "maybe"}, "`linear` must be \"auto\", True or False, got 'maybe'"),
        ({"linear": True, "estimator": "paper"}, '`linear` must be "auto" or False for the paper'),
        ({"center_trace": 3}, '`center_trace` must be "auto", True or False, got 3'),
        ({"residualize": 3}, '`residualize` must be "auto", True or False, got 3'),
        ({"method": "arpack"}, "`method` must be one of auto, power, got 'arpack'"),
        ({"method": "power"}, '`method` must be "auto" where `n_features` is "auto"'),
        (
            {"method": "power", "n_features": 2, "smoothness": 1.0},
            r'`method` must be "auto" where `smoothness` is not 0\.0',
        ),
        ({"smoothness": -0.5}, r'`smoothness` must be "auto" or a finite number of at least 0, got -0\.5'),
        (
            {"smoothness": "much"},
            "`smoothness` must be \"auto\" or a finite number of at least 0, got 'much'",
        ),
        ({"smoothness": 1.0, "estimator": "paper"}, r"`smoothness` must be 0\.0 for the paper's estimator"),
        ({"graph": 3}, r"`graph` must be a square matrix of weights, got shape \(\)"),
        ({"graph": (3, 3)}, r"`graph` must have shape \(8, 8\), got \(9, 9\)"),
        ({"comm": 3}, "`comm` must be a communicator of mpi4py or None, got int"),
        ({"dtype": "int32"}, "`dtype` must be float32 or float64, got 'int32'"),
        ({"link": "sine"}, "`link` must be one of identity"),
        ({"label_transform": "log"}, "`label_transform` must be one of identity"),
        (
            {"random_state": -1},
            "`random_state` must be None, a generator or an integer of at least 0, got -1",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        HierarchicalSpectralRegressor(**options).fit(*samples(200))


def test_data_that_cannot_be_fitted_are_refused(tmp_path):
    X, y = samples(50)
    fit = HierarchicalSpectralRegressor().fit
    with pytest.raises(ValueError, match="`y` must be None when `X` is a source"):
        fit(open_source((X, y)), y)
    with pytest.raises(ValueError, match="`X` must have a target to fit"):
        fit(open_source(X))
    with pytest.raises(ValueError, match="`X` must have at least 2 samples, got 1"):
        fit(open_source((X[:1], y[:1])))
    X[7, 3] = np.nan
    with pytest.raises(ValueError, match="row 7"):
        fit(open_source((X, y)))


def test_top_terms_name_products_by_column():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((30_000, 4))
    y = (X[:, 0] * X[:, 2]) ** 2 - (X[:, 3] ** 2 - 1) ** 2
    model = HierarchicalSpectralRegressor(n_features=2).fit(open_source((X, y), inputs=list("abcd")))
    found = [model.top_terms(k, 1)[0] for k in range(2)]
    assert {names for names, _ in found} == {("a", "c"), ("d", "d")}
    assert all(abs(value) > 0.9 for _, value in found)
    assert len(model.top_terms(0, 100)) == 10
    assert sum(value**2 for _, value in model.top_terms(0, 100)) == pytest.approx(1)
    with pytest.raises(ValueError, match="`k` must be below 2, the number of features found, and at least 0"):
        model.top_terms(2)


def test_memory_does_not_grow_with_the_number_of_samples_but_for_labels(tmp_path, monkeypatch):
    monkeypatch.setattr("matfree_hier.estimator.IN_MEMORY", 0)
    monkeypatch.setattr("matfree_hier.sources.base.BLOCK_BYTES", 2**19)  # several are read ahead
    peaks = []
    sizes = (80_000, 480_000)  # the smaller fills every buffer
    for n in sizes:
        X = np.random.default_rng(5).standard_normal((n, 20), dtype=np.float32)
        np.savez(tmp_path / "data.npz", X=X, y=X[:, 0] ** 2)
        del X
        tracemalloc.start()
        HierarchicalSpectralRegressor(1, n_features=1, estimator="spectral").fit(tmp_path / "data.npz")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    growth = (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])
    assert growth < 64  # bytes a sample: labels, their order, sizes of inputs; the inputs are 80
