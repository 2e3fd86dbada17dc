"""Values put into a user's frame, in its own types; columns added to it; the frame of another library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from emflow.errors import DataError
from emflow.table.column import EPOCH, Column

Array = NDArray[Any]
INDICATOR = "missingindicator_{}"  # as scikit-learn calls such columns


def put_into_frame(X: Any, columns: dict[int, tuple[Array, list[Any]]], schema: Sequence[Column]) -> Any:
    """Return the frame X with values in some rows of some columns, by number; dates are in microseconds."""
    frame = nw.from_native(X, eager_only=True)
    changed = []
    for j, (rows, values) in columns.items():
        series = frame[:, j]
        if schema[j].kind == "date":
            values = _dates(values, series)
        changed.append(_put(series, rows.tolist(), values))
    return nw.to_native(frame.with_columns(*changed))


def _dates(values: list[int], series: nw.Series[Any]) -> list[Any]:
    """Return microseconds since 1970 as the series has its dates."""
    moments = [EPOCH + timedelta(microseconds=value) for value in values]
    if series.dtype != nw.Datetime and not any(isinstance(seen, datetime) for seen in series.drop_nulls().head(1)):
        return [moment.date() for moment in moments]
    if getattr(series.dtype, "time_zone", None) is None:
        return moments
    return [moment.replace(tzinfo=timezone.utc) for moment in moments]


def _put(series: nw.Series[Any], rows: list[int], values: list[Any]) -> nw.Series[Any]:
    """Return the series with values in some of its rows, in its own type."""
    dtype = series.dtype
    new = nw.new_series(series.name, values, None, backend=nw.get_native_namespace(series))
    if nw.get_native_namespace(series).__name__ == "pyarrow" and dtype in (nw.String, nw.Categorical):
        # there are more types of text than narwhals has, and no values of a dictionary can be replaced
        native = series.cast(nw.String).scatter(rows, new).to_native().cast(series.to_native().type)
        filled: nw.Series[Any] = nw.from_native(native, series_only=True).alias(series.name)
        return filled
    if dtype not in (nw.Object, nw.String, nw.Categorical, nw.Enum):
        new = new.cast(dtype)
    return series.scatter(rows, new)


def append_indicators(frame: Any, flags: Mapping[Any, NDArray[np.bool_]]) -> Any:
    """Return a frame with further columns that say what was missing of those that `flags` (n,) are named after."""
    table = nw.from_native(frame, eager_only=True)
    backend = nw.get_native_namespace(table)
    new = {INDICATOR.format(name): holes.tolist() for name, holes in flags.items()}
    if taken := [name for name in new if name in table.columns]:
        raise DataError(f"column {taken[0]!r} is there already: rename it, or do without add_indicator")
    series = [nw.new_series(name, holes, nw.Boolean, backend=backend) for name, holes in new.items()]
    return nw.to_native(table.with_columns(*series))


def to_library(frame: Any, library: str) -> Any:
    """Return a frame as one of pandas, or polars."""
    table = nw.from_native(frame, eager_only=True)
    return table.to_pandas() if library == "pandas" else table.to_polars()
