"""Is it any good on my data? Observed cells are hidden, filled, and compared with what they were."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import check_random_state

from emflow.errors import DataError
from emflow.gaussian_imputer import GaussianImputer
from emflow.imputer import EMFlowImputer
from emflow.staged import StagedImputer
from emflow.table.column import CATEGORICAL, DAY, Column
from emflow.table.frame import Layout

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ROWS = 0.5  # share of the rows in which cells are hidden
AT_RANDOM = 0.1  # share of their cells that is, if the table has no holes to take after
COVERAGE = 0.9
SIMPLE = "mean", "median", "most frequent", "Gaussian"
ERRORS, SHARE = 2.0, 0.02  # standard errors, and share of the loss, by which one must be better to count as such


@dataclass(frozen=True)
class Score:
    """How one column was filled.

    Attributes
    ----------
    column, kind : str
    n_hidden : int
        Cells that were hidden.
    measure : {"RMSE", "accuracy"}
        Root mean squared error, of dates in days; or the share of categories that were right.
    value : float
        Of the imputer.
    simple : dict
        The same for simple methods: "mean" and "median", or "most frequent"; and "Gaussian".
    coverage : float
        Share of the hidden cells that lie within their 90 % intervals; NaN for categories without an order.
    as_good : str or None
        The best of the simple methods, if it does as well as far as these cells can tell: if the imputer is not better
        by two standard errors and by two per cent, of the mean squared error or of the wrong categories.
    """

    column: str
    kind: str
    n_hidden: int
    measure: str
    value: float
    simple: dict[str, float]
    coverage: float
    as_good: str | None


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found: a score for every column in which cells were hidden."""

    scores: tuple[Score, ...]

    def __str__(self) -> str:
        """Return a table, and the verdict."""
        simple = [name for name in SIMPLE if any(name in score.simple for score in self.scores)]
        head = ["column", "kind", "cells", "measure", "imputer", *simple, "in 90 % interval"]
        rows = [
            [score.column, score.kind, str(score.n_hidden), score.measure, f"{score.value:.4g}"]
            + [f"{score.simple[name]:.4g}" if name in score.simple else "" for name in simple]
            + ["" if np.isnan(score.coverage) else f"{score.coverage:.0%}"]
            for score in self.scores
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in [head, *rows])
        return "\n".join([*lines, "", self.verdict])

    @property
    def verdict(self) -> str:
        """In words: where a simple method does as well."""
        found: dict[str, list[str]] = {}
        for score in self.scores:
            if score.as_good is not None:
                found.setdefault(score.as_good, []).append(score.column)
        if not found:
            return "In every column the imputer is better than the simple methods."
        parts = [f"{method} does as well in {', '.join(columns)}" for method, columns in found.items()]
        return f"As far as these cells can tell, {'; '.join(parts)}."


def evaluate(X: Any, imputer: StagedImputer | None = None, *, random_state: Any = 0) -> Evaluation:
    """Hide observed cells of a table, fit an imputer to the rest, and compare what it fills in with what was there.

    In half of the rows those cells are hidden that another row lacks, so that what is hidden is like what is missing;
    in a table without holes, a tenth of their cells.

    Parameters
    ----------
    X : frame, or array of shape (n, p)
    imputer : EMFlowImputer or GaussianImputer, optional
        A copy of it is fitted; None has `EMFlowImputer(random_state=random_state)`.
    random_state : int, RandomState or None
        Seeds what is hidden.

    Examples
    --------
    >>> import numpy as np
    >>> from emflow import GaussianImputer, evaluate
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 3))
    >>> print(evaluate(X, GaussianImputer()).verdict)
    In every column the imputer is better than the simple methods.
    """
    imputer = EMFlowImputer(random_state=random_state) if imputer is None else imputer
    asked = clone(imputer).set_params(add_indicator=False).set_output(transform="default")
    truth = asked._read_new(X)
    layout = asked.layout_
    if layout is None:
        raise DataError("evaluate is for tables, not for images")
    hidden = hide_alike(layout.holes(X, truth), layout, check_random_state(random_state))
    if not hidden.any():
        raise DataError("there is no cell to hide: each column needs at least four values")
    methods = {"imputer": asked}
    if not isinstance(imputer, GaussianImputer):
        names = "kinds", "bounds", "unseen", "keep_empty_features"
        methods["Gaussian"] = GaussianImputer(**{name: getattr(imputer, name) for name in names})
    filled = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="left as they are")  # which was said above
        for name, method in methods.items():
            filled[name] = layout.encode(method.fit(X, missing=hidden).transform(X, missing=hidden), "missing")
    ends = [layout.encode(end, "missing") for end in asked.intervals(X, COVERAGE, missing=hidden)]
    scores = []
    for j, (column, at) in enumerate(layout.places()):
        if hidden[:, j].any():
            part = {name: values[:, at] for name, values in filled.items()}
            scores.append(_score(column, truth[:, at], part, [end[:, at] for end in ends], hidden[:, j]))
    return Evaluation(tuple(scores))


