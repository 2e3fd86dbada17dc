"""Values as networks and neighbours read them: how far they reach into each piece of their column."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from emflow.refine.bins import cuts

BEYOND = 1e9  # where the pieces begin that a column does not have


class Encoding(nn.Module):
    """Piecewise-linear encoding: the range of each column in pieces, by its quantiles and evenly.

    Attributes
    ----------
    left, width : Tensor of shape (p, t)
        Where a piece begins, and its width.
    """

    left: Tensor
    width: Tensor

    def __init__(self, n_columns: int, n_pieces: int) -> None:
        super().__init__()
        self.register_buffer("left", torch.full((n_columns, n_pieces), BEYOND))
        self.register_buffer("width", torch.ones(n_columns, n_pieces))

    @classmethod
    def learn(cls, x: Tensor, missing: Tensor, most: int) -> Encoding:
        """Return at most about `most` pieces per column for the observed cells of x (n, p)."""
        knots = []
        for column, holes in zip(x.mT.numpy(), missing.mT.numpy(), strict=True):
            level, count = np.unique(column[~holes], return_counts=True)
            knots.append(level[np.unique(np.concatenate(([0], cuts(level, count, most), [len(level) - 1])))])
        encoding = cls(len(knots), max(1, max(map(len, knots)) - 1))
        for j, knot in enumerate(knots):
            encoding.left[j, : len(knot) - 1] = torch.from_numpy(knot[:-1])
            encoding.width[j, : len(knot) - 1] = torch.from_numpy(np.diff(knot))
        return encoding

    def ramps(self, x: Tensor) -> Tensor:
        """Return (n, p, t): for each piece 0 below it, 1 above it, and in it the share of it that lies below x."""
        return (x[:, :, None] - self.left).div_(self.width).clamp_(0, 1)

    def tents(self, x: Tensor) -> Tensor:
        """Return (n, p, t + 1): for each knot 1 at it, 0 from the next ones on. Values agree as far as tents do."""
        ramps = self.ramps(x)
        one = ramps.new_ones(*ramps.shape[:2], 1)
        return torch.cat((one, ramps), 2) - torch.cat((ramps, one * 0), 2)
