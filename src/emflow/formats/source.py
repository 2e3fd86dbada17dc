"""What reading a file gives: a table for the imputers, and the file, to be written again with its holes filled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from emflow.errors import DataError
from emflow.formats.cells import parse
from emflow.table.masked import MaskedTable

Kinds = Mapping[str, str]


class Source(ABC):
    """A file that was read.

    Attributes
    ----------
    title : str
        The name of the file, for errors.
    form : str
        Its format.
    frame : MaskedTable or pyarrow.Table
        What the imputers take.
    """

    title: str
    form: str
    frame: Any

    def holds(self, name: str) -> str | None:
        """Return what a column holds, where its type says it: numbers, dates, truth values, or texts."""
        return None

    @abstractmethod
    def write(self, filled: Any, file: BinaryIO) -> None:
        """Write the file again, with what is filled in its frame; everything else as it is."""


class CellSource(Source):
    """A file of cells, in which those that are filled are written anew, one by one, in the style of their column."""

    def __init__(
        self,
        title: str,
        form: str,
        columns: Mapping[str, Sequence[Any]],
        kinds: Kinds,
        where: Callable[[int, str], str],
        *,
        typed: bool,
    ) -> None:
        self.title, self.form = title, form
        self.parsed = {
            name: parse(cells, kinds.get(name), lambda row, name=name: where(row, name), typed=typed)  # type: ignore[misc]
            for name, cells in columns.items()
        }
        self.frame = MaskedTable({name: parsed.values for name, parsed in self.parsed.items()})

    def changes(self, filled: MaskedTable) -> dict[int, dict[str, Any]]:
        """Return the cells that are to be written anew: row -> name -> cell."""
        changes: dict[int, dict[str, Any]] = defaultdict(dict)
        for name, parsed in self.parsed.items():
            before, after = parsed.values, filled.columns[name]
            holes = np.ma.getmaskarray(before) | np.asarray(before.data != after.data, dtype=bool)
            rows = np.flatnonzero(holes & ~np.ma.getmaskarray(after))
            for row, value in zip(rows.tolist(), after[rows].tolist(), strict=True):
                changes[row][name] = parsed.to_cell(value)
        return changes


def check_names(title: str, names: Sequence[Any]) -> list[str]:
    """Return the names of columns as texts; raise if two are the same, or there are none."""
    texts = ["" if name is None else str(name) for name in names]
    if not texts:
        raise DataError(f"{title} has no columns")
    if twice := [name for name in texts if texts.count(name) > 1]:
        raise DataError(f"{title} has two columns of the name {twice[0]!r}: rename one")
    return texts
