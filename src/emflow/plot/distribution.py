"""How the values of a column are distributed, those observed and those filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from emflow.errors import DataError, ParameterError
from emflow.evaluation import fill_numbers, settle, values_of
from emflow.plot.canvas import AS_IT_IS, IMPUTED, OBSERVED, axes_of, short, tidy
from emflow.staged import StagedImputer
from emflow.table.column import CATEGORICAL, Column
from emflow.table.frame import take_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
N_BINS, MOST_CATEGORIES = 30, 10
ROOM = 0.15  # of the height, for the legend
OUTER, FAR = 1.0, 2.0  # per cent at either end that are not drawn, if they make the picture so many times as wide


def density(imputer: StagedImputer, X: Any, column: Any, ax: Axes | None = None) -> Axes:
    """Draw how the observed values of a column are distributed, and those that are filled in.

    A histogram of shares, or bars for categories. They need not be alike: values may be missing where they are high.

    Parameters
    ----------
    imputer : EMFlowImputer or GaussianImputer
        A fitted one.
    X : frame, or array of shape (n, p)
    column : str or int
        Its name, or its number in an array.
    ax : Axes, optional
        Where to draw; None makes a new figure.
    """
    check_is_fitted(imputer)
    if imputer.layout_ is None:
        raise DataError("density is for tables, not for images")
    ax = axes_of(ax)
    columns = {drawn.name: (drawn, at) for drawn, at in imputer.layout_.places() if drawn.width}
    if column not in columns:
        raise ParameterError(f"there is no column {column!r} that is filled; there are {list(columns)}")
    drawn, at = columns[column]
    codes = imputer._read(X)
    rows = np.flatnonzero(np.isnan(codes[:, at]).any(1))
    imputed = np.empty((0, drawn.width))
    if len(rows):
        imputed = settle(drawn, fill_numbers(imputer, take_rows(X, rows))[1][:, at])
    observed = np.delete(codes[:, at], rows, axis=0)
    return draw_density(drawn, values_of(drawn, observed), values_of(drawn, imputed), ax)


def draw_density(column: Column, observed: Array, imputed: Array, ax: Axes) -> Axes:
    """Draw the picture of `density`, given the values as `evaluation.values_of` has them."""
    draw = _draw_categories if column.kind in CATEGORICAL else _draw_histogram
    draw(column, {f"observed ({len(observed):,})": observed, f"imputed ({len(imputed):,})": imputed}, ax)
    ax.set_title(short(column.name), **AS_IT_IS)
    tidy(ax)
    ax.legend(frameon=False, fontsize="small", loc="upper center", ncols=2, columnspacing=1, handlelength=1.2)
    return ax


def _draw_histogram(column: Column, parts: dict[str, Array], ax: Axes) -> None:
    edges, cut = _edges(np.concatenate(list(parts.values())), column.kind == "integer")
    for (label, values), colour in zip(parts.items(), (OBSERVED, IMPUTED), strict=True):
        height = np.histogram(values, edges)[0] / max(1, len(values))
        fill = colour == OBSERVED
        ax.stairs(height, edges, color=colour, fill=fill, alpha=0.45 if fill else 1, linewidth=1.8, label=label)
    ax.set_ylim(0, (1 + ROOM) * ax.get_ylim()[1])
    if column.kind == "date":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=6)  # of days since 1970, which values_of gives
        ax.xaxis.set(major_locator=locator, major_formatter=ConciseDateFormatter(locator))
    else:
        ax.locator_params(axis="x", nbins=5)
    ax.set_ylabel("share")
    if cut:
        ax.set_xlabel(f"without the outer {OUTER:g} % at either end", fontsize="small")


def _edges(values: Array, whole: bool) -> tuple[Array, bool]:
    """Return the edges of bins, and whether they leave out values that are far away."""
    low, high = float(values.min()), float(values.max())
    inner_low, inner_high = np.percentile(values, [OUTER, 100 - OUTER])
    cut = bool(inner_high > inner_low and high - low > FAR * (inner_high - inner_low))
    if cut:
        low, high = float(inner_low), float(inner_high)
    if whole:  # a bin holds so many whole numbers
        step = max(1, int(np.ceil((high - low + 1) / N_BINS)))
        return np.arange(np.floor(low) - 0.5, high + 0.5 + step, step), cut
    return np.histogram_bin_edges(values, N_BINS, (low, high)), cut


def _draw_categories(column: Column, parts: dict[str, Array], ax: Axes) -> None:
    k = len(column.categories)
    shares = [
        np.bincount(values[values >= 0].astype(int), minlength=k) / max(1, len(values)) for values in parts.values()
    ]
    order = np.arange(k)
    if k > MOST_CATEGORIES:
        order = np.sort(np.argsort(-(shares[0] + shares[1]), kind="stable")[:MOST_CATEGORIES])
        ax.set_xlabel(f"share; {k - MOST_CATEGORIES} more categories are not drawn", fontsize="small")
    else:
        ax.set_xlabel("share")
    y = np.arange(len(order))
    for (label, share), colour, shift in zip(
        zip(parts, shares, strict=True), (OBSERVED, IMPUTED), (-0.2, 0.2), strict=True
    ):
        ax.barh(y + shift, share[order], 0.38, color=colour, alpha=0.7, label=label)
    ax.set_yticks(y, labels=[short(column.categories[i]) for i in order], **AS_IT_IS)
    ax.set_ylim(len(order) - 0.5, -0.5 - ROOM * len(order))
