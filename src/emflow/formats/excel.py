"""Excel: the first sheet of a workbook, with names in its first row. Formats and formulas stay."""

from __future__ import annotations

from datetime import datetime
from typing import Any, BinaryIO
from zipfile import BadZipFile

from openpyxl import Workbook, load_workbook
from openpyxl.utils import get_column_letter

from emflow.errors import DataError
from emflow.formats.source import CellSource, Kinds, check_names
from emflow.table.masked import MaskedTable


class ExcelSource(CellSource):
    """A workbook, as it is."""

    def __init__(self, title: str, file: BinaryIO, kinds: Kinds) -> None:
        try:
            self.workbook = load_workbook(file)
            sheet = load_workbook(file, data_only=True).worksheets[0]  # with the values of formulas
        except (BadZipFile, KeyError, IndexError) as error:
            raise DataError(f"{title} is not an Excel workbook (.xlsx): {error}") from error
        names, *rows = sheet.iter_rows(values_only=True) if sheet.max_row else [()]
        while names and names[-1] is None:
            names = names[:-1]
        names = check_names(title, names)
        while rows and not any(cell is not None for cell in rows[-1]):
            rows.pop()
        if not rows:
            raise DataError(f"{title} has no rows")
        self.letters = {name: get_column_letter(j + 1) for j, name in enumerate(names)}
        self._check_formulas(title, rows)
        columns = {name: [_day(row[j]) for row in rows] for j, name in enumerate(names)}
        super().__init__(title, "excel", columns, kinds, self._where, typed=True)

    def _where(self, row: int, name: str) -> str:
        return f"{self.title}, cell {self.letters[name]}{row + 2} of column {name!r}"

    def _check_formulas(self, title: str, rows: list[Any]) -> None:
        """Raise for a formula without a value: it is no hole."""
        sheet = self.workbook.worksheets[0]
        for i, row in enumerate(rows, start=2):
            for j in range(len(self.letters)):
                if row[j] is None and (cell := sheet.cell(i, j + 1)).value is not None:
                    raise DataError(
                        f"{title}, cell {cell.coordinate} is a formula whose value is not in the file: "
                        "save it with a spreadsheet program"
                    )

    def write(self, filled: MaskedTable, file: BinaryIO) -> None:
        """Write the workbook, with values in empty cells."""
        sheet = self.workbook.worksheets[0]
        for i, cells in self.changes(filled).items():
            for name, value in cells.items():
                sheet[f"{self.letters[name]}{i + 2}"] = value
        self.workbook.save(file)


def write_excel(frame: dict[str, list[Any]], file: BinaryIO) -> None:
    """Write columns of values as a workbook of one sheet."""
    workbook = Workbook(write_only=True)
    sheet = workbook.create_sheet()
    sheet.append(list(frame))
    for row in zip(*frame.values(), strict=True):
        sheet.append([_cell(value) for value in row])
    workbook.save(file)


def _day(cell: Any) -> Any:
    """Return a cell; Excel's days are moments, at midnight."""
    return cell.date() if isinstance(cell, datetime) and cell == datetime(cell.year, cell.month, cell.day) else cell


def _cell(value: Any) -> Any:
    """Return a value as Excel can hold it, whose times have no zones."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
