"""A column of a user's frame or array: its values, which are missing, and the kind that its type suggests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from numbers import Integral, Real
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from emflow.errors import DataError

Array = NDArray[Any]
CATEGORY = bool, int, float, str  # which JSON can hold
DISTINCT = 0.5  # share of distinct values from which a column of texts is taken for names or prose,
FEW = 20  # unless there are fewer than this


class Read:
    """A column of X.

    Values as a float array with NaN, or as a list; which are missing; the order of categories; whether the array holds
    dates, or whole numbers; and the series they are from, if they are from one.
    """

    def __init__(
        self,
        name: Any,
        values: Array | list[Any],
        holes: NDArray[np.bool_],
        order: Sequence[Any] = (),
        is_date: bool = False,
        is_whole: bool = False,
        series: nw.Series[Any] | None = None,
    ) -> None:
        self.name, self.values, self.holes, self.order = name, values, holes, order
        self.is_date, self.is_whole, self.series = is_date, is_whole, series

    @property
    def seen(self) -> list[Any]:
        """The values that are not missing."""
        if isinstance(self.values, np.ndarray):
            return list(self.values[~self.holes].tolist())
        return [value for value, hole in zip(self.values, self.holes, strict=True) if not hole]


def read_series(series: nw.Series[Any]) -> Read:
    """Read a column of a frame: numbers and dates, in microseconds, as floats, others as a list."""
    dtype = series.dtype
    if dtype.is_numeric():
        values = np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
        return Read(series.name, values, np.isnan(values), series=series)
    holes = np.asarray(series.is_null().to_numpy(), dtype=bool)
    if dtype == nw.Date or dtype == nw.Datetime:
        values = np.asarray(series.dt.timestamp("us").cast(nw.Float64).to_numpy(), dtype=np.float64)
        return Read(series.name, values, holes, is_date=True, series=series)
    categorical = dtype == nw.Categorical or dtype == nw.Enum
    order = series.cat.get_categories().to_list() if categorical else ()
    return Read(series.name, series.to_list(), holes, order, series=series)


def read_array(name: int, values: Array) -> Read:
    """Read a column of an array: numbers as floats, objects as a list."""
    if values.dtype.kind in "fiub":
        values = values.astype(np.float64)
        return Read(name, values, np.isnan(values))
    cells = values.tolist()
    return Read(name, cells, np.array([_is_missing(value) for value in cells], dtype=bool))


def read_masked(name: str, column: np.ma.MaskedArray[Any, Any]) -> Read:
    """Read a masked array: numbers and dates, in microseconds, as floats, others as a list."""
    holes, kind = np.ma.getmaskarray(column), column.dtype.kind
    if kind not in "fiM":
        return Read(name, column.tolist(), holes)
    numbers = np.asarray(column.astype("M8[us]").astype(np.int64) if kind == "M" else column, dtype=np.float64)
    return Read(name, np.where(holes, np.nan, numbers), holes, is_date=kind == "M", is_whole=kind == "i")


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Real) and value != value


def guess(read: Read) -> str:
    """Return the kind that the type of a column suggests, or why it is to be left alone."""
    if read.series is None:
        if isinstance(read.values, list):
            return _guess_objects(read)
        return "date" if read.is_date else _guess_whole(read) if read.is_whole else "continuous"
    dtype = read.series.dtype
    if dtype.is_integer():
        return _guess_whole(read)
    if dtype.is_numeric():
        return "continuous"
    if dtype == nw.Boolean:
        return "binary"
    if dtype == nw.Date or dtype == nw.Datetime:
        return "date"
    if dtype == nw.Categorical or dtype == nw.Enum:
        ordered = getattr(getattr(read.series.to_native(), "dtype", None), "ordered", False)  # which is pandas' word
        return "ordinal" if ordered else "nominal"
    return _guess_objects(read) if dtype in (nw.String, nw.Object) else str(dtype)


def _guess_objects(read: Read) -> str:
    seen = read.seen
    if all(isinstance(value, bool | np.bool_) for value in seen):
        return "binary"
    if all(isinstance(value, Real) for value in seen):
        return "integer" if all(isinstance(value, Integral) for value in seen) else "continuous"
    if all(isinstance(value, date) for value in seen):
        return "date"
    if any(isinstance(value, str) for value in seen) and any(isinstance(value, Real) for value in seen):
        i = next(i for i, value in enumerate(read.values) if isinstance(value, str))
        raise DataError(
            f"column {read.name!r} holds the text {read.values[i]!r} in row {i} among numbers: "
            "replace it, or name a kind for the column in `kinds`"
        )
    if not all(isinstance(value, CATEGORY) for value in seen):
        return "objects"
    n = len(set(seen))
    return "text" if n > FEW and n > DISTINCT * len(seen) else "nominal"


def _guess_whole(read: Read) -> str:
    """Return what whole numbers are: they may count the rows, each one higher than the one before, and none missing."""
    counts = len(read.values) > FEW and not read.holes.any() and bool((np.diff(read.values) == 1).all())
    return "identifier" if counts else "integer"
