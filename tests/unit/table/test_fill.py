import naive
import pytest
import torch

from emflow.table import fill
from emflow.table.fill import fill_draw, fill_middle, fill_nearest, hide, hide_alike

X, MISSING = naive.random(200, 4), naive.random_missing(200, 4, 0.6)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def test_median_fills_its_column():
    median = torch.tensor([1.0, 2, 3, 4]).double()
    found = fill_middle(X, MISSING, median)
    assert torch.equal(found[~MISSING], X[~MISSING])
    assert torch.equal(found[MISSING], median.expand_as(X)[MISSING])


def test_median_takes_the_type_of_the_table():
    assert fill_middle(X.float(), MISSING, X.median(0).values).dtype == torch.float32


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


def alike(x, missing, fraction=0.1, owner=None, most=10_000, n_known=0):
    owner = torch.arange(x.shape[1]) if owner is None else owner
    hidden = torch.zeros_like(missing).flatten()
    hidden[hide_alike(x, missing, fraction, generator(5), owner, most, n_known)] = True
    return hidden.view_as(missing)


def test_hides_cells_like_those_that_are_missing():
    """The third column is missing where the first is large."""
    x = torch.rand(4000, 4, generator=generator(), dtype=torch.float64)
    missing = torch.zeros(4000, 4, dtype=torch.bool)
    missing[:, 2] = (x[:, 0] + 0.3 * torch.rand(4000, generator=generator(7))) > 0.9
    hidden = alike(x.masked_fill(missing, 0), missing)
    assert not (hidden & missing).any()
    assert hidden[:, [0, 1, 3]].sum() == 0
    assert 0.04 * (~missing[:, 2]).sum() < hidden[:, 2].sum() <= 0.1 * (~missing[:, 2]).sum()
    assert x[hidden[:, 2], 0].mean() > 0.7 > 0.5 > x[~missing[:, 2], 0].mean()


def test_known_rows_tell_what_columns_lack_and_are_left_alone():
    x = torch.rand(500, 3, generator=generator(), dtype=torch.float64)
    missing = torch.zeros(500, 3, dtype=torch.bool)
    missing[:100:2, 1] = True  # none of the new ones
    hidden = alike(x, missing, n_known=100)
    assert hidden[100:, 1].any()
    assert not hidden[:100].any()
    assert not hidden[:, [0, 2]].any()


def test_few_holes_or_none_are_no_reason_to_hide_little():
    x = torch.rand(3000, 3, generator=generator(), dtype=torch.float64)
    none = torch.zeros(3000, 3, dtype=torch.bool)
    one = none.clone()
    one[0, 0] = True
    assert alike(x, one)[:, 0].sum() > 100
    assert (alike(x, none).sum(0) > 200).all()
    assert 400 < alike(x, none, most=500).sum() < 600
    assert alike(x, torch.rand(3000, 3, generator=generator(3)) < 0.3, most=500).sum() <= 550


def test_categories_count_once():
    """The first column is a nominal one of forty categories."""
    x = torch.rand(4000, 43, generator=generator(), dtype=torch.float64)
    missing = torch.zeros(4000, 43, dtype=torch.bool)
    missing[:, :40] = (torch.rand(4000, generator=generator(3)) < 0.3)[:, None]
    hidden = alike(x, missing, 0.05, torch.tensor([0] * 40 + [1, 2, 3]))
    assert 0.04 < hidden[:, 0].sum() / (~missing[:, 0]).sum() < 0.06


@pytest.mark.parametrize("columns", [1, 3])
def test_rows_that_are_equal_are_hidden_in_turn(columns):
    """One column alone, or beside two of two values: many rows are equally alike."""
    x = torch.rand(3000, columns, generator=generator(), dtype=torch.float64).round()
    missing = torch.zeros(3000, columns, dtype=torch.bool)
    missing[:, 0] = torch.rand(3000, generator=generator(3)) < 0.3
    hidden = alike(x, missing, 0.05)
    assert hidden[:, 0].sum() > 0.4 * 0.05 * (~missing[:, 0]).sum()


def test_columns_of_one_owner_are_hidden_together():
    x = torch.rand(500, 4, generator=generator(), dtype=torch.float64)
    missing = (torch.rand(500, 2, generator=generator(3)) < 0.3).repeat_interleave(2, 1)
    first, second, third, fourth = alike(x, missing, owner=torch.tensor([0, 0, 1, 1])).unbind(1)
    assert torch.equal(first, second)
    assert torch.equal(third, fourth)
    assert first.any()
    assert third.any()


def test_columns_keep_half_of_their_cells_and_two_at_least():
    observed = [0, 1, 2, 3, 4, 5, 50]
    missing = torch.stack([torch.arange(50) >= n for n in observed], 1)
    hidden = torch.zeros_like(missing).flatten()
    hidden[hide(missing, 1.0, generator())] = True
    assert hidden.view_as(missing).sum(0).tolist() == [0, 0, 0, 1, 2, 2, 25]


def test_channels_of_a_pixel_are_hidden_together():
    missing = naive.random_missing(40, 5, 0.3).repeat_interleave(3, 1)
    hidden = torch.zeros_like(missing).flatten()
    hidden[hide(missing, 0.2, generator(), torch.arange(missing.shape[1]) // 3)] = True
    pixels = hidden.view(40, 5, 3)
    assert pixels.any()
    assert torch.equal(pixels.any(2), pixels.all(2))


def nearest_distance(missing):
    """Return for each cell of a plane (h, w) the squared distance of the nearest observed cell."""
    at = (~missing).nonzero()
    cells = torch.cartesian_prod(*(torch.arange(side) for side in missing.shape))
    return (cells[:, None] - at).square().sum(2).min(1).values.view(missing.shape)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (4, 6, 3)])
@pytest.mark.parametrize("rate", [0.3, 0.9])
@pytest.mark.parametrize("whole_pixels", [True, False])
def test_nearest_pixel_fills(shape, rate, whole_pixels, monkeypatch):
    monkeypatch.setattr(fill, "CHUNK", 7)
    h, w, c = (*shape, 1)[:3]
    n, p = 20, h * w * c
    missing = (
        naive.random_missing(n, p // c, rate).repeat_interleave(c, 1)
        if whole_pixels
        else naive.random_missing(n, p, rate)
    )
    missing.view(n, h * w, c)[:, 0] = False  # in every plane something is seen
    place = torch.arange(p).expand(n, p)  # the value of a pixel tells where it comes from
    found = fill_nearest(place.double(), missing, shape).long()
    assert torch.equal(found[~missing], place[~missing])
    assert not missing.gather(1, found).any()
    assert torch.equal(found % c, place % c)
    distance = (found // c // w - place // c // w).square() + (found // c % w - place // c % w).square()
    expected = torch.stack([nearest_distance(plane) for plane in missing.view(n, h, w, c).movedim(3, 1).flatten(0, 1)])
    assert torch.equal(distance.view(n, h, w, c).movedim(3, 1).flatten(0, 1), expected)


def test_an_image_without_observed_pixels_stays():
    x = naive.random(3, 12)
    missing = torch.zeros(3, 12, dtype=torch.bool)
    missing[1] = True
    assert torch.equal(fill_nearest(x, missing, (3, 4)), x)
