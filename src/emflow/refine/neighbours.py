"""Training rows that are like a row, as far as it is observed."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from emflow.compiled import by_rows
from emflow.refine.bins import Bins
from emflow.refine.encoding import Encoding
from emflow.refine.search import NEVER, Tree, find

FURTHEST = 4.0  # standard deviations beyond which distances to neighbours do not grow
FAR = 0.1  # weight of the squared distance next to the number of cells that agree
ALONE = 768  # rows that one leaf holds; more of them are in several,
LEAF, MULTIPLE = 64, 4  # about so many in each, with a multiple of four places
HOPE = 2.0  # standard deviations above the mean of a leaf's scores, by which it is judged
POWERS = 8  # of the covariance, applied to a vector, turn it to where the spread is largest


class Reference(nn.Module):
    """Rows to look neighbours up in.

    The score of a row r for a row x is, over the cells f that are observed in x,

        sum_f w_f [ o_rf sum_k t_k(x_f) t_k(r_f) - FAR (x_f - r_f)^2 ]

    up to a constant: cells that are observed in r, too, and agree (t are the tents of the encoding) count most, and
    squared distances tell among rows that agree equally. It is linear in a code of r, of which few columns count for an
    x: at most two tents of a cell are not zero. Rows that are alike share a leaf of a tree, and only those leaves are
    searched in which mean and deviation of the scores promise the best ones. (In this the columns of a code
    count as uncorrelated, tents as 0 or 1, and squared distances in a leaf as equal.)

    Attributes
    ----------
    x : Tensor of shape (r, p)
        Standardised, with the missing cells filled.
    observed : Tensor of shape (r, p)
        1 where the value was observed, 0 where it was filled.
    count : Tensor of shape (r,)
        How many training rows each stands for.
    weight : Tensor of shape (p,)
        Of the columns in the score.
    leaf : Tensor of shape (l, m)
        Numbers of the rows in each leaf; -1 where there is none.
    origin : Tensor of shape (r,)
        Which rows of the training data they are; it is not stored.
    n_leaves : int
        How many of them are searched for a row; more, if these are too small.
    """

    x: Tensor
    observed: Tensor
    count: Tensor
    weight: Tensor
    leaf: Tensor
    origin: Tensor

    def __init__(self, n_rows: int, n_columns: int, n_leaves: int) -> None:
        super().__init__()
        self.n_leaves = n_leaves
        self.register_buffer("x", torch.zeros(n_rows, n_columns))
        self.register_buffer("observed", torch.zeros(n_rows, n_columns))
        self.register_buffer("count", torch.ones(n_rows))
        self.register_buffer("weight", torch.ones(n_columns))
        self.register_buffer("leaf", torch.full(leaf_shape(n_rows), -1))
        self.register_buffer("origin", torch.full((n_rows,), -1), persistent=False)

    def arrange(self, encoding: Encoding) -> None:
        """Put the rows into leaves; after they or the weights are set.

        By what scores compare, in which they are inner products: leaves of rows whose values are near each other, but
        do not agree, would hold fewer of the neighbours.
        """
        near, weight = near_enough(self.x), self.weight.sqrt()
        agree = encoding.tents(near) * (self.observed * weight)[:, :, None]
        self.leaf = leaves(torch.cat((agree.flatten(1), math.sqrt(2 * FAR) * weight * near), 1))

    def prepare(self, bins: Bins, encoding: Encoding) -> None:
        """Compute what the search needs of the rows; after they are arranged or loaded."""
        near = near_enough(self.x)
        self.bin, self.beside = bins.index(self.x).short(), torch.cat((near, self.observed), 1)
        knot = encoding.ramps(near).sum(2).masked_fill(self.observed == 0, -1)
        tents = encoding.tents(near) * self.observed[:, :, None]
        code = torch.cat((tents, near[:, :, None], near[:, :, None].square()), 2).flatten(1)
        there = self.leaf >= 0
        n = there.sum(1, keepdim=True).clamp_min(1)
        members = self._members(functional.pad(code, (0, 1)))
        middle = members.sum(1) / n
        middle[:, -1].masked_fill_(~there.any(1), float(NEVER))
        start = torch.zeros_like(self.leaf, dtype=middle.dtype).masked_fill_(~there, float(NEVER))
        place = self.leaf.new_zeros(len(self.x), 2)
        place[self.leaf[there]] = there.nonzero()
        tables = (
            encoding.left, encoding.width, self.leaf, place, start, self._members(near).mT, self._members(knot).mT,
            middle.mT,
        )  # fmt: skip
        self.tree = Tree(*(table.cpu().contiguous().numpy() for table in tables))

    def numbers(self, rows: Tensor) -> Tensor:
        """Return the numbers (n,) that rows of the training data have here; -1 for those that are not here."""
        here, number = (self.origin == rows[:, None]).nonzero(as_tuple=True)
        return torch.full_like(rows, -1).index_copy(0, here, number)

    def _members(self, code: Tensor) -> Tensor:
        """Return the codes (r, c) of rows by leaf (l, m, c); 0 where there is none."""
        return functional.pad(code, (0, 0, 0, 1))[self.leaf]  # -1 is the last

    def search(self, x: Tensor, observed: Tensor, k: int, itself: Tensor | None = None) -> Tensor:
        """Return k rows (n, k) that are like the standardised rows x (n, p), of which only observed cells count.

        `itself` (n,) holds for each row its own number among the reference rows, or -1; it is not found.
        """
        k = max(0, min(k, len(self.x) - (itself is not None)))
        found = torch.full((len(x), k), -1)
        if not k:
            return found.to(x.device)
        n_leaves, size = self.leaf.shape
        enough = -(-2 * (k + 1) // size)  # leaves to find k others in, though some are not full
        itself = torch.full((len(x),), -1) if itself is None else itself
        n_asked = min(max(self.n_leaves, enough), n_leaves)
        arrays = [part.cpu().contiguous().numpy() for part in (x, observed * self.weight, itself, found)]

        def work(first: int, last: int) -> None:
            rows, weight, own, result = (part[first:last] for part in arrays)
            find(self.tree, rows, weight, own, n_asked, np.float32(HOPE), np.float32(FAR), result)

        by_rows(len(x), work)
        return found.to(x.device)


def leaf_shape(n: int) -> tuple[int, int]:
    """Return how many leaves n rows have, a power of two, and how many fit into one."""
    n_leaves = 1 if n <= ALONE else 1 << math.ceil(math.log2(n / LEAF))
    return n_leaves, -(-n // (n_leaves * MULTIPLE)) * MULTIPLE


def leaves(x: Tensor) -> Tensor:
    """Return the numbers of the rows x (n, p) in leaves (l, m), -1 where there is none.

    All rows are halved across the direction in which they are spread most, the halves likewise, and so on.
    """
    n_leaves, size = leaf_shape(len(x))
    number = torch.arange(n_leaves * size, device=x.device)[None]
    while len(number) < n_leaves:
        member = x[number % len(x)]
        member = member - member.mean(1, keepdim=True)
        axis = torch.ones_like(member[:, :1]).mT
        for _ in range(POWERS):
            axis = functional.normalize(member.mT @ (member @ axis), dim=1)
        order = (member @ axis).squeeze(2).argsort(dim=1, stable=True)
        number = number.gather(1, order).view(2 * len(number), -1)
    return torch.where(number < len(x), number, -1)


def near_enough(x: Tensor) -> Tensor:
    """Return standardised values with those far outside drawn nearer, so that no distance outweighs all others."""
    return x.clamp(-FURTHEST, FURTHEST)
