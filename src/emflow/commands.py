"""What the sub-commands do: read a table, fit or load an imputer, write what it fills in."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from emflow import files, formats
from emflow.errors import DataError, EMFlowError
from emflow.evaluation import evaluate as evaluate_table
from emflow.formats.source import Source
from emflow.gaussian_imputer import GaussianImputer
from emflow.imputer import EMFlowImputer
from emflow.model_file import describe, load
from emflow.staged import StagedImputer
from emflow.table.column import CATEGORICAL, NUMERIC, Column

METHODS: dict[str, type[StagedImputer]] = {"emflow": EMFlowImputer, "gaussian": GaussianImputer}
MODEL_ENDING = ".safetensors"


def impute(arguments: argparse.Namespace) -> None:
    """Fit to a table and fill it."""
    form = _writable(arguments.output, arguments)
    source = _read(arguments)
    imputer = _fit(arguments, source)
    _write(arguments.output, form, source, imputer.transform(source.frame), arguments)


def fit(arguments: argparse.Namespace) -> None:
    """Fit to a table and write the model."""
    if not arguments.output.endswith(MODEL_ENDING):
        raise EMFlowError(f"{arguments.output}: the name of a model's file must end in {MODEL_ENDING}")
    files.check_free(arguments.output, arguments.force)
    imputer = _fit(arguments, _read(arguments))
    imputer.save(arguments.output)
    _say(arguments, f"model written to {arguments.output}")


def transform(arguments: argparse.Namespace) -> None:
    """Fill a table by a model."""
    form = _writable(arguments.output, arguments)
    imputer, source = _load(arguments)
    frame = _columns_of(imputer, source)
    filled: Any = imputer.transform(frame)
    _write(arguments.output, form, source, filled.select(source.frame.column_names), arguments)


def draw(arguments: argparse.Namespace) -> None:
    """Fill a table several times by draws, each into a file of its own."""
    outputs = _numbered(arguments.output, arguments.draws)
    forms = [_writable(output, arguments) for output in outputs]
    if arguments.model is None:
        if arguments.unseen:
            raise EMFlowError("--unseen is for a MODEL: without one there is no category that it does not know")
        source = _read(arguments)
        imputer, frame = _fit(arguments, source), source.frame
    else:
        if arguments.kinds or arguments.bounds or arguments.max_time or arguments.method:
            raise EMFlowError("--kinds, --bounds, --max-time and --method are for fitting: leave them or MODEL out")
        imputer, source = _load(arguments)
        frame = _columns_of(imputer, source)
        imputer.random_state = imputer.random_state if arguments.seed is None else arguments.seed
    draws = imputer.sample_imputations(frame, arguments.draws, bootstrap=arguments.bootstrap)
    for output, form, filled in zip(outputs, forms, draws, strict=True):
        _write(output, form, source, filled.select(source.frame.column_names), arguments)


def evaluate(arguments: argparse.Namespace) -> None:
    """Print how well observed cells of a table are filled."""
    source = _read(arguments)
    sys.stdout.write(f"{evaluate_table(source.frame, _new(arguments), random_state=arguments.seed or 0)}\n")


def info(arguments: argparse.Namespace) -> None:
    """Print what is in a model's file."""
    sys.stdout.write(f"{describe(arguments.model)}\n")


def report(arguments: argparse.Namespace) -> None:
    """Write a page on what is missing and how well it is filled."""
    from emflow.report import FIT_SECONDS, write_report

    arguments.max_time = arguments.max_time or FIT_SECONDS
    files.check_free(arguments.output, arguments.force)
    formats.need("pyarrow", "reports", "parquet")
    from emflow.formats.arrow import to_arrow

    source = _read(arguments)
    write_report(
        to_arrow(source.frame), arguments.output, _new(arguments), title=Path(source.title).name,
        random_state=arguments.seed or 0, force=arguments.force, verbose=not arguments.quiet,
    )  # fmt: skip
    _say(arguments, f"written to {arguments.output}")


# --- tables


def _read(arguments: argparse.Namespace) -> Source:
    """Read the table, for a fit; categories that are texts are read as such, whatever they look like."""
    kinds = {}
    for name, kind in arguments.kinds.items():
        of_texts = not isinstance(kind, str) and all(isinstance(category, str) for category in kind)
        kinds[name] = kind if isinstance(kind, str) else "text" if of_texts else "ordinal"
    return _read_with(arguments, kinds)


