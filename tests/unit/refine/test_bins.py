import naive
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from emflow.refine.bins import IMPOSSIBLE, Bins, cuts
from emflow.refine.encoding import Encoding

NORMAL = naive.random(2000, 1)[:, 0]
COLUMNS = {
    "few levels": torch.tensor([1.0, 2.0, 5.0]).repeat(20),
    "a constant": torch.full((30,), 3.0),
    "many values": NORMAL,
    "a code far away": torch.cat([torch.full((300,), -200.0), NORMAL]),
    "a heavy tail": NORMAL.exp().exp(),
    "two point masses": torch.cat([torch.zeros(400), NORMAL, torch.full((400,), 0.5)]),
}


def whole(x):
    """One column, nothing missing."""
    return x[:, None].float(), torch.zeros(len(x), 1, dtype=torch.bool)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_value_is_in_its_bin(name):
    x, missing = whole(COLUMNS[name])
    bins = Bins.learn(x, missing, 16)
    at = bins.index(x)[:, 0]
    lower, upper, centre = (end[0, at] for end in (bins.lower, bins.upper, bins.centre))
    assert ((lower <= x[:, 0]) & (x[:, 0] <= upper)).all()
    for b in at.unique():
        assert_close(centre[at == b][0], x[at == b].double().mean().float())
    share = torch.bincount(at, minlength=bins.centre.shape[1]) / len(x)
    assert_close(bins.log_share[0].exp(), share, atol=0.01, rtol=0)


@pytest.mark.parametrize(("name", "value"), [("a code far away", -200.0), ("two point masses", 0.5)])
def test_a_frequent_value_has_a_bin_of_its_own(name, value):
    bins = Bins.learn(*whole(COLUMNS[name]), 16)
    at = bins.index(torch.tensor([[value]]))[0, 0]
    assert bins.lower[0, at] == bins.upper[0, at] == value


@pytest.mark.parametrize("name", COLUMNS)
def test_there_are_not_many_more_than_asked_for(name):
    assert Bins.learn(*whole(COLUMNS[name]), 16).centre.shape[1] <= 24


def test_a_tail_is_not_one_bin():
    """By quantiles alone the largest values, over most of the range, would be."""
    bins = Bins.learn(*whole(COLUMNS["a heavy tail"]), 16)
    span = bins.upper.max() - bins.lower[0, 0]
    assert (bins.upper - bins.lower).max() < 0.5 * span


def test_columns_have_bins_of_their_own_and_missing_cells_none():
    x = torch.stack([torch.arange(6.0), torch.tensor([0.0, 1, 0, 1, 0, 99])], 1)
    missing = torch.zeros(6, 2, dtype=torch.bool)
    missing[5, 1] = True
    bins = Bins.learn(x, missing, 8)
    assert_close(bins.centre[:, :6], torch.tensor([[0.0, 1, 2, 3, 4, 5], [0, 1, 0, 0, 0, 0]]))
    assert (bins.log_share[0, 6:] == IMPOSSIBLE).all()
    assert (bins.log_share[1, 2:] == IMPOSSIBLE).all()
    assert bins.index(torch.tensor([[2.4, 7.0]])).tolist() == [[2, 1]]


def test_quantiles_and_mean_of_a_distribution():
    x, missing = whole(torch.arange(100.0))
    bins = Bins.learn(x, missing, 10)
    column, probability = torch.tensor([0]), torch.bincount(bins.index(x)[:, 0], minlength=16)[None] / 100
    assert_close(bins.mean(probability, column), torch.tensor([49.5]))
    level = torch.tensor([[0.0, 0.1, 0.25, 0.5, 0.9, 1.0]])
    assert_close(bins.quantile(probability, column, level), 99 * level, atol=1.5, rtol=0)


@pytest.mark.parametrize("name", COLUMNS)
def test_bins_lie_beside_each_other_and_hold_their_values(name):
    bins = Bins.learn(*whole(COLUMNS[name]), 16)
    n = int((bins.log_share > IMPOSSIBLE).sum())
    start, end = (ends[0, :n] for ends in bins.extent())
    assert (start < end).all()
    assert torch.equal(end[:-1], start[1:])
    assert torch.equal(start[1:], bins.edges[0, : n - 1])
    assert ((start <= bins.lower[0, :n]) & (bins.upper[0, :n] <= end)).all()
    for b in (0, n - 1):  # the outermost ones end near what they hold
        low, high = bins.lower[0, b], bins.upper[0, b]
        middle, width = (start[b] + end[b]) / 2, end[b] - start[b]
        if low < high:
            assert 0 < width - (high - low) < 0.6 * width
        else:
            assert_close(middle, low)


