"""One cell on images: from a set and a method to a line of results, and a few completed images beside it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emflow import metrics
from emflow.experiments.cell import peak_memory
from emflow.experiments.curve import errors_by_stage
from emflow.experiments.image_methods import Holes, Pixels, build, per_value
from emflow.experiments.image_plan import ImageCell, load_images

KEPT = 12  # test images that a cell keeps, for the eye
HISTORY = ("iteration", "epoch", "l1", "l2", "frobenius")  # what is kept of every epoch

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Part:
    """Training or test images of a cell.

    Attributes
    ----------
    pixels : uint8 array of shape (n, h, w) or (n, h, w, c)
        The images, complete.
    labels : array of shape (n,)
        Their classes.
    missing : bool array of shape (n, h, w)
        Pixels that are hidden.
    """

    pixels: Bytes
    labels: NDArray[np.integer[Any]]
    missing: Holes

    def holes(self) -> Pixels:
        """Return the images as imputers see them: scaled to [0, 1], NaN where missing."""
        x = scaled(self.pixels)
        np.copyto(x, np.nan, where=per_value(self.missing, x.shape))  # an index would be larger than the images
        return x


def scaled(pixels: Bytes) -> Pixels:
    """Return images in [0, 1], in single precision."""
    x = pixels.astype(np.float32)
    x /= 255
    return x


def to_bytes(x: Pixels) -> Bytes:
    """Undo `scaled`, with values rounded, and those outside [0, 1] at its ends."""
    return np.rint(x.clip(0, 1) * 255).astype(np.uint8)


def prepare(cell: ImageCell) -> tuple[Part, Part]:
    """Load the set and hide pixels: the training and the test part. What is hidden of one tells nothing of the other.

    A pixel that is hidden at some rate is hidden at every higher rate too.
    """
    data = load_images(cell.dataset)
    return (
        _part(data.x_train, data.y_train, cell.max_train, cell.rate, np.random.default_rng([cell.seed, 0])),
        _part(data.x_test, data.y_test, cell.max_test, cell.rate, np.random.default_rng([cell.seed, 1])),
    )


def _part(pixels: Any, labels: Any, most: int | None, rate: float, rng: np.random.Generator) -> Part:
    if most is not None and most < len(pixels):
        rows = np.sort(rng.choice(len(pixels), most, replace=False))
        pixels, labels = pixels[rows], labels[rows]
    return Part(pixels, labels, rng.random(pixels.shape[:3], dtype=np.float32) < rate)


def run_image_cell(cell: ImageCell, max_time: float, folder: Path) -> dict[str, Any]:
    """Fit to the training images, fill the test images, measure, and keep the first of them.

    Parameters
    ----------
    max_time : float
        Seconds for `fit`, for the methods that can stop themselves.
    folder : path
        Of the results.
    """
    train, test = prepare(cell)
    imputer = build(cell.method, cell.parameters, cell.seed, max_time)
    memory_before = peak_memory()
    with warnings.catch_warnings(record=True) as caught:  # they become part of the result
        warnings.simplefilter("always")
        started = time.perf_counter()
        imputer.fit(train.holes(), missing=train.missing)
        fitted = time.perf_counter()
        filled = imputer.transform(test.holes(), missing=test.missing)
        done = time.perf_counter()
        memory = peak_memory()
    result: dict[str, Any] = {
        **measure(cell, test, filled),
        "fit_seconds": fitted - started,
        "transform_seconds": done - fitted,
        "timed_out": getattr(imputer, "timed_out_", False),
        "peak_memory_mb": memory,
        "peak_memory_before_fit_mb": memory_before,
        "train_rows": len(train.pixels),
        "test_rows": len(test.pixels),
        "warnings": sorted({str(warning.message) for warning in caught}),
    }
    if cell.with_history:
        result["history"] = history_of(imputer, test)
    keep(folder / cell.picture, test, filled)
    return result


def measure(cell: ImageCell, test: Part, filled: Pixels) -> dict[str, float | None]:
    """Return the errors of the hidden values, in units of [0, 1], and the accuracies where the cell wants them."""
    values: dict[str, float | None] = {
        "rmse": _error(metrics.rmse, test, filled),
        "mae": _error(metrics.mae, test, filled),
        "accuracy": None,
        "clean_accuracy": None,
    }
    if cell.with_accuracy:
        from emflow.experiments.classify import classifier

        judge = classifier(cell.dataset)
        values["accuracy"] = judge.accuracy(to_bytes(filled), test.labels)
        values["clean_accuracy"] = judge.test_accuracy
    return values


def _error(metric: Any, test: Part, filled: Pixels) -> float:
    arrays = scaled(test.pixels), filled, per_value(test.missing, filled.shape)
    return float(metric(*(array.reshape(len(filled), -1) for array in arrays)))


def history_of(imputer: Any, test: Part) -> dict[str, Any]:
    """Return losses and covariance of EMFlow by epoch, and the test RMSE by outer iteration, from the start on."""

    def error(imputer: Any) -> float:
        return _error(metrics.rmse, test, imputer.transform(test.holes(), missing=test.missing))

    epochs = [{name: epoch[name] for name in HISTORY} for epoch in imputer.history_["epochs"]]
    return {"epochs": epochs, "rmse": errors_by_stage(imputer, error, first=0)}


def keep(path: Path, test: Part, filled: Pixels) -> None:
    """Write the first images: complete, their holes, and completed. An old file stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(
        temporary, truth=test.pixels[:KEPT], missing=test.missing[:KEPT], filled=to_bytes(filled[:KEPT])
    )
    temporary.replace(path)
