"""What is learnt of the columns at `fit` and checked at `transform`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from emflow.errors import DataError
from emflow.table.frame import NO_VALUE, Layout

Array = NDArray[Any]


def read(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Return X as a float array with NaN where values are missing, or raise an error that names the culprit.

    `reset` is True in `fit`, where number and names of the columns are learnt, and False afterwards, where they are
    compared.
    """
    if isinstance(X, np.ma.MaskedArray):  # a masked cell is a missing one
        X = np.ma.filled(X.astype(np.float64), np.nan)
    try:
        array = _validate(estimator, X, reset)
    except (TypeError, ValueError) as error:
        array = _validate(estimator, from_objects(X, error), reset)
    column = np.isinf(array).any(0)
    if column.any():
        j = int(column.argmax())
        i = int(np.isinf(array[:, j]).argmax())
        name = column_name(estimator, j)
        raise DataError(f"column {name} holds infinity in row {i}: mark it as missing (NaN) or replace it")
    return array


def _validate(estimator: Any, X: Any, reset: bool) -> Array:
    return np.asarray(validate_data(estimator, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False))


def from_objects(X: Any, error: Exception) -> Any:
    """Return a table of objects as floats, or raise: an error that names the first cell which is no number, or `error`.

    pd.NA and NaT, which NumPy does not take for numbers, are missing values.
    """
    names = getattr(X, "columns", None)
    if names is None and not (isinstance(X, list) or getattr(X, "dtype", np.dtype(float)).kind in "OUSMm"):
        raise error
    cells = np.array(X, dtype=object)
    if cells.shape == (0, 0):
        raise DataError("the table has neither rows nor columns") from error
    if cells.ndim != 2 or not cells.size:
        raise error
    floats = np.empty(cells.shape)
    for i, j in np.ndindex(*cells.shape):
        value = cells[i, j]
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            floats[i, j] = np.nan
        elif isinstance(value, str | date | np.datetime64):
            try:
                floats[i, j] = float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                name = str(j) if names is None else repr(names[j])
                text = f"column {name} holds the text {str(value)!r} in row {i}"
                raise DataError(f"{text}: encode or drop it, or name a kind for the column in `kinds`") from error
        elif isinstance(value, Real | np.bool_):
            floats[i, j] = float(value)
        else:
            raise error
    return floats if names is None else type(X)(floats, columns=names)


def column_name(estimator: Any, j: int) -> str:
    """Return the name of column j as the user knows it: the frame's, or the number."""
    names = getattr(estimator, "feature_names_in_", None)
    return str(j) if names is None else repr(names[j])


@dataclass(frozen=True)
class Schema:
    """Range and middle of the observed values of each column, as lists, so that they are JSON.

    The middle is the median. All pixels of images share one range; the middle of a pixel is its mean.
    """

    low: list[float]
    high: list[float]
    middle: list[float]

    @classmethod
    def learn(
        cls, estimator: Any, X: Array, layout: Layout | None = None, weight: NDArray[np.float64] | None = None
    ) -> Schema:
        """Learn from a table X (n, p), NaN where missing. A column without any value is an error.

        Bounds that the user has given take the place of the observed range. The median is that by `weight` (n,), if
        there is one.
        """
        layout = layout or Layout.numbers(X.shape[1])
        empty, owner = np.isnan(X).all(0), layout.owner
        if empty.any():
            names = ", ".join(column_name(estimator, owner[j]) for j in np.flatnonzero(empty))
            raise DataError(NO_VALUE.format(names))
        X = X.astype(np.float64)
        low, high = np.nanmin(X, 0).tolist(), np.nanmax(X, 0).tolist()
        for j, column in enumerate(layout.columns[k] for k in owner):
            low[j] = low[j] if column.low is None else column.low
            high[j] = high[j] if column.high is None else column.high
        schema = cls(low, high, np.clip(_median(X, weight), low, high).tolist())
        if not np.isfinite(schema.span).all():
            name = column_name(estimator, owner[int(np.isinf(schema.span).argmax())])
            raise DataError(f"column {name} spans more than double precision can hold: rescale it")
        return schema

    @classmethod
    def learn_pixels(cls, X: Array, weight: NDArray[np.float64] | None = None) -> Schema:
        """Learn from images as rows X (n, p), NaN where missing. A pixel that is never seen has the mean of all."""
        seen = ~np.isnan(X)
        if not seen.any():
            raise DataError("no pixel of any image is observed: there is nothing to learn from")
        if weight is None:
            count, total = seen.sum(0), np.nansum(X, 0, dtype=np.float64)
        else:
            count, total = weight @ seen, weight @ np.where(seen, X, 0.0)
        middle = np.divide(total, count, out=np.full(len(count), total.sum() / count.sum()), where=count > 0)
        p = X.shape[1]
        return cls([float(np.nanmin(X))] * p, [float(np.nanmax(X))] * p, middle.tolist())

    def widened(self, X: Array, layout: Layout) -> Schema:
        """Return the schema with the ranges of a further table X (n, p) as well; bounds of the user's stay."""
        low, high = np.fmin(self.low, np.fmin.reduce(X, 0)), np.fmax(self.high, np.fmax.reduce(X, 0))
        for j, column in enumerate(layout.columns[k] for k in layout.owner):
            low[j] = low[j] if column.low is None else column.low
            high[j] = high[j] if column.high is None else column.high
        return Schema(low.tolist(), high.tolist(), self.middle)

    @property
    def span(self) -> Array:
        """High - low, and 1 for a constant column."""
        with np.errstate(over="ignore"):
            span = np.subtract(self.high, self.low)
        return np.where(span > 0, span, 1.0)

    def scale(self, X: Array) -> Array:
        """Map the observed range of each column to [0, 1], in double precision; NaN stays."""
        with np.errstate(over="ignore"):
            return np.asarray((X.astype(np.float64) - self.low) / self.span)

    def scale_pixels(self, X: Array) -> Array:
        """Map the observed range of all pixels to [0, 1], in the precision of X; NaN stays."""
        low, span = X.dtype.type(self.low[0]), X.dtype.type(self.span[0])
        return np.asarray((X - low) / span)

    def unscale(self, x: Array) -> Array:
        """Undo `scale`; a constant column is its constant, whatever x."""
        with np.errstate(over="ignore"):
            return np.asarray(x * np.subtract(self.high, self.low) + self.low)

    def clip(self, X: Array) -> Array:
        """Keep X within the observed ranges; scaling back and forth may leave them by a rounding error."""
        return np.asarray(np.clip(X, self.low, self.high))


def _median(X: Array, weight: NDArray[np.float64] | None) -> Array:
    """Return the median of what is observed in each column of X (n, p); weights (n,) are as many rows."""
    if weight is None:
        return np.asarray(np.nanmedian(X, 0))
    medians = []
    for column in X.T:
        order = np.argsort(column)[: (~np.isnan(column)).sum()]  # NaN comes last
        upto = np.cumsum(weight[order])
        halves = [np.searchsorted(upto, upto[-1] / 2, side) for side in ("left", "right")]
        medians.append(column[order][np.minimum(halves, len(order) - 1)].mean())
    return np.array(medians)
