"""A model's file without knowing beforehand what it holds: the imputer in it, or a description in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emflow import files
from emflow.errors import FileError
from emflow.gaussian_imputer import GaussianImputer
from emflow.imputer import EMFlowImputer
from emflow.staged import StagedImputer
from emflow.table.column import Column
from emflow.table.frame import Layout

MODELS = {cls.__name__: cls for cls in (EMFlowImputer, GaussianImputer)}
SHOWN = 6  # categories of a column


def load(path: str) -> StagedImputer:
    """Return the imputer that was saved, whichever it is."""
    imputer: StagedImputer = MODELS[_header(path)["kind"]].load(path)
    return imputer


def describe(path: str) -> str:
    """Return kind, size, training and columns of a saved imputer."""
    header = _header(path)
    imputer = load(path)
    size = Path(path).stat().st_size
    lines = [
        f"{header['kind']} of emflow {header['version']}, {size / 1e6:.2f} MB",
        *_training(imputer),
        f"training rows in the file: {_stored(header)}",
    ]
    if imputer.image_shape_ is not None or imputer.layout_ is None:
        return "\n".join([*lines, f"fitted to images of shape {imputer.image_shape_}"])
    return "\n".join([*lines, f"{len(imputer.layout_.columns)} columns:", *_columns(imputer.layout_)])


def _header(path: str) -> dict[str, Any]:
    header = files.read(path)[1]
    if header.get("kind") not in MODELS:
        raise FileError(f"{path} holds a {header.get('kind')}, not a model that can be used")
    return header


def _stored(header: dict[str, Any]) -> int:
    """Return how many training rows the learned E-step of a table keeps."""
    return int(header["refinement"][1].get("n_reference", 0)) if header["refinement"] else 0


def _training(imputer: StagedImputer) -> Iterator[str]:
    history = imputer.history_
    late = ", stopped by max_time" if imputer.timed_out_ else ""
    if isinstance(imputer, GaussianImputer):
        yield f"EM of a Gaussian: {imputer.n_iter_} iterations, the last change {history[-1]['change']:.2g}{late}"
        return
    iterations, refine = history["iterations"], history.get("refine")
    kept: dict[str, Any] = next((each for each in iterations if each["iteration"] == imputer.best_iteration_), {})
    yield f"outer iterations of the flow: {imputer.n_iter_}, kept {imputer.best_iteration_}{_rmse(kept)}{late}"
    if refine:
        outcome = "kept" if imputer.refinement_ is not None else "not kept"
        last = refine[-1]
        yield f"learned E-step: {last['step']} steps in {last['seconds']:.0f} s, {outcome}{_rmse(last)}"


def _rmse(record: dict[str, Any]) -> str:
    value = record.get("validation_rmse")
    return "" if value is None else f", RMSE {value:.4f} on hidden cells, columns scaled to [0, 1]"


def _columns(layout: Layout) -> Iterator[str]:
    width = max(len(str(column.name)) for column in layout.columns)
    for column in layout.columns:
        yield f"  {column.name!s:{width}}  {column.kind:10}  {_details(column)}".rstrip()


def _details(column: Column) -> str:
    shown = ", ".join(map(repr, column.categories[:SHOWN]))
    more = len(column.categories) - SHOWN
    if column.categories:
        return f"{shown} and {more} more" if more > 0 else shown
    ends = ["" if end is None else f"{end:g}" for end in (column.low, column.high)]
    return f"bounds {ends[0]}:{ends[1]}" if any(ends) else ""
