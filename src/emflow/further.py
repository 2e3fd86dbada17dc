"""Further rows for a fitted E-step: what it has kept of earlier ones."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from emflow.errors import DataError
from emflow.refine.tables import TableRefinement
from emflow.table.schema import Array, Schema

EQUAL = 1e-6  # of a standard deviation, or of a value: stored ones that are nearer to a new value are that value


def keeps_rows(imputer: Any) -> bool:
    """Return True if further rows can be learnt from: nothing is fitted yet, or the model keeps some rows."""
    refinement = getattr(imputer, "refinement_", None)
    if hasattr(imputer, "stages_") and not (isinstance(refinement, TableRefinement) and len(refinement.reference.x)):
        raise DataError(
            "the model keeps no rows, without which it would forget what it has learnt. It keeps some if its E-step is "
            'learnt (refine="on" for less than 700 rows), is better than the Gaussian, and store_rows is not False; a '
            "GaussianImputer needs none"
        )
    return True


def stored_rows(refinement: TableRefinement, schema: Schema, new: Array) -> tuple[Array, Array]:
    """Return the rows (r, p) that a model keeps, in the units of the data, NaN where missing, and their weights (r,).

    They are kept in single precision. Values that are the same in the new rows (n, p) but for rounding are made the
    same: codes must stay codes.
    """
    reference = refinement.reference
    scaled = reference.x.double() * refinement.scale.double() + refinement.mean.double()
    rows = np.where(reference.observed.bool().cpu().numpy(), schema.unscale(scaled.cpu().numpy()), np.nan)
    rounding = EQUAL * (1 + reference.x.abs().cpu().numpy()) * refinement.scale.cpu().numpy() * schema.span
    for column, error, values in zip(rows.T, rounding.T, new.T, strict=True):
        level = np.unique(values[~np.isnan(values)])
        if len(level):
            after = np.searchsorted(level, column).clip(0, len(level) - 1)
            for nearest in (level[after], level[np.maximum(after - 1, 0)]):
                column[:] = np.where(np.abs(nearest - column) <= error, nearest, column)
    return rows, reference.count.double().cpu().numpy()


def in_units_of(schema: Schema, refinement: TableRefinement, before: Schema) -> TableRefinement:
    """Return a copy of a learned E-step that was fitted in the units of another schema."""
    factor, shift = before.span / schema.span, np.subtract(before.low, schema.low) / schema.span
    rescaled = copy.deepcopy(refinement)
    rescaled.mean = refinement.mean * refinement.mean.new_tensor(factor) + refinement.mean.new_tensor(shift)
    rescaled.scale = refinement.scale * refinement.scale.new_tensor(factor)
    return rescaled
