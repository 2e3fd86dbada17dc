import copy
import math

import naive
import pytest
import torch
from torch.testing import assert_close

from emflow.errors import DivergedError, ParameterError
from emflow.limits import SETTINGS
from emflow.refine import training
from emflow.refine.attention import Neighbours
from emflow.refine.examples import Data, Examples
from emflow.refine.forest import Forest
from emflow.refine.network import Cells, TableNetwork, _around, _product
from emflow.refine.size import STORED_ROWS, Size
from emflow.refine.tables import APART
from emflow.refine.training import fit_tables, plant


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def curve(n, seed=0):
    """Rows on a bent curve in [0, 1]: each column is a function of any other, but no linear one."""
    t = torch.rand(n, generator=generator(seed), dtype=torch.float64)
    return torch.stack([t, (2 * t - 1).square(), (0.5 + 0.5 * torch.sin(6 * t))], 1)


def middle(x, missing):
    """The plainest completion there is."""
    return x.masked_fill(missing, 0.5)


def data(x, missing, owner=None):
    return Data(x, missing, middle, torch.arange(x.shape[1]) if owner is None else owner)


def fit(x, missing, size, seed=0, owner=None, **options):
    return fit_tables(data(x, missing, owner), size, generator(seed), **options)


def learn(n_steps=150, seed=0, store_rows=True, **options):
    x, missing = curve(400), naive.random_missing(400, 3, 0.2)
    x = x.masked_fill(missing, 7.0)  # what is missing must not matter
    return fit(x, missing, Size.of(400, 3, n_steps, store_rows), seed, **options)


@pytest.mark.parametrize("store_rows", [True, 50, False])
def test_it_learns_what_is_not_linear(store_rows):
    model, history = learn(store_rows=store_rows)
    assert [record["step"] for record in history] == [100, 150] * 2  # networks
    assert history[-1]["loss"] < history[0]["loss"]
    assert len(model.reference.x) == {True: 400, 50: 50, False: 0}[store_rows]
    x, missing = curve(300, seed=1), naive.random_missing(300, 3, 0.3)
    missing[missing.all(1)] = False
    filled = model.complete(middle(x, missing), missing, clip=True)
    assert torch.equal(filled[~missing], x[~missing])
    error = [(rows - x)[missing].square().mean().sqrt() for rows in (middle(x, missing), filled)]
    assert error[1] < 0.5 * error[0]


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_networks_and_forest_share_the_mean_and_far_from_the_forest_the_networks_have_no_more_say(share):
    x, missing = curve(400), naive.random_missing(400, 3, 0.2)
    model, _ = fit(x, missing, Size.of(400, 3, 20, forest_share=share))
    holes = naive.random_missing(50, 3, 0.3, seed=5)
    rows, cells = curve(50, seed=1), Cells.where(holes)

    def standard(with_trees):
        return model.standard(model.complete(middle(rows, holes), holes, clip=False, with_trees=with_trees))

    network = standard(with_trees=False)
    trees = model.forest.means(network, cells)
    assert_close(standard(with_trees=True)[cells], torch.lerp(network[cells], trees, share))
    leaf = model.forest.child == torch.arange(len(model.forest.child))
    model.forest.value[leaf] += 20
    assert_close(standard(with_trees=True)[cells], trees + 20 - (1 - share) * APART)


def test_trees_come_to_know_cells_that_were_kept_from_the_model():
    """Rows in the middle of the curve were hidden."""
    x, size = curve(400), Size.of(400, 3, 20)
    holes = naive.random_missing(400, 3, 0.2)
    kept = ~holes & ((x[:, :1] - 0.5).abs() < 0.1) & torch.tensor([False, True, True])
    model, _ = fit(x, holes | kept, size)
    before = model.forest
    assert not plant(model, data(x, holes), size.n_trees, generator(), max_time=0.0)
    assert model.forest is before
    assert plant(model, data(x, holes), size.n_trees, generator())
    rows = model.standard(x[kept.any(1)])
    cells = Cells.where(torch.tensor([False, True, True]).expand(len(rows), 3))
    errors = [(forest.means(rows, cells) - rows[cells]).square().mean() for forest in (before, model.forest)]
    assert errors[1] < 0.5 * errors[0]
    after = model.forest.value
    plant(model, data(x, holes), size.n_trees, generator())
    assert torch.equal(model.forest.value, after)  # trees see what the networks say, not those before them


