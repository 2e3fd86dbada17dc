"""A user's frame, or array, as a table of numbers and back: pandas, polars, pyarrow and whatever narwhals reads."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta, timezone
from functools import partial
from numbers import Integral, Real
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from emflow.errors import DataError, ParameterError
from emflow.table.column import CATEGORICAL, DAY, EPOCH, KINDS, SECOND, Bounds, Column
from emflow.table.masked import MaskedTable

Array = NDArray[Any]
CATEGORY = bool, int, float, str  # which JSON can hold
DISTINCT = 0.5  # share of distinct values from which a column of texts is taken for names or prose,
FEW = 20  # unless there are fewer than this


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame; raise for one that has not been computed yet."""
    if isinstance(X, MaskedTable):
        return True
    try:
        frame = nw.from_native(X, pass_through=True)
    except DuplicateError as error:
        raise DataError(f"two columns have the same name: {error}") from error
    if isinstance(frame, nw.LazyFrame):
        raise DataError(f"X is a lazy {type(X).__name__}: call its collect() first")
    return isinstance(frame, nw.DataFrame)


class _Read:
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


def _read_series(series: nw.Series[Any]) -> _Read:
    dtype = series.dtype
    if dtype.is_numeric():
        values = np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
        return _Read(series.name, values, np.isnan(values), series=series)
    holes = np.asarray(series.is_null().to_numpy(), dtype=bool)
    if dtype == nw.Date or dtype == nw.Datetime:
        values = np.asarray(series.dt.timestamp("us").cast(nw.Float64).to_numpy(), dtype=np.float64)
        return _Read(series.name, values, holes, is_date=True, series=series)
    categorical = dtype == nw.Categorical or dtype == nw.Enum
    order = series.cat.get_categories().to_list() if categorical else ()
    return _Read(series.name, series.to_list(), holes, order, series=series)


def _read_array(name: int, values: Array) -> _Read:
    if values.dtype.kind in "fiub":
        values = values.astype(np.float64)
        return _Read(name, values, np.isnan(values))
    cells = values.tolist()
    return _Read(name, cells, np.array([_is_missing(value) for value in cells], dtype=bool))


def _read_masked(name: str, column: np.ma.MaskedArray[Any, Any]) -> _Read:
    holes, kind = np.ma.getmaskarray(column), column.dtype.kind
    if kind not in "fiM":
        return _Read(name, column.tolist(), holes)
    numbers = np.asarray(column.astype("M8[us]").astype(np.int64) if kind == "M" else column, dtype=np.float64)
    return _Read(name, np.where(holes, np.nan, numbers), holes, is_date=kind == "M", is_whole=kind == "i")


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Real) and value != value


def _columns(X: Any) -> list[Callable[[], _Read]]:
    """Return for each column of X a function that reads it."""
    if isinstance(X, MaskedTable):
        return [partial(_read_masked, name, column) for name, column in X.columns.items()]
    if not is_frame(X):
        return [partial(_read_array, j, X[:, j]) for j in range(X.shape[1])]
    return [partial(_read_series, series) for series in nw.from_native(X, eager_only=True).iter_columns()]


def _guess(read: _Read) -> str:
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


def _guess_objects(read: _Read) -> str:
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


def _guess_whole(read: _Read) -> str:
    """Return what whole numbers are: they may count the rows, each one higher than the one before, and none missing."""
    counts = len(read.values) > FEW and not read.holes.any() and bool((np.diff(read.values) == 1).all())
    return "identifier" if counts else "integer"


