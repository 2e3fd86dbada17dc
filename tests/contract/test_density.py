"""The density of whole rows that a learned E-step gives: it is one, it is right, and rows are drawn from it."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal

import emflow.imputer
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
    assert 0.1 < (abs(drawn["smooth"] - CODE) < 1e-5).mean() < 0.6
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
    holes = np.where(np.random.default_rng(2).random(x.shape) < 0.2, np.nan, x)
    fitted = make_refined(clip=False, validation_fraction=0, refine={"n_bins": 16}).fit(holes)
    return fitted, x


def test_the_gaussian_comes_back_if_it_alone_is_trusted(on_a_curve):
    fitted, x = on_a_curve
    trust = fitted.refinement_.trust
    trust.copy_(torch.tensor([1e-30, 1e-30, 1.0]).expand_as(trust))
    span = np.asarray(fitted.schema_.span)
    mean, cov = fitted.latent_mean_ * span + fitted.schema_.low, fitted.latent_covariance_ * np.outer(span, span)
    expected = multivariate_normal(mean, cov).logpdf(x)
    off = abs(fitted.score_samples(x) - expected)
    assert np.median(off) < 1e-5
    assert off.max() < 0.1  # in bins that are one value it is the mean over the bin
    drawn = fitted.sample(20_000)
    np.testing.assert_allclose((drawn.mean(0) - mean) / np.sqrt(cov.diagonal()), 0, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(drawn.T), cov / np.sqrt(np.outer(*2 * [cov.diagonal()])), atol=0.03)


def test_far_out_it_is_small_but_not_zero(on_a_curve):
    fitted, x = on_a_curve
    far = x[:1] + 50 * x.std(0) * np.array([[0, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 0]])
    scores = fitted.score_samples(far)
    assert np.isfinite(scores).all()
    assert (scores[:3] < scores[3] - 100).all()


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


def yes_or_no(n, seed=0):
    """Two columns of zeros and ones that are nearly the same, and one that is always the same."""
    rng = np.random.default_rng(seed)
    first = rng.random(n) < 0.3
    return np.column_stack([first, first ^ (rng.random(n) < 0.02), np.full(n, 3.0)]).astype(float)


@pytest.mark.parametrize("validation_fraction", [0.0, 0.2])
def test_of_columns_of_two_values_it_is_the_probability(make_refined, validation_fraction, monkeypatch):
    """Though the second value is all but told by the first, and the Gaussian knows the third one exactly."""
    monkeypatch.setattr(emflow.imputer, "CLEAR", -100.0)  # so that it is kept
    x = yes_or_no(400)
    holes = np.where(np.random.default_rng(1).random(x.shape) < 0.2, np.nan, x)
    fitted = make_refined(refine_steps=40, validation_fraction=validation_fraction).fit(holes)
    every = np.array([[a, b, 3.0] for a in (0, 1) for b in (0, 1)])
    found = np.exp(fitted.score_samples(every))
    assert found.sum() == pytest.approx(1, abs=0.01)  # of the Gaussian some is beyond zero and one
    expected = [(x[:, :2] == row[:2]).all(1).mean() for row in every]
    assert abs(found - expected).max() < 0.15


def test_what_is_completed_between_two_values_counts_as_the_nearer_one(make_refined):
    x = yes_or_no(300)
    holes = np.where(np.random.default_rng(1).random(x.shape) < 0.2, np.nan, x)
    fitted = make_refined(validation_fraction=0).fit(holes)
    row = np.array([[1.0, np.nan, 3.0]])
    filled = fitted.transform(row)
    assert 0 < filled[0, 1] < 1
    np.testing.assert_allclose(fitted.score_samples(row), fitted.score_samples(filled.round()), rtol=1e-5)
    frame = with_holes(mixed(300))
    fitted = make_refined(validation_fraction=0).fit(frame)
    row = pd.DataFrame({"level": [2.0], "smooth": [0.5], "colour": pd.Series([None], dtype=object)})
    np.testing.assert_allclose(fitted.score_samples(row), fitted.score_samples(fitted.transform(row)), rtol=1e-5)


def test_rows_count_by_their_weight(make_refined):
    """Of those in which the first column is 1 each counts as nine."""
    x, rng = yes_or_no(400)[:, :2], np.random.default_rng(1)
    x[::2, 0], x[1::2, 0] = 0, 1
    x[rng.random(400) < 0.2, 1] = np.nan
    weight = np.where(x[:, 0] == 1, 9.0, 1.0)
    fitted = make_refined(validation_fraction=0).fit(x, sample_weight=weight)
    assert 0.8 < fitted.sample(2000)[:, 0].mean() < 0.95


def test_shares_of_categories_follow_further_rows(make_refined):
    first, second = (
        pd.DataFrame({"colour": list(colours) * 60, "x": np.arange(240.0)}) for colours in ("rggb", "rrrb")
    )
    fitted = make_refined(validation_fraction=0, store_rows=240).fit(with_holes(first)).partial_fit(with_holes(second))
    chain = fitted._chain(fitted.stages_, fitted.refinement_)
    columns = next(turn.columns for turn in chain.turns if len(turn.columns) == 3)
    found = dict(zip(fitted.categories_["colour"], chain._shares(columns).tolist(), strict=False))
    assert found == pytest.approx({"r": 0.5, "g": 0.25, "b": 0.25}, abs=0.05)


def test_rows_to_learn_trust_from_are_not_their_own_neighbours(on_a_curve):
    """All columns but the first are to be told, which the rows that the model keeps tell exactly."""
    fitted, x = on_a_curve
    refinement = fitted.refinement_
    chain = fitted._chain(fitted.stages_, refinement)
    numbers = refinement.reference.numbers(torch.tensor([5, 10**6, 0]))
    assert refinement.reference.origin[numbers[[0, 2]]].tolist() == [5, 0]
    assert numbers[1] == -1
    x = torch.from_numpy(fitted.schema_.scale(x))
    itself = refinement.reference.numbers(torch.arange(len(x)))
    with torch.no_grad():
        known, unknown = (chain._experts(x, chain.turns[1], own)[:, 0].mean() for own in (None, itself))
    assert known > unknown


def test_trust_goes_by_weights_and_no_row_by_itself_and_nobody_loses_all_of_it(on_a_curve):
    fitted, x = on_a_curve
    refinement = fitted.refinement_
    chain, before = fitted._chain(fitted.stages_, refinement), refinement.trust.clone()
    (columns, place), x = chain.turns[1], torch.from_numpy(fitted.schema_.scale(x))
    x[:100, columns] = x[:100, columns].flip(0)  # nonsense
    asked = torch.isin(torch.arange(3), columns).expand(200, 3)
    itself, nobody, second = (
        refinement.reference.numbers(torch.arange(200)),
        torch.full((200,), -1),
        torch.arange(200) >= 100,
    )

    def trust(weight, itself, times=1):
        refinement.trust.copy_(before)
        with torch.no_grad():
            for _ in range(times):
                chain.learn(x, asked, 2.0 * weight, itself)
        return refinement.trust[place].clone()

    assert trust(second, itself)[0] > trust(~second, itself)[0]
    assert trust(second, nobody)[0] > trust(second, itself)[0]
    last = trust(second, itself, times=50)
    assert last.min() > 9e-4
    torch.testing.assert_close(last.sum(), torch.tensor(1.0))


def test_rows_go_in_parts(learned, monkeypatch):
    rows = mixed(50, seed=3)
    whole, drawn = learned.score_samples(rows), learned.sample(50)
    monkeypatch.setattr(density, "ROWS", 7)
    np.testing.assert_allclose(learned.score_samples(rows), whole, rtol=1e-6)
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
    unknown = EMFlowImputer(refine_steps=2, validation_fraction=0, random_state=0).fit(x).refinement_.trust
    assert unknown[2, 1] < 0.5  # without hidden cells nothing tells


def test_it_stays_what_it_was_where_no_cells_are_hidden():
    """Trust that was learnt goes along with further rows."""
    x = with_holes(mixed(900))
    first = EMFlowImputer(refine="on", refine_steps=60, random_state=0).fit(x[:600])
    assert first.refinement_ is not None
    trust, order = first.refinement_.trust.clone(), first.refinement_.order.clone()
    further = first.set_params(validation_fraction=0).partial_fit(x[600:])
    assert torch.equal(further.refinement_.trust, trust)
    assert torch.equal(further.refinement_.order, order)