def test_a_seed_gives_the_same_model_and_the_global_one_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second, other = (learn(3, seed)[0].state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["networks.0.first.weight"], other["networks.0.first.weight"])


EACH = {
    "batch_size": 32, "learning_rate": 1e-3, "width": 16, "n_bins": 8, "n_pieces": 4, "n_neighbours": 5, "n_leaves": 3,
    "dropout": 0.4, "error_weight": 0.0, "reuse": 2, "like": 0.0, "weighed": 1.0, "haste": 1.0, "n_networks": 1,
    "n_trees": 0, "forest_share": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_changes_the_model(name, monkeypatch):
    monkeypatch.setattr("emflow.refine.neighbours.ALONE", 100)  # so that there are leaves to choose from
    monkeypatch.setattr("emflow.refine.neighbours.LEAF", 20)
    x, missing = curve(400), naive.random_missing(400, 3, 0.2)
    filled = []
    for settings in ({}, {name: EACH[name]}):
        size = Size.of(400, 3, 20, **settings)
        model, _ = fit(x, missing, size)
        filled.append(model.complete(middle(x, missing), missing, clip=True))
    assert not torch.equal(*filled)


def test_without_the_network_the_experts_are_left():
    x, missing = curve(400), naive.random_missing(400, 3, 0.2)
    model, _ = fit(x, missing, Size.of(400, 3, 100, width=0))
    assert all(name == "log_scale" or name.startswith("attention.") for name, _ in model.networks[0].named_parameters())
    filled = model.complete(middle(x, missing), missing, clip=True)
    error = [(rows - x)[missing].square().mean().sqrt() for rows in (middle(x, missing), filled)]
    assert error[1] < 0.7 * error[0]


def test_time_makes_training_short():
    _, history = learn(10_000, max_time=0.5)
    assert 1 <= history[-1]["step"] < 10_000


def test_a_loss_that_is_no_number_is_an_error(monkeypatch):
    monkeypatch.setattr(training, "cross_entropy", lambda *_, **__: torch.tensor(math.nan, requires_grad=True))
    with pytest.raises(DivergedError, match="step 2"):
        learn(2)


def test_a_row_has_its_distributions_whatever_is_beside_it():
    model, _ = learn(5)
    x, missing = curve(70, seed=1), naive.random_missing(70, 3, 0.3)
    whole = model.complete(x, missing, clip=False)
    for rows in ([3], [60, 2, 2], list(range(16)), list(range(48)), list(range(50))):
        assert torch.equal(model.complete(x[rows], missing[rows], clip=False), whole[rows])


def test_quantiles_rise_with_their_level_and_keep_what_is_observed():
    model, _ = learn(20)
    x, missing = curve(40, seed=1), naive.random_missing(40, 3, 0.3)
    level = torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0], dtype=torch.float64)[:, None, None].expand(5, 40, 3)
    found = model.quantiles(x, missing, level)
    assert (found.diff(dim=0) >= 0).all()
    assert torch.equal(found[:, ~missing], x[~missing].expand(5, -1))
    assert (found[-1] - found[0])[missing].min() > 0.5  # the whole range has some probability


