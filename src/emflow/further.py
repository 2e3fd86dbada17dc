"""Further rows for a fitted E-step: what it has kept of earlier ones."""

from __future__ import annotations

import copy

import numpy as np

from emflow.errors import DataError
from emflow.refine.network import FURTHEST
from emflow.refine.tables import TableRefinement
from emflow.table.schema import Array, Schema

EQUAL = 1e-6  # of a column's range: stored values that are nearer to one of the new values are that value


def stored_rows(refinement: TableRefinement | None, schema: Schema, new: Array) -> Array:
    """Return the rows (r, p) that a model keeps, in the units of the data, NaN where missing.

    They are kept in single precision, and cells more than four standard deviations from the mean not at all. Values
    that are the same in the new rows (n, p) but for rounding are made the same: codes must stay codes.
    """
    if refinement is None or not len(refinement.reference.x):
        raise DataError(
            "the model keeps no rows, without which it would forget what it has learnt. It keeps some if its E-step is "
            'learnt (refine="on" for less than 700 rows) and store_rows is not False; a GaussianImputer needs none'
        )
    kept = refinement.reference.x.double()
    known = refinement.reference.observed.bool() & (kept.abs() < FURTHEST)
    scaled = kept * refinement.scale.double() + refinement.mean.double()
    rows = np.where(known.cpu().numpy(), schema.unscale(scaled.cpu().numpy()), np.nan)
    for j, span in enumerate(schema.span):
        level = np.unique(new[~np.isnan(new[:, j]), j])
        if len(level):
            after = np.searchsorted(level, rows[:, j]).clip(1 if len(level) > 1 else 0, len(level) - 1)
            pair = level[[np.maximum(after - 1, 0), after]]
            nearest = np.where(np.abs(pair[0] - rows[:, j]) < np.abs(pair[1] - rows[:, j]), *pair)
            rows[:, j] = np.where(np.abs(nearest - rows[:, j]) <= EQUAL * span, nearest, rows[:, j])
    return rows


def in_units_of(schema: Schema, refinement: TableRefinement, before: Schema) -> TableRefinement:
    """Return a copy of a learned E-step that was fitted in the units of another schema."""
    factor, shift = before.span / schema.span, np.subtract(before.low, schema.low) / schema.span
    rescaled = copy.deepcopy(refinement)
    rescaled.mean = refinement.mean * refinement.mean.new_tensor(factor) + refinement.mean.new_tensor(shift)
    rescaled.scale = refinement.scale * refinement.scale.new_tensor(factor)
    return rescaled
