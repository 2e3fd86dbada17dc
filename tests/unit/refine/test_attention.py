import math

import naive
import pytest
import torch
from torch.testing import assert_close

from emflow.refine import weighing
from emflow.refine.attention import Asked, Attention, Neighbours, Weights, by_loops, by_torch

N, P, R, K, BINS = 40, 5, 60, 7, 6
MANY = weighing.FEW + 4  # columns, so that products are those of a library
EVERY, SOME, ONE = range(P), (1, 4), (2,)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parts(p=P, seed=0):
    """Rows, what is observed of them, neighbours, and half of the cells that are missing."""
    x, observed = naive.random(N, p).float(), (~naive.random_missing(N, p, 0.3)).float()
    observed[0] = 0  # a row of which nothing is known
    rows = naive.random(R, p).float(), (~naive.random_missing(R, p, 0.4)).float()
    bins = torch.randint(BINS, (R, p), generator=generator(seed))
    near = torch.stack([torch.randperm(R, generator=generator(seed + i))[:K] for i in range(N)])
    column, row = asked(observed).mT.nonzero(as_tuple=True)
    return x, observed, Neighbours(torch.cat(rows, 1), bins.short(), near), row, column, BINS


def asked(observed):
    """Cells of which something is to be said: every second row is asked for none of those that it lacks."""
    return (observed == 0) & (torch.arange(len(observed)) % 2 == 0)[:, None]


def these(columns, p=P):
    return torch.isin(torch.arange(p), torch.tensor(list(columns)))


def made(wanted=EVERY):
    module = Attention(P)
    module.wanted = these(wanted)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=generator())
    return module


@pytest.mark.parametrize("wanted", [EVERY, SOME])
@pytest.mark.parametrize("learnt", [True, False])
def test_it_is_its_formula(learnt, wanted):
    module, (x, observed, rows, row, column, n_bins) = made(wanted), parts()
    a, b = (torch.nn.functional.softplus(part).tolist() for part in (module.agree, module.distance))
    c = module.sharpness.exp().tolist()
    known, there = rows.beside.split(P, 1)
    with torch.set_grad_enabled(learnt):
        mean, square, histogram = module(x, observed, rows, row, column, n_bins)
    for cell in (0, 3, len(row) // 2, len(row) - 1):
        i, j = int(row[cell]), int(column[cell])
        logits = []
        for r in rows.near[i].tolist():
            logit = -float(weighing.LACKING) * (1 - there[r, j].item())
            for f in range(P):
                apart = (x[i, f] - known[r, f]).item()
                alike = there[r, f].item() * math.exp(-c[f] * abs(apart))
                logit += observed[i, f].item() * (a[f][j] * alike - b[f][j] * apart**2)
            logits.append(logit)
        weight = torch.tensor(logits).softmax(0)
        values = known[rows.near[i], j]
        assert_close(mean[i, j], (weight * values).sum())
        assert_close(square[i, j], (weight * values.square()).sum())
        assert_close(histogram[cell], torch.bincount(rows.bin[rows.near[i], j].long(), weight, minlength=BINS))


def question(p, wanted):
    *others, n_bins = parts(p)
    return Asked(*others, these(wanted, p), n_bins)


def weights_of(p, scale=1.0):
    shapes = (p, p), (p, p), (p,)
    return Weights(*((scale * torch.rand(*shape, generator=generator(1))).requires_grad_() for shape in shapes))


@pytest.mark.parametrize(("p", "wanted"), [(P, EVERY), (P, SOME), (P, ()), (MANY, range(MANY)), (MANY, ONE)])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@torch.no_grad()
def test_loops_say_what_torch_says(scale, p, wanted):
    """Also where weights are sharp: exponentials of large negative numbers."""
    said = (say(question(p, wanted), weights_of(p, scale)) for say in (by_loops, by_torch))
    for mine, theirs in zip(*said, strict=True):
        assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("p", "wanted"), [(P, EVERY), (P, SOME), (MANY, range(MANY)), (MANY, ONE)])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_gradient_of_the_loops_is_that_of_torch(monkeypatch, n_threads, p, wanted):
    monkeypatch.setattr("emflow.compiled.ENOUGH_ROWS", 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    found = []
    for say in (by_loops, by_torch):
        weights = weights_of(p)
        mean, square, histogram = say(question(p, wanted), weights)
        (mean.sin().sum() + square.sum() + (histogram + 0.1).log().sum()).backward()
        found.append([weight.grad for weight in weights])
    for mine, theirs in zip(*found, strict=True):
        assert theirs.abs().max() > 0
        assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("learnt", [True, False])
def test_a_column_that_is_not_wanted_is_weighed_where_it_is_asked_for_alone(learnt):
    x, observed, rows, row, column, n_bins = parts()
    with torch.set_grad_enabled(learnt):
        every, some = (made(wanted)(x, observed, rows, row, column, n_bins) for wanted in (EVERY, SOME))
    said = these(SOME) | asked(observed)
    assert not said.all()
    for one, other in ((every.mean, some.mean), (every.square, some.square)):
        assert_close(other, one * said)
    assert_close(some.histogram, every.histogram)


@pytest.mark.parametrize("wanted", [EVERY, SOME])
@torch.no_grad()
def test_a_row_is_told_the_same_whatever_is_beside_it(monkeypatch, wanted):
    module, (x, observed, rows, row, column, n_bins) = made(wanted), parts()
    mean, square, histogram = module(x, observed, rows, row, column, n_bins)
    chosen = torch.tensor([30, 2, 16])
    few = Neighbours(*rows[:2], rows.near[chosen])
    own = [module(x[chosen], observed[chosen], few, *(observed[chosen] == 0).nonzero(as_tuple=True), n_bins)]
    monkeypatch.setattr("emflow.compiled.ENOUGH_ROWS", 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    threaded = module(x, observed, rows, row, column, n_bins)
    assert torch.equal(own[0].mean, mean[chosen])
    assert torch.equal(own[0].square, square[chosen])
    for several, one in zip(threaded, (mean, square, histogram), strict=True):
        assert torch.equal(several, one)


def test_exponentials_are_those_of_torch():
    x = torch.cat((torch.linspace(-39, 20, 1001), torch.tensor([-1e5, 0.0])))
    found = x.clone()
    weighing.exp(found.numpy(), torch.empty(len(x), dtype=torch.int32).numpy())
    assert_close(found, x.exp(), rtol=1e-5, atol=0)
