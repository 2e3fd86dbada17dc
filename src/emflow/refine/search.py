"""The search for the rows of a tree that are most like a row, compiled: each row by itself, in sums of few terms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emflow.compiled import compiled

NEVER = np.float32(-1e6)  # score of a row that is none
HALVINGS = 40  # of the range of scores, until what is left of it is rounding
ZERO, ONE, HALF = np.float32(0), np.float32(1), np.float32(0.5)  # else all would be computed in double precision
Floats = NDArray[np.float32]
Places = NDArray[np.int64]


class Tree(NamedTuple):
    """Reference rows in leaves, as the search reads them: r rows, p columns of t pieces, l leaves of m places.

    Attributes
    ----------
    left, width : array of shape (p, t)
        Of the pieces of the encoding.
    leaf : array of shape (l, m)
        Numbers of the rows in each leaf; -1 where there is none.
    place : array of shape (r, 2)
        Of each row: its leaf, and where in it.
    start : array of shape (l, m)
        What scores are added to: 0, or NEVER where there is no row.
    x, knot : array of shape (l, p, m)
        Values, and where among the knots of their column they lie: piece and share of it, or -1 if not observed. That
        is a tenth of the tents, so that it stays near the processor.
    middle : array of shape (p (t + 3) + 1, l)
        Mean of the rows in a leaf, for each column: of its tents, value and square. The last one is added to every sum.
    """

    left: Floats
    width: Floats
    leaf: Places
    place: Places
    start: Floats
    x: Floats
    knot: Floats
    middle: Floats


class Query(NamedTuple):
    """A row x (p,), the weight of its cells (p,), and the piece and the share of it that `locate` finds for each."""

    x: Floats
    weight: Floats
    piece: Places
    share: Floats


@compiled
def find(
    tree: Tree,
    x: Floats,
    weight: Floats,
    itself: Places,
    n_asked: int,
    hope: np.float32,
    far: np.float32,
    found: Places,
) -> None:
    """Write the numbers of the rows that are most like the rows x (n, p) into found (n, k), in no order.

    Parameters
    ----------
    weight : array of shape (n, p)
        Of the columns; 0 where x is not observed.
    itself : array of shape (n,)
        Number of each row among those of the tree, or -1; it is not found.
    n_asked : int
        How many leaves are searched.
    hope : float
        Standard deviations above the mean of its scores, by which a leaf is judged.
    far : float
        Weight of the squared distance in the score.
    """
    k, (n_leaves, m) = found.shape[1], tree.leaf.shape
    promise, spread = np.empty(n_leaves, np.float32), np.empty(n_leaves, np.float32)
    asked, best = np.empty(n_asked + 1, np.int64), np.empty(k + 1, np.int64)
    top = np.empty(max(n_asked, k), np.float32)
    score = np.empty((n_asked, m), np.float32)
    piece, share = np.empty(x.shape[1], np.int64), np.empty(x.shape[1], np.float32)
    for i in range(len(x)):
        for j in range(x.shape[1]):
            piece[j], share[j] = locate(x[i, j], tree.left[j], tree.width[j])
        query = Query(x[i], weight[i], piece, share)
        add_up(tree.middle, query, far, promise, spread)
        own = -1
        if itself[i] >= 0:
            own = tree.place[itself[i], 0]
            leave_out(tree, query, itself[i], far, promise, spread)
        for j in range(n_leaves):
            promise[j] += hope * np.sqrt(positive(spread[j]))
        select(promise, n_asked, top, asked)
        for j in range(n_asked):
            leaf = asked[j]
            compare(tree.knot[leaf], tree.x[leaf], tree.start[leaf], query, far, score[j])
            if leaf == own:
                score[j, tree.place[itself[i], 1]] = NEVER
        select(score.reshape(-1), k, top, best)
        for j in range(k):
            leaf = best[j] // m
            found[i, j] = tree.leaf[asked[leaf], best[j] - leaf * m]


@compiled
def locate(x: np.float32, left: Floats, width: Floats) -> tuple[int, np.float32]:
    """Return in which of the pieces (t,) of a column x lies, and the share of it that lies below x: less than 1.

    That share is the tent of its end at x, the rest the tent of its beginning, and the others are zero.
    """
    piece = 0
    for i in range(1, len(left)):
        piece += left[i] <= x
    share = (x - left[piece]) / width[piece]
    return (piece, positive(share)) if share < ONE else (piece + 1, ZERO)


@compiled
def positive(x: np.float32) -> np.float32:
    """Return x, or 0 if it is less; max() minds what is not a number, so that it takes one after the other."""
    return x if x > ZERO else ZERO


@compiled
def add_up(middle: Floats, query: Query, far: np.float32, mean: Floats, spread: Floats) -> None:
    """Write mean and variance (l,) of the scores in all leaves, from means (p (t + 3) + 1, l) of codes.

    Tents are taken to be either 0 or 1, so that their mean m tells their variance, m (1 - m), and squared distances to
    be all the same: to read variances of their own would take as long again, and find 1 % more of the best rows.
    """
    n_rows = len(middle) // len(query.x)
    for i in range(len(mean)):
        mean[i], spread[i] = middle[-1, i], ZERO
    for j in range(len(query.x)):
        if query.weight[j] != ZERO:
            one, two, three, four = terms(j, query.piece[j], n_rows)
            a, b, c, d = factors(j, query, far)
            for i in range(len(mean)):
                begin, end = middle[one, i], middle[two, i]
                mean[i] += (a * begin + b * end) + (c * middle[three, i] + d * middle[four, i])
                spread[i] += (a * a) * (begin - begin * begin) + (b * b) * (end - end * end)


@compiled
def terms(column: int, piece: int, n_rows: int) -> tuple[int, int, int, int]:
    """Return which rows of a code of n_rows for each column count for a cell: two tents, value and square."""
    begin, end = column * n_rows + piece, (column + 1) * n_rows
    return begin, begin + 1, end - 2, end - 1


@compiled
def factors(column: int, query: Query, far: np.float32) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    """Return by what they are multiplied in the score."""
    weight, share = query.weight[column], query.share[column]
    return (ONE - share) * weight, share * weight, (far + far) * weight * query.x[column], -far * weight


@compiled
def leave_out(tree: Tree, query: Query, itself: int, far: np.float32, mean: Floats, spread: Floats) -> None:
    """Write mean and variance (l,) of the scores for a row, in the leaf that it is in, of the other rows there.

    A row is most like itself, so that its own leaf would be searched more often than it deserves: where rows are that
    have its hidden values, too. What is learnt with their help would not hold for other rows.
    """
    leaf, place = tree.place[itself, 0], tree.place[itself, 1]
    others, n_rows = -ONE, len(tree.middle) // len(query.x)
    for i in range(tree.leaf.shape[1]):
        others += ONE if tree.leaf[leaf, i] >= 0 else ZERO
    mean[leaf], spread[leaf] = tree.middle[-1, leaf] if others > ZERO else NEVER, ZERO
    for j in range(len(query.x) if others > ZERO else 0):
        x, knot = tree.x[leaf, j, place], tree.knot[leaf, j, place] - np.float32(query.piece[j])
        code = (positive(ONE - abs(knot)), positive(ONE - abs(knot - ONE)), x, x * x)
        term, factor = terms(j, query.piece[j], n_rows), factors(j, query, far)
        for i in range(4):
            middle = ((others + ONE) * tree.middle[term[i], leaf] - code[i]) / others
            mean[leaf] += factor[i] * middle
            spread[leaf] += factor[i] * factor[i] * (middle - middle * middle) if i < 2 else ZERO


@compiled
def compare(knot: Floats, x: Floats, start: Floats, query: Query, far: np.float32, score: Floats) -> None:
    """Write the scores (m,) of the rows in a leaf, given what the tree has of it."""
    for i in range(len(score)):
        score[i] = start[i]
    for j in range(len(query.x)):
        weight, share, piece, asked = query.weight[j], query.share[j], np.float32(query.piece[j]), query.x[j]
        begin, end, away = (ONE - share) * weight, share * weight, far * weight
        if weight != ZERO and share == ZERO:  # at a knot, as most values of a column of few are
            for i in range(len(score)):
                distance = x[j, i] - asked
                score[i] += weight * positive(ONE - abs(knot[j, i] - piece)) - away * (distance * distance)
        elif weight != ZERO:
            for i in range(len(score)):
                place, distance = knot[j, i] - piece, x[j, i] - asked
                agree = begin * positive(ONE - abs(place)) + end * positive(ONE - abs(place - ONE))
                score[i] += agree - away * (distance * distance)


@compiled
def select(score: Floats, k: int, top: Floats, best: Places) -> None:
    """Write the places of the k largest scores (m,) into best (k + 1,), in no order; the last place there is not used.

    The least of them is found by halving: to count the scores above a limit takes less time than to move them. Among
    those that are equal, up to rounding, the first are taken. Dealt out to k heaps, the scores have k different ones on
    top (k,), so that the least of these is a limit to begin with; most of the others are below it.
    """
    for j in range(k):
        top[j] = score[j]
    for i in range(k, len(score), k):
        for j in range(min(k, len(score) - i)):
            top[j] = score[i + j] if score[i + j] > top[j] else top[j]
    low, high = top[0], top[0]
    for j in range(k):
        low, high = top[j] if top[j] < low else low, top[j] if top[j] > high else high
    limit = low
    for _ in range(HALVINGS):
        above = count_above(score, limit)
        if above >= k:
            low = limit
        if above <= k:
            high = limit
        if above == k or low == high:
            break
        limit = HALF * (low + high)
    n = 0
    for i in range(len(score)):
        best[n] = i
        n += score[i] > high
    for i in range(len(score)):
        if n == k:
            break
        best[n] = i
        n += low <= score[i] <= high


@compiled
def count_above(score: Floats, limit: np.float32) -> int:
    """Return how many scores (m,) are above a limit."""
    n = np.int32(0)
    for i in range(len(score)):
        n = np.int32(n + np.int32(score[i] > limit))  # 32 bits, as scores have: so many are counted at once
    return int(n)
