"""Algorithm 2: the re-imputation phase, in training and for new rows alike."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from emflow.flow.image import Flow
from emflow.latent.condition import Conditional
from emflow.latent.gaussian import Gaussian
from emflow.latent.patterns import WIDE, Patterns

CHUNK_CELLS = 2**24  # entries of the blocks of the rows that go together: 128 MiB
WIDE_ROWS = 512  # of wide data; what they share, products with the whole covariance, wants many rows at once


class Stage(NamedTuple):
    """What one outer iteration learnt. A fitted model is the sequence of them, replayed on new rows."""

    flow: Flow
    gaussian: Gaussian

    def to(self, dtype: torch.dtype) -> Stage:
        """Return the stage with its flow in another precision: that in which rows are filled, scored and drawn."""
        if self.flow.weights.dtype == dtype:
            return self
        return Stage(copy.deepcopy(self.flow).to(dtype), self.gaussian)


def row_chunks(x: Tensor, most: int) -> list[Tensor]:
    """Split the row numbers of x (n, p), so that the blocks of one chunk stay within bounded memory."""
    rows = max(16, min(most, CHUNK_CELLS // max(1, x.shape[1] // 2) ** 2)) if x.shape[1] < WIDE else WIDE_ROWS
    return list(torch.arange(len(x), device=x.device).split(rows))


@torch.no_grad()
def reimpute(stage: Stage, x_hat: Tensor, patterns: Patterns, clip: bool) -> Tensor:
    """Return x_hat (n, p) with its missing cells replaced by those of x_rec = f(z_hat): Algorithm 2.

    Parameters
    ----------
    stage : Stage
        Its flow is taken in the precision of x_hat. In double precision the answer for a row does not depend on the
        rows beside it; in single precision, that of images, its last digits may.
    clip : bool
        Keep the new values within [0, 1], the observed range of scaled data.
    """
    flow, gaussian = stage.to(x_hat.dtype)
    result = x_hat.clone()
    for rows in row_chunks(x_hat, most=2**12):
        layout = patterns.layout(rows)
        before = x_hat.index_select(0, rows)
        z, _ = flow.encode(before)
        x_rec, _ = flow.decode(Conditional(gaussian, layout, mean_only=True).mean(z))
        result.index_copy_(0, rows, torch.where(layout.missing, x_rec.clamp(0, 1) if clip else x_rec, before))
    return result
