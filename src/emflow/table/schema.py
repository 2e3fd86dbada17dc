"""What is learnt of the columns at `fit` and checked at `transform`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from emflow.errors import DataError

Array = NDArray[Any]


def read(estimator: Any, X: Any, *, reset: bool) -> Array:
    """Return X as a float array with NaN where values are missing, or raise an error that names the culprit.

    `reset` is True in `fit`, where number and names of the columns are learnt, and False afterwards, where they are
    compared.
    """
    try:
        array = validate_data(
            estimator, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False, ensure_min_samples=1
        )
    except ValueError as error:
        name_text(X, error)
        raise
    column = np.isinf(array).any(0)
    if column.any():
        j = int(column.argmax())
        i = int(np.isinf(array[:, j]).argmax())
        name = column_name(estimator, j)
        raise DataError(f"column {name} holds infinity in row {i}: mark it as missing (NaN) or replace it")
    return array


def name_text(X: Any, error: ValueError) -> None:
    """Raise a DataError that names the first cell which is no number, if that is what went wrong."""
    if "could not convert string to float" not in str(error):
        return
    names = list(getattr(X, "columns", []))
    cells = np.asarray(X, dtype=object)
    for j in range(cells.shape[1] if cells.ndim == 2 else 0):
        for i, value in enumerate(cells[:, j]):
            try:
                float(value)
            except (TypeError, ValueError):
                if isinstance(value, str):
                    name = repr(names[j]) if names else str(j)
                    text = f"column {name} holds the text {value!r} in row {i}"
                    raise DataError(f"{text}: emflow takes numbers; encode or drop the column") from error


def column_name(estimator: Any, j: int) -> str:
    """Return the name of column j as the user knows it: the frame's, or the number."""
    names = getattr(estimator, "feature_names_in_", None)
    return str(j) if names is None else repr(names[j])


@dataclass(frozen=True)
class Schema:
    """Range and median of the observed values of each column, as lists, so that they are JSON."""

    low: list[float]
    high: list[float]
    median: list[float]

    @classmethod
    def learn(cls, estimator: Any, X: Array) -> Schema:
        """Learn from X (n, p), NaN where missing. A column without any value is an error."""
        empty = np.isnan(X).all(0)
        if empty.any():
            names = ", ".join(column_name(estimator, int(j)) for j in np.flatnonzero(empty))
            raise DataError(f"no observed value in column {names}: drop it, there is nothing to learn from")
        X = X.astype(np.float64)
        return cls(np.nanmin(X, 0).tolist(), np.nanmax(X, 0).tolist(), np.nanmedian(X, 0).tolist())

    @property
    def span(self) -> Array:
        """High - low, and 1 for a constant column."""
        span = np.subtract(self.high, self.low)
        return np.where(span > 0, span, 1.0)

    def scale(self, X: Array) -> Array:
        """Map the observed range of each column to [0, 1], in double precision; NaN stays."""
        return np.asarray((X.astype(np.float64) - self.low) / self.span)

    def unscale(self, x: Array) -> Array:
        """Undo `scale`."""
        return np.asarray(x * self.span + self.low)

    def to_json(self) -> dict[str, list[float]]:
        return asdict(self)
