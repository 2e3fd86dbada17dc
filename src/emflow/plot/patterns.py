"""Which columns are missing together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emflow.plot.canvas import AS_IT_IS, GREY, IMPUTED, axes_of, percent, short
from emflow.table.frame import missing_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COLUMNS, MOST_PATTERNS = 30, 15  # that are drawn


def missing_patterns(X: Any, ax: Axes | None = None) -> Axes:
    """Draw which columns are missing together: a line per column with holes, a column of cells per pattern.

    Patterns, with the number of rows that have them, are ordered from the most frequent one on.

    Parameters
    ----------
    X : frame, or array of shape (n, p)
    ax : Axes, optional
        Where to draw; None makes a new figure.
    """
    ax = axes_of(ax)
    names, missing = missing_cells(X)
    share = missing.mean(0)
    with_holes = np.argsort(-share, kind="stable")[: (share > 0).sum()]
    shown = with_holes[:MOST_COLUMNS]
    if not len(shown):
        ax.set_axis_off()
        ax.text(0.5, 0.5, "nothing is missing", ha="center", va="center", transform=ax.transAxes)
        return ax
    patterns, count = np.unique(missing[:, shown], axis=0, return_counts=True)
    order = np.argsort(-count, kind="stable")[:MOST_PATTERNS]
    cells = patterns[order].T  # (columns, patterns)
    for colour, alpha, which in ((GREY, 0.2, ~cells), (IMPUTED, 1.0, cells)):
        y, x = np.nonzero(which)
        ax.bar(x, 0.86, 0.86, bottom=y - 0.43, color=colour, alpha=alpha, linewidth=0)
    labels = [f"{short(names[j])}  {percent(share[j])}" for j in shown]
    ax.set_yticks(range(len(shown)), labels=labels, **AS_IT_IS)
    ax.set_xticks(range(len(order)), labels=[f"{n:,}" for n in count[order]], rotation=90)
    ax.set(xlim=(-0.6, len(order) - 0.4), ylim=(len(shown) - 0.4, -0.6))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    text = "rows with this pattern"
    if len(count) > len(order):
        text += (
            f"\n{len(count) - len(order):,} more patterns in {percent(1 - count[order].sum() / len(missing))} of rows"
        )
    if len(with_holes) > len(shown):
        text += f"\n{len(with_holes) - len(shown)} more columns with fewer holes"
    ax.set_xlabel(text)
    return ax
