"""A user's frame, or array, as a table of numbers and back: pandas, polars, pyarrow and whatever narwhals reads."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from emflow.errors import DataError, ParameterError
from emflow.table.column import CATEGORICAL, DAY, EPOCH, KINDS, NUMERIC, SECOND, Bounds, Column
from emflow.table.masked import MaskedTable
from emflow.table.reading import CATEGORY, Read, guess, read_array, read_masked, read_series
from emflow.table.writing import put_into_frame

Array = NDArray[Any]
NO_VALUE = (
    "no observed value in column {}: drop it, there is nothing to learn from; "
    "EMFlowImputer and GaussianImputer keep it, filled with zeros, if keep_empty_features=True"
)


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame; raise for one that has not been computed yet."""
    if isinstance(X, MaskedTable | np.ndarray):
        return isinstance(X, MaskedTable)
    try:
        frame = nw.from_native(X, pass_through=True)
    except DuplicateError as error:
        raise DataError(f"two columns have the same name: {error}") from error
    if isinstance(frame, nw.LazyFrame):
        raise DataError(f"X is a lazy {type(X).__name__}: call its collect() first")
    return isinstance(frame, nw.DataFrame)


def _columns(X: Any) -> list[Callable[[], Read]]:
    """Return for each column of X a function that reads it."""
    if isinstance(X, MaskedTable):
        return [partial(read_masked, name, column) for name, column in X.columns.items()]
    if not is_frame(X):
        return [partial(read_array, j, X[:, j]) for j in range(X.shape[1])]
    return [partial(read_series, series) for series in nw.from_native(X, eager_only=True).iter_columns()]


@dataclass(frozen=True)
class Layout:
    """The columns of a table as `fit` saw them."""

    columns: tuple[Column, ...]

    @classmethod
    def learn(
        cls,
        X: Any,
        kinds: Mapping[Any, str | Sequence[Any]],
        bounds: Mapping[Any, Bounds],
        missing: NDArray[np.bool_] | None = None,
        keep_empty: bool = False,
    ) -> Layout:
        """Learn from X, a frame or an array; `kinds` and `bounds` by column are the user's own.

        Columns without any value that is not `missing` (n, columns), too, are an error, or they are kept: of numbers as
        "empty", others as they are, with a warning.
        """
        reads = [read() for read in _columns(X)]
        names = [read.name for read in reads]
        for what, given in (("kinds", kinds), ("bounds", bounds)):
            if unknown := [name for name in given if name not in names]:
                raise ParameterError(f"{what}: there is no column {unknown[0]!r}; there are {names}")
        columns, left, empty = [], [], []
        for j, read in enumerate(reads):
            kind = kinds[read.name] if read.name in kinds else guess(read)
            if not isinstance(kind, str):
                kind, read.order = "ordinal", list(kind)
            if kind not in KINDS:
                left.append(f"{read.name!r} ({kind})")
                kind = "pass"
            is_empty = kind != "pass" and bool((read.holes if missing is None else read.holes | missing[:, j]).all())
            if is_empty and not keep_empty:
                raise DataError(NO_VALUE.format(repr(read.name)))
            if is_empty and kind not in NUMERIC:
                empty.append(f"{read.name!r} ({kind})")
                kind, is_empty = "pass", False
            column = Column(read.name, kind) if is_empty else _learn(read, kind)
            column = column.between(bounds[read.name]) if read.name in bounds else column
            columns.append(replace(column, kind="empty") if is_empty else column)
        for names, why in ((left, "and not used"), (empty, "for want of any value")):
            if names:
                text = f"left as they are, {why}: {', '.join(names)}"
                advice = "; name a kind in `kinds` to have them filled" if names is left else ""
                warnings.warn(text + advice, UserWarning, stacklevel=6)
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
    def numbers(cls, n_columns: int, empty: Container[int] = ()) -> Layout:
        """Return that of an array of numbers; columns `empty` are without any value, and kept."""
        return cls(tuple(Column(j, "empty" if j in empty else "continuous") for j in range(n_columns)))

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

    def by_column(self, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which cells (n, columns) are missing, given which numbers (n, width) are."""
        return np.stack([missing[:, at].any(1) for _, at in self.places()], 1)

    def holes(self, X: Any, rows: Array, missing: Any = None) -> NDArray[np.bool_]:
        """Return which cells of X are missing (n, columns), given its numbers (n, width); none where left alone.

        Columns without any value at `fit` have no numbers: they are looked up in X and in `missing`.
        """
        holes = self.by_column(np.isnan(rows))
        empty = [j for j, column in enumerate(self.columns) if column.kind == "empty"]
        readings = _columns(X if is_frame(X) else as_array(X)) if empty else []
        for j in empty:
            holes[:, j] = readings[j]().holes if missing is None else readings[j]().holes | np.asarray(missing)[:, j]
        return holes

    def decode(self, X: Any, holes: NDArray[np.bool_], filled: Array, without: Container[str] = ()) -> Any:
        """Return X with its holes (n, columns) filled by numbers (n, width); everything else as it is.

        So are columns `without` whose kinds it is to be.
        """
        columns = {}
        for j, (column, at) in enumerate(self.places()):
            rows = np.flatnonzero(holes[:, j])
            if len(rows) and column.kind not in without:
                columns[j] = rows, column.decode(filled[rows, at])
        if isinstance(X, MaskedTable):
            return X.put({X.column_names[j]: filling for j, filling in columns.items()})
        return put_into_frame(X, columns, self.columns) if is_frame(X) else _put_into_array(X, columns)

    def to_columns(self, codes: Array) -> dict[Any, list[Any]]:
        """Return numbers (n, width) as values by column, without those that are left alone."""
        used = ((column, at) for column, at in self.places() if column.kind != "pass")
        columns = {column.name: column.decode(codes[:, at]) for column, at in used}
        for column in self.columns:
            if column.kind == "date":
                columns[column.name] = [EPOCH + timedelta(microseconds=value) for value in columns[column.name]]
        return columns


def missing_cells(X: Any) -> tuple[list[Any], NDArray[np.bool_]]:
    """Return the names of the columns of X, a frame or an array, and which of its cells (n, p) are missing."""
    X = X if is_frame(X) else as_array(X)
    reads = [read() for read in _columns(X)]
    if not reads:
        raise DataError("the table has no columns")
    return [read.name for read in reads], np.stack([read.holes for read in reads], 1)


def take_rows(X: Any, rows: NDArray[np.intp]) -> Any:
    """Return some rows of X, a frame or an array, by their number."""
    if isinstance(X, MaskedTable):
        return X.take(rows)
    if is_frame(X):
        return nw.to_native(nw.from_native(X, eager_only=True)[rows.tolist()])
    return as_array(X)[rows]


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


def _learn(read: Read, kind: str) -> Column:
    """Return the column for what is observed of it."""
    name = read.name
    if kind == "pass":
        return Column(name, kind)
    if kind in CATEGORICAL:
        return _learn_categories(read, kind, read.seen)
    column = Column(name, kind)
    if kind != "date":
        return column
    moments = column.encode(read.values, read.holes, "error")[~read.holes]
    return replace(column, step=next(unit for unit in (DAY, SECOND, 1) if not (moments % unit).any()))


def _learn_categories(read: Read, kind: str, seen: list[Any]) -> Column:
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
