"""Algorithm 2: the re-imputation phase, in training and for new rows alike."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from emflow.flow.realnvp import RealNVP
from emflow.latent.condition import Conditional
from emflow.latent.gaussian import Gaussian
from emflow.latent.patterns import Patterns

CHUNK_CELLS = 2**24  # entries of the blocks of the rows that go together: 128 MiB


class Stage(NamedTuple):
    """What one outer iteration learnt. A fitted model is the sequence of them, replayed on new rows."""

    flow: RealNVP
    gaussian: Gaussian

    def double(self) -> Stage:
        """Return the stage with its flow in double precision, in which all rows are filled, scored and drawn."""
        if self.flow.weights.dtype == torch.float64:
            return self
        return Stage(copy.deepcopy(self.flow).double(), self.gaussian)


def row_chunks(x: Tensor, most: int) -> list[Tensor]:
    """Split the row numbers of x (n, p), so that the blocks of one chunk stay within bounded memory."""
    rows = max(16, min(most, CHUNK_CELLS // max(1, x.shape[1] // 2) ** 2))
    return list(torch.arange(len(x), device=x.device).split(rows))


@torch.no_grad()
def reimpute(stage: Stage, x_hat: Tensor, patterns: Patterns, clip: bool) -> Tensor:
    """Return x_hat (n, p) with its missing cells replaced by those of x_rec = f(z_hat): Algorithm 2.

    Parameters
    ----------
    stage : Stage
        Its flow is taken in double precision, like x_hat: the answer for a row must not depend on the rows beside it.
    clip : bool
        Keep the new values within [0, 1], the observed range of scaled data.
    """
    flow, gaussian = stage.double()
    result = x_hat.clone()
    for rows in row_chunks(x_hat, most=2**12):
        layout = patterns.layout(rows)
        z, _ = flow.encode(x_hat[rows])
        x_rec, _ = flow.decode(Conditional(gaussian, layout).mean(z))
        result[rows] = torch.where(layout.missing, x_rec.clamp(0, 1) if clip else x_rec, x_hat[rows])
    return result
