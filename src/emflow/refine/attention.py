"""Weights of the rows most alike: for every column that may be filled other ones; and what so weighed rows say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from emflow.compiled import by_rows
from emflow.refine.weighing import LACKING, Question, say, slopes


class Neighbours(NamedTuple):
    """Rows among which neighbours are, and which (n, k) are those of a batch.

    `beside` (r, 2 p) has their values, and then whether these were observed: memory is asked once for a row. `bin`
    (r, p) has the bins that the values lie in.
    """

    beside: Tensor
    bin: Tensor
    near: Tensor


class Asked(NamedTuple):
    """What is asked: rows x, observed (n, p), their neighbours, cells (row, column), columns wanted, number of bins."""

    x: Tensor
    observed: Tensor
    rows: Neighbours
    row: Tensor
    column: Tensor
    wanted: Tensor
    n_bins: int


class Weights(NamedTuple):
    """By which neighbours are weighed: a and b (p, p), c (p,) in `Attention`."""

    agree: Tensor
    distance: Tensor
    sharpness: Tensor


class Said(NamedTuple):
    """What neighbours say: mean and mean square of columns (n, p), and bins of the cells asked for (cells, b).

    The first two are zero in columns that are not wanted, where they are not asked for.
    """

    mean: Tensor
    square: Tensor
    histogram: Tensor


class Attention(nn.Module):
    """Weights of the neighbours, for every column that may be filled another one.

    The logit of neighbour r for column j is

        sum_f o_f [ a_fj o_rf exp(-c_f |x_f - x_rf|) - b_fj (x_f - x_rf)^2 ]

    with o = 1 where a cell is observed, and a, b, c learnt and positive. The first term counts cells that agree, the
    second measures distance. Neighbours that lack column j themselves do not count, unless all do: what fills them says
    nothing new, and a training row that is filled must not be its own neighbour.

    Attributes
    ----------
    wanted : bool Tensor of shape (p,)
        Columns for which neighbours are weighed in every row: those that lack values somewhere. For the others they
        are weighed where a cell is asked for.
    """

    wanted: Tensor

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.agree = nn.Parameter(torch.full((n_columns, n_columns), -1.0))
        self.distance = nn.Parameter(torch.full((n_columns, n_columns), -1.0))
        self.sharpness = nn.Parameter(torch.full((n_columns,), math.log(10.0)))
        self.log_scale = nn.Parameter(torch.full((n_columns,), 0.5))  # of the bell around their mean
        self.exponent = nn.Parameter(torch.full((n_columns,), 0.3))  # of their histogram
        self.register_buffer("wanted", torch.ones(n_columns, dtype=torch.bool))

    def forward(self, x: Tensor, observed: Tensor, rows: Neighbours, row: Tensor, column: Tensor, n_bins: int) -> Said:
        """Return what the neighbours of rows x (n, p) say of their columns, and of cells (row, column).

        By loops over rows: what is computed of a row stays in the nearest memory, and that is twice as fast. The
        gradient for most of the columns is not: its products are large enough for a library.
        """
        weights = Weights(functional.softplus(self.agree), functional.softplus(self.distance), self.sharpness.exp())
        most = torch.is_grad_enabled() and 2 * int(self.wanted.sum()) > len(self.wanted)
        by = by_loops if x.is_cpu and not most else by_torch
        return by(Asked(x, observed, rows, row, column, self.wanted, n_bins), weights)


def by_torch(asked: Asked, weights: Weights) -> Said:
    """Return what neighbours say, from (n, k, p) numbers in every step, for all columns."""
    x, observed, rows, row, column, wanted, n_bins = asked
    (n, k), p = rows.near.shape, x.shape[1]
    near, there = rows.beside.index_select(0, rows.near.flatten()).view(n, k, 2 * p).split(p, 2)
    apart = (x[:, None] - near).mul_(observed[:, None])
    alike = torch.exp(apart.abs() * -weights.sharpness) * (there * observed[:, None])
    logit = torch.add(alike @ weights.agree, there, alpha=float(LACKING)).flatten(0, 1)
    weight = torch.addmm(logit, apart.square_().flatten(0, 1), weights.distance, alpha=-1).view(n, k, p).softmax(1)
    part = weight * near
    own = _pick(weight, (row[:, None] * k + torch.arange(k, device=x.device)) * p + column[:, None])
    within = _pick(rows.bin, rows.near.index_select(0, row) * p + column[:, None]).long()
    histogram = x.new_zeros(len(row), n_bins).scatter_add_(1, within, own)
    said = wanted.expand(n, p).index_put((row, column), wanted.new_ones(()))
    return Said(part.sum(1) * said, (part * near).sum(1) * said, histogram)


def _pick(table: Tensor, place: Tensor) -> Tensor:
    """Return elements of a table by their place in it, as `take` does in twice the time."""
    return table.flatten().index_select(0, place.flatten()).view_as(place)


def by_loops(asked: Asked, weights: Weights) -> Said:
    """Return the same, each row by itself."""
    x, observed, rows, row, column, wanted, n_bins = asked
    order = row.argsort(stable=True)
    start = torch.searchsorted(row[order], torch.arange(len(x) + 1))  # of the cells of each row, in this order
    place = wanted.cumsum(0).sub_(1).masked_fill_(~wanted, -1)
    cells = x, observed, *rows, column, order, start, wanted.nonzero().flatten(), place
    factors = torch.cat((weights.agree, -weights.distance)).mT.contiguous()
    return Said(*_Loops.apply(factors, weights.sharpness, n_bins, *cells))  # type: ignore[no-untyped-call]


class _Loops(torch.autograd.Function):
    """The loops of `weighing` as a function with a gradient, by factors (p, 2 p) and sharpness (p,)."""

    @staticmethod
    def forward(ctx: Any, factors: Tensor, sharpness: Tensor, n_bins: int, *cells: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(factors, sharpness, *cells)
        question = Question(*(part.numpy() for part in cells))
        x, n_cells = cells[0], len(question.column)
        said = torch.zeros_like(x), torch.zeros_like(x), x.new_zeros(n_cells, n_bins)
        arrays: list[Any] = [part.detach().numpy() for part in (factors, sharpness, *said)]
        by_rows(len(question.x), lambda *part: say(question, *arrays, *part))
        return said

    @staticmethod
    def backward(ctx: Any, *by_said: Tensor) -> tuple[Tensor | None, ...]:
        factors, sharpness, *cells = ctx.saved_tensors
        question = Question(*(part.numpy() for part in cells))
        given = factors, sharpness, *map(Tensor.contiguous, by_said)
        found: dict[int, tuple[Tensor, Tensor]] = {}  # by threads, whose order decides the last digits of a sum

        def work(first: int, last: int) -> None:
            found[first] = torch.zeros_like(factors), torch.zeros_like(sharpness)
            arrays: list[Any] = [*(part.detach().numpy() for part in (*given, *found[first])), first, last]
            slopes(question, *arrays)

        by_rows(len(question.x), work)
        sums = (sum(parts) for parts in zip(*(found[first] for first in sorted(found)), strict=True))
        return *sums, None, *(None for _ in cells)