def hide_alike(missing: Mask, layout: Layout, rng: np.random.RandomState) -> Mask:
    """Return cells to hide (n, p): observed ones, where another row has holes; half of a column at the most."""
    n, p = missing.shape
    lacking = np.flatnonzero(missing.any(1))
    if len(lacking):
        cells = missing[lacking[rng.randint(len(lacking), size=n)]]
    else:
        cells = rng.random_sample((n, p)) < AT_RANDOM
    usable = [column.width > 0 for column in layout.columns]
    hidden = cells & (rng.random_sample((n, 1)) < ROWS) & ~missing & usable
    observed = (~missing).sum(0)
    return np.asarray(hidden & (hidden.cumsum(0) <= np.minimum(observed // 2, np.maximum(observed - 2, 0))))


def _score(column: Column, truth: Array, filled: dict[str, Array], ends: list[Array], hidden: Mask) -> Score:
    categorical = column.kind in CATEGORICAL
    true = _values(column, truth)
    seen = true[~hidden & ~np.isnan(true)]
    guesses = {name: _values(column, values)[hidden] for name, values in filled.items()}
    if categorical:
        guesses["most frequent"] = np.full(hidden.sum(), _most_frequent(seen))
    else:
        guesses |= {"mean": np.full(hidden.sum(), seen.mean()), "median": np.full(hidden.sum(), np.median(seen))}
    loss = {name: _loss(guess, true[hidden], categorical) for name, guess in guesses.items()}
    value = {name: 1 - each.mean() if categorical else np.sqrt(each.mean()) for name, each in loss.items()}
    ours = loss.pop("imputer")
    best = min(loss, key=lambda name: float(loss[name].mean()))
    gain = loss[best] - ours
    as_good = gain.mean() <= max(ERRORS * gain.std() / np.sqrt(len(gain)), SHARE * loss[best].mean())
    coverage = np.nan
    if column.kind not in ("nominal", "binary"):
        low, high = (end[hidden, 0] for end in ends)
        apart = 1e-9 * np.abs(truth[hidden, 0])
        coverage = float(((low <= truth[hidden, 0] + apart) & (truth[hidden, 0] - apart <= high)).mean())
    return Score(
        str(column.name), column.kind, int(hidden.sum()), "accuracy" if categorical else "RMSE",
        float(value.pop("imputer")), {name: float(each) for name, each in value.items()}, coverage,
        best if as_good else None,
    )  # fmt: skip


def _values(column: Column, codes: Array) -> Array:
    """Return one number per row: dates in days, and of categories which one, -1 for a rare one."""
    if column.kind == "nominal":
        which = np.where(codes.any(1), codes.argmax(1), -1)
        return np.where(np.isnan(codes).any(1), np.nan, which)
    return codes[:, 0] / DAY if column.kind == "date" else codes[:, 0]


def _most_frequent(values: Array) -> float:
    found, count = np.unique(values, return_counts=True)
    return float(found[count.argmax()])


def _loss(guess: Array, truth: Array, categorical: bool) -> Array:
    return np.asarray((guess != truth) | (truth < 0), dtype=float) if categorical else (guess - truth) ** 2
