"""How sure an imputer is of what it fills in, column by column, and the cells of which it is least sure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emflow.evaluation import COVERAGE, fill_numbers, settle, values_of
from emflow.plot.canvas import number
from emflow.staged import WITHOUT_INTERVAL, StagedImputer
from emflow.table.column import DAY, EPOCH, Column

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
WORST, OF_A_COLUMN = 15, 3  # cells that are named, and how many of the same column


@dataclass(frozen=True)
class Filling:
    """What a fitted imputer fills into a table of n rows and p columns, and how sure it is.

    Attributes
    ----------
    observed, filled, low, high : ndarray of shape (n, width)
        The numbers of the table, NaN where missing; all of them, holes filled; and the ends of 90 % intervals.
    missing : ndarray of shape (n, p)
    """

    imputer: StagedImputer
    observed: Array
    filled: Array
    low: Array
    high: Array
    missing: Mask

    @classmethod
    def of(cls, imputer: StagedImputer, X: Any) -> Filling:
        """Fill the holes of X."""
        layout = imputer._layout
        observed, filled = fill_numbers(imputer, X)
        low, high = (layout.encode(end, "missing") for end in imputer.intervals(X, COVERAGE))
        return cls(imputer, observed, filled, low, high, layout.by_column(np.isnan(observed)))

    def values(self, j: int) -> tuple[Array, Array]:
        """Return the observed and the imputed values of a column, as `evaluation.values_of` has them."""
        column, at = list(self.imputer._layout.places())[j]
        holes = self.missing[:, j]
        imputed = settle(column, self.filled[holes, at])
        return values_of(column, self.observed[~holes, at]), values_of(column, imputed)

    def doubts(self) -> list[Doubts]:
        """Return how sure it is of each column with holes, from the widest intervals to the least; then categories."""
        columns = enumerate(self.imputer._layout.places())
        found = [self._doubts(j, column, at) for j, (column, at) in columns if self.missing[:, j].any()]
        return sorted(found, key=lambda each: (each.is_share, each.typical if each.is_share else -each.typical))

    def _doubts(self, j: int, column: Column, at: slice) -> Doubts:
        rows, is_share = np.flatnonzero(self.missing[:, j]), column.kind in WITHOUT_INTERVAL
        if is_share:
            amount = column.probabilities(self.filled[rows, at]).max(1)
            worst = np.argsort(amount, kind="stable")
        else:
            spread = np.nanstd(self.observed[:, at])
            width = (self.high[rows, at] - self.low[rows, at])[:, 0]
            amount = width / spread if spread > 0 else np.zeros(len(rows))
            worst = np.argsort(-amount, kind="stable")
        cells = [self._cell(column, at, int(rows[k]), float(amount[k])) for k in worst[:OF_A_COLUMN]]
        return Doubts(str(column.name), is_share, len(rows), float(np.median(amount)), cells)

    def _cell(self, column: Column, at: slice, row: int, amount: float) -> Cell:
        interval = ""
        if column.kind not in WITHOUT_INTERVAL:
            interval = f"{shown(column, self.low[row, at])} to {shown(column, self.high[row, at])}"
        return Cell(row, str(column.name), shown(column, self.filled[row, at]), interval, amount)


@dataclass(frozen=True)
class Cell:
    """A cell that was filled.

    Attributes
    ----------
    value, interval : str
        What was filled in, and from where to where it may lie.
    amount : float
        How wide that is, in standard deviations of the column; or how probable the category is.
    """

    row: int
    column: str
    value: str
    interval: str
    amount: float


@dataclass(frozen=True)
class Doubts:
    """How sure the imputer is of a column.

    Attributes
    ----------
    is_share : bool
        Whether amounts are probabilities, or widths of intervals.
    n_filled : int
    typical : float
        The median of the amounts.
    worst : list of Cell
    """

    column: str
    is_share: bool
    n_filled: int
    typical: float
    worst: list[Cell]


def worst_cells(doubts: list[Doubts], is_share: bool) -> list[Cell]:
    """Return the cells with the widest intervals, or the least probable categories, first; a few of each column."""
    cells = [cell for each in doubts if each.is_share == is_share for cell in each.worst]
    return sorted(cells, key=lambda cell: cell.amount if is_share else -cell.amount)[:WORST]


def shown(column: Column, code: Array) -> str:
    """Return the numbers of a cell (width,) as text: a date, a category, or a number to four digits."""
    value = column.decode(code[None])[0]
    if column.kind == "date":
        moment = EPOCH + timedelta(microseconds=value)
        return str(moment.date() if column.step == DAY else moment)
    return number(value) if column.kind == "continuous" else str(value)
