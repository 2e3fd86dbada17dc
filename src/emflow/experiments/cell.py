"""One cell: from a data set and a method to a line of results."""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emflow import datasets, metrics, missingness
from emflow.errors import DataError
from emflow.experiments.curve import curve_of
from emflow.experiments.methods import build, warm_up
from emflow.experiments.plan import N_FOLDS, Cell

Array = NDArray[np.float64]
FILLS, FILLING = 5, 2.0  # calls that are timed, at the most, and seconds after which it is enough
ENERGY_ROWS = 2000  # the energy distance compares all pairs of rows
MECHANISMS = {"mcar": missingness.mcar, "mar": missingness.mar_paper}


@dataclass(frozen=True)
class Split:
    """The data of a cell, scaled to [0, 1].

    Attributes
    ----------
    train : array of shape (n_train, p)
        Training rows, NaN where missing.
    test : array of shape (n_test, p)
        Test rows, complete.
    missing : bool array of shape (n_test, p)
        Cells of the test rows that are hidden.
    target : array of shape (n_test,) or None
        What regressions on the test rows predict, if congeniality is wanted.
    predictors : bool array of shape (p,)
        Columns that they predict it from: all but the target itself, which is a column of News.
    """

    train: Array
    test: Array
    missing: NDArray[np.bool_]
    target: Array | None
    predictors: NDArray[np.bool_]

    @property
    def test_holes(self) -> Array:
        """Test rows, NaN where missing."""
        return np.where(self.missing, np.nan, self.test)


def prepare(cell: Cell) -> Split:
    """Load the set, scale its columns on the full table as the paper does, hide cells, and split off the test fold."""
    from sklearn.model_selection import KFold

    data = datasets.load(cell.dataset, target=cell.regression is not None)
    X = np.asarray(data.X, dtype=np.float64)
    rows = np.arange(len(X))
    if cell.max_rows is not None and cell.max_rows < len(X):
        rows = np.sort(np.random.default_rng(cell.seed).choice(len(X), cell.max_rows, replace=False))
    target, predictors = None, np.ones(X.shape[1], dtype=bool)
    if data.target is not None:
        predictors = ~(data.target[:, None] == X).all(axis=0)
        target = data.target[rows]
        if cell.regression == "linear":  # in the scale of the columns; a class stays what it is
            target = _scale(target)
    X = _scale(X[rows])
    missing = MECHANISMS[cell.mechanism](X, cell.rate, random_state=cell.seed)
    folds = KFold(N_FOLDS, shuffle=True, random_state=cell.seed).split(X)
    train, test = list(folds)[cell.fold]
    holes = np.where(missing, np.nan, X)
    return Split(holes[train], X[test], missing[test], None if target is None else target[test], predictors)


def _scale(X: Array) -> Array:
    """Scale columns to [0, 1] by minimum and maximum; a constant one is 0."""
    span = np.ptp(X, axis=0)
    return np.asarray((X - X.min(axis=0)) / np.where(span > 0, span, 1))


def run_cell(cell: Cell, max_time: float) -> dict[str, Any]:
    """Fit on the training rows, fill the test rows, measure.

    Parameters
    ----------
    max_time : float
        Seconds for `fit`, for the methods that can stop themselves.
    """
    split = prepare(cell)
    imputer = build(cell.method, cell.parameters, cell.seed, max_time)
    warm_up(cell.method, cell.parameters)
    memory_before = peak_memory()
    with warnings.catch_warnings(record=True) as caught:  # they become part of the result
        warnings.simplefilter("always")
        started = time.perf_counter()
        imputer.fit(split.train)
        fitted = time.perf_counter()
        filled, transform_seconds = fill(imputer, split.test_holes)
        memory = peak_memory()
        measured = measure(cell, split, filled) | {"coverage": coverage_of(imputer, split)}
    result: dict[str, Any] = {
        **measured,
        "fit_seconds": fitted - started,
        "transform_seconds": transform_seconds,
        "timed_out": getattr(imputer, "timed_out_", False),  # scikit-learn's never stop themselves
        "peak_memory_mb": memory,
        "peak_memory_before_fit_mb": memory_before,
        "train_rows": len(split.train),
        "test_rows": len(split.test),
        "warnings": sorted({str(warning.message) for warning in caught}),
    }
    if cell.with_curve:
        result["curve"] = curve_of(cell, imputer, split, fitted - started, max_time)
    return result


def fill(imputer: Any, rows: Array) -> tuple[Array, float]:
    """Return the rows filled, and the median of the seconds of several calls, where one takes little time."""
    filled, seconds = None, []
    while filled is None or (len(seconds) < FILLS and sum(seconds) < FILLING):
        started = time.perf_counter()
        result = imputer.transform(rows)
        seconds.append(time.perf_counter() - started)
        filled = np.asarray(result) if filled is None else filled
    return filled, statistics.median(seconds)


def measure(cell: Cell, split: Split, filled: Array) -> dict[str, float | None]:
    """Return the metrics of the completed test rows; congeniality only where the cell wants it."""
    X, seed = split.test, cell.seed
    values: dict[str, float | None] = {
        "rmse": metrics.rmse(X, filled, split.missing),
        "mae": metrics.mae(X, filled, split.missing),
        "sliced_wasserstein": metrics.sliced_wasserstein(X, filled, random_state=seed),
        "energy_distance": metrics.energy_distance(X, filled, max_rows=ENERGY_ROWS, random_state=seed),
        "congeniality": None,
    }
    if cell.regression is not None and split.target is not None:
        use = split.predictors
        try:
            values["congeniality"] = metrics.congeniality(X[:, use], filled[:, use], split.target, kind=cell.regression)
        except DataError as error:  # the fit may have taken hours: what else it gave is kept
            warnings.warn(f"no congeniality: {error}", RuntimeWarning, stacklevel=2)
    return {name: None if value is None else float(value) for name, value in values.items()}


def coverage_of(imputer: Any, split: Split) -> float | None:
    """Return the share of the hidden test cells within their intervals for 90 %, of an imputer that has any."""
    if not hasattr(imputer, "intervals"):
        return None
    lower, upper = imputer.intervals(split.test_holes, coverage=0.9)
    rounding = 1e-6  # the ends of an interval may be values of the column, in single precision
    within = (lower - rounding <= split.test) & (split.test <= upper + rounding)
    return float(within[split.missing].mean())


def peak_memory() -> float | None:
    """Megabytes that this process has held at most, None where the system does not tell.

    Linux tells it for the program alone (VmHWM); elsewhere `getrusage` may count the parent from which it was forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
