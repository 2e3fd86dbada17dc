"""The initial imputation, from which the first outer iteration starts (paper, sections 3.4 and 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def fill_median(x: Tensor, missing: Tensor, median: Tensor) -> Tensor:
    """Fill with the median of each column: the same for a row whatever the rows beside it."""
    return torch.where(missing, median.to(x.dtype), x)


def fill_draw(x: Tensor, missing: Tensor, generator: torch.Generator) -> Tensor:
    """Fill each column by random draws, with replacement, from its observed values."""
    x = x.clone()
    for j in range(x.shape[1]):
        hole = missing[:, j]
        values = x[~hole, j]
        pick = torch.randint(len(values), (int(hole.sum()),), generator=generator)
        x[hole, j] = values[pick.to(x.device)]
    return x


def hide(missing: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Choose observed cells to hide for validation, by flat position: a share of them, never the last ones of a column.

    Every column keeps at least half of its observed cells, and two at the least.
    """
    drawn = torch.rand(missing.shape, generator=generator).to(missing.device) < fraction
    hidden = drawn & ~missing
    observed = (~missing).sum(0)
    spare = torch.minimum(observed // 2, observed - 2).clamp_min(0)
    hidden &= hidden.cumsum(0) <= spare
    return hidden.flatten().nonzero().flatten()
