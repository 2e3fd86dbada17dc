"""CSV and TSV: lines in which nothing but the holes is changed, not even the quotes."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from emflow.errors import DataError
from emflow.formats.source import CellSource, Kinds, check_names
from emflow.table.masked import MaskedTable

BOM = "\ufeff"


class DelimitedSource(CellSource):
    """A CSV or TSV file: its records as they are, with their line ends."""

    def __init__(self, title: str, form: str, file: BinaryIO, kinds: Kinds, delimiter: str, has_header: bool) -> None:
        self.delimiter = delimiter
        try:
            text = file.read().decode()
            records = list(_records(text.removeprefix(BOM), delimiter))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{title} is not a CSV file of text in UTF-8: {error}") from error
        self.start = BOM if text.startswith(BOM) else ""
        first = next((i for i, (_, _, row) in enumerate(records) if row), len(records))
        self.records = [(raw, bool(row)) for _, raw, row in records]  # and whether it is a row, not an empty line
        names = [str(j + 1) for j in range(len(records[first][2]))] if first < len(records) else []
        if has_header and names:
            names = check_names(title, records[first][2])
            self.records[first] = records[first][1], False
            del records[first]
        rows = [(number, row) for number, _, row in records if row]
        if not rows:
            raise DataError(f"{title} has no rows")
        for number, row in rows:
            if len(row) != len(names):
                raise DataError(f"{title}, line {number}: {len(row)} cells, but the table has {len(names)} columns")
        columns = dict(zip(names, zip(*(row for _, row in rows), strict=True), strict=True))
        super().__init__(
            title, form, columns, kinds, lambda i, name: f"{title}, line {rows[i][0]}, column {name!r}", typed=False
        )

    def write(self, filled: MaskedTable, file: BinaryIO) -> None:
        """Write the lines, with new text where holes were."""
        changes, number = self.changes(filled), {name: j for j, name in enumerate(filled.columns)}
        file.write(self.start.encode())
        row = -1
        for record, is_row in self.records:
            row += is_row
            if is_row and row in changes:
                cells, end = _split(record, self.delimiter)
                for name, cell in changes[row].items():
                    cells[number[name]] = quote(cell, self.delimiter)
                record = self.delimiter.join(cells) + end
            file.write(record.encode())


def write_delimited(frame: dict[str, list[Any]], file: BinaryIO, delimiter: str) -> None:
    """Write columns of values as CSV."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(frame)
    for row in zip(*frame.values(), strict=True):
        writer.writerow([_text(value) for value in row])
    text.detach()


def quote(text: str, delimiter: str) -> str:
    """Return a text as a cell, in quotes if it needs them."""
    return '"' + text.replace('"', '""') + '"' if re.search(rf'["\r\n{re.escape(delimiter)}]', text) else text


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _records(text: str, delimiter: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number of the last line, text with its line end, and cells of each record."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    for row in reader:
        yield reader.line_num, "".join(taken), row
        taken.clear()


def _split(record: str, delimiter: str) -> tuple[list[str], str]:
    """Return the cells of a record as they are, with their quotes, and its line end."""
    body = record.rstrip("\r\n")
    cells: list[str] = []
    for piece in body.split(delimiter):
        if cells and cells[-1].startswith('"') and cells[-1].count('"') % 2:  # the delimiter was within quotes
            cells[-1] += delimiter + piece
        else:
            cells.append(piece)
    return cells, record[len(body) :]
