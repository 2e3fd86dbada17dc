"""Weights of rows, as the user gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emflow.errors import DataError
from emflow.table.frame import is_frame, take_rows

Array = NDArray[Any]


def weighed(sample_weight: Any, X: Any, *others: Any) -> tuple[Any, ...]:
    """Return the weights of rows (n,), X, and what else has these rows, all without the rows of weight zero.

    None for the weights says that they are all one.
    """
    if sample_weight is None:
        return (None, X, *others)
    try:
        weight = np.array(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"sample_weight must be numbers, one for each row: {error}") from error
    X = X if hasattr(X, "__len__") else np.asarray(X)
    if weight.ndim == 0:
        weight = np.full(len(X), weight)
    if weight.shape != (len(X),):
        raise DataError(f"sample_weight has shape {weight.shape}, but X has {len(X)} rows: give one for each of them")
    bad = ~(np.isfinite(weight) & (weight >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(f"sample_weight of row {row} is {weight[row]}: it must be finite, and at least 0")
    keep = weight > 0
    if not keep.any():
        raise DataError("sample_weight is zero in every row: there is nothing to learn from")
    parts = (X, *others) if keep.all() else [None if part is None else _rows(part, keep) for part in (X, *others)]
    weight = weight[keep]
    return (None if (weight == 1).all() else weight, *parts)


def _rows(X: Any, keep: NDArray[np.bool_]) -> Any:
    """Return those rows of a frame, array or list that are to be kept."""
    if is_frame(X):
        return take_rows(X, np.flatnonzero(keep))
    return [row for row, kept in zip(X, keep, strict=True) if kept] if isinstance(X, list | tuple) else X[keep]