def test_the_only_bin_has_a_width():
    start, end = Bins.learn(*whole(COLUMNS["a constant"]), 16).extent()
    assert (start[0, 0], end[0, 0]) == (2.5, 3.5)


def test_values_are_those_of_the_bins_that_are_one():
    bins = Bins.learn(*whole(COLUMNS["a code far away"]), 16)
    x = torch.tensor([-201.3, -150.0, -1.0, 0.5], dtype=torch.float64)
    assert bins.snapped(x, torch.zeros(4, dtype=torch.long)).tolist() == [-200, -200, -1.0, 0.5]


def test_shares_are_those_of_the_weights():
    x, missing = whole(torch.tensor([1.0, 2.0, 5.0, 2.0]))
    missing[1] = True
    bins = Bins.learn(x, missing, 16, torch.tensor([10.0, 99.0, 20.0, 30.0], dtype=torch.float64))
    shares = torch.tensor([10, 30, 20]) / 60 * 3 + 0.5
    assert_close(bins.log_share[0, :3].exp(), shares / shares.sum())
    assert_close(bins.centre[0, :3], torch.tensor([1.0, 2.0, 5.0]))


def test_quantiles_of_levels_are_levels():
    x, missing = whole(torch.tensor([1.0, 2.0, 5.0]).repeat(4))
    bins = Bins.learn(x, missing, 10)
    probability = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]])
    level = torch.tensor([[0.1, 0.2001, 0.6, 0.71, 1.0]]).repeat(2, 1)
    found = bins.quantile(probability, torch.tensor([0, 0]), level)
    assert found.tolist() == [[1, 2, 2, 5, 5], [2, 2, 2, 2, 2]]


def test_cuts_lie_where_quantiles_do():
    level, count = np.arange(1000.0) ** 3, np.ones(1000, dtype=np.int64)
    ends = cuts(level, count, 8)
    assert {int(1000 * q / 6) for q in range(1, 6)} <= {e + 1 for e in ends} | set(ends)
    assert (np.diff(ends) > 0).all()


@pytest.mark.parametrize("name", COLUMNS)
def test_encoding_is_monotone_and_exact_at_its_ends(name):
    x, missing = whole(COLUMNS[name].sort().values)
    ramps = Encoding.learn(x, missing, 8).ramps(x)[:, 0]
    assert ((ramps >= 0) & (ramps <= 1)).all()
    assert (ramps.sum(1).diff() >= -1e-6).all()
    assert ramps[0].sum() == 0
    if x[0] != x[-1]:
        assert ramps[-1].sum() == (ramps[-1] > 0).sum()
        steps = x[:, 0].diff() > 1e-4 * (x[-1] - x[0])
        assert (ramps.sum(1).diff()[steps] > 0).all()


@pytest.mark.parametrize("name", COLUMNS)
def test_tents_agree_with_themselves_most(name):
    x, missing = whole(COLUMNS[name])
    tents = Encoding.learn(x, missing, 8).tents(x)[:, 0]
    assert_close(tents.sum(1), torch.ones(len(x)))
    assert (tents >= 0).all()
    assert ((tents > 0).sum(1) <= 2).all()


@pytest.mark.parametrize(
    ("probability", "ends"),
    [
        ([0.04, 0.92, 0.04], [2, 2]),  # most of the outer values lies beyond the levels
        ([0.06, 0.88, 0.06], [2, 2]),
        ([0.2, 0.6, 0.2], [1, 5]),  # most of them lies between
        ([0.2, 0.76, 0.04], [1, 2]),
        ([0.98, 0.01, 0.01], [1, 1]),  # a value with both ends is in
        ([0.5, 0.0, 0.5], [1, 5]),
    ],
)
def test_an_interval_has_a_value_if_half_of_it_is_inside(probability, ends):
    bins = Bins.learn(*whole(COLUMNS["few levels"]), 16)
    level, column = torch.tensor([[0.05, 0.95]]), torch.zeros(1, dtype=torch.long)
    assert_close(bins.interval(torch.tensor([probability]), column, level), torch.tensor([ends]).float())


