"""The density of whole rows that a learned E-step gives: it is one, it is right, and rows are drawn from it."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal

from emflow import EMFlowImputer, GaussianImputer
from emflow.refine import density

COLOURS, LEVELS, CODE = ("blue", "green", "red"), np.arange(5.0), -3.0


def mixed(n, seed=0):
    """Each column tells of the others: a number with five levels, one of any value, with a code of -3, and a colour."""
    rng = np.random.default_rng(seed)
    level = rng.integers(0, 5, n)
    smooth = np.where(rng.random(n) < 0.3, CODE, np.sin(level) + 0.2 * rng.normal(size=n))
    colour = np.take(COLOURS, np.where(rng.random(n) < 0.8, level % 3, rng.integers(0, 3, n)))
    return pd.DataFrame({"level": level.astype(float), "smooth": smooth, "colour": colour})


def with_holes(frame, rate=0.2, seed=1):
    return frame.mask(np.random.default_rng(seed).random(frame.shape) < rate)


@pytest.fixture(scope="module", params=["of a Gaussian", "of a flow"])
def learned(request):
    """An E-step learnt on top of either."""
    stages = {"n_iterations": 0} if request.param == "of a Gaussian" else {"n_iterations": 1, "n_epochs": 3, "tol": 0}
    size = {"n_bins": 16, "width": 32, "n_trees": 4}
    imputer = EMFlowImputer(refine=size, refine_steps=200, clip=False, random_state=0, **stages)
    return imputer.fit(with_holes(mixed(900)))


@pytest.fixture(scope="module")
def grid(learned):
    """Rows that stand for cells of the whole space, and the probability of each."""
    step = {"level": 0.25, "smooth": 0.02}
    level, smooth = np.arange(-4.375, 8.5, step["level"]), np.arange(-6.01, 4, step["smooth"])
    rows = pd.MultiIndex.from_product([level, smooth, COLOURS], names=["level", "smooth", "colour"]).to_frame(False)
    return rows, np.exp(learned.score_samples(rows)) * step["level"] * step["smooth"]


def test_all_there_can_be_has_probability_one(grid):
    assert grid[1].sum() == pytest.approx(1, abs=0.01)


def shares(frame, weight):
    """Of the colours, by the level that is nearest and whether the other number is below zero, above, or the code."""
    nearest = frame["level"].round().clip(0, 4)
    side = np.sign(frame["smooth"]).where(frame["smooth"] > CODE / 2, CODE)
    kinds = pd.MultiIndex.from_product([LEVELS, [-1, CODE, 1], COLOURS])
    sums = pd.Series(weight).groupby([nearest, side, frame["colour"]]).sum()
    return sums.reindex(kinds, fill_value=0).to_numpy()


def test_rows_are_drawn_from_it(learned, grid):
    drawn = pd.DataFrame(learned.sample(4000))
    found, expected = shares(drawn, np.full(4000, 1 / 4000)), shares(*grid)
    assert abs(found - expected).sum() / 2 < 0.08  # noise alone gives .03


def test_it_knows_how_columns_depend_on_each_other(grid):
    real, each = mixed(20_000, seed=5), np.full(20_000, 1 / 20_000)
    rng = np.random.default_rng(0)
    alone = pd.DataFrame({name: rng.permutation(real[name]) for name in real})
    off = [abs(found - shares(real, each)).sum() / 2 for found in (shares(*grid), shares(alone, each))]
    assert off[0] < 0.5 * off[1]


def test_values_of_their_own_are_drawn_as_they_are(learned):
    drawn = pd.DataFrame(learned.sample(2000))
    assert np.isin(drawn["level"].round(5), LEVELS).all()
    assert 0.2 < (abs(drawn["smooth"] - CODE) < 1e-5).mean() < 0.4
    assert drawn["smooth"].nunique() > 1000


def test_it_is_higher_than_that_of_a_gaussian():
    """On a bent curve, of which a Gaussian knows but the width."""
    t = np.random.default_rng(0).random((1200, 1))
    x = np.hstack([t, (2 * t - 1) ** 2, np.sin(6 * t)]) + 0.05 * np.random.default_rng(1).normal(size=(1200, 3))
    holes = np.where(np.random.default_rng(2).random(x.shape) < 0.2, np.nan, x)
    imputers = GaussianImputer(), EMFlowImputer(refine_steps=150, random_state=0)
    plain, learned = (imputer.fit(holes[:900]).score_samples(x[900:]) for imputer in imputers)
    assert np.median(learned) > np.median(plain) + 0.7
    assert learned.mean() > plain.mean() + 0.7


@pytest.fixture
def on_a_curve(make_refined):
    """Fitted to a table of numbers, which is continuous but for its bins."""
    t = np.random.default_rng(0).random((200, 1))
    x = np.hstack([t, t**2, np.exp(t)]) + 0.1 * np.random.default_rng(1).normal(size=(200, 3))
    fitted = make_refined(clip=False).fit(np.where(np.random.default_rng(2).random(x.shape) < 0.2, np.nan, x))
    return fitted, x


def test_the_gaussian_comes_back_if_it_alone_is_trusted(on_a_curve):
    fitted, x = on_a_curve
    trust = fitted.refinement_.trust
    trust.copy_(torch.tensor([1e-30, 1e-30, 1.0]).expand_as(trust))
    span = np.asarray(fitted.schema_.span)
    mean, cov = fitted.latent_mean_ * span + fitted.schema_.low, fitted.latent_covariance_ * np.outer(span, span)
    expected = multivariate_normal(mean, cov).logpdf(x)
    np.testing.assert_allclose(fitted.score_samples(x), expected, rtol=1e-5, atol=1e-5)
    drawn = fitted.sample(20_000)
    np.testing.assert_allclose((drawn.mean(0) - mean) / np.sqrt(cov.diagonal()), 0, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(drawn.T), cov / np.sqrt(np.outer(*2 * [cov.diagonal()])), atol=0.03)


def test_what_a_column_is_expected_to_be_is_what_would_fill_it(on_a_curve):
    fitted, x = on_a_curve
    refinement = fitted.refinement_
    chain = fitted._chain(fitted.stages_, refinement)
    column = chain.turns[-1].columns
    with torch.no_grad():
        probability, _ = chain._ask(torch.from_numpy(fitted.schema_.scale(x)), chain.turns[-1])
    mean = refinement.bins.mean(probability, column.expand(200)) * refinement.scale[column] + refinement.mean[column]
    x[:, column] = np.nan
    filled = fitted.schema_.scale(fitted.transform(x))[:, column.item()]
    np.testing.assert_allclose(mean, filled, atol=1e-4)


def test_shares_of_categories_leave_a_rest():
    given = torch.tensor([[0.2, 0.3], [0.9, 0.6], [-0.1, 1.0]])
    for rest, first in ((True, [0.2, 0.3, 0.5]), (False, [0.4, 0.6, 0])):
        found = density.categories(given, rest)
        torch.testing.assert_close(found, torch.tensor([first, [0.6, 0.4, 0], [0, 1, 0]]), atol=1e-5, rtol=0)
        assert found.min() > 0  # nothing is impossible


def test_there_is_a_rest_where_a_category_has_no_indicator():
    """Fifty words, of which forty are followed up, and three colours."""
    rng = np.random.default_rng(0)
    words = np.array([f"word {n}" for n in range(50)])
    frame = pd.DataFrame(
        {"word": words[rng.integers(0, 50, 800)], "colour": mixed(800)["colour"], "x": rng.random(800)}
    )
    imputer = EMFlowImputer(refine="on", refine_steps=3, kinds={"word": "nominal"}, random_state=0)
    fitted = imputer.set_params(validation_fraction=0).fit(with_holes(frame))
    chain = fitted._chain(fitted.stages_, fitted.refinement_)
    assert [chain._rest(turn.columns) for turn in chain.turns if len(turn.columns) > 1] == [True, False]


def test_rows_go_in_parts(learned, monkeypatch):
    rows = mixed(50, seed=3)
    whole, drawn = learned.score_samples(rows), learned.sample(50)
    monkeypatch.setattr(density, "ROWS", 7)
    np.testing.assert_allclose(learned.score_samples(rows), whole, rtol=1e-12)
    assert len(learned.sample(50)["level"]) == 50
    assert drawn["level"] != learned.sample(50)["level"]  # parts have their own noise


def test_columns_that_lack_least_come_first():
    frame = with_holes(mixed(300))
    frame["level"] = np.where(np.arange(300) < 200, frame["level"], np.nan)
    frame["smooth"] = mixed(300)["smooth"]
    learned = EMFlowImputer(refine="on", refine_steps=2, validation_fraction=0, random_state=0).fit(frame)
    assert learned.refinement_ is not None
    assert learned.refinement_.order.tolist() == [1, 2, 3, 4, 0]


def test_what_is_right_is_trusted():
    """The second column is told by the first one, bent; the third one, which is skewed, by nothing."""
    rng = np.random.default_rng(0)
    x = rng.random((1500, 3))
    x[:, 1] = (2 * x[:, 0] - 1) ** 2 + 0.02 * rng.normal(size=1500)
    x[:, 2] = rng.exponential(size=1500) ** 3
    x[rng.random(1500) < 0.3, 1] = np.nan
    x[rng.random(1500) < 0.5, 2] = np.nan
    trust = EMFlowImputer(refine_steps=150, random_state=0).fit(x).refinement_.trust
    torch.testing.assert_close(trust.sum(1), torch.ones(3))
    assert trust[1, 0] > 0.75
    assert trust[2, 1] > 0.5
    unknown = EMFlowImputer(refine_steps=150, validation_fraction=0, random_state=0).fit(x).refinement_.trust
    assert unknown[2, 1] < 0.5  # without hidden cells nothing tells


def test_it_stays_what_it_was_where_no_cells_are_hidden():
    """Trust that was learnt goes along with further rows."""
    x = with_holes(mixed(900))
    first = EMFlowImputer(refine="on", refine_steps=20, random_state=0).fit(x[:600])
    trust, order = first.refinement_.trust.clone(), first.refinement_.order.clone()
    further = first.set_params(validation_fraction=0).partial_fit(x[600:])
    assert torch.equal(further.refinement_.trust, trust)
    assert torch.equal(further.refinement_.order, order)
