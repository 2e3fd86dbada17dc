"""Training rows that are like a row, as far as it is observed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from emflow.refine.bins import Bins
from emflow.refine.encoding import Encoding

FAR = 0.1  # weight of the squared distance next to the number of cells that agree
# Scores are rounded: the last digits of a product depend on how many rows are multiplied at once. There are so many
# steps to one agreeing cell, and what is a whole number of them is far from where the rounding changes.
STEPS, ROUNDING = 2.0**12, 0.3
NEVER = -1e6  # score of a row that is none
GROUP = 16  # scores of which the best is looked at first
CHUNK = 512  # rows whose neighbours are looked for together


class Reference(nn.Module):
    """Rows to look neighbours up in.

    The score of a row r for a row x is, over the cells f that are observed in x,

        sum_f w_f [ o_rf sum_k t_k(x_f) t_k(r_f) - FAR (x_f - r_f)^2 ]

    up to a constant: cells that are observed in r, too, and agree (t are the tents of the encoding) count most, and
    squared distances tell among rows that agree equally. It is linear in a code of r, so that all scores are one matrix
    product.

    Attributes
    ----------
    x : Tensor of shape (r, p)
        Standardised, with the missing cells filled.
    observed : Tensor of shape (r, p)
        1 where the value was observed, 0 where it was filled.
    weight : Tensor of shape (p,)
        Of the columns in the score.
    """

    x: Tensor
    observed: Tensor
    weight: Tensor

    def __init__(self, n_rows: int, n_columns: int) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(n_rows, n_columns))
        self.register_buffer("observed", torch.zeros(n_rows, n_columns))
        self.register_buffer("weight", torch.ones(n_columns))

    def prepare(self, bins: Bins, encoding: Encoding) -> None:
        """Compute what the search needs of the rows; after they are set or loaded."""
        tents = (encoding.tents(self.x) * self.observed[:, :, None]).flatten(1)
        code = torch.cat((tents, self.x, self.x.square(), torch.full_like(self.x[:, :1], ROUNDING / STEPS)), 1)
        rest = -len(code) % GROUP  # rows that are never found make whole groups
        self.code = functional.pad(code, (0, 0, 0, rest)).mT.contiguous()
        self.code[-1, len(code) :] = NEVER
        self.bin = bins.index(self.x)

    def search(self, x: Tensor, observed: Tensor, encoding: Encoding, k: int, itself: Tensor | None = None) -> Tensor:
        """Return the k rows (n, k) most alike the standardised rows x (n, p), of which only observed cells count.

        `itself` (n,) holds for each row its own number among the reference rows, or -1; it is not found.
        """
        k = max(0, min(k, len(self.x) - (itself is not None)))
        if not k:
            return x.new_zeros(len(x), 0, dtype=torch.long)
        found = []
        for rows in torch.arange(len(x), device=x.device).split(CHUNK):
            part, weight = x[rows], observed[rows] * self.weight
            tents = (encoding.tents(part) * weight[:, :, None]).flatten(1)
            query = torch.cat((tents, 2 * FAR * part * weight, -FAR * weight, torch.ones_like(part[:, :1])), 1)
            score = (STEPS * query @ self.code).floor_()
            if itself is not None:
                own = itself[rows]
                known = (own >= 0).nonzero().flatten()
                score[known, own[known]] = -torch.inf
            found.append(top(score, k))
        return torch.cat(found)


def top(score: Tensor, k: int) -> Tensor:
    """Return where the k largest of each row of scores (n, a multiple of GROUP) are, in no order.

    They lie in those k groups of scores whose best one is largest; so most scores are only read once.
    """
    if score.shape[1] <= 2 * GROUP * k:
        return score.topk(k, 1, sorted=False).indices
    groups = score.view(len(score), GROUP, -1)
    best = groups.amax(1).topk(k, 1, sorted=False).indices
    place = groups.gather(2, best[:, None].expand(-1, GROUP, -1)).flatten(1).topk(k, 1, sorted=False).indices
    return best.gather(1, place % k) + place // k * groups.shape[2]
