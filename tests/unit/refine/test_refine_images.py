import math

import naive
import pytest
import torch
from torch.testing import assert_close

from emflow.errors import DivergedError
from emflow.refine import images
from emflow.refine.images import ImageNetwork, fit_network, hide_pixels

SHAPES = [(8, 8), (8, 8, 1), (7, 10), (6, 4, 3)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def waves(n, h, w, c=1):
    """Smooth images as rows in [0, 1], no two alike: what a pixel is can be told from its neighbours."""
    phase = 2 * math.pi * torch.rand(n, 1, 1, 2, generator=generator(1))
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    plane = 0.5 + 0.25 * (torch.sin(y + phase[..., 0]) + torch.sin(x + phase[..., 1]))
    return plane[..., None].expand(-1, -1, -1, c).reshape(n, -1).contiguous()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_network_starts_at_zero(shape):
    x = naive.random(3, math.prod(shape)).float()
    assert_close(ImageNetwork(shape, generator=generator())(x, x > 0), torch.zeros_like(x))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_image_has_its_correction_whatever_is_beside_it(shape):
    network = ImageNetwork(shape, width=4, generator=generator()).double()
    torch.nn.init.normal_(network.last[1].weight, generator=generator())
    x, missing = naive.random(5, math.prod(shape)), naive.random_missing(5, math.prod(shape), 0.5)
    whole = network(x, missing)
    assert whole.shape == x.shape
    assert whole.std() > 0.01
    assert_close(torch.cat([network(x[i : i + 1], missing[i : i + 1]) for i in range(5)]), whole)


def test_what_is_missing_matters():
    network = ImageNetwork((8, 8), width=4, generator=generator())
    torch.nn.init.normal_(network.last[1].weight, generator=generator())
    x = torch.full((1, 64), 0.5)
    missing = torch.zeros(1, 64, dtype=torch.bool)
    assert not torch.equal(network(x, missing), network(x, ~missing))


@pytest.mark.parametrize("shape", [(9, 9), (9, 9, 3)])
def test_further_pixels_are_hidden_where_they_are_observed(shape):
    channels = (*shape, 1)[2]
    missing = naive.random_missing(400, 81, 0.5).repeat_interleave(channels, 1)
    hidden = hide_pixels(missing, shape, generator())
    assert not (hidden & missing).any()
    pixels = hidden.view(400, 81, channels)
    assert torch.equal(pixels.any(2), pixels.all(2))
    share = hidden.sum(1) / (~missing).sum(1)
    assert abs(share.mean() - sum(images.SHARE) / 2) < 0.02
    assert share.std() > 0.09  # images differ in it by more than by chance


def learn(n_steps, seed=0, **options):
    x = waves(200, 8, 8)
    missing = naive.random_missing(200, 64, 0.3)
    hidden = hide_pixels(missing, (8, 8), generator())
    filled = x.masked_fill(missing | hidden, 0.5)
    return fit_network(filled, missing, hidden, x, (8, 8), generator(seed), n_steps=n_steps, **options)


def test_it_learns_to_fill_from_the_neighbours(monkeypatch):
    monkeypatch.setattr(images, "BATCH", 32)
    network, history = learn(120)
    assert [record["step"] for record in history] == [100, 120]
    x, missing = waves(300, 8, 8)[200:], naive.random_missing(100, 64, 0.3)
    filled = x.masked_fill(missing, 0.5)
    better = network.complete(filled, missing, clip=True)
    assert torch.equal(better[~missing], x[~missing])
    error = [(rows - x)[missing].square().mean().sqrt() for rows in (filled, better)]
    assert error[1] < 0.6 * error[0]


def test_a_seed_gives_the_same_network():
    first, second, other = (learn(3, seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_time_ends_training():
    _, history = learn(1000, max_time=1e-9)
    assert [record["step"] for record in history] == [1]


def test_pixels_that_are_not_hidden_teach_nothing():
    x, missing = waves(50, 8, 8), naive.random_missing(50, 64, 0.3)
    network, history = fit_network(x * 0, missing, missing & False, x, (8, 8), generator(), n_steps=2)
    assert history[-1]["rmse"] == 0
    assert not network.complete(x * 0, missing, clip=False).any()


def test_a_loss_that_is_no_number_is_an_error():
    x = waves(50, 8, 8) * math.nan
    with pytest.raises(DivergedError, match="step 1"):
        fit_network(x, x < 2, ~(x < 2), x, (8, 8), generator(), n_steps=1)


def test_corrections_stay_in_the_range(monkeypatch):
    monkeypatch.setattr(images, "CHUNK", 2)
    network = ImageNetwork((8, 8), width=4, generator=generator())
    torch.nn.init.normal_(network.last[1].weight, std=10, generator=generator())
    x, missing = waves(5, 8, 8), naive.random_missing(5, 64, 0.5)
    clipped, free = (network.complete(x, missing, clip) for clip in (True, False))
    assert free.min() < 0
    assert free.max() > 1
    assert torch.equal(clipped, torch.where(missing, free.clamp(0, 1), x))
