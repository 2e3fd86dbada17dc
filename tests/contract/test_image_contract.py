"""Images in, the same shape and type out, for every imputer."""

import inspect
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from emflow import EMFlowImputer, GaussianImputer
from emflow import imputer as module
from emflow.baselines import GAINImputer, MCFlowImputer
from emflow.errors import DataError, FileError, ParameterError
from emflow.latent.start import stationary_start
from emflow.learn.em import fit_gaussian, regular
from emflow.refine import images

DIGITS = load_digits().images[:120].astype(np.uint8)
HOLES = np.random.default_rng(0).random(DIGITS.shape) < 0.4
COLOUR = np.stack([DIGITS, 16 - DIGITS, DIGITS // 2], axis=3)
IMPUTERS = {
    "gaussian": lambda: GaussianImputer(n_iterations=3),
    "emflow": lambda: EMFlowImputer(refine_steps=3, random_state=0),
    "paper": lambda: EMFlowImputer.paper("image", n_iterations=2, n_epochs=1, batch_size=60, random_state=0),
    "gain": lambda: GAINImputer(n_steps=3, random_state=0),
    "mcflow": lambda: MCFlowImputer(n_epochs=2, random_state=0),
    "mcflow, dense": lambda: MCFlowImputer(n_epochs=2, flow="dense", random_state=0),
}


@pytest.fixture(params=IMPUTERS)
def imputer(request):
    return IMPUTERS[request.param]()


@pytest.mark.parametrize(("X", "missing"), [(DIGITS, HOLES), (COLOUR, HOLES), (COLOUR, np.stack([HOLES] * 3, 3))])
def test_shape_type_and_observed_pixels_come_back(imputer, X, missing):
    filled = imputer.fit(X, missing=missing).transform(X, missing=missing)
    assert (filled.shape, filled.dtype) == (X.shape, X.dtype)
    assert np.array_equal(filled[~missing], X[~missing])
    assert filled.min() >= X.min()
    assert filled.max() <= X.max()


def test_nan_says_the_same_as_missing(imputer):
    X = DIGITS.astype(np.float32)
    other = (
        IMPUTERS["gaussian"]() if isinstance(imputer, GaussianImputer) else imputer.__class__(**imputer.get_params())
    )
    told = imputer.fit_transform(X, missing=HOLES)
    found = other.fit_transform(np.where(HOLES, np.nan, X))
    assert told.dtype == np.float32
    np.testing.assert_allclose(found, told, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_images_may_come_in_another_type_than_those_of_the_fit(imputer, dtype):
    imputer.fit(DIGITS, missing=HOLES)
    filled = imputer.transform(DIGITS.astype(dtype), missing=HOLES)
    assert filled.dtype == dtype
    np.testing.assert_allclose(filled, imputer.transform(DIGITS, missing=HOLES), rtol=0, atol=0.51)  # those are whole


def test_values_under_the_holes_do_not_matter(imputer):
    first = imputer.fit(DIGITS, missing=HOLES).transform(DIGITS, missing=HOLES)
    other = np.where(HOLES, 255, DIGITS).astype(np.uint8)
    second = imputer.fit(other, missing=HOLES).transform(other, missing=HOLES)
    assert np.array_equal(first, second)


def test_an_image_is_filled_alike_alone_and_among_others(imputer):
    X = DIGITS.astype(np.float64)
    imputer.fit(X, missing=HOLES)
    whole = imputer.transform(X, missing=HOLES)
    np.testing.assert_allclose(imputer.transform(X[7:9], missing=HOLES[7:9]), whole[7:9], rtol=0, atol=1e-4)


@pytest.mark.parametrize("X", [DIGITS.reshape(120, 64), DIGITS[:, :4], COLOUR])
def test_another_size_is_an_error(imputer, X):
    imputer.fit(DIGITS, missing=HOLES)
    with pytest.raises(DataError, match=r"images of shape \(8, 8\)"):
        imputer.transform(X)


def test_a_table_may_be_told_what_is_missing(imputer):
    if imputer.get_params().get("initial_fill") == "nearest":
        imputer.set_params(initial_fill="draw")
    X, holes = DIGITS[:, 2:4].reshape(120, 16).astype(float), HOLES[:, 2:4].reshape(120, 16)
    filled = imputer.fit_transform(X, missing=holes)
    assert np.array_equal(filled[~holes], X[~holes])
    assert not np.array_equal(filled[holes], X[holes])


# --- EMFlow


def test_the_refinement_betters_a_poor_fill(monkeypatch):
    monkeypatch.setattr(images, "BATCH", 32)
    X = load_digits().images[:600].astype(np.uint8)
    missing = np.random.default_rng(0).random(X.shape) < 0.4
    errors = {}
    for refine in ("off", "auto"):
        options = {"initial_fill": "mean", "n_iterations": 1, "n_epochs": 1, "refine": refine, "refine_steps": 80}
        imputer = EMFlowImputer(**options, random_state=0).fit(X[:500], missing=missing[:500])
        assert (imputer.refinement_ is None) == ("refine" not in imputer.history_) == (refine == "off")
        filled = imputer.transform(X[500:], missing=missing[500:])
        errors[refine] = np.sqrt(np.square(filled.astype(float) - X[500:])[missing[500:]].mean())
    assert not imputer.timed_out_
    last = imputer.history_["refine"][-1]
    assert last["validation_rmse"] < last["validation_rmse_before"]
    assert errors["auto"] < 0.95 * errors["off"]


@pytest.mark.parametrize(("refine", "wide", "trained"), [("auto", 64, False), ("auto", 65, True), ("on", 64, True)])
def test_wide_images_are_refined_on_request(monkeypatch, refine, wide, trained):
    monkeypatch.setattr(module, "WIDE", wide)
    fitted = EMFlowImputer(refine=refine, refine_steps=1, random_state=0).fit(DIGITS, missing=HOLES)
    assert ("refine" in fitted.history_) == trained


def test_settings_of_the_refinement_are_for_tables():
    with pytest.raises(ParameterError, match="settings in refine are for tables"):
        EMFlowImputer(refine={"width": 64}).fit(DIGITS, missing=HOLES)


def test_a_refinement_that_does_not_help_is_dropped(monkeypatch):
    monkeypatch.setattr(images.ImageNetwork, "complete", lambda network, x_hat, missing, clip: 1 - x_hat)
    assert EMFlowImputer(refine_steps=1, random_state=0).fit(DIGITS, missing=HOLES).refinement_ is None


def test_the_start_of_images(monkeypatch):
    """Correlations by offset, and some passes of EM unless the images are wide."""
    fitted = {}
    for wide in (64, 65):
        monkeypatch.setattr(module, "WIDE", wide)
        options = {"refine": "off", "validation_fraction": 0.0, "random_state": 0}
        fitted[wide] = EMFlowImputer(**options).fit(DIGITS, missing=HOLES)
    x, missing = torch.tensor(DIGITS.reshape(120, 64) / np.float32(16)), torch.tensor(HOLES.reshape(120, 64))
    start = regular(stationary_start(x, missing, (8, 8)), module.IMAGE_INFLATION)
    np.testing.assert_allclose(fitted[64].latent_covariance_, start.cov, rtol=0, atol=1e-6)
    assert abs(fitted[65].latent_covariance_ - start.cov.numpy()).max() > 0.01


@pytest.mark.parametrize("cls", [EMFlowImputer, GaussianImputer])
def test_em_starts_from_correlations_by_offset(cls, monkeypatch):
    place, asked = sys.modules[cls.__module__], {}

    def spy(*arguments, **options):
        asked.update(inspect.signature(fit_gaussian).bind(*arguments, **options).arguments)
        return fit_gaussian(*arguments, **options)

    monkeypatch.setattr(place, "fit_gaussian", spy)
    options = {"refine": "off", "validation_fraction": 0.0} if cls is EMFlowImputer else {"n_iterations": 1}
    cls(**options, random_state=0).fit(DIGITS, missing=HOLES)
    x, missing = torch.tensor(DIGITS.reshape(120, 64) / np.float32(16)), torch.tensor(HOLES.reshape(120, 64))
    torch.testing.assert_close(asked["start"].cov, stationary_start(x, missing, (8, 8)).cov)
    beyond = 2 / (2 - HOLES.mean()) if cls is EMFlowImputer else 1
    assert asked.get("relaxation", 1) == pytest.approx(beyond)


def test_pixels_are_hidden_in_the_first_images_alone(monkeypatch):
    monkeypatch.setattr(module, "VALIDATED", 50)
    imputer = EMFlowImputer(n_iterations=0, refine="off", random_state=0)
    X = imputer._read_new(DIGITS, HOLES)
    run = imputer._begin(X, None, None, seed=0, settings=imputer.settings(len(X)), n_known=0)
    shown = run.patterns.missing.numpy() & ~HOLES.reshape(120, 64)
    assert shown[:50].mean() == pytest.approx(0.05 * 0.6, rel=0.3)
    assert not shown[50:].any()
    assert run.history["iterations"][0]["validation_rmse"] < 0.25


@pytest.mark.parametrize(("enough", "shown"), [(50, 50), (120, 120), (300, 240)])
def test_the_refinement_sees_enough_images(monkeypatch, enough, shown):
    seen = []
    monkeypatch.setattr(images, "ENOUGH", enough)
    monkeypatch.setattr(images, "fit_network", lambda x_hat, *_: seen.append(len(x_hat)) or (None, [{"step": 1}]))
    EMFlowImputer(validation_fraction=0.0, random_state=0).fit(DIGITS, missing=HOLES)
    assert seen == [shown]


@pytest.mark.parametrize("options", [{}, {"refine": "off", "n_iterations": 1, "n_epochs": 1}])
def test_a_saved_model_fills_and_draws_the_same(options, tmp_path):
    fitted = EMFlowImputer(refine_steps=2, random_state=0, **options).fit(COLOUR, missing=HOLES)
    fitted.save(tmp_path / "model")
    loaded = EMFlowImputer.load(tmp_path / "model")
    assert loaded.image_shape_ == (8, 8, 3)
    assert (loaded.refinement_ is None) == (fitted.refinement_ is None)
    assert np.array_equal(loaded.transform(COLOUR, missing=HOLES), fitted.transform(COLOUR, missing=HOLES))
    assert loaded.sample(3).shape == (3, 8, 8, 3)
    assert np.array_equal(loaded.sample(3), fitted.sample(3))
    assert loaded.score_samples(COLOUR, missing=HOLES).shape == (120,)


@pytest.mark.parametrize("fill", ["nearest", "zero", "mean", "draw"])
def test_initial_fills_of_images(fill):
    options = {"n_iterations": 1, "n_epochs": 1, "refine": "off", "random_state": 0}
    filled = EMFlowImputer(initial_fill=fill, **options).fit_transform(DIGITS, missing=HOLES)
    assert np.array_equal(filled[~HOLES], DIGITS[~HOLES])


@pytest.mark.parametrize(
    ("X", "fill", "text"),
    [(DIGITS, "median", "tables"), (DIGITS[:, 0], "nearest", "images"), (DIGITS[:, 0], "zero", "images")],
)
def test_a_fill_of_the_other_kind_is_an_error(X, fill, text):
    with pytest.raises(ParameterError, match=f"initial_fill='{fill}' is for {text}"):
        EMFlowImputer(initial_fill=fill).fit(X)


def test_no_iterations_need_the_gaussian():
    with pytest.raises(ParameterError, match='must be "gaussian"'):
        EMFlowImputer(n_iterations=0, initial_fill="draw").fit(DIGITS, missing=HOLES)


def test_a_killed_fit_goes_on(tmp_path):
    def imputer(**options):
        options |= {"n_iterations": 2, "n_epochs": 2, "refine_steps": 2, "random_state": 0}
        return EMFlowImputer(**options)

    whole = imputer().fit(DIGITS, missing=HOLES)
    imputer(checkpoint=tmp_path, max_time=1e-9).fit(DIGITS, missing=HOLES)
    resumed = imputer(checkpoint=tmp_path).fit(DIGITS, missing=HOLES)
    assert np.array_equal(resumed.transform(DIGITS, missing=HOLES), whole.transform(DIGITS, missing=HOLES))
    with pytest.raises(FileError, match="other data"):
        imputer(checkpoint=tmp_path).fit(DIGITS, missing=~HOLES)


def test_no_time_leaves_the_gaussian():
    fitted = EMFlowImputer(max_time=1e-9, random_state=0).fit(DIGITS, missing=HOLES)
    assert fitted.refinement_ is None
    assert len(fitted.stages_) == 1
    assert fitted.timed_out_
