"""What stands in one place of a table: numbers as the paper writes them, marks and footnotes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from emflow.experiments.render import Block
from emflow.experiments.results import Record

SD_FLOOR = 0.0005  # half a unit of the last published digit: what a published .000 may be at most
TIMED_OUT, DIVERGED = "†", "‡"
MARKS = {
    TIMED_OUT: "Stopped by the time budget of a cell in at least one fold: what was learnt until then.",
    DIVERGED: "Training diverged in at least one fold: what was learnt before.",
}


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


def explained(marks: Mapping[str, str], blocks: Iterable[Block]) -> list[str]:
    """Return a line for each of the marks that stands anywhere in the blocks."""
    cells = [cell for block in blocks for row in block.rows for cell in row]
    return [f"{mark} {meaning}" for mark, meaning in marks.items() if any(mark in cell for cell in cells)]


def published_text(published: Sequence[float], digits: int) -> str:
    """Return a published mean ± sd with the digits they were published with, one more where these do not hold it."""
    return " ± ".join(number(value, digits + (round(value, digits) != value)) for value in published)


def number(value: float, digits: int) -> str:
    """Return a number as the paper writes it: without the zero before the point."""
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text
