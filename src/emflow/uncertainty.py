"""How sure a fitted model is of what it fills in: draws of the missing cells, and intervals for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from emflow.latent.condition import Conditional
from emflow.latent.patterns import Patterns
from emflow.learn.reimpute import Stage, reimpute
from emflow.refine.kinds import Refinement
from emflow.refine.tables import TableRefinement

CHUNK_CELLS = 2**22  # that are drawn together
ENOUGH_DRAWS = 200  # for an interval, where there is no distribution to read it off


@torch.no_grad()
def draw(
    stage: Stage,
    refinement: Refinement | None,
    x_hat: Tensor,
    missing: Tensor,
    n_draws: int,
    seed: int,
    clip: bool,
    nominal: Sequence[slice] = (),
) -> Iterator[Tensor]:
    """Yield, rows by rows, completed rows (n_draws, rows, p) with draws from their joint distribution.

    Without a learned E-step they are draws from the Gaussian of the last stage, decoded. With one for tables, each cell
    has the distribution that it gives, and the cells of a row depend on each other as in the Gaussian (a copula). With
    one for images they are the draws from the Gaussian, moved by its correction. What is drawn for a row depends on the
    row, its number and the seed, not on the rows beside it.

    Parameters
    ----------
    stage : Stage
        The last one.
    x_hat : Tensor of shape (n, p)
        Rows as it takes them.
    nominal : slices
        Columns that stand for the categories of one: of them, one is drawn.
    """
    rng = np.random.default_rng(seed)
    stage, rows = stage.to(x_hat.dtype), max(1, CHUNK_CELLS // (x_hat.shape[1] * n_draws))
    for part, holes in zip(x_hat.split(rows), missing.split(rows), strict=True):
        noise = torch.from_numpy(rng.standard_normal((len(part), n_draws, part.shape[1]))).to(stage.gaussian.mean)
        values = _draw_rows(stage, refinement, part, holes, noise.unbind(1), clip, nominal)
        yield torch.where(holes, values.clamp(0, 1) if clip else values, part)


def _draw_rows(
    stage: Stage,
    refinement: Refinement | None,
    x_hat: Tensor,
    missing: Tensor,
    noise: tuple[Tensor, ...],
    clip: bool,
    nominal: Sequence[slice],
) -> Tensor:
    flow, patterns = stage.flow, Patterns(missing)
    conditional = Conditional(stage.gaussian, patterns.layout(torch.arange(len(x_hat), device=x_hat.device)))
    z, _ = flow.encode(x_hat)
    z_hat, apart = conditional.mean(z), [conditional.residual(each).to(z) for each in noise]
    if not nominal and refinement is None:
        return torch.stack([flow.decode(z_hat + each)[0] for each in apart])
    filled = reimpute(stage, x_hat, patterns, clip)
    refined = filled if refinement is None else refinement.complete(filled, missing, clip)
    if not isinstance(refinement, TableRefinement):
        values = torch.stack([flow.decode(z_hat + each)[0] + (refined - filled) for each in apart])
        if not nominal:
            return values
    deviation = conditional.deviation().to(z).masked_fill_(~missing, 1)
    level = torch.special.ndtr(torch.stack(apart) / deviation)
    if isinstance(refinement, TableRefinement):
        values = refinement.quantiles(filled, missing, level)
    for at in nominal:
        values[:, :, at] = _one_of(refined[:, at], level[:, :, at])
    return values


def _one_of(share: Tensor, level: Tensor) -> Tensor:
    """Return which category (d, n, k) is drawn, 1 for it and 0 for the others, given their shares (n, k).

    Uniform levels (d, n, k) are turned into Gumbel noise, under which the largest sum is each category as often as it
    should be; so what is drawn depends on the other cells as the levels do.
    """
    tiny = torch.finfo(share.dtype).tiny
    gumbel = -torch.log(-torch.log(level.clamp(tiny, 1 - torch.finfo(share.dtype).eps / 2)))
    best = (share.clamp_min(tiny).log() + gumbel).argmax(-1)
    return torch.nn.functional.one_hot(best, share.shape[1]).to(share)


@torch.no_grad()
def intervals(
    stage: Stage, refinement: Refinement | None, x_hat: Tensor, missing: Tensor, coverage: float, seed: int, clip: bool
) -> Tensor:
    """Return the lower and upper ends (2, n, p) of central intervals, each cell for itself; observed cells have none.

    They are read off the distribution that a learned E-step for tables gives, or they are quantiles of 200 draws.
    """
    if not isinstance(refinement, TableRefinement):
        ends = torch.tensor([(1 - coverage) / 2, (1 + coverage) / 2]).to(x_hat)
        parts = draw(stage, refinement, x_hat, missing, ENOUGH_DRAWS, seed, clip)
        return torch.cat([part.quantile(ends, 0) for part in parts], 1)
    filled = reimpute(stage, x_hat, Patterns(missing), clip)
    values = refinement.intervals(filled, missing, coverage)
    return torch.where(missing, values.clamp(0, 1) if clip else values, x_hat)
