"""The six networks of MisGAN, for images of any size."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

LATENT = 128  # numbers from which an image or a pattern of observed pixels is generated


class Networks(nn.Module):
    """The six networks for images of h x w pixels; generators and imputer give logits, critics one number per image.

    Parameters
    ----------
    channels, observed_channels : int
        Of an image, and of a pattern of observed pixels.
    width : int
        Channels on the grid of half the image; on each coarser one they are twice as many.
    draws : torch.Generator
        Draws the initial weights.
    """

    def __init__(
        self, h: int, w: int, channels: int, observed_channels: int, width: int, draws: torch.Generator
    ) -> None:
        super().__init__()
        with torch.device("meta"):  # no numbers yet: torch would draw them from its global generator
            self.data_generator = generator(h, w, channels, width)
            self.observed_generator = generator(h, w, observed_channels, width)
            self.imputer = linear_imputer(h, w) if channels == 1 else UNet(h, w, channels, width)
            self.data_critic = critic(h, w, channels, width)
            self.observed_critic = critic(h, w, observed_channels, width)
            self.imputer_critic = critic(h, w, channels, width)
        self.to_empty(device="cpu")
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                bound = 1 / math.sqrt(module.weight[0].numel())
                for parameter in module.parameters():
                    nn.init.uniform_(parameter, -bound, bound, generator=draws)


def generator(h: int, w: int, channels: int, width: int) -> nn.Sequential:
    """Return a network from latent numbers to an eighth of the grid, by three doublings to all of it, and cropped."""
    start = 4 * width, math.ceil(h / 8), math.ceil(w / 8)
    layers: list[nn.Module] = [nn.Linear(LATENT, math.prod(start)), nn.Unflatten(1, start)]
    for coarser, finer in pairwise((4 * width, 2 * width, width, channels)):
        layers += [nn.ReLU(), doubling(coarser, finer)]
    return nn.Sequential(*layers, Crop(h, w))


def critic(h: int, w: int, channels: int, width: int) -> nn.Sequential:
    """Return three convolutions with ReLU, each halving the grid, and a linear layer to one number per image."""
    layers: list[nn.Module] = []
    for finer, coarser in pairwise((channels, width, 2 * width, 4 * width)):
        layers += [halving(finer, coarser), Gate()]
    size = 4 * width * math.ceil(h / 8) * math.ceil(w / 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, 1), nn.Flatten(0))


def linear_imputer(h: int, w: int) -> nn.Sequential:
    """Return four linear layers as wide as the image, with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(4):
        layers += [nn.Linear(h * w, h * w), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Unflatten(1, (1, h, w)))


class UNet(nn.Module):
    """Halve the grid until two pixels a side are left, five times at most, and double it again.

    On the way up each grid is seen beside the one of its size on the way down.
    """

    def __init__(self, h: int, w: int, channels: int, width: int) -> None:
        super().__init__()
        n_levels = min(5, max(1, math.ceil(math.log2(max(h, w))) - 1))
        widths = [width * 2 ** min(level, 3) for level in range(n_levels)]
        above = [2 * size for size in widths[:-1]] + widths[-1:]  # channels of each level on the way up
        self.down = nn.ModuleList([nn.Sequential(halving(channels, widths[0]), nn.LeakyReLU(0.2))])
        self.up = nn.ModuleList()
        for (finer, coarser), inputs in zip(pairwise(widths), above[1:], strict=True):
            self.down.append(nn.Sequential(halving(finer, coarser), nn.BatchNorm2d(coarser), nn.LeakyReLU(0.2)))
            self.up.insert(0, nn.Sequential(doubling(inputs, finer), nn.BatchNorm2d(finer), nn.ReLU()))
        self.last = doubling(above[0], channels)
        self.crop = Crop(h, w)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for down in self.down:
            x = down(x)
            levels.append(x)
        for up, level in zip(self.up, levels[-2::-1], strict=True):
            x = torch.cat((level, up(x)[..., : level.shape[2], : level.shape[3]]), 1)
        return self.crop(self.last(x))


class Gate(nn.Module):
    """ReLU as a product with a step: torch then sees that the step has no slope, and a gradient penalty costs less."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (x > 0)


class Crop(nn.Module):
    """Keep the first h x w pixels."""

    def __init__(self, h: int, w: int) -> None:
        super().__init__()
        self.h, self.w = h, w

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : self.h, : self.w]


def halving(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a convolution from k pixels a side to k / 2, rounded up."""
    return nn.Conv2d(inputs, outputs, 5, stride=2, padding=2)


def doubling(inputs: int, outputs: int) -> nn.ConvTranspose2d:
    """Return a transposed convolution from k pixels a side to 2 k."""
    return nn.ConvTranspose2d(inputs, outputs, 5, stride=2, padding=2, output_padding=1)
