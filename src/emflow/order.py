"""Row numbers in a random order: each once, as often as its weight says, or some of them."""

from __future__ import annotations

import torch
from torch import Tensor


def shuffled(n: int, generator: torch.Generator, weight: Tensor | None = None) -> Tensor:
    """Return n row numbers (n,) in random order: all of them, or drawn in proportion to `weight` (n,).

    The draws are systematic: a row whose weight is w times the mean comes up w times, rounded up or down.
    """
    order = torch.randperm(n, generator=generator)
    if weight is None:
        return order
    ends = weight.double().cpu().cumsum(0)
    places = (order + torch.rand((), generator=generator, dtype=torch.float64)) / n
    return torch.searchsorted(ends, places * ends[-1], right=True).clamp_max_(n - 1)


def sample(n: int, most: int, generator: torch.Generator, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return at most so many of n row numbers (m,) in random order, none twice, and what each stands for (m,).

    A row is drawn with a probability in proportion to its weight, so that all that are drawn stand for the same; but a
    row that weighs more than that is always drawn, and stands for itself.
    """
    order = torch.randperm(n, generator=generator)
    if n <= most:
        return order, torch.ones(n) if weight is None else weight.cpu().float()[order]
    if weight is None or not most:
        return order[:most], torch.full((most,), n / max(most, 1))
    weight = weight.double().cpu()[order]
    heaviest = weight.sort(descending=True).values
    rest = heaviest.flip(0).cumsum(0).flip(0)  # the weight of all but those before
    share = rest[:most] / (most - torch.arange(most, dtype=torch.float64))
    each = share[int((heaviest[:most] > share).sum())]
    ends = (weight / each).clamp_max(1).cumsum(0)
    places = torch.rand((), generator=generator, dtype=torch.float64) + torch.arange(most, dtype=torch.float64)
    drawn = torch.searchsorted(ends, places * (ends[-1] / most), right=True).clamp_max(n - 1)
    return order[drawn], weight[drawn].clamp_min(each).float()