def test_intervals_of_integers_cover_about_what_they_say():
    n, column = 4000, torch.zeros(4000, dtype=torch.long)
    bins = Bins.learn(*whole(torch.arange(16.0)), 16)
    middle = 6 + 4 * torch.rand(n, 1, generator=torch.Generator().manual_seed(1))
    probability = (-(torch.arange(16) - middle).square() / 4).softmax(1)
    truth = torch.multinomial(probability, 1, generator=torch.Generator().manual_seed(0))
    level = torch.tensor([0.05, 0.95]).expand(n, 2)
    covered = []
    for ends in (bins.interval(probability, column, level), bins.quantile(probability, column, level)):
        covered.append(((truth >= ends[:, :1]) & (truth <= ends[:, 1:])).float().mean().item())
    assert abs(covered[0] - 0.9) < 0.03
    assert covered[1] > covered[0] + 0.02


def test_intervals_of_numbers_are_quantiles():
    x, missing = whole(COLUMNS["many values"])
    bins = Bins.learn(x, missing, 16)
    probability = naive.random(50, bins.centre.shape[1], seed=2).softmax(1).float()
    column, level = torch.zeros(50, dtype=torch.long), torch.tensor([0.1, 0.7]).expand(50, 2)
    assert torch.equal(bins.interval(probability, column, level), bins.quantile(probability, column, level))


def some_distributions(sharpness):
    """Bins of two columns, the second with a frequent value, and distributions of 200 cells."""
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    x[:200, 1] = -3.0
    bins = Bins.learn(x, torch.zeros(500, 2, dtype=torch.bool), 32)
    generator = torch.Generator().manual_seed(1)
    column = torch.randint(2, (200,), generator=generator)
    logit = sharpness * torch.randn(200, bins.centre.shape[1], generator=generator) + bins.log_share[column]
    return bins, column, logit.softmax(1)


@pytest.mark.parametrize("sharpness", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("shift", [0.0, 0.3, -1.5])
def test_tilted_distributions_have_the_mean_that_is_wanted(sharpness, shift):
    bins, column, probability = some_distributions(sharpness)
    mean = (bins.mean(probability, column) + shift).clamp(-2, 2)
    tilted = bins.tilted(probability, column, mean)
    assert_close(tilted.sum(1), torch.ones(200))
    assert_close(bins.mean(tilted, column), mean, atol=1e-3, rtol=0)
    assert (tilted[bins.log_share[column] == IMPOSSIBLE] == 0).all()


def test_a_tilt_is_exponential_and_none_where_the_mean_is_right():
    bins, column, probability = some_distributions(0.5)
    mean = bins.mean(probability, column)
    assert_close(bins.tilted(probability, column, mean), probability, atol=2e-3, rtol=0)
    away = (bins.tilted(probability, column, mean + 0.2) / bins.tilted(probability, column, mean)).log()
    first, last = bins.centre[column, 0], bins.centre[column, 9]
    slope = (away[:, 9] - away[:, 0]) / (last - first)
    assert (slope > 0).all()
    assert_close(away[:, 5] - away[:, 0], slope * (bins.centre[column, 5] - first), atol=1e-3, rtol=1e-3)


def test_levels_are_where_quantiles_find_them():
    bins, column, probability = some_distributions(1.0)
    level = torch.rand(200, 1, generator=torch.Generator().manual_seed(2))
    value = bins.quantile(probability, column, level).squeeze(1)
    found = bins.levels(probability, column, value)
    single = (column == 1) & (value == -3)
    at = bins.centre[1].eq(-3).nonzero().item()
    assert single.any()
    assert_close(found[~single], level[~single].expand(-1, found.shape[1]), atol=1e-3, rtol=0)
    below, mass = probability[single, :at].sum(1), probability[single, at]
    assert_close(found[single].mean(1), below + mass / 2)
    assert_close(found[single, -1] - found[single, 0], mass * (1 - 1 / found.shape[1]), atol=1e-6, rtol=1e-4)
