"""What conditioning needs to know of the missing values before it sees any number: which blocks, of which rows.

The rows of a table have a fixed pattern of missing values, while the Gaussian changes at every step. So the patterns
are found once per table (`Patterns`) and laid out once per batch (`Layout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

WIDE = 1000  # from this many columns on, rows hardly ever share a pattern: it is not looked for
LARGE_BLOCK = 700  # above this size, conjugate gradients take the place of a block's factorisation
SMALL_GROUP = 2**14  # blocks with fewer entries than this in all are not worth a dozen operations of their own
SMALL_BATCH = 2**15  # a batch with fewer entries is one group, its rows as they come
LARGE_GROUP = 2**21  # blocks with more entries are not factorised at once: 16 MiB in double precision


@dataclass(frozen=True)
class Group:
    """Blocks of about the same size k, padded to the largest of them."""

    index: Tensor  # (blocks, k): the coordinates of the block, then, as padding, others of p to 2 p - 1; no two alike
    count: Tensor  # (blocks,): how many rows have this block
    which: Tensor | None  # (rows,): the block of each row; None if that is the row's own, in order
    cells: Tensor  # (rows, k): where the block of each row lies in a flattened (n, p) matrix

    def total(self, weight: Tensor, p: int) -> Tensor:
        """Sum, for each block (blocks,), the weights of its rows; `weight` (n,) has those of all rows of the batch."""
        own = weight.index_select(0, self.cells[:, 0] // p)
        return own if self.which is None else own.new_zeros(len(self.count)).index_add_(0, self.which, own)


@dataclass(frozen=True)
class Layout:
    """The blocks of a batch of rows: the missing coordinates of a row, or the observed ones where these are fewer."""

    missing: Tensor  # (n, p), True where a value is missing
    by_missing: list[Group]
    by_observed: list[Group]
    n_by_observed: int  # rows that go by their observed coordinates, those with none of them included
    too_large: Tensor | None = None  # (rows,): the numbers of rows with a block too large to be factorised


class Patterns:
    """The distinct rows of `missing` (n, p), most missing values first, each with its coordinates sorted alike."""

    def __init__(self, missing: Tensor) -> None:
        self.missing = missing
        if missing.shape[1] >= WIDE:
            return
        which, table = _distinct(missing)
        self.n_missing, by_size = table.sum(1).sort(descending=True, stable=True)
        self.which = by_size.argsort().index_select(0, which)  # the pattern of each row
        self.order = _missing_first(table.index_select(0, by_size))

    def layout(self, rows: Tensor) -> Layout:
        """Lay out the blocks of some rows, given by number."""
        missing = self.missing.index_select(0, rows)  # several times faster than plain indexing, here and below
        if missing.shape[1] >= WIDE:
            return self._layout_wide(missing)
        p = missing.shape[1]
        pattern = self.which.index_select(0, rows)
        first = int(pattern.min())  # the pattern with most missing values
        k = int(self.n_missing[first])
        if 2 * k <= p and 0 < len(rows) * k**2 <= SMALL_BATCH:
            return Layout(missing, [self._one_group(pattern, k)], [], 0)
        # the rows in the order of their patterns, and these patterns, still by falling size
        pattern, row = pattern.sort(stable=True)
        used, which, count = torch.unique_consecutive(pattern, return_inverse=True, return_counts=True)
        size, order = self.n_missing.index_select(0, used), self.order.index_select(0, used)
        return _sides(missing, size, order, count, which, row)

    def _layout_wide(self, missing: Tensor) -> Layout:
        """Take each row's pattern as its own."""
        p = missing.shape[1]
        size, row = missing.sum(1).sort(descending=True, stable=True)
        large = torch.minimum(size, p - size) > LARGE_BLOCK
        too_large, size, row = row[large], size[~large], row[~large]
        order = _missing_first(missing.index_select(0, row))
        layout = _sides(missing, size, order, torch.ones_like(size), torch.arange(len(row), device=row.device), row)
        return replace(layout, too_large=too_large) if len(too_large) else layout

    def _one_group(self, pattern: Tensor, k: int) -> Group:
        """Take each row's block as its own: looking for repeated ones would cost more than it saves."""
        p = self.order.shape[1]
        index = self.order.index_select(0, pattern)[:, :k].int()
        size = self.n_missing.index_select(0, pattern)
        row = torch.arange(len(pattern), device=pattern.device)
        return Group(_pad(index, size, p), torch.ones_like(size), None, row[:, None] * p + index)


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of each row's equal among the distinct rows of a boolean (n, p), and these rows."""
    bits = 2 ** torch.arange(62, device=rows.device)
    words = [(part * bits[: part.shape[1]]).sum(1) for part in rows.split(62, dim=1)]
    if len(words) == 1:
        which = torch.unique(words[0], return_inverse=True)[1]
    else:
        which = torch.unique(torch.stack(words, 1), dim=0, return_inverse=True)[1]
    table = torch.empty((int(which.max()) + 1, rows.shape[1]), dtype=torch.bool, device=rows.device)
    table[which] = rows  # equal rows write the same values
    return which, table


