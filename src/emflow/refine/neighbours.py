"""Training rows that are like a row, as far as it is observed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from emflow.refine.bins import Bins
from emflow.refine.encoding import Encoding

FURTHEST = 4.0  # standard deviations beyond which distances to neighbours do not grow
FAR = 0.1  # weight of the squared distance next to the number of cells that agree
# Scores are rounded: the last digits of a product depend on how many rows are multiplied at once. There are so many
# steps to one agreeing cell, and what is a whole number of them is far from where the rounding changes.
STEPS, ROUNDING = 2.0**12, 0.3
NEVER = -1e6  # score of a row that is none
ALONE = 768  # rows that one leaf holds; more of them are in several,
LEAF, MULTIPLE = 64, 4  # about so many in each, with a multiple of four places, of which
VISITED = 12  # are searched
HOPE = 2.0  # standard deviations above the mean of a leaf's scores, by which it is judged
POWERS = 8  # of the covariance, applied to a vector, turn it to where the spread is largest
CHUNK = 2048  # rows whose neighbours are looked for together


class Reference(nn.Module):
    """Rows to look neighbours up in.

    The score of a row r for a row x is, over the cells f that are observed in x,

        sum_f w_f [ o_rf sum_k t_k(x_f) t_k(r_f) - FAR (x_f - r_f)^2 ]

    up to a constant: cells that are observed in r, too, and agree (t are the tents of the encoding) count most, and
    squared distances tell among rows that agree equally. It is linear in a code of r, so that scores are matrix
    products. Rows that are alike share a leaf of a tree, and only those leaves are searched in which mean and deviation
    of the scores promise the best ones. (The columns of a code count as uncorrelated in this.)

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
    """

    x: Tensor
    observed: Tensor
    count: Tensor
    weight: Tensor
    leaf: Tensor

    def __init__(self, n_rows: int, n_columns: int) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(n_rows, n_columns))
        self.register_buffer("observed", torch.zeros(n_rows, n_columns))
        self.register_buffer("count", torch.ones(n_rows))
        self.register_buffer("weight", torch.ones(n_columns))
        self.register_buffer("leaf", torch.full(leaf_shape(n_rows), -1))

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
        self.bin, self.near = bins.index(self.x), near_enough(self.x)
        tents = (encoding.tents(self.near) * self.observed[:, :, None]).flatten(1)
        code = torch.cat((tents, self.near, self.near.square(), torch.full_like(tents[:, :1], ROUNDING / STEPS)), 1)
        there = self.leaf >= 0
        members = functional.pad(code, (0, 0, 0, 1))[self.leaf]  # -1 is the last, which is zero
        n = there.sum(1, keepdim=True).clamp_min(1)
        middle = members.sum(1) / n
        self.variance = ((members.square().sum(1) / n) - middle.square()).clamp_min(0).mT.contiguous()
        self.middle = middle.mT.contiguous()
        self.middle[-1, ~there.any(1)] = NEVER
        members[~there, -1] = NEVER
        self.code = members.mT.contiguous()
        self.place = self.leaf.new_zeros(len(self.x), 2)  # of each row: its leaf, and where in it
        self.place[self.leaf[there]] = there.nonzero()

    def search(self, x: Tensor, observed: Tensor, encoding: Encoding, k: int, itself: Tensor | None = None) -> Tensor:
        """Return k rows (n, k) that are like the standardised rows x (n, p), of which only observed cells count.

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
            found.append(self._find(STEPS * query, k, None if itself is None else itself[rows]))
        return torch.cat(found)

    def _find(self, query: Tensor, k: int, itself: Tensor | None) -> Tensor:
        n_leaves, size = self.leaf.shape
        enough = -(-2 * k // size)  # leaves to find k rows in, though some are not full
        promise = torch.add(query @ self.middle, (query.square() @ self.variance).sqrt_(), alpha=HOPE)
        if itself is not None:
            known = (itself >= 0).nonzero().flatten()
            leaf, place = self.place[itself[known]].unbind(1)
            promise[known, leaf] = self._promise_of_others(query[known], leaf, place)
        asked = top(promise.floor_(), min(max(VISITED, enough), n_leaves))
        score = self._scores(query, asked)
        if itself is not None:
            row, nth = (asked[known] == leaf[:, None]).nonzero(as_tuple=True)
            score[known[row], nth, place[row]] = 2 * NEVER * STEPS
        best = top(score.flatten(1), k)
        return self.leaf[asked.gather(1, best // size), best % size]

    def _promise_of_others(self, query: Tensor, leaf: Tensor, place: Tensor) -> Tensor:
        """Return what the leaves (n,) promise to rows that are in them, at a place (n,), without counting these.

        A row is most like itself, so that its own leaf would be searched more often than it deserves: where rows are
        that have its hidden values, too. What is learnt with their help would not hold for other rows.
        """
        code, middle, variance = self.code[leaf, :, place], self.middle.mT[leaf], self.variance.mT[leaf]
        n = (self.leaf[leaf] >= 0).sum(1, keepdim=True)
        others = (n - 1).clamp_min(1)
        mean = (n * middle - code) / others
        variance = (n * (variance + middle.square()) - code.square()) / others - mean.square()
        promise = (query * mean).sum(1) + HOPE * (query.square() * variance.clamp_min(0)).sum(1).sqrt()
        return promise.masked_fill(n[:, 0] == 1, NEVER * STEPS)

    def _scores(self, query: Tensor, asked: Tensor) -> Tensor:
        """Return the scores (n, a, m) of the rows in the leaves that are asked (n, a): one leaf after the other."""
        by_leaf = asked.flatten().argsort(stable=True)
        count = torch.bincount(asked.flatten(), minlength=len(self.code)).tolist()
        score = query.new_empty(len(by_leaf), self.leaf.shape[1])
        rows = (by_leaf // asked.shape[1]).split(count)
        for row, part, code in zip(rows, score.split(count), self.code.unbind(), strict=True):
            torch.mm(query.index_select(0, row), code, out=part)
        back = torch.empty_like(by_leaf).scatter_(0, by_leaf, torch.arange(len(by_leaf), device=by_leaf.device))
        return score.floor_().index_select(0, back).view(*asked.shape, score.shape[1])


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


def top(score: Tensor, k: int) -> Tensor:
    """Return where the k largest of each row of scores (n, m) are, in no order; scores are whole numbers.

    NumPy parts numbers several times as fast as torch finds the places of the largest. So scores have their place in
    their last bits.
    """
    if not score.is_cpu:
        return score.topk(k, 1, sorted=False).indices
    bits = score.shape[1].bit_length()
    placed = score.long().bitwise_left_shift_(bits).add_(torch.arange(score.shape[1]))
    placed.numpy().partition(score.shape[1] - k, axis=1)  # in place: they share their memory
    return placed[:, -k:] & ((1 << bits) - 1)


def near_enough(x: Tensor) -> Tensor:
    """Return standardised values with those far outside drawn nearer, so that no distance outweighs all others."""
    return x.clamp(-FURTHEST, FURTHEST)
