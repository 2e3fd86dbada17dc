"""Loss and test RMSE over the seconds of fitting: the two curves of the convergence figure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from emflow import metrics
from emflow.errors import ParameterError
from emflow.experiments.methods import build
from emflow.experiments.plan import Cell

if TYPE_CHECKING:
    from emflow.experiments.cell import Split

Points = list[tuple[float, float]]  # seconds of fitting, value
EARLY_EPOCHS = (1, 2, 3, 5)  # of the first outer iteration of EMFlow, each a short fit of its own


def curve_of(cell: Cell, imputer: Any, split: Split, fit_seconds: float, max_time: float) -> dict[str, Points]:
    """Return {"loss": points, "rmse": points} of a fitted imputer. Seconds count fitting alone.

    The loss is the negative log-likelihood of the current completion, per row, for both: L1 of EMFlow (equation 11)
    and the loss of MCFlow's flow.
    """
    if cell.method == "emflow":
        return _emflow(cell, imputer, split, fit_seconds, max_time)
    if cell.method == "mcflow":
        return _mcflow(imputer, split, fit_seconds)
    raise ParameterError(f"{cell.method} has no curve: only emflow and mcflow do")


def _emflow(cell: Cell, imputer: Any, split: Split, fit_seconds: float, max_time: float) -> dict[str, Points]:
    """Early points from short fits, which the seed makes beginnings of the long one; then one per outer iteration."""
    rmse: Points = []
    for n_epochs in EARLY_EPOCHS:
        if n_epochs < imputer.n_epochs:
            parameters = cell.parameters | {"n_iterations": 1, "n_epochs": n_epochs}
            short = build(cell.method, parameters, cell.seed, max_time)
            started = time.perf_counter()
            short.fit(split.train)
            rmse.append((time.perf_counter() - started, _error(short, split)))
    seconds = [record["seconds"] for record in imputer.history_["iterations"]]
    ends = fit_seconds - sum(seconds) + np.cumsum(seconds)  # what fit does before training comes first
    errors = errors_by_stage(imputer, lambda fitted: _error(fitted, split))
    rmse += zip(ends.tolist(), errors, strict=True)
    loss: Points = []
    for iteration, (end, length) in enumerate(zip(ends, seconds, strict=True), start=1):
        epochs = [epoch for epoch in imputer.history_["epochs"] if epoch["iteration"] == iteration]
        times = end - length + np.cumsum([epoch["seconds"] for epoch in epochs])
        loss += zip(times.tolist(), [epoch["l1"] for epoch in epochs], strict=True)
    return {"loss": loss, "rmse": rmse}


def _mcflow(imputer: Any, split: Split, fit_seconds: float) -> dict[str, Points]:
    before = fit_seconds - imputer.stage_history_[-1]["seconds"]  # the last stage ends the fit
    times = [before + record["seconds"] for record in imputer.stage_history_]
    errors = errors_by_stage(imputer, lambda fitted: _error(fitted, split))
    return {
        "loss": [(before + epoch["seconds"], epoch["flow_loss"]) for epoch in imputer.history_],
        "rmse": list(zip(times, errors, strict=True)),
    }


def errors_by_stage(imputer: Any, error: Callable[[Any], float], first: int = 1) -> list[float]:
    """Return the error of an imputer after each stage from the `first` on, by replaying those up to it alone.

    The first is 1, or 0 for the initial imputation.
    """
    stages, errors = imputer.stages_, []
    for n in range(first, len(stages) + 1):
        imputer.stages_ = stages[:n]
        errors.append(error(imputer))
    return errors


def _error(imputer: Any, split: Split) -> float:
    filled = np.asarray(imputer.transform(split.test_holes))
    return float(metrics.rmse(split.test, filled, split.missing))


def average(curves: list[Points]) -> Points:
    """Return the mean of several curves, point by point in seconds and value; a longer one is cut."""
    length = min(map(len, curves))
    means = np.mean([curve[:length] for curve in curves], axis=0)
    return [(float(seconds), float(value)) for seconds, value in means]


def time_to_reach(points: Points, target: float) -> tuple[float, float]:
    """Return between which seconds a curve comes to an RMSE that rounds to the target or less.

    That is the point before the first one there, and that one: infinity if there is none. The published targets have
    three digits, so .1114 reaches .111.
    """
    before = 0.0
    for seconds, rmse in points:
        if round(rmse, 3) <= target:
            return before, seconds
        before = seconds
    return before, math.inf
