"""Weights of the rows most alike: for every column that may be filled other ones; and what so weighed rows say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from emflow.compiled import by_rows, compiled

LACKING = np.float32(30)  # by which the logit of a neighbour is less if it lacks the column
LEAST = np.float32(-40)  # exponentials of less are zero: products of such small numbers would be slow
ONE, HALF, LOG_2 = np.float32(1), np.float32(0.5), np.float32(math.log(2))
SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(2, 7))

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


class Neighbours(NamedTuple):
    """Rows (r, p) among which neighbours are: values, whether observed, bins; and which (n, k) are those of a batch."""

    x: Tensor
    observed: Tensor
    bin: Tensor
    near: Tensor


class Weights(NamedTuple):
    """By which neighbours are weighed: a and b (p, p), c (p,) in `Attention`."""

    agree: Tensor
    distance: Tensor
    sharpness: Tensor


class Said(NamedTuple):
    """What neighbours say: mean and mean square of each column (n, p), and bins of the cells asked for (cells, b)."""

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
    """

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.agree = nn.Parameter(torch.full((n_columns, n_columns), -1.0))
        self.distance = nn.Parameter(torch.full((n_columns, n_columns), -1.0))
        self.sharpness = nn.Parameter(torch.full((n_columns,), math.log(10.0)))
        self.log_scale = nn.Parameter(torch.full((n_columns,), 0.5))  # of the bell around their mean
        self.exponent = nn.Parameter(torch.full((n_columns,), 0.3))  # of their histogram

    def forward(self, x: Tensor, observed: Tensor, rows: Neighbours, row: Tensor, column: Tensor, n_bins: int) -> Said:
        """Return what the neighbours of rows x (n, p) say of their columns, and of cells (row, column).

        Where nothing is learnt, by loops over rows: what is computed of a row stays in the nearest memory, and that is
        twice as fast. The gradient would not be.
        """
        weights = Weights(functional.softplus(self.agree), functional.softplus(self.distance), self.sharpness.exp())
        say = by_torch if torch.is_grad_enabled() or not x.is_cpu else by_loops
        return say(x, observed, rows, row, column, n_bins, weights)


def by_torch(
    x: Tensor, observed: Tensor, rows: Neighbours, row: Tensor, column: Tensor, n_bins: int, weights: Weights
) -> Said:
    """Return what neighbours say, from (n, k, p) numbers in every step."""
    (n, k), p = rows.near.shape, x.shape[1]
    near, there = (table.index_select(0, rows.near.flatten()).view(n, k, p) for table in (rows.x, rows.observed))
    apart = (x[:, None] - near).mul_(observed[:, None])
    alike = torch.exp(apart.abs() * -weights.sharpness) * (there * observed[:, None])
    logit = torch.add(alike @ weights.agree, there, alpha=float(LACKING)).flatten(0, 1)
    weight = torch.addmm(logit, apart.square_().flatten(0, 1), weights.distance, alpha=-1).view(n, k, p).softmax(1)
    part = weight * near
    own = _pick(weight, (row[:, None] * k + torch.arange(k, device=x.device)) * p + column[:, None])
    within = _pick(rows.bin, rows.near.index_select(0, row) * p + column[:, None])
    histogram = x.new_zeros(len(row), n_bins).scatter_add_(1, within, own)
    return Said(part.sum(1), (part * near).sum(1), histogram)


def _pick(table: Tensor, place: Tensor) -> Tensor:
    """Return elements of a table by their place in it, as `take` does in twice the time."""
    return table.flatten().index_select(0, place.flatten()).view_as(place)


def by_loops(
    x: Tensor, observed: Tensor, rows: Neighbours, row: Tensor, column: Tensor, n_bins: int, weights: Weights
) -> Said:
    """Return the same, each row by itself."""
    order = row.argsort(stable=True)
    start = torch.searchsorted(row[order], torch.arange(len(x) + 1))  # of the cells of each row, in this order
    factors = torch.cat((weights.agree, -weights.distance)).mT.contiguous()
    said = Said(torch.empty_like(x), torch.empty_like(x), x.new_zeros(len(row), n_bins))
    inputs = x, observed, *rows, column, order, start, weights.sharpness, factors
    arrays: list[Any] = [part.detach().numpy() for part in (*inputs, *said)]
    by_rows(len(x), lambda *part: _say(*arrays, *part))
    return said


