"""One column of a frame: what kind it is, and its values as numbers and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emflow.errors import DataError, ParameterError

Array = NDArray[np.float64]
Bounds = tuple[float | None, float | None]

NUMERIC = ("continuous", "integer")
CATEGORICAL = ("ordinal", "binary", "nominal")
KINDS = (*NUMERIC, *CATEGORICAL, "date", "pass")
MOST_CATEGORIES = 40  # of a nominal column that may be filled in: the most frequent ones
DAY, SECOND = 86_400_000_000, 1_000_000  # microseconds
EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Column:
    """A column as `fit` saw it; all of it is JSON.

    Attributes
    ----------
    name : str or int
    kind : str
        "continuous", "integer", "ordinal", "binary", "nominal", "date", "pass" for a column that is left alone, or
        "empty" for one of numbers without any value, which is filled with zeros.
    categories : list
        Of an ordinal or binary column in their order, of a nominal one the most frequent first; else empty.
    low, high : float or None
        Bounds of filled numbers, where the user has given any.
    step : int
        Microseconds to which filled dates are rounded: a day, a second, or one.
    """

    name: str | int
    kind: str
    categories: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    step: int = 1

    @property
    def width(self) -> int:
        """Number of columns that its numbers take."""
        return {"pass": 0, "empty": 0, "nominal": min(len(self.categories), MOST_CATEGORIES)}.get(self.kind, 1)

    def encode(self, values: Sequence[Any] | NDArray[Any], holes: NDArray[np.bool_], unseen: str) -> Array:
        """Return the values as numbers (n, width), NaN where `holes` (n,) says that they are missing."""
        codes = np.full(len(holes), np.nan)
        seen = np.flatnonzero(~holes)
        if self.kind in CATEGORICAL:
            codes[seen] = self._codes([values[i] for i in seen.tolist()], seen, unseen)
        elif isinstance(values, np.ndarray):
            codes[seen] = values[seen]
        else:
            codes[seen] = [self._number(values[i], i) for i in seen.tolist()]
        if self.kind != "nominal":
            return codes[:, None]
        return np.where(np.isnan(codes)[:, None], np.nan, codes[:, None] == np.arange(self.width))

    def _codes(self, values: list[Any], rows: NDArray[np.intp], unseen: str) -> Array:
        """Return the number of each value among the categories: NaN, or an error, where it is not among them."""
        number = {category: code for code, category in enumerate(self.categories)}
        codes = np.array([number.get(value, np.nan) for value in values], dtype=np.float64)
        new = np.isnan(codes)
        if unseen == "error" and new.any():
            k = int(new.argmax())
            raise DataError(
                f"column {self.name!r} holds the category {values[k]!r} in row {rows[k]}, which `fit` did not see; "
                'with unseen="missing" it is filled instead'
            )
        return codes

    def _number(self, value: Any, row: int) -> float:
        try:
            return microseconds(value) if self.kind == "date" else float(value)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"column {self.name!r} holds {value!r} in row {row}, but it is {self.kind}: encode or replace it"
            ) from error

    def decode(self, codes: Array) -> list[Any]:
        """Return numbers (n, width) as values of the column."""
        if self.kind == "nominal":
            return [self.categories[k] for k in codes.argmax(1).tolist()]
        numbers = np.zeros(len(codes)) if self.kind == "empty" else codes[:, 0]
        if self.kind in CATEGORICAL:
            return [self.categories[k] for k in np.clip(np.rint(numbers), 0, len(self.categories) - 1).astype(int)]
        if self.low is not None or self.high is not None:
            numbers = np.clip(numbers, self.low, self.high)
        if self.kind == "date":
            return [int(value) for value in np.rint(numbers / self.step) * self.step]
        return list((np.rint(numbers).astype(int) if self.kind == "integer" else numbers).tolist())

    def probabilities(self, codes: Array) -> Array:
        """Return numbers (n, width) as probabilities (n, k) of all categories of a nominal or binary column."""
        if self.kind == "binary":
            second = np.clip(codes, 0, 1) if len(self.categories) == 2 else np.zeros((len(codes), 0))
            return np.hstack([1 - second.sum(1, keepdims=True), second])
        share = np.zeros((len(codes), len(self.categories)))
        share[:, : self.width] = np.clip(codes, 0, 1)
        total = share.sum(1, keepdims=True)
        return np.asarray(np.divide(share, total, out=np.full_like(share, np.nan), where=total > 0))

    def between(self, bounds: Bounds) -> Column:
        """Return the column with bounds of the user's; None leaves an end open."""
        low, high = (None if end is None else float(end) for end in bounds)
        if self.kind not in NUMERIC:
            raise ParameterError(f"bounds of column {self.name!r}: it is {self.kind}, not a number")
        if low is not None and high is not None and not low < high:
            raise ParameterError(f"bounds of column {self.name!r}: {low:g} is not below {high:g}")
        return replace(self, low=low, high=high)


def microseconds(value: Any) -> int:
    """Return a date or time as microseconds since 1970; local times count as they read."""
    if not isinstance(value, datetime):
        if not isinstance(value, date):
            raise TypeError(f"{value!r} is no date")
        value = datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = value.astimezone(timezone.utc).replace(tzinfo=None)
    count: int = (value - EPOCH) // timedelta(microseconds=1)
    return count
