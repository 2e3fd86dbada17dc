"""Parquet and Feather, by pyarrow."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import compute, feather, parquet, types

from emflow.errors import DataError
from emflow.formats.source import Source, check_names
from emflow.table.masked import MaskedTable

READ = {"parquet": parquet.read_table, "feather": feather.read_table}
WRITE = {"parquet": parquet.write_table, "feather": feather.write_feather}


class ArrowSource(Source):
    """A Parquet or Feather file: its columns have types, and need no guessing."""

    def __init__(self, title: str, form: str, file: BinaryIO) -> None:
        self.title, self.form = title, form
        try:
            self.frame = READ[form](file)
        except pa.ArrowException as error:
            raise DataError(f"{title} is not a whole {form.capitalize()} file: {error}") from error
        check_names(title, self.frame.column_names)
        if not len(self.frame):
            raise DataError(f"{title} has no rows")

    def holds(self, name: str) -> str | None:
        """Return what a column holds, by its type; None if it holds nothing."""
        found = self.frame.schema.field(name).type
        found = found.value_type if types.is_dictionary(found) else found
        if types.is_null(found):
            return None
        return next((what for what, test in TYPES.items() if test(found)), f"values of the type {found}")

    def write(self, filled: Any, file: BinaryIO) -> None:
        """Write the table."""
        WRITE[self.form](filled, file)


def write_arrow(frame: MaskedTable, file: BinaryIO, form: str) -> None:
    """Write a table of masked arrays."""
    WRITE[form](to_arrow(frame), file)


def to_arrow(frame: Any) -> Any:
    """Return a table of pyarrow; it may be one."""
    if not isinstance(frame, MaskedTable):
        return frame
    columns = {}
    for name, column in frame.columns.items():
        cells = column.tolist() if column.dtype == object else column.data
        columns[name] = pa.array(cells, mask=None if column.dtype == object else np.ma.getmaskarray(column))
    return pa.table(columns)


def count_holes(frame: Any) -> int:
    """Return how many cells are null or NaN."""
    return sum(compute.sum(column.is_null(nan_is_null=True)).as_py() for column in frame.columns)


TYPES = {
    "numbers": lambda t: types.is_integer(t) or types.is_floating(t) or types.is_decimal(t),
    "dates": lambda t: types.is_date(t) or types.is_timestamp(t),
    "truth values": types.is_boolean,
    "texts": lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t),
}
