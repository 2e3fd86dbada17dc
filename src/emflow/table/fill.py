"""The initial imputation, from which the first outer iteration starts (paper, sections 3.4 and 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from emflow.table.schema import Array

CHUNK = 2000  # images that are filled together
CANDIDATES = 5000  # rows among which the one most alike another is looked for;
ALIKE_OR_NOT = 0.5  # of the cells to hide are found, if need be among rows that are not alike
EQUAL = 1e-6  # squared distances in which they differ by less are equal


def fill_middle(x: Tensor, missing: Tensor, middle: Tensor) -> Tensor:
    """Fill with the middle of each column: the same for a row whatever the rows beside it."""
    return torch.where(missing, middle.to(x.dtype), x)


def fill_draw(x: Tensor, missing: Tensor, generator: torch.Generator) -> Tensor:
    """Fill each column by random draws, with replacement, from its observed values."""
    x = x.clone()
    for j in range(x.shape[1]):
        hole = missing[:, j]
        values = x[~hole, j]
        pick = torch.randint(len(values), (int(hole.sum()),), generator=generator)
        x[hole, j] = values[pick.to(x.device)]
    return x


def fill_nearest(x: Tensor, missing: Tensor, image_shape: Sequence[int]) -> Tensor:
    """Fill each missing pixel of images as rows x (n, p) with the nearest observed one, channel by channel.

    Of several at the same distance always the same one is taken, so that an image has one answer. An image, or a
    channel of it, without any observed pixel stays as it is.
    """
    h, w, c = (*image_shape, 1)[:3]
    chunks = []
    for image, holes in zip(x.split(CHUNK), missing.split(CHUNK), strict=True):
        planes = holes.view(-1, h, w, c).cpu().numpy()
        if (planes == planes[..., :1]).all():  # pixels are missing as a whole
            planes = planes[..., :1]
        source = np.stack([_nearest(plane) for plane in np.moveaxis(planes, 3, 1).reshape(-1, h, w)])
        at = torch.from_numpy(source).to(x.device).view(len(image), -1, h * w).mT.expand(-1, -1, c)
        chunks.append(image.view(-1, h * w, c).gather(1, at).reshape(image.shape))
    return torch.cat(chunks)


def _nearest(missing: Array) -> Array:
    """Return for every pixel of one plane (h, w) the flat position of the nearest observed pixel."""
    if missing.all():
        return np.arange(missing.size)
    row, column = distance_transform_edt(missing, return_distances=False, return_indices=True)
    flat: Array = (row * missing.shape[1] + column).astype(np.int64).ravel()
    return flat


def hide(missing: Tensor, fraction: float, generator: torch.Generator, owner: Tensor | None = None) -> Tensor:
    """Choose observed cells to hide for validation, by flat position: a share of them, never the last ones of a column.

    Every column keeps at least half of its observed cells, and two at the least. Columns that have the same `owner`
    (p,), which counts up from 0, are hidden together: the other channels of a pixel would tell too much of it.
    """
    n, p = missing.shape
    owner = torch.arange(p) if owner is None else owner
    drawn = torch.rand(n, int(owner[-1]) + 1, generator=generator) < fraction
    return _spared(drawn[:, owner].to(missing.device), missing)


def hide_alike(
    x: Tensor, missing: Tensor, fraction: float, generator: torch.Generator, owner: Tensor, most: int, n_known: int = 0
) -> Tensor:
    """Choose observed cells of a table x (n, p) to hide for validation, as `hide` does, but like the missing ones.

    Which cells are missing may depend on the others, and errors with it. So for each of some missing cells, as many as
    the share, the same column is hidden in the row most alike that has it; if these are less than half, others of such
    columns are drawn. About `most` of them are enough. The first rows, that are known, tell what columns may lack
    (also cells that were hidden before), and are left as they are.
    """
    first = torch.searchsorted(owner, torch.arange(int(owner[-1]) + 1)).to(missing.device)  # column of each owner
    holes = missing[:, first]
    lacking = holes.any(0) | ~holes.any()  # or all columns, if none does
    x, missing, holes = x[n_known:], missing[n_known:], holes[n_known:]
    observed = (~holes[:, lacking]).sum().item()
    wanted = min(float(most), fraction * observed)
    pairs = holes.nonzero()
    order = torch.randperm(len(pairs), generator=generator)[: int(wanted)].to(missing.device)
    row, column = pairs.index_select(0, order).unbind(1)
    drawn = torch.zeros_like(holes)
    drawn[_most_alike(x, missing, row, first[column], generator), column] = True
    enough = wanted * (ALIKE_OR_NOT if len(pairs) else 1)
    left = (enough - drawn.sum().item()) / max(1, observed)
    drawn |= (torch.rand(drawn.shape, generator=generator) < left).to(drawn.device) & lacking
    return _spared(drawn[:, owner.to(drawn.device)], missing) + n_known * x.shape[1]


def _spared(hidden: Tensor, missing: Tensor) -> Tensor:
    """Return, by flat position, those of the cells (n, p) that are observed and may be hidden."""
    hidden = hidden & ~missing
    observed = (~missing).sum(0)
    spare = torch.minimum(observed // 2, observed - 2).clamp_min(0)
    hidden &= hidden.cumsum(0) <= spare
    return hidden.flatten().nonzero().flatten()


def _most_alike(x: Tensor, missing: Tensor, row: Tensor, column: Tensor, generator: torch.Generator) -> Tensor:
    """Return for rows (k,) that lack a column (k,) the row nearest to them, of some thousand, that has it."""
    seen = (~missing).sum(0).clamp_min(1)
    z = (x - x.masked_fill(missing, 0).sum(0) / seen).masked_fill_(missing, 0)
    z /= (z.square().sum(0) / seen).sqrt().clamp_min(torch.finfo(z.dtype).tiny)
    others = torch.randperm(len(x), generator=generator)[:CANDIDATES].to(x.device)
    other, has = z.index_select(0, others), ~missing.index_select(0, others)
    known = (~missing.index_select(0, row)).to(z)
    apart = known @ other.square().mT - 2 * z.index_select(0, row) @ other.mT
    apart += EQUAL * torch.rand(apart.shape, generator=generator).to(apart)  # of rows that are equal, any
    apart.masked_fill_(~has.index_select(1, column).mT, math.inf)
    return others[apart.argmin(1)]
