"""The paper's tables from the results: ours next to the published numbers, and what differs said below."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from emflow import datasets
from emflow.errors import EMFlowError
from emflow.experiments.accuracy_table import accuracy_blocks
from emflow.experiments.catalogue import FIGURES, load
from emflow.experiments.entry import MARKS, Entry, Notes, explained, published_text
from emflow.experiments.image_plan import ImageExperiment
from emflow.experiments.image_table import image_blocks
from emflow.experiments.plan import Experiment, label
from emflow.experiments.render import FORMATS, Block, Sheet
from emflow.experiments.results import Record, Results

MECHANISMS = {"mcar": "MCAR, 20 % of all cells", "mar": "MAR, the last 30 % of the columns"}
MAR_NOTE = (
    "The MAR formula of the paper cannot give the missing rates of its own table. Here it has an intercept, solved "
    "such that the rates are those of the table; the published numbers come from an unknown variant."
)
UNITS_NOTE = (
    "Mean ± standard deviation over the folds that were run, of five. Difference: ours minus published, in published "
    "standard deviations; a published deviation below .0005 counts as .0005, the most that .000 can stand for."
)


def table(name: str, folder: str | os.PathLike[str], form: str = "text", quick: bool = False) -> str:
    """Return a table of the paper as text.

    Parameters
    ----------
    name : {"table1", "congeniality", "accuracy", "table2", "table3"}
    folder : path
        Of the results.
    form : {"text", "markdown", "latex"}
    quick : bool
        Show the results of quick runs instead.
    """
    experiment = load(name)
    if name in FIGURES:
        raise EMFlowError(f"{name} is a figure: use `emflow experiments figure {name}`")
    results = Results(folder, experiment.cells_of, quick, experiment.cell_type)
    if isinstance(experiment, ImageExperiment):
        blocks, below = image_blocks(experiment, results, quick)
    elif name == "accuracy":
        blocks, below = accuracy_blocks(experiment, results, quick)
    else:
        blocks, below = table_blocks(experiment, results, quick)
    title = experiment.title + (" (quick runs: a smoke test, nothing to compare)" if quick else "")
    return FORMATS[form](Sheet(title, blocks, below))


def table_blocks(experiment: Experiment, results: Results, quick: bool) -> tuple[list[Block], list[str]]:
    """Return a block per mechanism with a row per set, and the notes below them."""
    notes = Notes()
    blocks = [_block(experiment, mechanism, results, notes, quick) for mechanism in experiment.mechanisms]
    return blocks, [UNITS_NOTE, *experiment.notes, *notes.lines(), *explained(MARKS, blocks)]


def _block(experiment: Experiment, mechanism: str, results: Results, notes: Notes, quick: bool) -> Block:
    """Return the rows of all sets under a mechanism, those without results included."""
    published = experiment.published[mechanism]
    compared = {method for numbers in published.values() for method in numbers}
    header = ["", "folds"]
    for method, spec in experiment.methods.items():
        header += [spec.label, "published", "diff."] if method in compared else [spec.label]
    heading = MECHANISMS[mechanism] + (notes.mark(MAR_NOTE) if mechanism == "mar" else "")
    rows = []
    for dataset in experiment.sets:
        records = {
            method: list(_records(experiment, dataset, mechanism, method, results, quick))
            for method in experiment.methods
        }
        rows.append(_row(experiment, dataset, _largest(records), published.get(dataset, {}), compared, notes))
    return Block(heading, header, rows)


def _records(
    experiment: Experiment, dataset: str, mechanism: str, method: str, results: Results, quick: bool
) -> Iterable[Record]:
    for cell in experiment.cells(dataset, mechanism, method, quick=quick):
        record = results.get(cell)
        if record is not None:
            yield record


def _largest(records: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Leave out what was measured on a part of a set, once there is something on a larger part or the whole."""
    rows = max((record["rows"] for found in records.values() for record in found), default=0)
    return {method: [record for record in found if record["rows"] == rows] for method, found in records.items()}


def _row(
    experiment: Experiment,
    dataset: str,
    records: dict[str, list[Record]],
    published: Mapping[str, Sequence[float]],
    compared: set[str],
    notes: Notes,
) -> list[str]:
    """Return the cells of a row; without results the first of them says why."""
    entries = {method: Entry.of(found, experiment.value) for method, found in records.items()}
    counts = sorted({entry.folds for entry in entries.values() if entry.folds})
    found = [record for group in records.values() for record in group]
    why, note = ("", next((record["note"] for record in found if record["note"]), "")) if found else _reason(dataset)
    row = [label(dataset) + notes.mark(note), "-".join(map(str, dict.fromkeys((*counts[:1], *counts[-1:]))))]
    for method, entry in entries.items():
        row.append(why or entry.text(experiment.digits))
        why = ""
        if method in compared:
            number_there = published.get(method)
            row.append("" if number_there is None else published_text(number_there, experiment.published_digits))
            row.append("" if number_there is None else entry.difference(number_there))
    return row


def _reason(dataset: str) -> tuple[str, str]:
    """Return why a set has no results, in short and as a note. A table is no reason to download anything."""
    spec = datasets.SPECS[dataset]
    return ("not run", "") if spec.urls else ("no data", spec.note)
