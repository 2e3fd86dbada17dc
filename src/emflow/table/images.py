"""Images as rows of numbers: (n, h, w) and (n, h, w, c) arrays in, the same shape and type out."""

from __future__ import annotations

from typing import Any

import numpy as np

from emflow.errors import DataError
from emflow.table.schema import Array

ImageShape = tuple[int, ...]  # (h, w) or (h, w, c)


def image_shape(X: Any) -> ImageShape | None:
    """Return the shape of one image if X is an array of images, None if it is a table."""
    shape = getattr(X, "shape", ())
    return tuple(shape[1:]) if len(shape) in (3, 4) else None


def to_rows(X: Any, missing: Any = None) -> Array:
    """Return images as float rows (n, p), row by row of pixels, channels last, with NaN where missing.

    Parameters
    ----------
    missing : array of bool or None
        Of the shape of X, or (n, h, w) for whole pixels of images with channels. NaN is missing too.
    """
    array = np.ma.filled(X.astype(np.float64), np.nan) if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    if array.dtype.kind not in "fiub":
        raise DataError(f"images hold numbers, but these are of type {array.dtype}")
    if 0 in array.shape:
        raise DataError(f"images of shape {array.shape} hold nothing")
    single = array.dtype.itemsize < 4 or array.dtype == np.float32
    rows = array.reshape(len(array), -1).astype(np.float32 if single else np.float64)  # a copy, whatever the type
    if missing is not None:
        rows[per_value(missing, array.shape).reshape(rows.shape)] = np.nan
    return rows


def hide(X: Array, missing: Any) -> Array:
    """Return a copy of the table X (n, p) with NaN where `missing` (n, p) says so."""
    return np.where(missing, np.nan, X).astype(X.dtype)


def per_value(given: Any, shape: tuple[int, ...]) -> Array:
    """Return `missing` as the user gave it, for every value of an array of this shape."""
    missing: Array = np.asarray(given)
    if missing.dtype != bool:
        raise DataError(f"missing must be an array of True (missing) and False, but it is of type {missing.dtype}")
    if missing.shape == shape[:3] and len(shape) == 4:
        missing = np.broadcast_to(missing[..., None], shape)
    if missing.shape != shape:
        pixels = f", or {shape[:3]} for whole pixels" if len(shape) == 4 else ""
        raise DataError(f"missing has shape {missing.shape}, but X has {shape}: they must be alike{pixels}")
    return missing


def to_type(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return floats in another type: rounded and kept within its range if that is one of whole numbers."""
    if dtype.kind == "b":
        return values >= 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
    with np.errstate(over="ignore"):
        return values.astype(dtype)
