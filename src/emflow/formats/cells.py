"""A column of cells, texts of a CSV file or values of JSON and Excel, as an array and back in the style of the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

import numpy as np

from emflow.errors import DataError
from emflow.table.masked import Column

MISSING = frozenset({"", "na", "nan", "n/a", "#n/a", "<na>", "nat", "null", "none", "?"})  # in lower case
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
CODE = re.compile(r"0\d+", re.ASCII)  # a number to the eye, but its zeros would be lost: a post code, say
DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)([T ])(\d\d:\d\d)(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)

Parse = Callable[[Any], Any]  # of one cell; raises ValueError
DTYPES: dict[str, Any] = {
    "boolean": bool, "whole": np.int64, "number": np.float64, "date": "M8[D]", "moment": "M8[us]", "text": object,
}  # fmt: skip
WANTED = {
    "pass": ("text",), "text": ("text",), "continuous": ("number",), "integer": ("whole", "number"),
    "date": ("date", "moment"),
}  # fmt: skip


def _is_missing(cell: Any) -> bool:
    """Return whether a cell, without spaces around it, stands for a missing value."""
    return cell is None or cell != cell or (isinstance(cell, str) and cell.lower() in MISSING)


@dataclass(frozen=True)
class Parsed:
    """A column as an array, and how its file would write a value."""

    values: Column
    to_cell: Callable[[Any], Any]


def parse(cells: Sequence[Any], kind: str | None, where: Callable[[int], str], *, typed: bool) -> Parsed:
    """Return a column of cells as an array of what they are, or are to be.

    Parameters
    ----------
    kind : str or None
        Of the column, as in `kinds` of the imputers, or "text" for categories that are texts, whatever they look like.
        None guesses: whole numbers, numbers, truth values, ISO dates, or texts. Numbers with zeros in front are texts.
    where : callable
        Names the cell of a row, for errors.
    typed : bool
        Whether cells have types of their own, and a text is never a number.

    Raises
    ------
    DataError
        For a cell that is not what the column is to be; and for a text in a column of numbers, for the most part.
    """
    cells = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    holes = np.array([_is_missing(cell) for cell in cells], dtype=bool)
    rows = np.flatnonzero(~holes).tolist()
    seen = [cells[i] for i in rows]
    parsers = TYPED if typed else UNTYPED
    for name in _candidates(kind, seen, typed):
        try:
            values = _array(name, [parsers[name](cell) for cell in seen])
        except (ValueError, OverflowError):
            continue
        data = np.zeros(len(cells), dtype=DTYPES[name])
        data[rows] = values
        return Parsed(np.ma.MaskedArray(data, mask=holes), _style(name, seen, values, typed))
    name, words = ("moment", "a date like 2024-12-31") if kind == "date" else ("number", "a number")
    at = list(map(_passes(parsers[name]), seen)).index(False)
    advice = "replace it, or name another kind for the column with --kinds"
    raise DataError(f"{where(rows[at])}: {seen[at]!r} is not {words}: {advice}")


def categories(texts: Sequence[str]) -> list[Any]:
    """Return texts as the categories that a column of them would have: numbers, truth values, or texts."""
    found: list[Any] = parse(texts, "ordinal", lambda row: f"category {row}", typed=False).values.tolist()
    return found


def _candidates(kind: str | None, seen: list[Any], typed: bool) -> Iterator[str]:
    """Yield what the column may be, in the order in which it is tried."""
    if kind in WANTED:
        yield from WANTED[kind]
        return
    codes = not typed and any(cell.startswith("0") and CODE.fullmatch(cell) for cell in seen)
    if not codes:
        yield from ("whole", "number", "boolean")
    if kind is None:
        yield from ("date", "moment")
    if kind or (codes and all(map(NUMBER.fullmatch, seen))) or not _mostly_numbers(seen, typed):
        yield "text"


def _mostly_numbers(seen: list[Any], typed: bool) -> bool:
    return sum(map(_passes((TYPED if typed else UNTYPED)["number"]), seen)) > len(seen) / 2


def _array(name: str, values: list[Any]) -> Any:
    """Return values as an array; objects one by one, since NumPy would make a matrix of a list of lists."""
    return np.fromiter(values, dtype=object, count=len(values)) if name == "text" else np.array(values, DTYPES[name])


def _passes(parser: Parse) -> Callable[[Any], bool]:
    def test(cell: Any) -> bool:
        try:
            parser(cell)
        except ValueError:
            return False
        return True

    return test


# --- one cell


def _text_as(pattern: re.Pattern[str], convert: Callable[[str], Any]) -> Parse:
    def parser(cell: str) -> Any:
        if not pattern.fullmatch(cell):
            raise ValueError(cell)
        return convert(cell)

    return parser


def _value_as(*types: type) -> Parse:
    def parser(cell: Any) -> Any:
        if type(cell) not in types:
            raise ValueError(cell)
        return cell

    return parser


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _date(cell: Any) -> date:
    if isinstance(cell, str) and DATE.fullmatch(cell):
        return date.fromisoformat(cell)
    if type(cell) is date:
        return cell
    raise ValueError(cell)


def _moment(cell: Any) -> datetime:
    """Return a date with its time, in UTC if it says where; a date alone begins at midnight."""
    if isinstance(cell, str) and (match := MOMENT.fullmatch(cell)):
        day, _, minutes, seconds, fraction, zone = match.groups()
        rest = "+00:00" if zone == "Z" else zone or ""
        cell = datetime.fromisoformat(f"{day}T{minutes}{seconds or ':00'}{(fraction or '.0')[:7]:0<7}{rest}")
    if isinstance(cell, datetime):
        return cell if cell.tzinfo is None else cell.astimezone(timezone.utc).replace(tzinfo=None)
    day = _date(cell)
    return datetime(day.year, day.month, day.day)


DATES: dict[str, Parse] = {"date": _date, "moment": _moment, "text": lambda cell: cell}
UNTYPED = DATES | {"boolean": _boolean, "whole": _text_as(WHOLE, int), "number": _text_as(NUMBER, float)}
TYPED = DATES | {"boolean": _value_as(bool), "whole": _value_as(int), "number": _value_as(int, float)}


# --- and back


def _style(name: str, seen: list[Any], values: Any, typed: bool) -> Callable[[Any], Any]:
    """Return how the file writes a value."""
    texts = all(isinstance(cell, str) for cell in seen)
    if name in ("date", "moment"):
        return _date_style(seen) if texts else (lambda value: value)
    if typed or name == "text":
        return lambda value: value
    if name == "boolean":
        return {True: "true", False: "false", **dict(zip(values.tolist(), seen, strict=True))}.__getitem__
    return (lambda value: str(int(value))) if name == "whole" else (lambda value: f"{value:.8g}")


def _date_style(seen: list[str]) -> Callable[[Any], str]:
    """Return how dates are written as texts: like the first one that has a time, or as days."""
    match = next(filter(None, map(MOMENT.fullmatch, seen)), None)
    if match is None:
        return lambda value: str(value.isoformat()[:10])
    _, separator, _, seconds, fraction, zone = match.groups()
    precision = "microseconds" if fraction else "seconds" if seconds else "minutes"
    suffix = "Z" if zone == "Z" else "+00:00" if zone else ""
    return lambda value: value.isoformat(separator, precision) + suffix