@compiled(finite=True)
def _say(
    x: Floats,
    observed: Floats,
    near_x: Floats,
    near_observed: Floats,
    near_bin: Numbers,
    near: Numbers,
    column: Numbers,
    order: Numbers,
    start: Numbers,
    sharpness: Floats,
    factors: Floats,
    mean: Floats,
    square: Floats,
    histogram: Floats,
    first: int,
    last: int,
) -> None:
    """Write what is said of rows first to last."""
    k, p = near.shape[1], x.shape[1]
    values, there, pairs = np.empty((p, k), np.float32), np.empty((p, k), np.float32), np.empty((2 * p, k), np.float32)
    weights, power = np.empty((p, k), np.float32), np.empty(p * k, np.int32)
    for i in range(first, last):
        _compare(x[i], observed[i], near_x, near_observed, near[i], sharpness, values, there, pairs, power)
        np.dot(factors, pairs, weights)
        _normalise(weights, there, power)
        _average(weights, values, mean[i], square[i])
        for nth in range(start[i], start[i + 1]):
            cell, j = order[nth], column[order[nth]]
            for a in range(k):
                histogram[cell, near_bin[near[i, a], j]] += weights[j, a]


@compiled(finite=True)
def _normalise(weights: Floats, there: Floats, power: NDArray[np.int32]) -> None:
    """Replace the logits (p, k) of neighbours by weights that sum to one; those that lack a column have little."""
    p, k = weights.shape
    for j in range(p):
        most = weights[j, 0]
        for a in range(k):
            weights[j, a] += LACKING * there[j, a]
            most = max(most, weights[j, a])
        for a in range(k):
            weights[j, a] -= most
    _exp(weights.reshape(-1), power)
    for j in range(p):
        total = np.float32(0)
        for a in range(k):
            total += weights[j, a]
        for a in range(k):
            weights[j, a] /= total


@compiled(finite=True)
def _average(weights: Floats, values: Floats, mean: Floats, square: Floats) -> None:
    """Write mean and mean square (p,) of values (p, k)."""
    p, k = weights.shape
    for j in range(p):
        by_value, by_square = np.float32(0), np.float32(0)
        for a in range(k):
            by_value += weights[j, a] * values[j, a]
            by_square += weights[j, a] * values[j, a] * values[j, a]
        mean[j], square[j] = by_value, by_square


@compiled(finite=True)
def _compare(
    x: Floats,
    observed: Floats,
    near_x: Floats,
    near_observed: Floats,
    near: Numbers,
    sharpness: Floats,
    values: Floats,
    there: Floats,
    pairs: Floats,
    power: NDArray[np.int32],
) -> None:
    """Fetch the neighbours of one row (p, k), and write how far they agree with it, and squared distances (2 p, k)."""
    p, k = len(x), len(near)
    for a in range(k):
        for f in range(p):
            values[f, a], there[f, a] = near_x[near[a], f], near_observed[near[a], f]
    for f in range(p):
        for a in range(k):
            away = (x[f] - values[f, a]) * observed[f]
            pairs[f, a] = -sharpness[f] * abs(away)
            pairs[p + f, a] = away * away
    _exp(pairs[:p].reshape(-1), power)
    for f in range(p):
        for a in range(k):
            pairs[f, a] *= there[f, a] * observed[f]


@compiled(finite=True)
def _exp(x: Floats, power: NDArray[np.int32]) -> None:
    """Replace numbers (k,) by their exponentials; power (k,) is room to work in.

    Two to the power of a whole number is what its bits are, and the rest a short series. A loop that called a library
    would not be done eight numbers at a time.
    """
    for a in range(len(x)):
        twos = max(x[a], LEAST) / LOG_2
        whole = np.floor(twos + HALF)
        t = (twos - whole) * LOG_2
        power[a] = (np.int32(whole) + np.int32(127)) << np.int32(23) if x[a] > LEAST else np.int32(0)
        x[a] = ONE + t * (ONE + t * (SERIES[0] + t * (SERIES[1] + t * (SERIES[2] + t * (SERIES[3] + t * SERIES[4])))))
    two_to_whole = power.view(np.float32)
    for a in range(len(x)):
        x[a] *= two_to_whole[a]
