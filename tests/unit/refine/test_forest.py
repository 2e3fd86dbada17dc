import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge
from torch.testing import assert_close

from emflow.refine import forest
from emflow.refine.forest import Forest, grow
from emflow.refine.network import Cells

N, P = 200, 4
X = torch.rand(N, P, generator=torch.Generator().manual_seed(0))
X[:, 3] = (3 * X[:, 0]).floor() + X[:, 1]
OBSERVED = torch.rand(N, P, generator=torch.Generator().manual_seed(1)) < 0.8
CELLS = Cells.where(~OBSERVED)
EXPLAINED = torch.zeros(P)
ALL = torch.ones(P, dtype=torch.bool)


def test_says_what_the_trees_of_scikit_learn_say():
    """Of the other columns, and of a linear regression on them, which counts no value beyond four deviations."""
    x = X.clone()
    x[0, 1], x[1, 2] = 9.0, -7.0
    grown = grow(x, OBSERVED, ALL, EXPLAINED, n_trees=5, seed=3)[0]
    found = grown.means(x, CELLS)
    for column in range(P):
        use, others = OBSERVED[:, column].numpy(), np.delete(x.numpy(), column, axis=1)
        near, truth = others.clip(-4, 4), x[use, column].numpy()
        slope = Ridge(1.0).fit(near[use].astype(float), truth.astype(float)).coef_
        assert_close(np.delete(grown.slope[column].numpy(), column), slope.astype(np.float32))
        others = np.column_stack((others, near.astype(float) @ np.delete(grown.slope[column].numpy(), column)))
        trees = ExtraTreesRegressor(5, min_samples_leaf=2, max_features=0.8, random_state=3 + column)
        trees.fit(others[use].astype(np.float32), truth)
        expected = torch.from_numpy(trees.predict(others[~use].astype(np.float32))).float()
        assert_close(found[CELLS.column == column], expected)


def test_a_plane_takes_few_trees():
    """Of a sum of many columns trees along the columns know little; along the sum itself they know all."""
    x = torch.randn(600, 9, generator=torch.Generator().manual_seed(4))
    x[:, 8] = x[:, :8].sum(1) / 8**0.5
    observed = torch.ones(600, 9, dtype=torch.bool)
    grown = grow(x[:500], observed[:500], torch.arange(9) == 8, torch.zeros(9), n_trees=5, seed=0)[0]
    found = grown.means(x[500:], Cells(torch.arange(100), torch.full((100,), 8)))
    assert (found - x[500:, 8]).square().mean() < 0.1


def test_half_of_the_trees_of_a_long_table_do_without_the_regression(monkeypatch):
    for least, expected in ((N + 1, 4), (N, 2)):
        monkeypatch.setattr(forest, "LONG", least)
        grown = grow(X, OBSERVED, ALL, EXPLAINED, n_trees=4, seed=0)[0]
        ends = [*grown.root[grown.root[:, 0].argsort()].flatten().tolist(), len(grown.value)]
        trees = [grown.compared[first:last] for first, last in pairwise(ends)]
        assert sum(bool((tree == P).any()) for tree in trees) == P * expected


def test_both_kinds_of_trees_of_all_columns_have_seeds_of_their_own(monkeypatch):
    seeds = []

    class Spied(forest.ExtraTreesRegressor):
        def fit(self, *args):
            seeds.append(self.random_state)
            return super().fit(*args)

    monkeypatch.setattr(forest, "LONG", N)
    monkeypatch.setattr(forest, "ExtraTreesRegressor", Spied)
    grow(X, OBSERVED, ALL, EXPLAINED, n_trees=4, seed=7)
    assert len(set(seeds)) == len(seeds) == 2 * P


def test_a_row_has_its_means_whatever_is_beside_it():
    grown = grow(X, OBSERVED, ALL, EXPLAINED, n_trees=7, seed=0)[0]
    whole = torch.full((N, P), math.nan)
    whole[CELLS] = grown.means(X, CELLS)
    for rows in ([5], [150, 2, 2, 77], list(range(100))):
        cells = Cells.where(~OBSERVED[rows])
        assert torch.equal(grown.means(X[rows], cells), whole[rows][cells])


