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
LEAST = np.float32(
    -40
)  # exponentials of less are zero: products of such small numbers would take a hundred times as long
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

        On a processor by compiled loops; elsewhere by torch, with (n, k, p) numbers in memory for each operation.
        """
        agree, distance = functional.softplus(self.agree), functional.softplus(self.distance)
        factors, sharpness = torch.cat((agree, -distance)).mT.contiguous(), self.sharpness.exp()
        given = x, observed, rows, row, column, n_bins, factors, sharpness
        return Said(*_Weighed.apply(*given)) if x.is_cpu else plain(*given)  # type: ignore[no-untyped-call]


def plain(
    x: Tensor,
    observed: Tensor,
    rows: Neighbours,
    row: Tensor,
    column: Tensor,
    n_bins: int,
    factors: Tensor,
    sharpness: Tensor,
) -> Said:
    """Return what neighbours say, with a_fj and -b_fj in factors[j] (p, 2 p) and c = sharpness (p,), step by step."""
    near, there, within = (table[rows.near] for table in rows[:3])
    apart = (x[:, None] - near) * observed[:, None]
    alike = torch.exp(-sharpness * apart.abs()) * (there * observed[:, None])
    weight = (torch.cat((alike, apart.square()), 2) @ factors.mT + float(LACKING) * there).softmax(1)
    histogram = x.new_zeros(len(row), n_bins).scatter_add(1, within[row, :, column], weight[row, :, column])
    return Said((weight * near).sum(1), (weight * near.square()).sum(1), histogram)


class _Weighed(torch.autograd.Function):
    """The same with its gradient, row by row, so that what is computed of a row stays in the nearest memory."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        observed: Tensor,
        rows: Neighbours,
        row: Tensor,
        column: Tensor,
        n_bins: int,
        factors: Tensor,
        sharpness: Tensor,
    ) -> tuple[Tensor, ...]:
        (n, p), k = x.shape, rows.near.shape[1]
        order = row.argsort(stable=True)
        start = torch.searchsorted(row[order], torch.arange(n + 1))  # of the cells of each row, in this order
        inputs = x, observed, *rows, column, order, start, sharpness, factors
        given: list[Any] = [part.detach().numpy() for part in inputs]
        said = x.new_empty(n, p), x.new_empty(n, p), x.new_zeros(len(row), n_bins)
        kept = x.new_empty(n if any(ctx.needs_input_grad) else 0, p, k)  # weights of the neighbours
        arrays = [*given, *(part.numpy() for part in (*said, kept))]
        by_rows(n, lambda *part: _say(*arrays, *part))
        ctx.given, ctx.kept = given, arrays[-1]
        return said

    @staticmethod
    def backward(ctx: Any, *said: Tensor) -> tuple[Tensor | None, ...]:
        *given, sharpness, factors = ctx.given
        n_columns = len(factors)
        agree = np.ascontiguousarray(factors[:, :n_columns].T)
        changes = torch.zeros(2 * n_columns, n_columns), torch.zeros(n_columns)
        gradients = [part.contiguous().numpy() for part in said]
        arrays = [*given, sharpness, agree, ctx.kept, *gradients, *(part.numpy() for part in changes)]
        _learn(*arrays)
        return *[None] * 6, changes[0].mT, changes[1]


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
    kept: Floats,
    first: int,
    last: int,
) -> None:
    """Write what is said of rows first to last; keep the weights (n, p, k) if there is room for them."""
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
        if len(kept):
            _copy(weights, kept[i])


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
def _copy(source: Floats, target: Floats) -> None:
    for j in range(len(source)):
        for a in range(source.shape[1]):
            target[j, a] = source[j, a]


@compiled(finite=True)
def _learn(
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
    agree: Floats,
    kept: Floats,
    of_mean: Floats,
    of_square: Floats,
    of_histogram: Floats,
    of_factors: Floats,
    of_sharpness: Floats,
) -> None:
    """Add the gradients of factors (2 p, p) and sharpness (p,), given those of what was said."""
    (n, k), p = near.shape, x.shape[1]
    values, there, pairs = np.empty((p, k), np.float32), np.empty((p, k), np.float32), np.empty((2 * p, k), np.float32)
    logits, of_alike, power = np.empty((p, k), np.float32), np.empty((p, k), np.float32), np.empty(p * k, np.int32)
    change = np.empty((2 * p, p), np.float32)
    for i in range(n):
        _compare(x[i], observed[i], near_x, near_observed, near[i], sharpness, values, there, pairs, power)
        _of_moments(values, of_mean[i], of_square[i], logits)
        for nth in range(start[i], start[i + 1]):
            cell, j = order[nth], column[order[nth]]
            for a in range(k):
                logits[j, a] += of_histogram[cell, near_bin[near[i, a], j]]
        _of_logits(kept[i], logits)
        np.dot(pairs, logits.T, change)
        np.dot(agree, logits, of_alike)
        _add(change, of_factors)
        _add_sharpness(pairs, of_alike, of_sharpness)


@compiled(finite=True)
def _of_moments(values: Floats, of_mean: Floats, of_square: Floats, of_weights: Floats) -> None:
    """Write the gradient of weights (p, k), given those of mean and mean square (p,)."""
    p, k = values.shape
    for j in range(p):
        for a in range(k):
            of_weights[j, a] = values[j, a] * (of_mean[j] + of_square[j] * values[j, a])


@compiled(finite=True)
def _of_logits(weights: Floats, gradient: Floats) -> None:
    """Replace the gradient of weights (p, k) by that of their logits."""
    p, k = weights.shape
    for j in range(p):
        common = np.float32(0)
        for a in range(k):
            common += weights[j, a] * gradient[j, a]
        for a in range(k):
            gradient[j, a] = weights[j, a] * (gradient[j, a] - common)


@compiled(finite=True)
def _add_sharpness(pairs: Floats, of_alike: Floats, of_sharpness: Floats) -> None:
    """Add the gradient of the sharpness (p,), given that of how far cells agree (p, k)."""
    p, k = of_alike.shape
    for f in range(p):
        total = np.float32(0)
        for a in range(k):
            total += of_alike[f, a] * pairs[f, a] * np.sqrt(pairs[p + f, a])
        of_sharpness[f] -= total


@compiled(finite=True)
def _add(part: Floats, total: Floats) -> None:
    for i in range(len(part)):
        for j in range(part.shape[1]):
            total[i, j] += part[i, j]


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