def test_with_the_tilt_at_zero_the_gaussian_comes_back():
    """Without neighbours, and bins as frequent as each other: their probabilities are those of a bell around z_hat."""
    x, missing = curve(400), torch.zeros(400, 3, dtype=torch.bool)
    x[:, 0] = torch.arange(400) / 399
    model, _ = fit(x, missing, Size.of(400, 3, 1, store_rows=False, n_trees=0, n_networks=1))
    torch.nn.init.zeros_(model.networks[0].last)
    torch.nn.init.zeros_(model.networks[0].bias)
    holes = torch.tensor([[True, False, False]]).repeat(400, 1)
    ((_, column), probability), *_ = model.distributions(x, holes)
    centre, scale = model.bins.centre[0], model.networks[0].log_scale.detach().exp()[0]
    z_hat = model.standard(x)[: len(column), :1]
    bell = (0.5 * model.bins.log_share[0] - 0.5 * ((centre - z_hat) / scale).square()).softmax(1)
    assert_close(probability, bell, atol=2e-3, rtol=0)  # but for the share that makes every value possible


def test_the_product_of_two_bells_is_a_bell():
    centre, middle, other = naive.random(3, 40).float() * 3, naive.random(40).float(), naive.random(40, seed=1).float()
    scale, other_scale = naive.random(40, seed=2).float(), naive.random(40, seed=3).float()
    nothing = torch.zeros_like(centre)
    both = _around(_around(nothing.mT, centre.mT, middle, scale), centre.mT, other, other_scale)
    both_scale, share = _product(scale, other_scale)
    one = _around(nothing.mT, centre.mT, torch.lerp(middle, other, share), both_scale)
    assert_close(both - both[:, :1], one - one[:, :1], rtol=1e-4, atol=1e-4)


def test_neighbours_decide_where_they_agree():
    """At the start, with the tilt at zero, a bin that all neighbours are in is the likeliest."""
    model, _ = learn(1)
    fresh = TableNetwork(3, model.bins.centre.shape[1], model.encoding.left.shape[1], 8)
    rows = torch.zeros(5, 3), torch.ones(5, 3), torch.full((5, 3), 4)
    near = Neighbours(torch.cat(rows[:2], 1), rows[2].short(), torch.arange(5)[None])
    z_hat, missing = torch.zeros(1, 3), torch.tensor([[True, False, False]])
    cells = Cells(torch.tensor([0]), torch.tensor([0]))
    flat = model.bins
    flat.log_share.zero_()
    flat.centre.zero_()
    assert (
        fresh(torch.zeros(1, 3, 16)[:, :, : model.encoding.left.shape[1]], z_hat, missing, near, cells, flat).argmax()
        == 4
    )


@pytest.mark.parametrize(("n", "p"), [(10, 3), (500, 200), (5000, 20), (300_000, 23)])
def test_sizes_are_bounded(n, p):
    size = Size.of(n, p)
    assert size.n_reference == min(n, STORED_ROWS)
    assert p * size.n_bins <= max(2048, 16 * p)
    assert Size.of(n, p, store_rows=False).n_reference == 0
    assert Size.of(n, p, n_steps=7).n_steps == 7
    wide = Size.of(n, 201)
    assert wide.n_reference == wide.n_trees == 0  # too many columns for their weights
    with pytest.raises(ParameterError, match="at most 200 columns"):
        Size.of(n, 201, n_trees=5)


def test_few_columns_with_holes_are_learnt_and_searched_for_sooner():
    few, most = (Size.of(20_000, 16, lacking=lacking) for lacking in (0.3, 0.6))
    assert few.n_steps < most.n_steps
    assert few.n_leaves < most.n_leaves
    assert few.n_trees < most.n_trees


def test_several_networks_are_averaged():
    x, missing = curve(400), naive.random_missing(400, 3, 0.2)
    model, history = fit(x, missing, Size.of(400, 3, 30, n_networks=2, n_trees=0))
    assert [record["step"] for record in history] == [30, 30]
    ((_, both),) = model.distributions(middle(x, missing), missing)
    each = []
    for network in model.networks:
        one = copy.deepcopy(model)
        one.networks = torch.nn.ModuleList([network])
        each.append(next(one.distributions(middle(x, missing), missing))[1])
    assert not torch.allclose(*each, atol=0.01)
    assert_close(both, (each[0] + each[1]) / 2, atol=1e-3, rtol=0)  # but for the tilt


