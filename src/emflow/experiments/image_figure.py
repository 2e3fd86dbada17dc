"""The paper's figures about images: samples for the eye, and the effect of the initial imputation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emflow.experiments.canvas import COLOURS, QUICK, legend_below, need, new_figure, tidy
from emflow.experiments.image_plan import ImageCell, ImageExperiment
from emflow.experiments.plan import label
from emflow.experiments.results import Record, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bytes = NDArray[np.uint8]
HOLE = 128  # grey of a missing pixel
GAP = 2  # white pixels between two images
FILLS = {"nearest": ("nearest pixel", COLOURS["emflow"]), "zero": ("zero", COLOURS["mcflow"])}


# --- samples


def draw_samples(experiment: ImageExperiment, results: Results, quick: bool) -> tuple[Figure, str]:
    """Draw a panel per set and rate: complete images, what is observed of them, and what each method makes of it."""
    panels = {
        (dataset, rate): _lines(experiment, dataset, rate, results, quick)
        for dataset in experiment.sets
        for rate in experiment.rates
    }
    panels = {place: lines for place, lines in panels.items() if lines}
    need(bool(panels), experiment, quick)
    columns = min(len(experiment.rates), len(panels))
    rows = -(-len(panels) // columns)
    lengths = [*map(len, panels.values()), *[0] * (rows * columns - len(panels))]
    heights = [0.5 * max(lengths[i : i + columns]) + 0.4 for i in range(0, len(lengths), columns)]
    drawn = new_figure(7.2 * columns, sum(heights) + 0.4, QUICK if quick else "")
    axes = list(drawn.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)
    for axis, ((dataset, rate), lines) in zip(axes, panels.items(), strict=False):
        sheet = contact_sheet(list(lines.values()))
        axis.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        step = len(sheet) / len(lines)
        axis.set_yticks(step * (np.arange(len(lines)) + 0.5), list(lines))
        axis.set(title=f"{label(dataset)}, missing rate {rate:g}", xticks=[])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_anchor("N")  # panels with fewer lines begin where the others do
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    return drawn, "\n".join(_in_words(experiment, place, results, quick) for place in panels)


def _lines(experiment: ImageExperiment, dataset: str, rate: float, results: Results, quick: bool) -> dict[str, Bytes]:
    """Return name -> images for the lines of a panel; without any completed images there is none."""
    found = {}
    for method, spec in experiment.methods.items():
        for cell in experiment.cells(dataset, rate, method, quick):
            path = results.path.parent / cell.picture
            if results.get(cell) and path.exists():
                found[spec.label] = _load(path)
    if not found:
        return {}
    first = next(iter(found.values()))
    observed = first["truth"].copy()
    observed[first["missing"]] = HOLE
    return {"complete": first["truth"], "observed": observed, **{name: kept["filled"] for name, kept in found.items()}}


def _load(path: Path) -> dict[str, Any]:
    with np.load(path) as kept:
        return dict(kept)


def contact_sheet(lines: list[Bytes]) -> Bytes:
    """Return one image with images (n, h, w) or (n, h, w, c) beside each other, line below line, white between them."""
    sides = [(0, 0), (0, GAP), (0, GAP)] + [(0, 0)] * (lines[0].ndim - 3)
    padded = [np.concatenate(list(np.pad(line, sides, constant_values=255)), axis=1) for line in lines]
    return np.concatenate(padded)


def _in_words(experiment: ImageExperiment, place: tuple[str, float], results: Results, quick: bool) -> str:
    dataset, rate = place
    errors = [
        f"{spec.label} {record['rmse']:.4f}"
        for method, spec in experiment.methods.items()
        for cell in experiment.cells(dataset, rate, method, quick)
        if (record := results.get(cell)) and record["rmse"] is not None
    ]
    return f"{label(dataset)}, missing rate {rate:g}, test RMSE: {', '.join(errors)}"


# --- initial imputation


def draw_initial(experiment: ImageExperiment, results: Results, quick: bool) -> tuple[Figure, str]:
    """Draw loss, test RMSE and norm of the latent covariance, a row of panels per rate, a curve per initial fill."""
    (dataset,), (method,) = experiment.sets, experiment.methods
    drawn = new_figure(11.4, 2.9 * len(experiment.rates) + 0.4, QUICK if quick else "")
    axes = drawn.subplots(len(experiment.rates), 3, squeeze=False)
    lines = []
    for row, rate in zip(axes, experiment.rates, strict=True):
        for cell in experiment.cells(dataset, rate, method, quick):
            record = results.get(cell)
            if record and record.get("history"):
                _curves(row, cell, record)
                lines.append(_errors(cell, record))
        row[0].set_ylabel(f"missing rate {rate:g}\nnegative log-likelihood per image")
        row[1].set_ylabel("test RMSE")
        row[2].set_ylabel("Frobenius norm of the covariance")
        for axis, name in zip(row, ("epoch", "outer iteration", "epoch"), strict=True):
            axis.set_xlabel(name)
            tidy(axis)
    need(bool(lines), experiment, quick)
    legend_below(drawn, axes.flat)
    return drawn, "\n".join(lines)


def _curves(row: Any, cell: ImageCell, record: Record) -> None:
    """Add the curves of a cell to its three panels: L1 (equation 11) and covariance by epoch, error by iteration."""
    name, colour = FILLS[cell.parameters["initial_fill"]]
    history = record["history"]
    epochs = range(1, len(history["epochs"]) + 1)
    for axis, value in ((row[0], "l1"), (row[2], "frobenius")):
        axis.plot(epochs, [epoch[value] for epoch in history["epochs"]], color=colour, linewidth=1.4, label=name)
    row[1].plot(history["rmse"], color=colour, linewidth=1.4, marker="o", markersize=3.5, label=name)
    row[1].set_xticks(range(len(history["rmse"])))


def _errors(cell: ImageCell, record: Record) -> str:
    name, _ = FILLS[cell.parameters["initial_fill"]]
    errors = ", ".join(f"{error:.4f}" for error in record["history"]["rmse"])
    stopped = "; stopped by budget" if record["timed_out"] else ""
    return f"rate {cell.rate:g}, {name}: RMSE from the start on {errors}{stopped}"
