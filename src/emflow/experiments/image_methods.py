"""The imputers of images by the names they have in the plans.

All of them have `fit(X, missing=missing)` and `transform(X, missing=missing)` for float images X of shape (n, h, w) or
(n, h, w, c) and missing pixels of shape (n, h, w).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emflow.errors import ParameterError
from emflow.experiments.methods import STOP_THEMSELVES
from emflow.table.fill import fill_nearest

Pixels = NDArray[np.float32]
Holes = NDArray[np.bool_]


def build(name: str, parameters: dict[str, Any], seed: int, max_time: float) -> Any:
    """Return the imputer, not fitted; `max_time` is for the methods that can stop themselves."""
    if name not in _BUILDERS:
        raise ParameterError(f"there is no method {name!r} for images: choose one of {', '.join(_BUILDERS)}")
    if name in STOP_THEMSELVES:
        parameters = parameters | {"max_time": max_time}
    return _BUILDERS[name](seed, parameters)


def per_value(missing: Holes, shape: tuple[int, ...]) -> Holes:
    """Return missing pixels (n, h, w) as missing values of images of a shape: all channels of a pixel go together."""
    return np.broadcast_to(missing.reshape(missing.shape + (1,) * (len(shape) - missing.ndim)), shape)


class PixelMean:
    """Fill with the mean of the observed values at the same place; at a place never seen, with the mean of all."""

    def fit(self, X: Pixels, *, missing: Holes) -> PixelMean:
        """Learn the means from the training images."""
        seen = per_value(~missing, X.shape)
        total, count = X.sum(0, where=seen, dtype=np.float64), seen.sum(0)
        self.mean_ = np.where(count > 0, total / np.maximum(count, 1), total.sum() / count.sum()).astype(X.dtype)
        return self

    def transform(self, X: Pixels, *, missing: Holes) -> Pixels:
        """Return the images with their holes filled."""
        return np.where(per_value(missing, X.shape), self.mean_, X)


class NearestPixel:
    """Fill with the nearest observed pixel of the same image. There is nothing to learn."""

    def fit(self, X: Pixels, *, missing: Holes) -> NearestPixel:
        """Return the imputer as it is."""
        return self

    def transform(self, X: Pixels, *, missing: Holes) -> Pixels:
        """Return the images with their holes filled; an image without any observed pixel is black."""
        holes = per_value(missing, X.shape).copy()  # torch wants an array that may be written to
        x, m = (torch.from_numpy(array).flatten(1) for array in (np.where(holes, np.float32(0), X), holes))
        return fill_nearest(x, m, X.shape[1:]).numpy().reshape(X.shape)


def _emflow(seed: int, parameters: dict[str, Any]) -> Any:
    from emflow import EMFlowImputer

    return EMFlowImputer(random_state=seed, **parameters)


def _emflow_paper(seed: int, parameters: dict[str, Any]) -> Any:
    from emflow import EMFlowImputer

    return EMFlowImputer.paper("image", random_state=seed, **parameters)


def _baseline(name: str) -> Callable[[int, dict[str, Any]], Any]:
    def make(seed: int, parameters: dict[str, Any]) -> Any:
        from emflow import baselines

        return getattr(baselines, name)(random_state=seed, **parameters)

    return make


_BUILDERS: dict[str, Callable[[int, dict[str, Any]], Any]] = {
    "mean": lambda _, parameters: PixelMean(**parameters),
    "nearest": lambda _, parameters: NearestPixel(**parameters),
    "emflow_gaussian": lambda seed, parameters: _emflow(seed, {"refine": "off"} | parameters),
    "gain": _baseline("GAINImputer"),
    "emflow": _emflow,
    "emflow_paper": _emflow_paper,
    "mcflow": _baseline("MCFlowImputer"),
    "misgan": _baseline("MisGANImputer"),
}
METHODS = tuple(_BUILDERS)
