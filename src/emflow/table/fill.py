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
LEAST_HIDDEN = 0.05  # of the share of cells that are hidden, in columns that lack little


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


def hide(
    missing: Tensor, fraction: float, generator: torch.Generator, owner: Tensor | None = None, most: float = math.inf
) -> Tensor:
    """Choose observed cells to hide for validation, by flat position: a share of them, never the last ones of a column.

    About `most` of them are enough. They should be like the cells that are to be filled: of a column that lacks less
    than others do, the share is smaller, in proportion, down to a twentieth. Every column keeps at least half of its
    observed cells, and two at the least. Columns that have the same `owner` (p,), which counts up from 0, are hidden
    together: the other channels of a pixel would tell too much of it.
    """
    n, p = missing.shape
    owner = torch.arange(p) if owner is None else owner
    lacking = torch.zeros(int(owner[-1]) + 1).index_add(0, owner, missing.float().mean(0).cpu()) / owner.bincount()
    usual = lacking[lacking > 0].mean()  # no number, if nothing is missing
    share = fraction * (lacking / usual).nan_to_num(1).clamp(LEAST_HIDDEN, 1)
    expected = (share[owner] * (~missing).sum(0).cpu()).sum().item()
    drawn = torch.rand(n, len(lacking), generator=generator) < share * min(1, most / max(expected, 1))
    hidden = drawn[:, owner].to(missing.device) & ~missing
    observed = (~missing).sum(0)
    spare = torch.minimum(observed // 2, observed - 2).clamp_min(0)
    hidden &= hidden.cumsum(0) <= spare
    return hidden.flatten().nonzero().flatten()
