"""A numeric CSV file in and out. The text of observed cells is kept as it is; only the holes are written anew."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emflow.errors import DataError

Array = NDArray[np.float64]

MISSING = frozenset({"", "na", "nan", "n/a", "null", "none", "?"})  # in lower case, without spaces around


@dataclass(frozen=True)
class CsvTable:
    """Header (None if the file has none), cells as text, and as numbers with NaN where missing (n, p)."""

    header: list[str] | None
    cells: list[list[str]]
    X: Array
    delimiter: str

    def name(self, j: int) -> str:
        """Return the name of column j as the user knows it."""
        return repr(self.header[j]) if self.header else str(j + 1)


def read_csv(path: str | os.PathLike[str], *, has_header: bool = True, delimiter: str = ",") -> CsvTable:
    """Read a CSV file of numbers.

    Raises
    ------
    DataError
        Naming line and column of text that is neither a number nor a mark for missing values, or of a line with too
        few or too many cells.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            lines = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file of text in UTF-8: {error}") from error
    header = lines.pop(0)[1] if has_header and lines else None
    if not lines:
        raise DataError(f"{path} has no rows")
    width = len(header) if header else len(lines[0][1])
    for number, row in lines:
        if len(row) != width:
            raise DataError(f"{path}, line {number}: {len(row)} cells, but the table has {width} columns")
    table = CsvTable(header, [row for _, row in lines], np.empty((len(lines), width)), delimiter)
    for i, (number, row) in enumerate(lines):
        for j, cell in enumerate(row):
            try:
                table.X[i, j] = np.nan if cell.strip().lower() in MISSING else float(cell)
            except ValueError:
                where = f"{path}, line {number}, column {table.name(j)}"
                raise DataError(f"{where}: {cell!r} is not a number; encode or drop the column") from None
    return table


def write_csv(path: str | os.PathLike[str], table: CsvTable, filled: Array) -> None:
    """Write the table with its holes filled; whole or not at all."""
    path = Path(path)
    holes = np.isnan(table.X)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=table.delimiter, lineterminator="\n")
            if table.header:
                writer.writerow(table.header)
            for cells, hole, values in zip(table.cells, holes, filled, strict=True):
                writer.writerow(
                    [f"{v:.8g}" if h else c for c, h, v in zip(cells, hole, values, strict=True)]
                    if hole.any()
                    else cells
                )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
