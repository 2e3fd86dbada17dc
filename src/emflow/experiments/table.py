"""The paper's tables from the results: ours next to the published numbers, and what differs said below."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from emflow import datasets
from emflow.errors import EMFlowError
from emflow.experiments.plan import FIGURES, Experiment, label
from emflow.experiments.render import FORMATS, Block, Sheet
from emflow.experiments.results import Record, Results

SD_FLOOR = 0.0005  # half a unit of the last published digit: what a published .000 may be at most
TIMED_OUT, DIVERGED = "†", "‡"
MARKS = {
    TIMED_OUT: "Stopped by the time budget of a cell in at least one fold: what was learnt until then.",
    DIVERGED: "Training diverged in at least one fold: what was learnt before.",
}
MECHANISMS = {"mcar": "MCAR, 20 % of all cells", "mar": "MAR, the last 30 % of the columns"}
MAR_NOTE = (
    "The MAR formula of the paper cannot give the missing rates of its own table. Here it has an intercept, solved "
    "such that the rates are those of the table; the published numbers come from an unknown variant."
)
UNITS_NOTE = (
    "Mean ± standard deviation over the folds that were run, of five. Difference: ours minus published, in published "
    "standard deviations; a published deviation below .0005 counts as .0005, the most that .000 can stand for."
)


@dataclass(frozen=True)
class Entry:
    """What the folds of a method on a set gave.

    Attributes
    ----------
    values : list of float
        Of the folds with a number; those that were killed when their time was over have none.
    stopped, diverged : bool
        Whether the number of any fold comes from training that time or divergence ended early.
    folds : int
        Folds that were run.
    """

    values: list[float]
    stopped: bool
    diverged: bool
    folds: int

    @classmethod
    def of(cls, records: list[Record], value: str) -> Entry:
        values = [record[value] for record in records if record[value] is not None]
        stopped = any(record["timed_out"] and record[value] is not None for record in records)
        diverged = any("diverged" in warning for record in records for warning in record["warnings"])
        return cls(values, stopped, diverged, len(records))

    def text(self, digits: int) -> str:
        """Return mean ± sd, with a mark where the budget ended a fold; "timed out" without any number."""
        if not self.folds:
            return "-"
        if not self.values:
            return "timed out"
        spread = f" ± {number(float(np.std(self.values, ddof=1)), digits)}" if len(self.values) > 1 else ""
        marks = TIMED_OUT * self.stopped + DIVERGED * self.diverged
        killed = self.folds - len(self.values)
        lacking = f" ({killed} of {self.folds} timed out)" if killed else ""
        return f"{number(float(np.mean(self.values)), digits)}{spread}{marks}{lacking}"

    def difference(self, published: Sequence[float]) -> str:
        """Return ours minus published, in published standard deviations."""
        if not self.values:
            return ""
        mean, sd = published
        return f"{(np.mean(self.values) - mean) / max(sd, SD_FLOOR):+.1f}"


@dataclass
class Notes:
    """Footnotes, marked a, b, c in the order of their first use."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """Return the mark of a note; none for an empty one."""
        if not text:
            return ""
        if text not in self.texts:
            self.texts.append(text)
        return f" [{chr(ord('a') + self.texts.index(text))}]"

    def lines(self) -> list[str]:
        return [f"{self.mark(text).strip()} {text}" for text in self.texts]


def table(name: str, folder: str | os.PathLike[str], form: str = "text", quick: bool = False) -> str:
    """Return a table of the paper as text.

    Parameters
    ----------
    name : {"table1", "congeniality"}
    folder : path
        Of the results.
    form : {"text", "markdown", "latex"}
    quick : bool
        Show the results of quick runs instead.
    """
    experiment = Experiment.load(name)
    if name in FIGURES:
        raise EMFlowError(f"{name} is a figure: use `emflow experiments figure {name}`")
    results = Results(folder, experiment.cells_of, quick)
    notes = Notes()
    blocks = [_block(experiment, mechanism, results, notes, quick) for mechanism in experiment.mechanisms]
    below = [UNITS_NOTE, *experiment.notes, *notes.lines()]
    for mark, meaning in MARKS.items():
        if any(mark in cell for block in blocks for row in block.rows for cell in row):
            below.append(f"{mark} {meaning}")
    title = experiment.title + (" (quick runs: a smoke test, nothing to compare)" if quick else "")
    return FORMATS[form](Sheet(title, blocks, below))


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


def published_text(published: Sequence[float], digits: int) -> str:
    """Return a published mean ± sd with the digits they were published with, one more where these do not hold it."""
    return " ± ".join(number(value, digits + (round(value, digits) != value)) for value in published)


def number(value: float, digits: int) -> str:
    """Return a number as the paper writes it: without the zero before the point."""
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text
