"""A Gaussian, or a learned E-step, that is fitted part by part comes near to one fitted to all rows."""

import numpy as np
import pandas as pd
import pytest

import emflow.imputer
from emflow import DataError, EMFlowImputer, GaussianImputer


def table(n=600, rate=0.3, seed=0):
    """Correlated columns in different units, the later rows shifted, so that ranges grow."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, 1)) + 0.5 * rng.normal(size=(n, 4))) * [1, 10, 0.1, 100] + [0, 5, -3, 1000]
    X += np.linspace(0, 2, n)[:, None] * [1, 10, 0.1, 100]
    return np.where(rng.random(X.shape) < rate, np.nan, X)


def in_parts(X, n_parts, **parameters):
    imputer = GaussianImputer(random_state=0, **parameters)
    for part in np.array_split(X, n_parts):
        imputer.partial_fit(part)
    return imputer


def moments(imputer):
    """Means and covariances in the units of the data, as EM left them."""
    span = np.asarray(imputer.schema_.span)
    cov = imputer.latent_covariance_.copy()
    cov[np.diag_indices(len(cov))] /= 1 + imputer.covariance_inflation
    return imputer.latent_mean_ * span + imputer.schema_.low, cov * np.outer(span, span)


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.2])
def test_without_missing_values_parts_are_the_whole(beta):
    X = table(rate=0)
    parts = in_parts(X, 5, covariance_inflation=beta)
    for found, expected in zip(moments(parts), (X.mean(0), np.cov(X.T, ddof=0)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert parts.schema_.low == X.min(0).tolist()
    assert parts.schema_.high == X.max(0).tolist()
    assert parts.n_seen_ == len(X)


def test_parts_come_near_to_the_whole():
    X = table()
    whole, first, parts = GaussianImputer().fit(X), GaussianImputer().fit(X[:150]), in_parts(X, 4)
    spread = np.nanstd(X, 0)
    filled = [imputer.transform(X) for imputer in (whole, first, parts)]
    apart = [np.sqrt((((each - filled[0]) / spread)[np.isnan(X)] ** 2).mean()) for each in filled[1:]]
    assert apart[1] < 0.06
    assert apart[1] < 0.3 * apart[0]
    np.testing.assert_allclose(moments(parts)[0], moments(whole)[0], atol=0.05 * spread.max())


def test_a_part_goes_on_after_a_fit_and_a_file(tmp_path):
    X = table()
    fitted = GaussianImputer(random_state=0).fit(X[:300])
    fitted.save(tmp_path / "model")
    expected = in_parts(X, 2).transform(X)
    for imputer in (fitted, GaussianImputer.load(tmp_path / "model")):
        np.testing.assert_allclose(imputer.partial_fit(X[300:]).transform(X), expected, rtol=1e-9)


def test_weights_of_parts_count():
    X = table(300)
    twice = in_parts(X[:150], 1).partial_fit(X[150:], sample_weight=np.full(150, 2.0))
    repeated = in_parts(X[:150], 1).partial_fit(np.repeat(X[150:], 2, 0))
    assert twice.n_seen_ == repeated.n_seen_ == 450
    np.testing.assert_allclose(twice.transform(X), repeated.transform(X), rtol=1e-8)


def test_a_column_may_be_missing_in_a_later_part():
    X = table()
    X[300:, 1] = np.nan
    parts = in_parts(X, 2)
    assert np.isfinite(parts.transform(X)).all()
    assert parts.schema_.low[1] == np.nanmin(X[:, 1])


def test_indicators_and_bounds_over_parts():
    X = table()
    X[:300, 1] = 5.0
    imputer = GaussianImputer(add_indicator=True, bounds={0: (-1, None)}).partial_fit(X[:300]).partial_fit(X[300:])
    assert imputer.indicated_ == [0, 1, 2, 3]
    assert imputer.schema_.low[0] == -1
    assert imputer.transform(X).shape == (600, 8)


def test_what_is_new_is_named():
    frame = pd.DataFrame({"word": ["u", "v", None, "u"] * 5, "x": [1.0, 2, 3, 4] * 5})
    imputer = GaussianImputer().partial_fit(frame)
    with pytest.raises(DataError, match="'word' holds the category 'w' in row 1"):
        imputer.partial_fit(pd.DataFrame({"word": ["u", "w"], "x": [1.0, 2]}))
    with pytest.raises(ValueError, match=r"(?s)unseen.*z"):
        imputer.partial_fit(frame.assign(z=1.0))
    with pytest.raises(ValueError, match=r"(?s)missing.*x"):
        imputer.partial_fit(frame[["word"]])
    assert imputer.n_seen_ == 20


def test_parts_are_of_tables():
    images = np.random.default_rng(0).normal(size=(20, 2, 2))
    with pytest.raises(DataError, match="partial_fit is for tables"):
        GaussianImputer().partial_fit(images).partial_fit(images)


# --- the learned E-step


def waves(n, seed=0):
    """Two columns that a third one bends, a code that they decide, and a rare flag.

    The later rows have a wider range, and a code of their own.
    """
    rng = np.random.default_rng(seed)
    t = rng.uniform(-1, 1, n) * np.where(np.arange(n) < n // 2, 1.0, 1.5)
    code = np.select([t > 1, t > 0.2], [12.1, 7.3], 3.1)
    return np.column_stack([10 * t, np.sin(3 * t), np.cos(3 * t), code, rng.random(n) < 0.03])


def with_holes(X, seed=0):
    return np.where(np.random.default_rng(seed).random(X.shape) < 0.2, np.nan, X)


def learned(**parameters):
    return EMFlowImputer(**({"refine": "on", "refine_steps": 120, "random_state": 0} | parameters))


def rmse(imputer, X):
    holes = with_holes(X, 9)
    return np.sqrt(((imputer.transform(holes) - X)[np.isnan(holes)] ** 2).mean())


@pytest.fixture(scope="module")
def parts():
    X = with_holes(waves(900))
    return X[:450], X[450:]


@pytest.fixture(scope="module")
def fitted(parts):
    return learned().fit(parts[0])


def copy_of(imputer, tmp_path):
    imputer.save(tmp_path / "model")
    return EMFlowImputer.load(tmp_path / "model")


def test_a_learned_e_step_learns_from_further_rows_and_forgets_none(parts, fitted, tmp_path):
    later, earlier = waves(2000, seed=1)[1000:], waves(2000, seed=2)[:1000]
    both = copy_of(fitted, tmp_path).partial_fit(parts[1])
    alone = learned().fit(parts[1])
    assert both.n_seen_ == 900
    assert rmse(both, later) < 0.8 * rmse(fitted, later)  # it has never seen that far out
    assert rmse(both, earlier) < rmse(alone, earlier)
    assert len(both.refinement_.reference.x) == 900
    assert both.schema_.high[0] == np.nanmax(parts[1][:, 0])


def test_training_goes_on(parts, fitted, tmp_path):
    """The loss of the first steps is less than that of as few from the start."""
    again = copy_of(fitted, tmp_path).set_params(refine_steps=10).partial_fit(parts[0])
    afresh = learned(refine_steps=10).fit(parts[0])
    losses = [imputer.history_["refine"][-1]["loss"] for imputer in (again, afresh)]
    assert losses[0] < 0.85 * losses[1]


def test_stored_codes_stay_codes_and_rare_ones_are_not_lost(parts, fitted, tmp_path):
    both = copy_of(fitted, tmp_path).partial_fit(parts[1])
    bins, reference = both.refinement_.bins, both.refinement_.reference
    assert ((bins.log_share > -1e3).sum(1)[3:]).tolist() == [3, 2]
    assert bins.lower[3, :3].tolist() == bins.upper[3, :3].tolist()
    rare = (reference.x[:, 4] > 1) & reference.observed[:, 4].bool()
    assert 0.9 * np.nansum(np.vstack(parts)[:, 4]) <= rare.sum() <= np.nansum(np.vstack(parts)[:, 4])


def test_stored_rows_stand_for_what_was_seen(parts, fitted, tmp_path):
    assert copy_of(fitted, tmp_path).n_seen_ == 450
    quick = {"refine_steps": 2, "store_rows": 300}
    model = copy_of(fitted, tmp_path).set_params(**quick).partial_fit(parts[1], sample_weight=np.full(450, 2.0))
    for seen in (1350, 1360):  # a few rows do not end it, though there are less than 700 then
        count = model.refinement_.reference.count
        assert model.n_seen_ == pytest.approx(seen)
        assert (len(count), count.sum()) == (300, pytest.approx(seen))
        model.partial_fit(parts[1][:10])


def test_columns_that_change_begin_again(parts, fitted, tmp_path):
    """Those that are about the same go on in the units that they had."""
    middles = []
    for part in (None, parts[1], parts[1] + [100, 0, 0, 0, 0]):
        model = copy_of(fitted, tmp_path)
        model = model if part is None else model.partial_fit(part)
        middles.append(model.refinement_.mean[0].item() * model.schema_.span[0] + model.schema_.low[0])
    assert middles[1] == pytest.approx(middles[0], abs=1e-4)
    assert middles[2] > middles[0] + 30


def test_without_stored_rows_there_is_an_error(parts):
    for imputer in (learned(store_rows=False), learned(refine="off", n_iterations=1)):
        imputer.fit(parts[0])
        with pytest.raises(AttributeError) as error:
            imputer.partial_fit(parts[1])
        assert "the model keeps no rows" in str(error.value.__cause__)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_part_that_fails_leaves_the_model_as_it_was(parts, fitted, tmp_path, monkeypatch, error):
    model = copy_of(fitted, tmp_path)
    before = model.transform(parts[1]), model.n_seen_, model.schema_

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(emflow.imputer, "fit_tables", fail)
    with pytest.raises(error):
        model.partial_fit(parts[1])
    np.testing.assert_array_equal(model.transform(parts[1]), before[0])
    assert (model.n_seen_, model.schema_) == before[1:]
