"""Tables in files: read for the imputers, and written again with their holes filled."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np

from emflow import files
from emflow.errors import DataError, EMFlowError
from emflow.formats.delimited import DelimitedSource, write_delimited
from emflow.formats.jsonlines import JsonLinesSource, write_json_lines
from emflow.formats.source import Kinds, Source
from emflow.table.masked import MaskedTable

ENDINGS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".feather": "feather", ".arrow": "feather",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".xlsx": "excel",
}  # fmt: skip
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
DELIMITERS = {"csv": ",", "tsv": "\t"}
STANDARD = "-"  # the name of standard input and output


def format_of(path: str, otherwise: str | None = None) -> str:
    """Return the format that the ending of a file says, or `otherwise`; standard input and output are CSV."""
    form = ENDINGS.get(Path(path).suffix.lower(), otherwise) or ("csv" if path == STANDARD else None)
    if form is None:
        known = ", ".join(ENDINGS)
        raise DataError(f"{path}: the ending says no format; known are {known}, or name one with --format")
    if form in ("parquet", "feather"):
        need("pyarrow", f"{form.capitalize()} files", "parquet")
    if form == "excel":
        need("openpyxl", "Excel files", "excel")
    return form


def need(module: str, what: str, extra: str) -> None:
    """Raise if a library is not installed, and say how to install it."""
    try:
        __import__(module)
    except ImportError as error:
        raise EMFlowError(f"{what} need {module}: pip install 'emflow-impute[{extra}]'") from error


def read(path: str, form: str, kinds: Kinds, *, delimiter: str | None = None, has_header: bool = True) -> Source:
    """Read a table, or standard input if `path` is "-".

    Parameters
    ----------
    form : str
        One of `FORMATS`.
    kinds : mapping
        Of columns, where they are known; "text" for categories that are texts. Of use for text formats, where others
        are guessed.
    delimiter : str, optional
        Of CSV and TSV, if it is not the usual one.
    has_header : bool
        Whether the first line of CSV and TSV has names; if not, columns are called "1", "2" and so on.
    """
    title = "standard input" if path == STANDARD else path
    content = io.BytesIO(sys.stdin.buffer.read() if path == STANDARD else Path(path).read_bytes())
    if form in DELIMITERS:
        return DelimitedSource(title, form, content, kinds, delimiter or DELIMITERS[form], has_header)
    if form == "jsonl":
        return JsonLinesSource(title, content, kinds)
    if form == "excel":
        from emflow.formats.excel import ExcelSource

        return ExcelSource(title, content, kinds)
    from emflow.formats.arrow import ArrowSource

    return ArrowSource(title, form, content)


def write(path: str, form: str, source: Source, filled: Any) -> None:
    """Write the filled frame of a source, whole or not at all; to standard output if `path` is "-".

    In the format of the source its file is written again, with its holes filled.
    """
    content = io.BytesIO()
    if form == source.form:
        source.write(filled, content)
    else:
        _convert(filled, form, content)
    if path == STANDARD:
        sys.stdout.buffer.write(content.getvalue())
        sys.stdout.buffer.flush()
    else:
        with files.whole(path) as temporary:
            temporary.write_bytes(content.getvalue())


def count_holes(frame: Any) -> int:
    """Return how many cells of a frame are missing."""
    if isinstance(frame, MaskedTable):
        return sum(int(np.ma.getmaskarray(column).sum()) for column in frame.columns.values())
    from emflow.formats.arrow import count_holes as count

    return count(frame)


def _convert(frame: Any, form: str, content: io.BytesIO) -> None:
    """Write a frame in a format that it did not come from."""
    if form in ("parquet", "feather"):
        from emflow.formats.arrow import write_arrow

        write_arrow(frame, content, form)
        return
    if isinstance(frame, MaskedTable):
        columns = {name: column.tolist() for name, column in frame.columns.items()}
    else:
        columns = frame.to_pydict()
    if form in DELIMITERS:
        write_delimited(columns, content, DELIMITERS[form])
    elif form == "jsonl":
        write_json_lines(columns, content)
    else:
        from emflow.formats.excel import write_excel

        write_excel(columns, content)