def test_neighbours_are_weighed_for_columns_that_lack_values():
    x, missing = curve(400), naive.random_missing(400, 3, 0.2)
    for lacking, wanted in (([2], [2]), ([0, 1], [0, 1]), ([], [0, 1, 2])):
        holes = missing & torch.isin(torch.arange(3), torch.tensor(lacking))
        model, _ = fit(x, holes, Size.of(400, 3, 2))
        assert model.networks[-1].attention.wanted.nonzero().flatten().tolist() == wanted
    earlier = model
    model, _ = fit(x, missing & (torch.arange(3) == 1), Size.of(400, 3, 2), earlier=earlier)
    assert model.state_dict()["networks.1.attention.wanted"].tolist() == [False, True, False]


def test_nothing_to_hide_teaches_nothing():
    x, missing = curve(20), torch.ones(20, 3, dtype=torch.bool)
    missing[:2] = False
    model, history = fit(x, missing, Size.of(20, 3, 2))
    assert math.isfinite(history[-1]["loss"])
    assert torch.isfinite(model.complete(x, missing, clip=True)).all()


@pytest.fixture
def seen(monkeypatch):
    """Which cells were hidden, batch by batch, in all training that follows."""
    seen = []
    make = Examples._make

    def spy(examples):
        made = make(examples)
        seen.append(made[-1])
        return made

    monkeypatch.setattr(Examples, "_make", spy)
    return seen


def test_columns_of_one_owner_are_hidden_together(seen):
    x, missing = curve(400), torch.zeros(400, 3, dtype=torch.bool)
    fit(x, missing, Size.of(400, 3, 5), owner=torch.tensor([0, 0, 1]))
    first, second, third = torch.cat(seen).unbind(1)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert 0.2 < first.float().mean() < 0.7  # of the rows in which anything is hidden
    assert torch.cat(seen).any(1).all()


def test_cells_are_hidden_like_those_that_are_missing(seen):
    """Holes in the last column alone: most of what is hidden is there, and some is elsewhere."""
    x, missing = curve(400), torch.zeros(400, 3, dtype=torch.bool)
    missing[:, 2] = naive.random_missing(400, 1, 0.5)[:, 0]
    fit(x, missing, Size.of(400, 3, 30))
    hidden = torch.cat(seen).float().mean(0)
    last, others = 0.5 * (0.7 * 0.5 + 0.3 * 0.2), 0.3 * 0.2  # of all rows
    assert abs(others / last - hidden[:2].mean() / hidden[2]) < 0.1
    assert hidden[2] > 0.6  # of those in which anything is


def test_some_rows_lose_most_of_their_cells(seen):
    """So that one is filled sensibly of which next to nothing is known, though no row of the table is like that."""
    x = torch.cat([curve(2000)] * 4, 1) + 0.05 * naive.random(2000, 12)
    missing = naive.random_missing(1800, 12, 0.05)
    model, _ = fit(x[:1800], missing, Size.of(1800, 12, 100, like=1.0))
    assert 0.005 < (torch.cat(seen).float().mean(1) > 0.4).float().mean() < 0.03
    new, holes = x[1800:], naive.random_missing(200, 12, 0.9, seed=7)
    error = model.complete(middle(new, holes), holes, clip=False) - new
    spread = (x - x.mean(0))[1800:][holes].square().mean()
    assert error[holes].square().mean() < 0.9 * spread


def test_columns_that_tell_count_in_the_search():
    """The second column is that which is missing, and the third is noise."""
    t = torch.rand(600, generator=generator(), dtype=torch.float64)
    noise = torch.rand(600, generator=generator(1), dtype=torch.float64)
    x = torch.stack([t, (7 * t) % 1, noise], 1)
    missing = torch.zeros(600, 3, dtype=torch.bool)
    missing[::2, 1] = True
    model, _ = fit(x, missing, Size.of(600, 3, 300))
    assert_close(model.reference.weight.mean(), torch.tensor(1.0))
    assert model.reference.weight[0] > 1.2 * model.reference.weight[2]


