"""The file of results: one JSON line per finished cell, appended and never rewritten."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from emflow.errors import FileError
from emflow.experiments.catalogue import AnyCell
from emflow.experiments.plan import Cell

Record = dict[str, Any]


class Results:
    """The finished cells of an experiment.

    Parameters
    ----------
    folder : path
        Holds one file per experiment; made when the first line is written.
    experiment : str
        Whose cells; quick ones have a file of their own.
    cell_type : type
        Of these cells.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        experiment: str,
        quick: bool = False,
        cell_type: type[AnyCell] = Cell,
    ) -> None:
        self.path = Path(folder) / f"{experiment}{'-quick' if quick else ''}.jsonl"
        self._cell_type = cell_type
        self._records: dict[str, Record] = {}
        if self.path.exists():
            for record in self._read():
                self._records[self._key(record)] = record

    def get(self, cell: AnyCell) -> Record | None:
        """Return the latest record of a cell, or None if it is not finished."""
        return self._records.get(cell.key)

    def finished(self, cell: AnyCell, budget: float, rows: int) -> bool:
        """Whether a cell need not be run.

        It is there, on a set of so many rows (a part of a set may have been replaced by the whole), and did not run
        out of less time than this budget (seconds).
        """
        record = self.get(cell)
        return record is not None and record["rows"] == rows and not (record["timed_out"] and record["budget"] < budget)

    def append(self, record: Record) -> None:
        """Write the record at the end of the file, as one line in one piece."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(record) + "\n").encode()
        with open(self.path, "ab", buffering=0) as file:
            file.write(line)
        self._records[self._key(record)] = record

    def repair(self) -> None:
        """Cut off a last line that a killed run left unfinished, so that the next one starts on a line of its own."""
        if not self.path.exists():
            return
        text = self.path.read_bytes()
        if not text.endswith(b"\n"):
            with open(self.path, "r+b") as file:
                file.truncate(text.rfind(b"\n") + 1)

    def _read(self) -> list[Record]:
        *lines, rest = self.path.read_bytes().split(b"\n")
        if rest:
            warnings.warn(f"{self.path}: the last line is unfinished and not counted", RuntimeWarning, stacklevel=3)
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                self._key(record)
            except (ValueError, KeyError, TypeError) as error:
                raise FileError(f"{self.path}, line {number} is no result: remove the line, or the file") from error
            records.append(record)
        return records

    def _key(self, record: Record) -> str:
        return self._cell_type(**{name: record[name] for name in self._cell_type.__dataclass_fields__}).key
