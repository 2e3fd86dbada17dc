"""Draws and intervals: of every model, for what is missing alone, and as sure as they say."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from emflow import DataError, EMFlowImputer, GaussianImputer, ParameterError


def gaussian_table(n, seed=0):
    """Correlated normal columns (n, 4), and the same with a third of the cells missing."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, 1)) + 0.5 * rng.normal(size=(n, 4))) * [1, 10, 0.1, 100]
    return X, np.where(rng.random(X.shape) < 0.3, np.nan, X)


def test_draws_keep_what_is_observed(make, x):
    draws = make().fit(x).sample_imputations(x, 3)
    assert draws.shape == (3, *x.shape)
    seen = ~np.isnan(x)
    assert all(each[seen].tobytes() == x[seen].tobytes() for each in draws)
    assert (draws[0][~seen] != draws[1][~seen]).mean() > 0.5


def test_intervals_keep_what_is_observed_and_hold_the_draws(make, x):
    fitted = make().fit(x)
    lower, upper = fitted.intervals(x, 0.8)
    seen = ~np.isnan(x)
    assert lower[seen].tobytes() == upper[seen].tobytes() == x[seen].tobytes()
    assert (lower <= upper).all()
    assert (lower < upper)[~seen].any()
    draws = fitted.sample_imputations(x, 400)
    span = np.nanmax(x, 0) - np.nanmin(x, 0)
    for end, level in ((lower, 0.1), (upper, 0.9)):
        assert (abs(np.quantile(draws, level, 0) - end) / span)[~seen].mean() < 0.05


def test_wider_intervals_hold_narrower_ones(make, x):
    fitted = make().fit(x)
    (low, high), (lower, higher) = (fitted.intervals(x, coverage) for coverage in (0.5, 0.95))
    assert (lower <= low).all()
    assert (high <= higher).all()


@pytest.mark.parametrize("rows", [slice(1), slice(7), slice(None)])
def test_what_is_drawn_for_a_row_does_not_depend_on_those_after_it(make, x, rows):
    fitted = make().fit(x)
    np.testing.assert_allclose(fitted.sample_imputations(x[rows]), fitted.sample_imputations(x)[:, rows], rtol=1e-9)


