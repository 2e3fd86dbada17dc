import naive
import pytest
import torch
from torch.testing import assert_close

from emflow.table import fill
from emflow.table.fill import fill_draw, fill_middle, fill_nearest, hide

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
    assert 0.9 * fraction * n - 4 * (fraction * n) ** 0.5 <= len(hidden) <= fraction * n + 4 * (fraction * n) ** 0.5


@pytest.mark.parametrize(
    ("rates", "shares"), [((0, 0, 0), (1, 1, 1)), ((0, 0.4, 0.4), (0.05, 1, 1)), ((0.1, 0.3, 0.5), (1 / 3, 1, 1))]
)
def test_hides_less_where_less_is_missing(rates, shares):
    missing = torch.rand(20_000, 3, generator=generator()) < torch.tensor(rates)
    hidden = torch.zeros_like(missing).flatten()
    hidden[hide(missing, 0.2, generator(5))] = True
    found = hidden.view_as(missing).sum(0) / (~missing).sum(0)
    assert_close(found, 0.2 * torch.tensor(shares), atol=0.015, rtol=0)


def test_hides_no_more_than_is_enough():
    missing = torch.rand(20_000, 3, generator=generator()) < 0.2
    assert 400 < len(hide(missing, 0.2, generator(5), most=500)) < 600


def test_columns_keep_half_of_their_cells_and_two_at_least():
    observed = [0, 1, 2, 3, 4, 5, 50]
    missing = torch.stack([torch.arange(50) >= n for n in observed], 1)
    hidden = torch.zeros_like(missing).flatten()
    hidden[hide(missing, 25.0, generator())] = True
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
