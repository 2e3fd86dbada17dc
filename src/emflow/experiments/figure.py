"""The paper's figures from the results, as PNG and SVG. The backend of the caller's matplotlib stays as it is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emflow.errors import EMFlowError
from emflow.experiments.canvas import COLOURS, QUICK, legend_below, need, new_figure, tidy
from emflow.experiments.catalogue import load
from emflow.experiments.curve import Points, average, time_to_reach
from emflow.experiments.image_figure import draw_initial, draw_samples
from emflow.experiments.plan import Cell, Experiment, label
from emflow.experiments.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SYMBOLS = {"step_exponent": r"step exponent $\gamma$", "reconstruction_weight": r"reconstruction weight $\alpha$"}


def figure(
    name: str, folder: str | os.PathLike[str], output: str | os.PathLike[str], quick: bool = False
) -> tuple[list[Path], str]:
    """Draw a figure of the paper; return the files written and a summary in words.

    Parameters
    ----------
    name : {"convergence", "hyperparameters", "samples", "initial"}
    folder : path
        Of the results.
    output : path
        Folder for the pictures; made if it is not there.
    quick : bool
        Draw the results of quick runs instead.
    """
    if name not in FIGURES:
        raise EMFlowError(f"{name} is no figure: use `emflow experiments table {name}`")
    experiment = load(name)
    results = Results(folder, experiment.cells_of, quick, experiment.cell_type)
    drawn, summary = FIGURES[name](experiment, results, quick)
    Path(output).mkdir(parents=True, exist_ok=True)
    paths = [Path(output) / f"{name}{'-quick' if quick else ''}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        drawn.savefig(path, dpi=160)
    return paths, summary


# --- convergence


def draw_convergence(experiment: Experiment, results: Results, quick: bool) -> tuple[Figure, str]:
    """Draw the loss above and the test RMSE below over time, a column per set; say who is there first."""
    curves = {
        dataset: {method: _records(experiment, dataset, method, results, quick) for method in experiment.methods}
        for dataset in experiment.sets
    }
    need(any(found for records in curves.values() for found in records.values()), experiment, quick)
    drawn = new_figure(3.8 * len(curves), 6.4, QUICK if quick else "")
    axes = drawn.subplots(2, len(curves), squeeze=False)
    for column, (dataset, records) in enumerate(curves.items()):
        upper, lower = axes[:, column]
        stopped = [experiment.methods[m].label for m, found in records.items() if any(r["timed_out"] for r in found)]
        upper.set_title(label(dataset) + (f" ({', '.join(stopped)} stopped by budget)" if stopped else ""))
        published = experiment.published["mcar"][dataset]
        for method, found in records.items():
            name, colour = experiment.methods[method].label, COLOURS[method]
            mean = published[method][0]
            lower.axhline(mean, color=colour, linestyle=":", linewidth=1.2, label=f"{name}, published")
            if found:
                upper.plot(*zip(*_mean(found, "loss"), strict=True), linewidth=1.4, color=colour)
                lower.plot(
                    *zip(*_mean(found, "rmse"), strict=True),
                    linewidth=1.4, color=colour, marker="o", markersize=3.5, label=name,
                )  # fmt: skip
        _finish(upper, lower, any(records.values()))
    axes[0, 0].set_ylabel("training loss (nats per row)")
    axes[1, 0].set_ylabel("test RMSE (columns in [0, 1])")
    legend_below(drawn, axes[1])
    lines = [_race(experiment, dataset, records) for dataset, records in curves.items()]
    return drawn, "\n".join([*lines, *experiment.notes])


def _finish(upper: Axes, lower: Axes, has_curves: bool) -> None:
    for axis in (upper, lower):
        axis.set(xscale="log", xlabel="seconds of fitting")
        tidy(axis)
        if not has_curves:
            axis.set(xticks=[], yticks=[])
            axis.minorticks_off()
            axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", va="center", color="grey")
    upper.sharex(lower)


def _race(experiment: Experiment, dataset: str, records: dict[str, list[Record]]) -> str:
    """Say how long each method takes to the published RMSE of each, and how many times longer MCFlow takes."""
    lacking = [method for method, found in records.items() if not found]
    if lacking:
        return f"{label(dataset)}: not run ({', '.join(lacking)})"
    folds = ", ".join(f"{experiment.methods[method].label} {len(found)}" for method, found in records.items())
    lines = [f"{label(dataset)}: seconds of fitting until the test RMSE, rounded to three digits, is (folds: {folds})"]
    for rival in records:
        target, whose = experiment.published["mcar"][dataset][rival][0], experiment.methods[rival].label
        times = {method: time_to_reach(_mean(found, "rmse"), target) for method, found in records.items()}
        shown = ", ".join(f"{experiment.methods[method].label} {in_words(*time)}" for method, time in times.items())
        lines.append(f"  {target:.3f} ({whose}, published): {shown}; {ratio(*times.values())}")
    return "\n".join(lines)


def in_words(after: float, by: float) -> str:
    """Say when a curve came to its target, as far as its points tell."""
    if by == math.inf:
        return f"not within {after:.1f} s"
    return f"after {after:.1f} to {by:.1f} s"


def ratio(ours: tuple[float, float], theirs: tuple[float, float]) -> str:
    """Say how many times longer the other takes at least, whatever happened between the points of the curves."""
    if ours[1] == math.inf:
        return "neither gets there" if theirs[1] == math.inf else "only the other gets there"
    return f"at least {theirs[0] / ours[1]:.1f} times as long"


def _records(experiment: Experiment, dataset: str, method: str, results: Results, quick: bool) -> list[Record]:
    """Return the records of all folds that have a curve."""
    records = (results.get(cell) for cell in experiment.cells(dataset, "mcar", method, quick=quick))
    return [record for record in records if record and record.get("curve")]


def _mean(records: list[Record], name: str) -> Points:
    return average([record["curve"][name] for record in records])


# --- hyperparameters


def draw_hyperparameters(experiment: Experiment, results: Results, quick: bool) -> tuple[Figure, str]:
    """Draw the test RMSE over each hyperparameter, the other at the paper's choice, with the published lines."""
    (dataset,), (method,) = experiment.sets, experiment.methods
    cells = list(experiment.cells(dataset, "mcar", method, quick=quick))
    published = experiment.published["mcar"][dataset]
    drawn = new_figure(4.2 * len(experiment.sweep), 3.6, QUICK if quick else "")
    axes = drawn.subplots(1, len(experiment.sweep), squeeze=False, sharey=True)[0]
    lines = []
    for axis, (name, values) in zip(axes, experiment.sweep.items(), strict=True):
        spec = experiment.methods[method].parameters
        folds = {value: _folds(cells, results, spec | {name: value}) for value in values}
        lines += [f"{name} = {value:g}: {_in_words(records)}" for value, records in folds.items() if records]
        errors = {value: [record["rmse"] for record in records] for value, records in folds.items() if records}
        if errors:
            means = [np.mean(found) for found in errors.values()]
            ends = [[mean - min(found), max(found) - mean] for mean, found in zip(means, errors.values(), strict=True)]
            axis.errorbar(
                list(errors), means, np.transpose(ends), color=COLOURS["emflow"], marker="o", markersize=4, capsize=3,
                label=f"EMFlow on {label(dataset)}, mean and range of folds",
            )  # fmt: skip
        for rival in ("emflow", "mcflow"):
            text = f"{ {'emflow': 'EMFlow', 'mcflow': 'MCFlow'}[rival] }, published"
            axis.axhline(published[rival][0], color=COLOURS[rival], linestyle=":", linewidth=1.2, label=text)
        axis.set(xlabel=SYMBOLS[name], xscale="log" if max(values) > 10 * min(values) else "linear", xticks=values)
        tidy(axis)
    need(bool(lines), experiment, quick)
    axes[0].set_ylabel("test RMSE (columns in [0, 1])")
    axes[0].margins(y=0.25)
    legend_below(drawn, axes)
    return drawn, "\n".join(lines)


def _folds(cells: list[Cell], results: Results, parameters: dict[str, Any]) -> list[Record]:
    """Return the record of every fold that was run with these values of the hyperparameters and gave a number."""
    records = [results.get(cell) for cell in cells if cell.parameters.items() >= parameters.items()]
    return [record for record in records if record is not None and record["rmse"] is not None]


def _in_words(records: list[Record]) -> str:
    stopped = sum(record["timed_out"] for record in records)
    mark = f", {stopped} of them stopped by budget" if stopped else ""
    return f"RMSE {np.mean([record['rmse'] for record in records]):.4f}, folds: {len(records)}{mark}"


FIGURES: dict[str, Callable[[Any, Results, bool], tuple[Figure, str]]] = {
    "convergence": draw_convergence,
    "hyperparameters": draw_hyperparameters,
    "samples": draw_samples,
    "initial": draw_initial,
}
