"""Progress of long work: a bar on a terminal or in a notebook, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

EVERY = 10.0  # seconds from a line to the next
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s in {elapsed}, {remaining} to go{postfix}"
LAST = "{desc}: {n_fmt} {unit}s in {elapsed}{postfix}"


def progress(iterable: Sequence[Any] | None = None, *, verbose: bool, **options: Any) -> Any:
    """Return a bar of tqdm, or what writes plain lines where standard error is no terminal.

    `options` are those of tqdm: `total`, `initial`, `desc`, `unit`.
    """
    if verbose and tqdm is tqdm_asyncio and not sys.stderr.isatty():  # which is another one in notebooks
        return Lines(iterable, **options)
    return tqdm(iterable, disable=not verbose, **options)


class Lines:
    """As much of tqdm's interface as is used here, in plain lines: one every ten seconds, and one at the end."""

    def __init__(
        self, iterable: Sequence[Any] | None = None, *, desc: str, total: int | None = None, initial: int = 0,
        unit: str = "iteration",
    ) -> None:  # fmt: skip
        self.iterable = () if iterable is None else iterable
        self.total = len(self.iterable) if total is None else total
        self.desc, self.unit, self.initial, self.n, self.postfix = desc, unit, initial, initial, ""
        self.started = self.written = time.monotonic()

    def __iter__(self) -> Iterator[Any]:
        """Yield what is to be gone through."""
        with self:
            for each in self.iterable:
                yield each
                self.update()

    def __enter__(self) -> Lines:
        """Return itself; the last line is written at the end."""
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self) -> None:
        """Count one more."""
        self.n += 1
        if time.monotonic() - self.written >= EVERY:
            self._write(LINE)

    def set_postfix(self, **numbers: float) -> None:
        """Show these numbers in the lines that follow."""
        self.postfix = ", ".join(f"{name}={number:.3g}" for name, number in numbers.items())

    def close(self) -> None:
        """Write the last line."""
        self._write(LAST)

    def _write(self, form: str) -> None:
        self.written = time.monotonic()
        line = tqdm.format_meter(
            self.n, self.total, self.written - self.started, prefix=self.desc, unit=self.unit, bar_format=form,
            initial=self.initial, postfix=self.postfix,
        )  # fmt: skip
        sys.stderr.write(f"{line}\n")