def test_distributions_have_the_mean_that_is_filled_in():
    model, _ = learn(20)
    x, missing = curve(300, seed=1), naive.random_missing(300, 3, 0.3)
    missing[missing.all(1)] = False
    filled = model.complete(middle(x, missing), missing, clip=False)
    ((cells, probability),) = model.distributions(middle(x, missing), missing)
    mean = model.bins.mean(probability, cells.column) * model.scale[cells.column] + model.mean[cells.column]
    assert_close(mean, filled[cells].float(), atol=1e-3, rtol=0)
    model.plant(Forest(3, 0, 0))
    alone = model.complete(middle(x, missing), missing, clip=False)
    assert (filled - alone)[missing].abs().min() > 0  # trees have a say in each of them


def test_trees_help_where_the_truth_has_steps():
    """The second column is a staircase of the first and third, on which the network is too smooth."""
    t, u = torch.rand(2, 1600, generator=generator(), dtype=torch.float64)
    x = torch.stack([t, ((5 * t).floor() + (5 * u).floor()) % 5 / 4, u], 1)
    missing = torch.zeros(1600, 3, dtype=torch.bool)
    missing[::2, 1] = True
    error = []
    for n_trees in (0, 10):
        model, _ = fit(x[:800], missing[:800], Size.of(800, 3, 60, n_trees=n_trees))
        filled = model.complete(middle(x[800:], missing[800:]), missing[800:], clip=False)
        error.append((filled - x[800:])[missing[800:]].square().mean())
    assert error[1] < 0.9 * error[0]


def test_intervals_and_draws_are_calibrated_on_hidden_cells():
    """A network that is far too sure of itself: its intervals cover little, until it is shown by how much."""
    model, _ = learn(150)
    x, missing = curve(1500, seed=1), naive.random_missing(1500, 3, 0.3)
    missing[missing.all(1)] = False
    x_hat = middle(x, missing)
    distributions = model.distributions
    model.distributions = lambda *rows: ((cells, p.pow(6) / p.pow(6).sum(1, True)) for cells, p in distributions(*rows))
    truth = x.masked_fill(~missing, math.nan)
    model.calibrate(x_hat[:10], missing[:10], truth[:10])
    assert_close(model.spread, torch.linspace(0, 1, 101).repeat(2, 1))  # too few to learn from
    before = covered(model, x_hat, missing, x)
    model.calibrate(x_hat[:700], missing[:700], truth[:700])
    after = covered(model, x_hat[700:], missing[700:], x[700:])
    assert before < 0.8
    assert 0.86 < after < 0.94
    level = torch.rand(200, 800, 3, generator=generator(), dtype=torch.float64)
    draws = model.quantiles(x_hat[700:], missing[700:], level)
    rank = (draws < x[700:]).double().mean(0)[missing[700:]]
    assert_close(rank.sort().values, torch.linspace(0, 1, len(rank), dtype=torch.float64), atol=0.08, rtol=0)


def test_columns_of_two_values_do_not_calibrate_others():
    x = torch.cat([curve(900), (curve(900)[:, :1] > 0.5).double()], 1)
    missing = naive.random_missing(900, 4, 0.2)
    model, _ = fit(x, missing, Size.of(900, 4, 30))
    only = x.masked_fill(~missing, math.nan)
    only[:, :3] = math.nan
    model.calibrate(middle(x, missing), missing, only)
    assert_close(model.spread, torch.linspace(0, 1, 101).repeat(2, 1))


def covered(model, x_hat, missing, x):
    lower, upper = model.intervals(x_hat, missing, 0.9)[:, missing]
    return ((lower <= x[missing]) & (x[missing] <= upper)).double().mean()
