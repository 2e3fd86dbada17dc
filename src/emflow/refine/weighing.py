"""Weights of neighbours as compiled loops over rows: what they say, and the gradient of it.

A row is compared with its k neighbours in all of its p columns, which gives 2 p numbers for each: how far cells agree,
and their squared distances. Products with factors, 2 p for each column, are the logits of `attention.Attention`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emflow.compiled import compiled

LACKING = np.float32(30)  # by which the logit of a neighbour is less if it lacks the column
LEAST = np.float32(-40)  # exponentials of less are zero: products of such small numbers would be slow
FEW = 16  # columns for which products are loops: a library would take longer to begin
ZERO, ONE, HALF, LOG_2 = np.float32(0), np.float32(1), np.float32(0.5), np.float32(math.log(2))
SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(2, 7))

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


class Question(NamedTuple):
    """What is asked of neighbours, as the loops read it: n rows of p columns.

    Attributes
    ----------
    x, observed : array of shape (n, p)
    beside, bin, near
        As in `attention.Neighbours`.
    column, order : array of shape (cells,)
        Columns of the cells asked for, and these cells in the order of their rows.
    start : array of shape (n + 1,)
        Where in this order each row begins.
    columns, place : array of shape (c,), (p,)
        Those that are wanted in every row, and where in this list each column is; -1 if it is not.
    """

    x: Floats
    observed: Floats
    beside: Floats
    bin: NDArray[np.int16]
    near: Numbers
    column: Numbers
    order: Numbers
    start: Numbers
    columns: Numbers
    place: Numbers


@compiled(finite=True)
def say(
    question: Question,
    factors: Floats,
    sharpness: Floats,
    mean: Floats,
    square: Floats,
    histogram: Floats,
    first: int,
    last: int,
) -> None:
    """Write what neighbours say of rows first to last: mean, square (n, p) and histogram (cells, b), which are zero.

    By factors (p, 2 p), of each column that may be filled, and sharpness (p,).
    """
    x, observed, beside, near_bin, near, column, order, start, columns, place = question
    k, p = near.shape[1], x.shape[1]
    values, pairs = np.empty((2 * p, k), np.float32), np.empty((2 * p, k), np.float32)
    weights, own = np.empty((len(columns), k), np.float32), np.empty((1, k), np.float32)
    power, wanted = np.empty(p * k, np.int32), factors[columns]
    for i in range(first, last):
        compare(x[i], observed[i], beside, near[i], sharpness, values, pairs, power)
        multiply(wanted, pairs, weights)
        weigh(weights, columns, values, power, mean[i], square[i])
        for nth in range(start[i], start[i + 1]):
            cell, at = order[nth], column[order[nth] : order[nth] + 1]
            if place[at[0]] < 0:
                multiply(factors[at[0] : at[0] + 1], pairs, own)
                weigh(own, at, values, power, mean[i], square[i])
            weight = own[0] if place[at[0]] < 0 else weights[place[at[0]]]
            for a in range(k):
                histogram[cell, near_bin[near[i, a], at[0]]] += weight[a]


@compiled(finite=True)
def slopes(
    question: Question,
    factors: Floats,
    sharpness: Floats,
    by_mean: Floats,
    by_square: Floats,
    by_histogram: Floats,
    by_factors: Floats,
    by_sharpness: Floats,
    first: int,
    last: int,
) -> None:
    """Add up the gradient by factors (p, 2 p) and sharpness (p,) over rows first to last, given that by what is said.

    What `say` has computed is computed again: to keep it would take longer.
    """
    x, observed, beside, near_bin, near, column, order, start, columns, place = question
    k, p = near.shape[1], x.shape[1]
    values, pairs, agree = (
        np.empty((2 * p, k), np.float32),
        np.empty((2 * p, k), np.float32),
        np.empty((p, k), np.float32),
    )
    weights, by_weights = np.empty((len(columns), k), np.float32), np.empty((len(columns), k), np.float32)
    own, by_own, total = np.empty((1, k), np.float32), np.empty((1, k), np.float32), np.zeros_like(factors[columns])
    power, wanted, unused = np.empty(p * k, np.int32), factors[columns], np.empty(p, np.float32)
    for i in range(first, last):
        compare(x[i], observed[i], beside, near[i], sharpness, values, pairs, power)
        multiply(wanted, pairs, weights)
        weigh(weights, columns, values, power, unused, unused)
        by_moments(columns, values, by_mean[i], by_square[i], by_weights)
        agree[:] = ZERO
        for nth in range(start[i], start[i + 1]):
            cell, at = order[nth], column[order[nth] : order[nth] + 1]
            if place[at[0]] >= 0:
                for a in range(k):
                    by_weights[place[at[0]], a] += by_histogram[cell, near_bin[near[i, a], at[0]]]
                continue
            multiply(factors[at[0] : at[0] + 1], pairs, own)
            weigh(own, at, values, power, unused, unused)
            by_moments(at, values, by_mean[i], by_square[i], by_own)
            for a in range(k):
                by_own[0, a] += by_histogram[cell, near_bin[near[i, a], at[0]]]
            pull_back(own, by_own, factors[at[0] : at[0] + 1], pairs, by_factors[at[0] : at[0] + 1], agree)
        pull_back(weights, by_weights, wanted, pairs, total, agree)
        for f in range(p):
            change = ZERO
            for a in range(k):
                change += agree[f, a] * pairs[f, a] * np.sqrt(pairs[p + f, a])
            by_sharpness[f] -= change
    for nth in range(len(columns)):
        by_factors[columns[nth]] += total[nth]


@compiled(finite=True)
def by_moments(columns: Numbers, values: Floats, by_mean: Floats, by_square: Floats, by_weights: Floats) -> None:
    """Write the gradient by weights (c, k) for columns (c,), given those by their mean and mean square (p,)."""
    for nth in range(len(columns)):
        j = columns[nth]
        for a in range(by_weights.shape[1]):
            by_weights[nth, a] = values[j, a] * (by_mean[j] + by_square[j] * values[j, a])


@compiled(finite=True)
def pull_back(
    weights: Floats, by_weights: Floats, factors: Floats, pairs: Floats, by_factors: Floats, by_agree: Floats
) -> None:
    """Add the gradients by factors (c, 2 p) and by how far cells agree (p, k), given that by weights (c, k).

    The latter is replaced by that of the logits.
    """
    p, k = by_agree.shape
    for nth in range(len(weights)):
        middle = ZERO
        for a in range(k):
            middle += weights[nth, a] * by_weights[nth, a]
        for a in range(k):
            by_weights[nth, a] = weights[nth, a] * (by_weights[nth, a] - middle)
    if len(weights) > FEW:
        by_factors += np.dot(by_weights, pairs.T)
        by_agree += np.dot(np.ascontiguousarray(factors[:, :p].T), by_weights)
        return
    for nth in range(len(weights)):
        for f in range(2 * p):
            change = ZERO
            for a in range(k):
                change += by_weights[nth, a] * pairs[f, a]
            by_factors[nth, f] += change
        for f in range(p):
            for a in range(k):
                by_agree[f, a] += factors[nth, f] * by_weights[nth, a]


@compiled(finite=True)
def multiply(factors: Floats, pairs: Floats, logits: Floats) -> None:
    """Write the product (c, k) of (c, 2 p) and (2 p, k)."""
    if len(factors) > FEW:
        np.dot(factors, pairs, logits)
        return
    for nth in range(len(factors)):
        logits[nth] = ZERO
        for f in range(0, len(pairs), 2):
            one, two = factors[nth, f], factors[nth, f + 1]
            for a in range(logits.shape[1]):
                logits[nth, a] += one * pairs[f, a] + two * pairs[f + 1, a]


@compiled(finite=True)
def weigh(
    weights: Floats, columns: Numbers, values: Floats, power: NDArray[np.int32], mean: Floats, square: Floats
) -> None:
    """Replace the logits (c, k) of neighbours for columns (c,) by weights that sum to one.

    Those that lack a column have little weight. Write mean and mean square of these columns into (p,).
    """
    k, p = weights.shape[1], len(values) // 2
    for nth in range(len(columns)):
        there, most = values[p + columns[nth]], weights[nth, 0]
        for a in range(k):
            weights[nth, a] += LACKING * there[a]
            most = max(most, weights[nth, a])
        for a in range(k):
            weights[nth, a] -= most
    exp(weights.reshape(-1), power)
    for nth in range(len(columns)):
        j, total = columns[nth], ZERO
        for a in range(k):
            total += weights[nth, a]
        by_value, by_square = ZERO, ZERO
        for a in range(k):
            weights[nth, a] /= total
            by_value += weights[nth, a] * values[j, a]
            by_square += weights[nth, a] * values[j, a] * values[j, a]
        mean[j], square[j] = by_value, by_square


@compiled(finite=True)
def compare(
    x: Floats,
    observed: Floats,
    beside: Floats,
    near: Numbers,
    sharpness: Floats,
    values: Floats,
    pairs: Floats,
    power: NDArray[np.int32],
) -> None:
    """Fetch the neighbours of one row, values and whether observed, and compare them with it, all (2 p, k)."""
    p, k = len(x), len(near)
    there, rows = values[p:], pairs.reshape(k, 2 * p)  # which are written later
    for a in range(k):  # as they lie, and then turned: both are faster than one, as memory is asked for at once
        row = beside[near[a]]
        for f in range(2 * p):
            rows[a, f] = row[f]
    for a in range(k):
        for f in range(2 * p):
            values[f, a] = rows[a, f]
    for f in range(p):
        for a in range(k):
            away = (x[f] - values[f, a]) * observed[f]
            pairs[f, a] = -sharpness[f] * abs(away)
            pairs[p + f, a] = away * away
    exp(pairs[:p].reshape(-1), power)
    for f in range(p):
        for a in range(k):
            pairs[f, a] *= there[f, a] * observed[f]


@compiled(finite=True)
def exp(x: Floats, power: NDArray[np.int32]) -> None:
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
