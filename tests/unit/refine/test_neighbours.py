import naive
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from emflow.refine import neighbours
from emflow.refine.bins import Bins
from emflow.refine.encoding import Encoding
from emflow.refine.neighbours import Reference, leaf_shape, leaves
from emflow.refine.search import NEVER, select


def score(reference, encoding, x, observed):
    """The definition, for all pairs of rows."""
    agree = (encoding.tents(x)[:, None] * encoding.tents(reference.x)[None]).sum(3)
    agree = agree * reference.observed[None]
    apart = (x[:, None] - reference.x[None]).square()
    return ((agree - neighbours.FAR * apart) * (observed * reference.weight)[:, None]).sum(2)


def make(x):
    missing = naive.random_missing(*x.shape, 0.2)
    reference = Reference(*x.shape, n_leaves=12)
    reference.x, reference.observed = x, (~missing).float()
    encoding = Encoding.learn(x, missing, 16)
    reference.arrange(encoding)
    reference.prepare(Bins.learn(x, missing, 16), encoding)
    return reference, encoding


@pytest.fixture
def table():
    return make(naive.random(300, 5).float().clamp(-4, 4))


@pytest.fixture
def small_leaves(monkeypatch):
    monkeypatch.setattr(neighbours, "LEAF", 20)
    monkeypatch.setattr(neighbours, "ALONE", 320)


@pytest.fixture(params=["one leaf", "many leaves"])
def any_table(request):
    if request.param == "many leaves":
        request.getfixturevalue("small_leaves")
    return make(naive.random(1000, 5).float().clamp(-4, 4))


@pytest.mark.parametrize("n", [0, 1, 320, 321, 640, 641, 1000])
def test_every_row_is_in_one_leaf(small_leaves, n):
    x = naive.random(n, 3).float()
    found = leaves(x)
    assert found.shape == leaf_shape(n)
    assert torch.equal(found[found >= 0].sort().values, torch.arange(n))
    assert found.shape[0] == 1 or found.shape[1] <= 20


def test_rows_in_a_leaf_are_alike(small_leaves):
    x = naive.random(640, 3).float() * torch.tensor([1.0, 3, 1])
    member = x[leaves(x)]
    assert member.var(1).mean(0)[1] < 0.1 * x.var(0)[1]


def test_most_of_those_most_alike_are_in_the_leaves_searched(small_leaves):
    reference, encoding = make(naive.random(2000, 4).float().clamp(-4, 4))
    x, observed = naive.random(200, 4).float().clamp(-4, 4), (~naive.random_missing(200, 4, 0.2)).float()
    expected = score(reference, encoding, x, observed)
    found = reference.search(x, observed, 10)
    hits = (found[:, :, None] == expected.topk(10, 1).indices[:, None]).any(2)
    assert 0.8 < hits.float().mean() < 1  # a quarter of the rows is looked at


def coded(n, seed):
    """Rows of eight codes: those of one of sixty kinds, a quarter of them something else. Near ones do not agree."""
    codes = torch.randint(8, (60, 8), generator=torch.Generator().manual_seed(9)).float()
    generator = torch.Generator().manual_seed(seed)
    kind, other = (torch.randint(m, shape, generator=generator) for m, shape in ((60, (n,)), (8, (n, 8))))
    return (torch.where(torch.rand(n, 8, generator=generator) < 0.25, other.float(), codes[kind]) - 3.5) / 2.3


@pytest.mark.parametrize("part", ["leaves of rows that agree", "leaves that may hold good ones"])
def test_more_are_found_in(part, monkeypatch):
    monkeypatch.setattr(neighbours, "LEAF", 20)
    x, observed = coded(400, seed=1), (~naive.random_missing(400, 8, 0.2)).float()
    reference, encoding = make(coded(2000, seed=0))
    reference.n_leaves = 8
    expected = score(reference, encoding, x, observed)

    def found():
        score_of = expected.gather(1, reference.search(x, observed, 10))
        return (score_of > expected.topk(10, 1).values[:, -1:] - 1e-3).float().mean()

    whole = found()
    if part == "leaves of rows that agree":
        reference.leaf = leaves(reference.x)  # of rows that are near
        reference.prepare(Bins.learn(reference.x, reference.observed == 0, 16), encoding)
    else:
        monkeypatch.setattr(neighbours, "HOPE", 0.0)
    assert whole > found() + 0.015


def test_rows_are_found_though_all_are_the_same(small_leaves):
    """So that no leaf is better than another, and those without a row are not worse."""
    reference, _ = make(torch.zeros(1001, 3))
    found = reference.search(torch.zeros(4, 3), torch.ones(4, 3), 900)
    assert all(len(row.unique()) == 900 for row in found)
    assert found.min() >= 0


def test_those_most_alike_are_found(table):
    x, observed = naive.random(40, 5).float().clamp(-4, 4), (~naive.random_missing(40, 5, 0.4)).float()
    table[0].weight = torch.tensor([1.0, 2, 0.5, 1, 0])
    expected = score(*table, x, observed)
    found = expected.gather(1, table[0].search(x, observed, 6))
    assert_close(found.sort(1, descending=True).values, expected.topk(6, 1).values, atol=1e-5, rtol=0)


def test_a_row_is_no_neighbour_of_itself(any_table):
    reference, _ = any_table
    itself = torch.arange(1000)
    everything = torch.ones(1000, 5)
    with_itself = reference.search(reference.x, everything, 4)
    without = reference.search(reference.x, everything, 4, itself)
    assert (with_itself == itself[:, None]).any(1).float().mean() > 0.5
    assert not (without == itself[:, None]).any()
    unknown = reference.search(reference.x, everything, 4, torch.full((1000,), -1))
    assert torch.equal(unknown, with_itself)