@dataclass(frozen=True)
class Layout:
    """The columns of a table as `fit` saw them."""

    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, X: Any, kinds: Mapping[Any, str | Sequence[Any]], bounds: Mapping[Any, Bounds]) -> Layout:
        """Learn from X, a frame or an array; `kinds` and `bounds` by column are the user's own."""
        reads = [read() for read in _columns(X)]
        names = [read.name for read in reads]
        for what, given in (("kinds", kinds), ("bounds", bounds)):
            if unknown := [name for name in given if name not in names]:
                raise ParameterError(f"{what}: there is no column {unknown[0]!r}; there are {names}")
        columns, left = [], []
        for read in reads:
            kind = kinds[read.name] if read.name in kinds else _guess(read)
            if not isinstance(kind, str):
                kind, read.order = "ordinal", list(kind)
            if kind not in KINDS:
                left.append(f"{read.name!r} ({kind})")
                kind = "pass"
            column = _learn(read, kind)
            columns.append(column.between(bounds[read.name]) if read.name in bounds else column)
        if left:
            warnings.warn(
                f"left as they are, and not used: {', '.join(left)}; name a kind in `kinds` to have them filled",
                UserWarning,
                stacklevel=4,
            )
        if not any(column.width for column in columns):
            raise DataError("no column holds numbers, categories or dates")
        return cls(tuple(columns))

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> Layout:
        """Undo `to_json`."""
        return cls(tuple(Column(**{**column, "categories": tuple(column["categories"])}) for column in columns))

    def to_json(self) -> list[dict[str, Any]]:
        """Return it as JSON can hold it."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def numbers(cls, n_columns: int) -> Layout:
        """Return that of an array of numbers."""
        return cls(tuple(Column(j, "continuous") for j in range(n_columns)))

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers without bounds, so that an array is its own encoding."""
        return all(column == Column(column.name, "continuous") for column in self.columns)

    def places(self) -> Iterator[tuple[Column, slice]]:
        """Yield the columns, each with where its numbers are."""
        first = 0
        for column in self.columns:
            yield column, slice(first, first := first + column.width)

    @property
    def nominal(self) -> list[slice]:
        """Where the numbers of each nominal column are."""
        return [at for column, at in self.places() if column.kind == "nominal"]

    @property
    def owner(self) -> list[int]:
        """For each column of numbers, which column of the table it belongs to."""
        return [j for j, column in enumerate(self.columns) for _ in range(column.width)]

    def encode(self, X: Any, unseen: str) -> Array:
        """Return X as numbers (n, width), NaN where missing."""
        if isinstance(X, np.ndarray) and self.plain:
            return X
        parts = []
        for column, reading in zip(self.columns, _columns(X), strict=True):
            if not column.width:
                continue
            read = reading()
            if isinstance(read.values, np.ndarray) and (column.kind == "date") != read.is_date:
                found = "dates" if read.is_date else "numbers"
                raise DataError(f"column {column.name!r} was {column.kind} in `fit`, but holds {found} now")
            parts.append(column.encode(read.values, read.holes, unseen))
            if np.isinf(parts[-1]).any():
                row = int(np.isinf(parts[-1]).any(1).argmax())
                raise DataError(f"column {column.name!r} holds infinity in row {row}: mark it as missing or replace it")
        return np.concatenate(parts, 1)

    def decode(self, X: Any, holes: NDArray[np.bool_], filled: Array, without: Container[str] = ()) -> Any:
        """Return X with its holes (n, width) filled by numbers (n, width); everything else as it is.

        So are columns `without` whose kinds it is to be.
        """
        columns = {}
        for j, (column, at) in enumerate(self.places()):
            rows = np.flatnonzero(holes[:, at].any(1))
            if len(rows) and column.kind not in without:
                columns[j] = rows, column.decode(filled[rows, at])
        if isinstance(X, MaskedTable):
            return X.put({X.column_names[j]: filling for j, filling in columns.items()})
        return _put_into_frame(X, columns, self.columns) if is_frame(X) else _put_into_array(X, columns)

    def to_columns(self, codes: Array) -> dict[Any, list[Any]]:
        """Return numbers (n, width) as values by column, without those that are left alone."""
        columns = {column.name: column.decode(codes[:, at]) for column, at in self.places() if column.width}
        for column in self.columns:
            if column.kind == "date":
                columns[column.name] = [EPOCH + timedelta(microseconds=value) for value in columns[column.name]]
        return columns


def as_array(X: Any) -> Array:
    """Return a copy of X, which is no frame, as an array (n, p) of floats, or of objects."""
    if isinstance(X, np.ma.MaskedArray):
        X = np.ma.filled(X.astype(object), None)
    dtype: Any = object
    if isinstance(X, np.ndarray) and X.dtype.kind in "fiub":
        dtype = X.dtype if X.dtype.kind == "f" else float
    array: Array = np.array(X, dtype=dtype)
    if array.ndim != 2:
        raise DataError(f"X must be 2D, a table of rows and columns, but it has {array.ndim} dimensions")
    return array


def _put_into_array(X: Any, columns: dict[int, tuple[Array, list[Any]]]) -> Array:
    result = as_array(X)
    for j, (rows, values) in columns.items():
        result[rows, j] = values
    return result


def _put_into_frame(X: Any, columns: dict[int, tuple[Array, list[Any]]], schema: Sequence[Column]) -> Any:
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


def _learn(read: _Read, kind: str) -> Column:
    """Return the column for what is observed of it."""
    name = read.name
    if kind == "pass":
        return Column(name, kind)
    if read.holes.all():
        raise DataError(f"no observed value in column {name!r}: drop it, there is nothing to learn from")
    if kind in CATEGORICAL:
        return _learn_categories(read, kind, read.seen)
    column = Column(name, kind)
    if kind != "date":
        return column
    moments = column.encode(read.values, read.holes, "error")[~read.holes]
    return replace(column, step=next(unit for unit in (DAY, SECOND, 1) if not (moments % unit).any()))


def _learn_categories(read: _Read, kind: str, seen: list[Any]) -> Column:
    count = Counter(seen)
    if bad := [value for value in count if not isinstance(value, CATEGORY)]:
        raise DataError(f"column {read.name!r} is to be {kind}: {bad[0]!r} can be no category")
    try:
        order = list(read.order) or sorted(count)
    except TypeError:  # numbers and texts
        order = sorted(count, key=str)
    if lacking := [value for value in count if value not in order]:
        raise DataError(f"column {read.name!r} holds {lacking[0]!r}, which is none of its categories {order}")
    if kind == "binary" and len(count) > 2:
        raise DataError(f"column {read.name!r} is to be binary, but has {len(count)} values")
    if kind == "nominal":
        kind = "nominal" if len(count) > 2 else "binary"
    if kind == "binary":
        order = [value for value in order if value in count]
    if kind == "nominal":
        order = sorted(count, key=lambda value: (-count[value], order.index(value)))
    return Column(read.name, kind, tuple(order))
