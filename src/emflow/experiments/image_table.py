"""The paper's tables about images: a block per set, a line per method, a column per missing rate."""

from __future__ import annotations

from collections.abc import Sequence

from emflow.experiments.entry import DIVERGED, TIMED_OUT, Entry, Notes, explained, number
from emflow.experiments.image_plan import ImageExperiment
from emflow.experiments.plan import label
from emflow.experiments.render import Block
from emflow.experiments.results import Record, Results

AS_GOOD = "*"
MARKS = {
    AS_GOOD: "At least as good as the published EMFlow, in the digits that were published.",
    TIMED_OUT: "Stopped by the time budget of its cell: what was learnt until then.",
    DIVERGED: "Training diverged: what was learnt before.",
}
TARGET = "emflow"  # whose published numbers the mark compares with


def image_blocks(experiment: ImageExperiment, results: Results, quick: bool) -> tuple[list[Block], list[str]]:
    """Return a block per set with lines of ours, where there are any, and published ones, and the notes below them."""
    notes, clean = Notes(), []
    blocks = []
    for dataset in experiment.sets:
        records = {method: _records(experiment, dataset, method, results, quick) for method in experiment.methods}
        blocks.append(_block(experiment, dataset, records, notes))
        clean += _clean_accuracy(experiment, dataset, records)
    return blocks, [*experiment.notes, *clean, *notes.lines(), *explained(MARKS, blocks)]


def _records(
    experiment: ImageExperiment, dataset: str, method: str, results: Results, quick: bool
) -> list[Record | None]:
    """Return the record of each rate, None where there is none."""
    cells = [cell for rate in experiment.rates for cell in experiment.cells(dataset, rate, method, quick)]
    return [results.get(cell) for cell in cells]


def _block(experiment: ImageExperiment, dataset: str, records: dict[str, list[Record | None]], notes: Notes) -> Block:
    published = experiment.published[dataset]
    rows = []
    for method, found in records.items():
        name = experiment.methods[method].label
        entries = [_text(experiment, *pair) for pair in zip(found, published[TARGET], strict=True)]
        shown = [record for record in found if record and record[experiment.value] is not None]
        if any(found):
            rows.append([name + notes.mark(_part_of_the_set(shown)), *entries])
        if method in published:
            rows.append([f"{name}, published", *_numbers(experiment, published[method])])
    return Block(label(dataset), ["missing rate", *(number(rate, 1) for rate in experiment.rates)], rows)


def _numbers(experiment: ImageExperiment, values: Sequence[float]) -> list[str]:
    return [number(value, experiment.digits) for value in values]


def _text(experiment: ImageExperiment, record: Record | None, target: float) -> str:
    """Return a number with its marks; "-" for what is not run, or not measured."""
    if record is None or (record[experiment.value] is None and record["rmse"] is not None):
        return "-"
    text = Entry.of([record], experiment.value).text(experiment.digits)
    return text + AS_GOOD * _as_good(experiment, record[experiment.value], target)


def _as_good(experiment: ImageExperiment, value: float | None, target: float) -> bool:
    if value is None:
        return False
    value = round(value, experiment.digits)
    return value >= target if experiment.higher_is_better else value <= target


def _part_of_the_set(records: list[Record]) -> str:
    """Say so where a method was not trained on all images; at all rates it was trained on as many."""
    if not records or records[0]["train_rows"] == records[0]["rows"]:
        return ""
    return f"Trained on {records[0]['train_rows']:,} of the {records[0]['rows']:,} training images."


def _clean_accuracy(experiment: ImageExperiment, dataset: str, records: dict[str, list[Record | None]]) -> list[str]:
    """Say how often the classifier of a set is right on complete images, where accuracy is what is shown."""
    if experiment.value != "accuracy":
        return []
    found = [record["clean_accuracy"] for group in records.values() for record in group if record]
    known = sorted({number(value, experiment.digits) for value in found if value is not None})
    return [f"Accuracy on the complete test images of {label(dataset)}: {', '.join(known)}."] if known else []
