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


def sample(n: int, most: int, generator: torch.Generator, weight: Tensor | None = None) -> Tensor:
    """Return at most so many of n row numbers in random order, none twice; the more likely, the larger its weight."""
    if weight is None:
        return torch.randperm(n, generator=generator)[:most]
    waiting = torch.empty(n, dtype=torch.float64).exponential_(generator=generator) / weight.double().cpu()
    return waiting.argsort()[:most]