def test_a_row_finds_what_it_would_if_it_were_not_there(monkeypatch):
    """Its own leaf must not seem better because the row is in it: rows that are filled later are in none."""
    monkeypatch.setattr(neighbours, "LEAF", 10)
    x = coded(1000, seed=0)
    reference, encoding = make(x)
    reference.n_leaves = 4
    bins, observed, itself = Bins.learn(x, reference.observed == 0, 16), torch.ones(40, 8), torch.arange(40)
    observed[:, 5:] = 0
    found = reference.search(x[:40], observed, 10, itself).sort(1).values
    leaf = reference.leaf
    for row in range(40):
        reference.leaf = leaf.masked_fill(leaf == row, -1)
        reference.prepare(bins, encoding)
        alone = reference.search(x[row : row + 1], observed[:1], 10).sort(1).values[0]
        assert torch.equal(found[row], alone)


def test_neighbours_do_not_depend_on_the_rows_beside(any_table):
    """Not even where many rows are exactly as alike as each other."""
    reference, _ = any_table
    x, observed = naive.random(60, 5).float().round(), torch.zeros(60, 5)
    observed[:, 2] = 1
    whole = reference.search(x, observed, 7)
    for rows in ([5], [40, 3, 3], list(range(33))):
        assert torch.equal(reference.search(x[rows], observed[rows], 7), whole[rows])


def test_all_rows_can_be_found_and_no_others(table):
    """Also where nothing is observed, and all score zero."""
    found = table[0].search(torch.zeros(2, 5), torch.tensor([[0.0] * 5, [1.0] * 5]), 300)
    assert torch.equal(found.sort(1).values, torch.arange(300).repeat(2, 1))


def test_what_is_not_observed_does_not_count(table):
    reference, _ = table
    x, observed = naive.random(9, 5).float(), torch.tensor([1.0, 0, 1, 0, 1]).repeat(9, 1)
    other = torch.where(observed > 0, x, 3.0)
    assert torch.equal(*(reference.search(rows, observed, 5) for rows in (x, other)))


@pytest.mark.parametrize(("rows", "itself", "found"), [(3, None, 3), (3, True, 2), (1, True, 0), (0, None, 0)])
def test_few_rows_have_few_neighbours(rows, itself, found):
    reference, x = Reference(rows, 2, n_leaves=12), naive.random(rows, 2).float()
    reference.x, reference.observed = x, torch.ones(rows, 2)
    encoding = Encoding(2, 3)
    reference.arrange(encoding)
    reference.prepare(Bins(2, 4), encoding)
    asked = naive.random(rows or 5, 2).float()
    near = reference.search(asked, asked * 0 + 1, 10, torch.arange(rows) if itself else None)
    assert near.shape == (len(asked), found)


@pytest.mark.parametrize("itself", [False, True])
def test_it_is_the_search_that_a_plain_loop_does(itself, monkeypatch):
    """Of leaves by the mean and the deviation of their scores, then of the rows in them; with columns of any kind."""
    monkeypatch.setattr(neighbours, "LEAF", 20)
    x = torch.cat((coded(1001, seed=0), 3 * naive.random(1001, 2).float()), 1).clamp(-4, 4)
    x[:, 1] = 0.5  # a column of one value
    reference, encoding = make(x)
    reference.weight = torch.linspace(0, 2, 10)
    asked, numbers = (x[:60], torch.arange(60)) if itself else (1.3 * x[:60] + 0.01, torch.full((60,), -1))
    asked, observed = asked.clamp(-4, 4), (~naive.random_missing(60, 10, 0.3)).float()
    expected = score(reference, encoding, asked, observed)
    found = reference.search(asked, observed, 9, numbers)
    for row in range(60):
        promise = [
            promised(reference, encoding, asked[row], observed[row], leaf, row if itself else -1) for leaf in range(64)
        ]
        leaf = reference.leaf[np.argsort(promise)[-reference.n_leaves :]].flatten()
        leaf = leaf[(leaf >= 0) & (leaf != numbers[row])]
        best = expected[row, leaf].topk(9).values
        assert_close(expected[row, found[row]].sort(descending=True).values, best, atol=1e-5, rtol=0)


def promised(reference, encoding, x, observed, leaf, itself):
    """Mean and two deviations of the scores of a leaf, as if columns of codes were not correlated, and 0 or 1."""
    rows = [row for row in reference.leaf[leaf].tolist() if row >= 0 and row != itself]
    members, weight = reference.x[rows], (observed * reference.weight)[:, None]
    code = torch.cat((encoding.tents(members) * reference.observed[rows][:, :, None], members[:, :, None]), 2)
    code = torch.cat((code, members[:, :, None].square()), 2).double()
    tents = weight * encoding.tents(x[None])[0]
    query = torch.cat((tents, 2 * neighbours.FAR * x[:, None] * weight, -neighbours.FAR * weight), 1).double()
    middle = code.mean(0)
    variance = query.square() * (middle - middle.square())
    return float((query * middle).sum() + neighbours.HOPE * variance[:, :-2].sum().clamp_min(0).sqrt())


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (16, 5), (96, 1), (1008, 48)])
@pytest.mark.parametrize("levels", [3, 10**6])
def test_the_largest_are_selected_and_of_equal_ones_the_first(n, k, levels):
    for row in (levels * naive.random(20, n)).round().div(levels).float().numpy():
        row[n // 2 + k :] = NEVER
        best = np.empty(k + 1, np.int64)
        select(row, k, np.empty(k, np.float32), best)
        assert sorted(best[:k]) == sorted(np.argsort(-row, kind="stable")[:k])
