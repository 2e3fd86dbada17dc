"""Whether intervals hold as many values as they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from emflow.errors import DataError
from emflow.evaluation import covered, hide_and_fit
from emflow.plot.canvas import GREY, OBSERVED, axes_of, tidy
from emflow.staged import WITHOUT_INTERVAL, StagedImputer
from emflow.table.frame import take_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mask = NDArray[np.bool_]
LEVELS = 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95
CALIBRATED = 2000  # rows whose intervals are asked for at every level


def calibration(
    imputer: StagedImputer | None, X: Any, hidden: Any = None, ax: Axes | None = None, *, random_state: Any = 0
) -> Axes:
    """Draw which share of hidden cells lies within intervals, against the share that should.

    On the dashed line intervals are as wide as they should be; below it they are too narrow.

    Parameters
    ----------
    imputer : EMFlowImputer or GaussianImputer, or None
        A copy of it is fitted to X without the cells that are hidden; None has an EMFlowImputer.
    X : frame, or array of shape (n, p)
    hidden : array of bool of shape (n, p), optional
        Observed cells that were hidden from the imputer: it is taken as it is, fitted by `fit(X, missing=hidden)`. None
        hides cells, and fits, as `evaluate` does. Intervals are asked for in 2000 rows with such cells at the most.
    ax : Axes, optional
        Where to draw; None makes a new figure.
    random_state : int, RandomState or None
        Seeds what is hidden.
    """
    ax = axes_of(ax)
    if hidden is None:
        trial = hide_and_fit(X, imputer, random_state=random_state)
        imputer, hidden = trial.imputer, trial.hidden
    check_is_fitted(imputer)
    assert imputer is not None
    share, n = _coverage(imputer, X, np.asarray(hidden, dtype=bool))
    ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="as it should be")
    ax.plot(LEVELS, share, color=OBSERVED, marker="o", markersize=4, label=f"{n:,} hidden cells")
    ax.set(xlabel="nominal coverage", ylabel="actual coverage", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    tidy(ax)
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return ax


def _coverage(imputer: StagedImputer, X: Any, hidden: Mask) -> tuple[list[float], int]:
    """Return the share of hidden cells within their intervals at each level, and how many cells these are."""
    if imputer.layout_ is None:
        raise DataError("calibration is for tables, not for images")
    codes = imputer._read(X)
    ordered = [column.width > 0 and column.kind not in WITHOUT_INTERVAL for column in imputer.layout_.columns]
    cells = hidden & ~imputer.layout_.by_column(np.isnan(codes)) & ordered
    rows = np.flatnonzero(cells.any(1))
    if not len(rows):
        raise DataError("no cell that has an interval is hidden: categories without an order have none")
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), CALIBRATED)).astype(np.intp)]
    part, cells, holes, truth = take_rows(X, rows), cells[rows], hidden[rows], codes[rows]
    inside = [covered(imputer, part, holes, level, truth)[cells].mean() for level in LEVELS]
    return [float(share) for share in inside], int(cells.sum())