def _missing_first(table: Tensor) -> Tensor:
    """Order the coordinates of every row of a boolean (n, p): the True ones, then the others, both as they come."""
    p = table.shape[1]
    rank = table.cumsum(1)  # among the True ones, counted from 1
    coordinate = torch.arange(p, device=table.device)
    place = torch.where(table, rank - 1, rank[:, -1:] - rank + coordinate)
    narrow = coordinate.to(torch.int16)  # since there may be as many patterns as rows
    return torch.empty_like(place, dtype=torch.int16).scatter_(1, place, narrow.expand_as(place))


def _pad(index: Tensor, size: Tensor, p: int) -> Tensor:
    """Move the coordinates beyond each block's size from 0 ... p - 1 to p ... 2 p - 1."""
    return index.add(torch.arange(index.shape[1], device=size.device) >= size[:, None], alpha=p)


def _sides(missing: Tensor, size: Tensor, order: Tensor, count: Tensor, which: Tensor, row: Tensor) -> Layout:
    """Lay out rows by their smaller side, given their patterns by falling number of missing values `size`.

    `order` has the coordinates of each pattern, missing ones first, `count` its number of rows; `which` and `row` have
    the pattern and the number of each row, in the order of the patterns.
    """
    p, order = missing.shape[1], order.int()
    by_observed: list[Group] = []
    n_rows = 0
    if (
        len(size) and 2 * int(size[0]) > p
    ):  # patterns with more missing than observed coordinates go by the observed ones
        n_patterns = int((2 * size > p).sum())
        n_rows = int(count[:n_patterns].sum())
        by_observed = _groups(
            (p - size[:n_patterns]).flip(0), order[:n_patterns].flip(0, 1), count[:n_patterns].flip(0),
            (n_patterns - 1 - which[:n_rows]).flip(0), row[:n_rows].flip(0),
        )  # fmt: skip
        size, order, count = size[n_patterns:], order[n_patterns:], count[n_patterns:]
        which, row = which[n_rows:] - n_patterns, row[n_rows:]
    return Layout(missing, _groups(size, order, count, which, row), by_observed, n_rows)


def _groups(size: Tensor, order: Tensor, count: Tensor, which: Tensor, row: Tensor) -> list[Group]:
    """Group blocks that are sorted by falling size; `which` and `row`, one entry per row, are sorted alike."""
    groups: list[Group] = []
    if not len(size):
        return groups
    p, order = order.shape[1], order[:, : int(size[0])]
    index = _pad(order, size, p)
    cells = row[:, None] * p + order.index_select(0, which)
    ends = count.cumsum(0).tolist()
    for start, stop, k in _cuts(size):
        first, last = ends[start - 1] if start else 0, ends[stop - 1]
        repeated = last - first > stop - start
        block = which[first:last] - start if repeated else None
        groups.append(Group(index[start:stop, :k], count[start:stop], block, cells[first:last, :k]))
    return groups


def _cuts(sizes: Tensor) -> Iterator[tuple[int, int, int]]:
    """Cut blocks, sorted by falling size, into runs (start, stop, largest size) of little padding.

    Blocks of size zero are in none. A run ends where sizes fall to three quarters of its largest one, if it is large
    enough by then, or where it holds as many entries as may be factorised at once.
    """
    starts, position, largest = [0], 0, 0
    for size, count in reversed(list(enumerate(torch.bincount(sizes).tolist()))):
        if not (size and count):
            continue
        largest = largest or size
        if 4 * size <= 3 * largest and (position - starts[-1]) * largest**2 >= SMALL_GROUP:
            largest = size
            starts.append(position)
        position += count
    for start, stop in pairwise([*starts, position]):
        limit = 1 + LARGE_GROUP // (1 + int(sizes[start]) ** 2)
        for first in range(start, stop, limit):
            yield first, min(first + limit, stop), int(sizes[first])
