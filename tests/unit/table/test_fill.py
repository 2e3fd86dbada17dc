import naive
import pytest
import torch

from emflow.table.fill import fill_draw, fill_median, hide

X, MISSING = naive.random(200, 4), naive.random_missing(200, 4, 0.6)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def test_median_fills_its_column():
    median = torch.tensor([1.0, 2, 3, 4]).double()
    found = fill_median(X, MISSING, median)
    assert torch.equal(found[~MISSING], X[~MISSING])
    assert torch.equal(found[MISSING], median.expand_as(X)[MISSING])


def test_median_takes_the_type_of_the_table():
    assert fill_median(X.float(), MISSING, X.median(0).values).dtype == torch.float32


def test_draws_come_from_the_observed_values_of_the_column():
    x = X.clone()
    found = fill_draw(x, MISSING, generator())
    assert torch.equal(x, X)
    assert torch.equal(found[~MISSING], X[~MISSING])
    for values, drawn, hole in zip(X.T, found.T, MISSING.T, strict=True):
        assert set(drawn[hole].tolist()) < set(values[~hole].tolist())
        assert len(drawn[hole].unique()) > 20  # not always the same one


def test_draws_depend_on_the_generator_alone():
    first, second, other = (fill_draw(X, MISSING, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.3])
def test_hides_a_share_of_the_observed_cells(fraction):
    hidden = hide(MISSING, fraction, generator())
    n = int((~MISSING).sum())
    assert not MISSING.flatten()[hidden].any()
    assert len(hidden.unique()) == len(hidden)
    assert abs(len(hidden) - fraction * n) <= 4 * (fraction * (1 - fraction) * n) ** 0.5


def test_columns_keep_half_of_their_cells_and_two_at_least():
    observed = [0, 1, 2, 3, 4, 5, 50]
    missing = torch.stack([torch.arange(50) >= n for n in observed], 1)
    hidden = torch.zeros_like(missing).flatten()
    hidden[hide(missing, 1.0, generator())] = True
    assert hidden.view_as(missing).sum(0).tolist() == [0, 0, 0, 1, 2, 2, 25]