def test_the_seed_decides(make, x):
    first, again, other = (make(random_state=seed).fit(x).sample_imputations(x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_the_gaussian_is_as_sure_as_it_says(coverage):
    X, holes = gaussian_table(4000)
    lower, upper = GaussianImputer(random_state=0).fit(holes).intervals(holes, coverage)
    assert ((lower <= X) & (upper >= X))[np.isnan(holes)].mean() == pytest.approx(coverage, abs=0.02)


def test_intervals_of_the_gaussian_are_those_of_its_conditional():
    X, holes = gaussian_table(500)
    fitted = GaussianImputer(clip=False, random_state=0).fit(holes)
    row = np.array([[np.nan, np.nan, np.nan, X[0, 3]]])
    lower, upper = fitted.intervals(row, 0.9)
    cov, span = fitted.latent_covariance_, np.asarray(fitted.schema_.span)
    deviation = np.sqrt(cov.diagonal() - cov[:, 3] ** 2 / cov[3, 3]) * span
    np.testing.assert_allclose((upper - lower)[0, :3] / (2 * norm.ppf(0.95)), deviation[:3], rtol=0.25)


def test_a_learned_e_step_is_about_as_sure_as_it_says():
    X, holes = gaussian_table(1500)
    fitted = EMFlowImputer(refine_steps=150, validation_fraction=0, random_state=0).fit(holes[:1000])
    assert fitted.refinement_ is not None
    lower, upper = fitted.intervals(holes[1000:], 0.9)
    within = ((lower <= X[1000:]) & (X[1000:] <= upper))[np.isnan(holes[1000:])]
    assert 0.85 < within.mean() < 0.95


def test_draws_depend_on_each_other_as_the_columns_do():
    """Two columns that are nearly equal stay so where both are missing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 1)) + 0.1 * rng.normal(size=(600, 2))
    X = np.column_stack([X, X.sum(1) + rng.normal(size=600)])
    holes = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    fitted = EMFlowImputer(refine="on", refine_steps=50, validation_fraction=0, random_state=0).fit(holes)
    row = np.array([[np.nan, np.nan, 1.0]])
    draws = fitted.sample_imputations(row, 500)[:, 0, :2]
    assert np.corrcoef(draws.T)[0, 1] > 0.9


@pytest.mark.parametrize(("refine", "n_iterations"), [("off", 1), ("auto", 0)])
def test_images(refine, n_iterations):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (60, 4, 4)).astype(np.uint8)
    missing = rng.random(X.shape) < 0.3
    options = {"refine": refine, "refine_steps": 2, "n_iterations": n_iterations, "n_epochs": 1}
    fitted = EMFlowImputer(**options, validation_fraction=0, random_state=0).fit(X, missing=missing)
    draws = fitted.sample_imputations(X, 2, missing=missing)
    lower, upper = fitted.intervals(X, missing=missing)
    assert draws.shape == (2, 60, 4, 4)
    assert draws.dtype == lower.dtype == np.uint8
    assert np.array_equal(draws[0][~missing], X[~missing])
    assert (lower <= upper).all()


@pytest.mark.parametrize("n_draws", [0, 1.5, True, None])
def test_draws_are_counted(make_gaussian, x, n_draws):
    with pytest.raises(ParameterError, match="n_draws must be an integer of at least 1"):
        make_gaussian().fit(x).sample_imputations(x, n_draws)


@pytest.mark.parametrize("coverage", [0, 1, 90, float("nan"), "much", None])
def test_coverage_is_a_probability(make_gaussian, x, coverage):
    with pytest.raises(ParameterError, match=r"coverage must be a number in \(0, 1\)"):
        make_gaussian().fit(x).intervals(x, coverage)


# --- a fit for each draw


def test_a_fit_for_each_draw(make, x):
    fitted = make().fit(x)
    draws = fitted.sample_imputations(x, 3, bootstrap=True)
    seen = ~np.isnan(x)
    assert all(each[seen].tobytes() == x[seen].tobytes() for each in draws)
    assert np.isfinite(draws).all()
    np.testing.assert_array_equal(fitted.sample_imputations(x, 2, bootstrap=True), draws[:2])
    assert (draws[0] != draws[1])[~seen].mean() > 0.5
    np.testing.assert_array_equal(fitted.transform(x), make().fit(x).transform(x))  # it is itself as it was


@pytest.mark.parametrize("bootstrap", [False, True])
def test_draws_differ_by_the_uncertainty_of_the_parameters(bootstrap):
    """Half of a column is missing, and the other columns tell nothing of it.

    The mean of the completed column then varies by noise, s^2 / n_missing in the mean of what is filled in, and, with
    a fit for each draw, by the uncertainty of the mean, s^2 / n_observed.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    X[::2, 1] = np.nan
    imputer = GaussianImputer(clip=False, random_state=0).fit(X)
    means = imputer.sample_imputations(X, 150, bootstrap=bootstrap)[:, ::2, 1].mean(1)
    variance = np.nanvar(X[:, 1]) / 50
    assert means.var() / variance == pytest.approx(2 if bootstrap else 1, rel=0.3)


def test_a_fit_for_each_draw_knows_all_categories():
    """A category of one row, which a sample of rows would often lack, and a column with few values."""
    frame = pd.DataFrame({"word": ["u", "v", None, "u"] * 10, "x": [1.0, 2, 3, np.nan] * 10, "rare": [np.nan] * 40})
    frame.loc[7, "word"], frame.loc[[3, 20], "rare"] = "w", [1.0, 2.0]
    first, second = GaussianImputer(random_state=0).fit(frame).sample_imputations(frame, 2, bootstrap=True)
    for draw in (first, second):
        assert draw["word"].isin(["u", "v", "w"]).all()
        assert draw["rare"].between(1, 2).all()
    assert not first.equals(second)


def test_a_fit_for_each_draw_leaves_checkpoints_alone(make_emflow, x, tmp_path, capsys):
    fitted = make_emflow(checkpoint=tmp_path, verbose=True).fit(x)
    before = (tmp_path / "run.safetensors").read_bytes()
    capsys.readouterr()
    fitted.sample_imputations(x, 2, bootstrap=True)
    assert (tmp_path / "run.safetensors").read_bytes() == before
    assert "bootstrap: 2 fits in" in capsys.readouterr().err


def test_a_fit_for_each_draw_wants_a_whole_table(make_gaussian, x):
    fitted = make_gaussian().fit(x)
    few = x[:3].copy()
    few[:, 2] = np.nan
    with pytest.raises(DataError, match="no observed value in column 2: bootstrap=True fits to X"):
        fitted.sample_imputations(few, bootstrap=True)
    with pytest.raises(ParameterError, match="bootstrap must be True or False, but it is 5"):
        fitted.sample_imputations(x, bootstrap=5)
