"""A table without a library of frames: what a file of text becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emflow.errors import DataError

Column = np.ma.MaskedArray[Any, Any]


@dataclass(frozen=True)
class MaskedTable:
    """Columns by name: NumPy's masked arrays, of one length, of numbers, truth values, datetime64, or objects."""

    columns: dict[str, Column]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns."""
        return len(next(iter(self.columns.values()), ())), len(self.columns)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in their order."""
        return list(self.columns)

    def select(self, names: Sequence[str]) -> MaskedTable:
        """Return some of the columns, in this order."""
        return MaskedTable({name: self.columns[name] for name in names})

    def take(self, rows: Any) -> MaskedTable:
        """Return some of the rows, by their number."""
        return MaskedTable({name: column[rows] for name, column in self.columns.items()})

    def put(self, filled: Mapping[str, tuple[Any, Sequence[Any]]]) -> MaskedTable:
        """Return the table with values in some rows of some columns: name -> (rows, values), dates in microseconds."""
        columns = dict(self.columns)
        for name, (rows, values) in filled.items():
            columns[name] = column = columns[name].copy()
            column[rows] = np.array(values, dtype="M8[us]") if column.dtype.kind == "M" else values
        return MaskedTable(columns)

    def check_names(self, estimator: Any, *, reset: bool) -> None:
        """Let an estimator learn the names of the columns, or compare them with those that it has learnt."""
        names = self.column_names
        if reset:
            estimator.feature_names_in_, estimator.n_features_in_ = np.array(names, dtype=object), len(names)
        elif names != (known := list(getattr(estimator, "feature_names_in_", ()))):
            raise DataError(f"the columns are {names}, but those of `fit` were {known}")