def test_columns_without_time_or_without_values_have_no_trees():
    none, done = grow(X, OBSERVED, ALL, EXPLAINED, n_trees=2, seed=0, max_time=-1.0)
    assert none.means(X, CELLS).isnan().all()
    assert not done
    assert grow(X, OBSERVED, ALL, EXPLAINED, n_trees=2, seed=0)[1]
    observed = OBSERVED.clone()
    observed[3:, 1] = False
    found = grow(X, observed, ALL, EXPLAINED, n_trees=2, seed=0)[0].means(X, CELLS)
    assert torch.equal(found.isnan(), CELLS.column == 1)
    assert Forest(P, 0, 0).means(X, CELLS).isnan().all()
    alone = grow(X[:, :1], OBSERVED[:, :1], ALL[:1], EXPLAINED[:1], n_trees=2, seed=0)[0]
    assert len(alone.value) == 0  # there is no other column


def test_columns_that_lack_most_have_trees_first(monkeypatch):
    observed = torch.ones(N, P, dtype=torch.bool)
    observed[::2, 2] = False
    clock = iter(range(100))
    monkeypatch.setattr(forest.time, "monotonic", lambda: next(clock))
    grown, done = grow(X, observed, ALL, EXPLAINED, n_trees=2, seed=0, max_time=1.5)
    assert (grown.root[:, 0] >= 0).tolist() == [False, False, True, False]
    assert not done


def test_columns_that_are_not_wanted_have_no_trees():
    wanted = torch.tensor([True, False, False, True])
    grown, done = grow(X, OBSERVED, wanted, EXPLAINED, n_trees=2, seed=0)
    assert torch.equal(grown.root[:, 0] >= 0, wanted)
    assert done


def test_columns_of_one_owner_tell_nothing_of_each_other():
    """The second is one minus the first, and noise to the third: without each other there is nothing to say."""
    x = torch.rand(400, 3, generator=torch.Generator().manual_seed(2))
    x[:, 0] = (x[:, 0] < 0.3).float()
    x[:, 1] = 1 - x[:, 0]
    cells, observed = Cells.where(torch.ones(400, 3, dtype=torch.bool)), torch.ones(400, 3, dtype=torch.bool)
    told, untold = (
        grow(x, observed, ALL[:3], EXPLAINED[:3] + 1, n_trees=10, seed=0, owner=owner)[0].means(x, cells)
        for owner in (None, torch.tensor([0, 0, 1]))
    )
    first = cells.column == 0
    assert (told - x.mT.flatten())[first].abs().mean() < 0.1
    assert (untold - x.mT.flatten())[first].abs().mean() > 0.2


def test_trees_stay_within_bounds(monkeypatch):
    free = len(grow(X, OBSERVED, ALL, EXPLAINED, n_trees=5, seed=0)[0].value)
    noisy = EXPLAINED + 0.8
    assert len(grow(X, OBSERVED, ALL, noisy, n_trees=5, seed=0)[0].value) == free  # so few rows have small leaves
    monkeypatch.setattr(forest, "NOISY_LEAVES", N // 10)
    assert len(grow(X, OBSERVED, ALL, noisy, n_trees=5, seed=0)[0].value) < 0.5 * free
    monkeypatch.setattr(forest, "MOST_LEAVES", N * P * 5 // 20)  # 20 to a leaf
    assert len(grow(X, OBSERVED, ALL, EXPLAINED, n_trees=5, seed=0)[0].value) <= 2 * (N * P * 5 // 20)


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_seeds_decide(seeds):
    first, second = (grow(X, OBSERVED, ALL, EXPLAINED, n_trees=3, seed=seed)[0].value for seed in seeds)
    assert torch.equal(first, second) == (seeds[0] == seeds[1])


def test_rows_count_by_their_weight():
    """Half of the rows say 0 of the last column, whatever the others are, and half 1: the mean of these, weighed."""
    x = torch.zeros(400, 2)
    x[::2, 1] = 1
    weight = 1 + 2 * x[:, 1]
    grown = grow(x, torch.ones(400, 2, dtype=torch.bool), ALL, EXPLAINED, n_trees=3, seed=0, weight=weight)[0]
    assert_close(grown.means(x[:1], Cells(torch.tensor([0]), torch.tensor([1]))), torch.tensor([0.75]))
