"""JSON lines: an object per line; a key that a line does not have is a missing value."""

from __future__ import annotations

import json
from datetime import date
from typing import Any, BinaryIO

from emflow.errors import DataError
from emflow.formats.source import CellSource, Kinds, check_names
from emflow.table.masked import MaskedTable


class JsonLinesSource(CellSource):
    """A file of JSON lines."""

    def __init__(self, title: str, file: BinaryIO, kinds: Kinds) -> None:
        self.lines = file.read().splitlines(keepends=True)
        self.rows: list[dict[str, Any] | None] = []  # None for an empty line
        for number, line in enumerate(self.lines, start=1):
            try:
                self.rows.append(json.loads(line) if line.strip() else None)
            except ValueError as error:
                raise DataError(f"{title}, line {number} is not JSON: {error}") from error
            if not isinstance(self.rows[-1], dict | None):
                raise DataError(f"{title}, line {number} is no JSON object, like {{'age': 34}}")
        rows = [(number, row) for number, row in enumerate(self.rows, start=1) if row is not None]
        if not rows:
            raise DataError(f"{title} has no rows")
        names = check_names(title, list(dict.fromkeys(name for _, row in rows for name in row)))
        columns = {name: [row.get(name) for _, row in rows] for name in names}
        super().__init__(
            title, "jsonl", columns, kinds, lambda i, name: f"{title}, line {rows[i][0]}, column {name!r}", typed=True
        )

    def write(self, filled: MaskedTable, file: BinaryIO) -> None:
        """Write the lines, those anew in which something is filled."""
        changes = self.changes(filled)
        i = -1
        for line, row in zip(self.lines, self.rows, strict=True):
            i += row is not None
            file.write(line if row is None or i not in changes else _line(row | changes[i]))


def write_json_lines(frame: dict[str, list[Any]], file: BinaryIO) -> None:
    """Write columns of values as JSON lines."""
    for row in zip(*frame.values(), strict=True):
        file.write(_line(dict(zip(frame, row, strict=True))))


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, default=_json).encode() + b"\n"


def _json(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)