def _read_with(arguments: argparse.Namespace, kinds: dict[str, str]) -> Source:
    return formats.read(
        arguments.input, formats.format_of(arguments.input, arguments.format), kinds,
        delimiter=arguments.delimiter, has_header=not arguments.no_header,
    )  # fmt: skip


def _writable(output: str, arguments: argparse.Namespace) -> str:
    """Return the format of an output; raise now, not after hours, if it cannot be written."""
    form = formats.format_of(output, arguments.format)
    if output != formats.STANDARD:
        files.check_free(output, arguments.force)
    return form


def _numbered(output: str, n: int) -> list[str]:
    """Return the names of several files: a number goes before the ending."""
    if output == formats.STANDARD:
        raise EMFlowError("draws are several files: name one with -o, to which their numbers are added")
    path = Path(output)
    return [str(path.with_name(f"{path.stem}-{k:0{len(str(n))}}{path.suffix}")) for k in range(1, n + 1)]


def _write(output: str, form: str, source: Source, filled: Any, arguments: argparse.Namespace) -> None:
    formats.write(output, form, source, filled)
    before, after = formats.count_holes(source.frame), formats.count_holes(filled)
    cells = len(source.frame) * len(source.frame.column_names)
    left = f", {after} left empty in columns that are left alone" if after else ""
    where = "standard output" if output == formats.STANDARD else output
    _say(arguments, f"{before - after} of {cells} cells filled{left}, written to {where}")


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.quiet:
        sys.stderr.write(f"{text}\n")


# --- imputers


def _new(arguments: argparse.Namespace) -> StagedImputer:
    return METHODS[arguments.method or "emflow"](
        kinds=arguments.kinds or None, bounds=arguments.bounds or None, max_time=arguments.max_time,
        random_state=arguments.seed or 0, verbose=not arguments.quiet,
    )  # fmt: skip


def _fit(arguments: argparse.Namespace, source: Source) -> StagedImputer:
    imputer: StagedImputer = _new(arguments).fit(source.frame)
    if imputer.timed_out_:
        _say(arguments, f"stopped after {arguments.max_time:g} seconds, with what was learnt by then")
    return imputer


def _load(arguments: argparse.Namespace) -> tuple[StagedImputer, Source]:
    """Return a model, and the table, read as the model has its columns."""
    imputer = load(arguments.model)
    if not hasattr(imputer, "feature_names_in_") or imputer.layout_ is None:
        raise DataError(f"{arguments.model} was not fitted to a table whose columns have names")
    imputer.unseen = arguments.unseen or imputer.unseen
    imputer.set_params(verbose=not arguments.quiet)
    kinds = {
        str(column.name): "text" if _holds(column) == "texts" else column.kind for column in imputer.layout_.columns
    }
    return imputer, _read_with(arguments, kinds)


def _columns_of(imputer: StagedImputer, source: Source) -> Any:
    """Return the frame of a source with the columns of a model in their order; raise if it has others."""
    names, known = source.frame.column_names, list(imputer.feature_names_in_)
    if lacking := [name for name in known if name not in names]:
        raise DataError(f"{source.title} lacks {_quoted(lacking)}, which the model has")
    if foreign := [name for name in names if name not in known]:
        raise DataError(f"{source.title} has {_quoted(foreign)}, which the model does not know: fit one that does")
    assert imputer.layout_ is not None
    for column in imputer.layout_.columns:
        found, wanted = source.holds(str(column.name)), _holds(column)
        if wanted is not None and found not in (wanted, None):
            raise DataError(
                f"column {column.name!r} is {column.kind} in the model, of {wanted}, but {source.title} holds {found}: "
                "convert it, or fit a model to files like this one"
            )
    return source.frame.select(known)


def _quoted(names: list[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def _holds(column: Column) -> str | None:
    """Return what a column of a model is made of; None if that does not matter."""
    if column.kind in CATEGORICAL:
        return next(what for types, what in _TYPES if all(isinstance(value, types) for value in column.categories))
    return "numbers" if column.kind in NUMERIC else "dates" if column.kind == "date" else None


_TYPES: tuple[tuple[Any, str | None], ...] = (
    (str, "texts"), (bool, "truth values"), ((int, float), "numbers"), (object, None),
)  # fmt: skip
