"""Parsers of the public files, one for each form in which they come; all give a dict of arrays.

Tables give `X` (n, p) in float64 and, where the file holds one of ours, `target` (n,). Images give the four arrays.
Every parser keeps the order of the rows. Rows with a cell that is no number are left out (blank lines at the end of a
sheet, the two shifted rows of Review); that no other row went with them is for the checksum to say.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from emflow.datasets.store import IMAGE_KEYS, Array, pandas
from emflow.errors import DatasetError

Parser = Callable[[Sequence[Path]], dict[str, Array]]


def headed(columns: Sequence[str], *members: str, separator: str = ",") -> Parser:
    """Parse text files with a header line, one below the other, and keep `columns`."""

    def parse(paths: Sequence[Path]) -> dict[str, Array]:
        parts = []
        for member in members:
            rows = _rows(_member(paths[0], member), separator)
            names = [_plain(name) for name in next(rows, [])]
            lost = [name for name in columns if name not in names]
            if lost:
                raise DatasetError(f"{member} in {paths[0]} has no column {lost[0]!r}: the source may have changed")
            parts.append(_numbers(rows, [names.index(name) for name in columns]))
        return _arrays(np.concatenate(parts))

    return parse


def headless(member: str, n_columns: int, n_rows: int | None = None, classes: str = "", first: int = 1) -> Parser:
    """Parse a text file without header: what is to be predicted, then `n_columns` numbers, from the `first` field on.

    `n_rows` limits the rows; with `classes`, a string of one letter per class, the first field becomes the target.
    """

    def parse(paths: Sequence[Path]) -> dict[str, Array]:
        rows = islice(_rows(_member(paths[0], member)), n_rows)
        if not classes:
            return _arrays(_numbers(rows, range(first, first + n_columns)))
        code = {name: i for i, name in enumerate(classes)}
        coded = ([code.get(_plain(letter), ""), *rest] for letter, *rest in rows)
        table = _numbers(coded, range(n_columns + 1))
        return _arrays(table[:, 1:], table[:, 0])

    return parse


def sheet(columns: Sequence[str], member: str, engine: str, title: str | int = 0, target: str | None = None) -> Parser:
    """Parse an Excel sheet; `columns` stand side by side in it, below their names in some row.

    They are found by that row rather than one by one: the sheet of CTG has two columns AC, the count and then the rate.
    `target` names the column of the target.
    """

    def parse(paths: Sequence[Path]) -> dict[str, Array]:
        source = _member(paths[0], member)
        try:
            grid = pandas().read_excel(source, sheet_name=title, header=None, engine=engine)
        except ImportError as error:
            raise DatasetError(f"{member} in {paths[0]} is an Excel file: pip install {engine}") from error
        for row, cells in enumerate(grid.itertuples(index=False, name=None)):
            places = _places([_plain(cell) for cell in cells], [_plain(name) for name in columns], target)
            if places:
                table = _numbers(grid.iloc[row + 1 :].itertuples(index=False, name=None), places)
                return _arrays(table) if target is None else _arrays(table[:, :-1], table[:, -1])
        raise DatasetError(f"{member} in {paths[0]} has no row of names {columns[0]!r} to {columns[-1]!r}")

    return parse


def _places(names: list[str], wanted: list[str], target: str | None) -> list[int]:
    """Return where `wanted` stand side by side in a row of names, and the target; nothing if they do not."""
    if wanted[0] not in names or (target is not None and target not in names):
        return []
    start = names.index(wanted[0])
    end = start + len(wanted)
    if names[start:end] != wanted:
        return []
    return [*range(start, end), *([] if target is None else [names.index(target)])]


def idx(paths: Sequence[Path]) -> dict[str, Array]:
    """Parse the four gzipped IDX files of MNIST, in the order of `IMAGE_KEYS`."""
    return {key: _idx(path) for key, path in zip(IMAGE_KEYS, paths, strict=True)}


def _idx(path: Path) -> Array:
    """Read two zero bytes, the type (8 is uint8), the number of axes, their lengths in big-endian int32, the values."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} is not a whole gzip file ({error}): delete it and try again") from error
    if data[:3] == b"\0\0\x08" and len(data) > 3 and len(data) >= (start := 4 + 4 * data[3]):
        shape = np.frombuffer(data, ">i4", count=data[3], offset=4).tolist()
        if len(data) == start + math.prod(shape):
            return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
    raise DatasetError(f"{path} is not an IDX file of bytes: delete it and try again")


def cifar(paths: Sequence[Path]) -> dict[str, Array]:
    """Parse the binary form of CIFAR-10, for the other one holds pickles.

    Each record is the label and 3 x 32 x 32 values, channels first; they become channels last.
    """
    batches = {}
    try:
        with tarfile.open(paths[0]) as archive:
            for member in archive:
                if member.name.endswith(".bin") and (file := archive.extractfile(member)):
                    batches[Path(member.name).stem] = np.frombuffer(file.read(), np.uint8).reshape(-1, 3073)
        train = np.concatenate([batches[f"data_batch_{i}"] for i in range(1, 6)])
        test = batches["test_batch"]
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, KeyError) as error:
        raise DatasetError(f"{paths[0]} is not the binary CIFAR-10 ({error}): delete it and try again") from error
    parts = [part for rows in (train, test) for part in (_channels_last(rows[:, 1:]), rows[:, 0].copy())]
    return dict(zip(IMAGE_KEYS, parts, strict=True))


def _channels_last(rows: Array) -> Array:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _member(path: Path, name: str) -> io.BytesIO:
    """Return the file called `name`, in whatever folder of a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.rsplit("/", 1)[-1] == name:
                    return io.BytesIO(archive.read(member))
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} is not a whole zip archive ({error}): delete it and try again") from error
    raise DatasetError(f"{path} holds no {name}: the source may have changed")


def _plain(cell: object) -> str:
    """Return the text of a cell with single spaces and none around it."""
    return " ".join(str(cell).split())


def _rows(source: io.BytesIO, separator: str = ",") -> Iterator[list[str]]:
    """Give the fields of each line that is not blank."""
    lines = io.TextIOWrapper(source, encoding="utf-8", newline="")
    return filter(None, csv.reader(lines, delimiter=separator))


def _numbers(rows: Iterable[Sequence[object]], places: Sequence[int]) -> Array:
    """Return the cells at `places` of each row as float64, NaN where there is no number.

    By Python's float, which finds the nearest number; the quick parser of pandas may miss its last bit.
    """
    width = max(places) + 1
    full = (row if len(row) >= width else [*row, *[""] * width] for row in rows)
    parts = [np.array([_number(row[i]) for i in places]) for row in full]
    return np.array(parts).reshape(-1, len(places))


def _number(cell: object) -> float:
    try:
        return float(cell)  # type: ignore[arg-type]  # that is what the error is for
    except (TypeError, ValueError):
        return math.nan


def _arrays(X: Array, target: Array | None = None) -> dict[str, Array]:
    """Return the rows of numbers alone, of X (n, p) and of the target (n,)."""
    keep = ~np.isnan(X).any(1)
    if target is None:
        return {"X": X[keep] + 0.0}  # no -0.0: see store
    keep &= ~np.isnan(target)
    return {"X": X[keep] + 0.0, "target": target[keep].astype(np.int64)}
