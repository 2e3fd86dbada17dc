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
from emflow.staged import WITHOUT_INTERVAL, StagedImputer
from emflow.table.column import CATEGORICAL, DAY, Column
from emflow.table.frame import Layout, take_rows

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
    return hide_and_fit(X, imputer, random_state=random_state).evaluate()


@dataclass(frozen=True)
class Trial:
    """A table, cells of it that were hidden (n, p), and an imputer fitted to the rest.

    `truth` are the numbers of the table (n, width), those of hidden cells included.
    """

    X: Any
    imputer: StagedImputer
    truth: Array
    hidden: Mask

    def evaluate(self) -> Evaluation:
        """Compare what is filled in with what was there, and with what simple methods fill in."""
        asked, layout = self.imputer, self.imputer._layout
        rows = np.flatnonzero(self.hidden.any(1))
        part, hidden = take_rows(self.X, rows), self.hidden[rows]
        methods = {"imputer": asked}
        if not isinstance(asked, GaussianImputer):
            names = "kinds", "bounds", "unseen", "keep_empty_features"
            gaussian = GaussianImputer(**{name: getattr(asked, name) for name in names})
            methods["Gaussian"] = _fit_quietly(gaussian, self.X, self.hidden)
        filled = {
            name: layout.encode(method.transform(part, missing=hidden), "missing") for name, method in methods.items()
        }
        inside = covered(asked, part, hidden, COVERAGE, self.truth[rows])
        scores = []
        for j, (column, at) in enumerate(layout.places()):
            if hidden[:, j].any():
                guesses = {name: values_of(column, values[:, at])[hidden[:, j]] for name, values in filled.items()}
                truth, coverage = values_of(column, self.truth[:, at]), float(inside[hidden[:, j], j].mean())
                scores.append(_score(column, truth, guesses, coverage, self.hidden[:, j]))
        return Evaluation(tuple(scores))


def hide_and_fit(X: Any, imputer: StagedImputer | None = None, *, random_state: Any = 0) -> Trial:
    """Hide observed cells of a table, and fit a copy of the imputer to the rest; the parameters of `evaluate`."""
    imputer = EMFlowImputer(random_state=random_state) if imputer is None else imputer
    asked = clone(imputer).set_params(add_indicator=False).set_output(transform="default")
    truth = asked._read_new(X)
    if asked.layout_ is None:
        raise DataError("evaluate is for tables, not for images")
    hidden = hide_as_others_lack(asked.layout_.holes(X, truth), asked.layout_, check_random_state(random_state))
    if not hidden.any():
        raise DataError("there is no cell to hide: each column needs at least four values")
    return Trial(X, _fit_quietly(asked, X, hidden), truth, hidden)


def _fit_quietly(imputer: Any, X: Any, hidden: Mask) -> Any:
    """Fit without naming the columns that are left alone: that was said when X was read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="left as they are")
        return imputer.fit(X, missing=hidden)


def covered(imputer: StagedImputer, X: Any, hidden: Mask, coverage: float, truth: Array) -> Array:
    """Return whether the cells of X (n, p) lie within their intervals, if `hidden` ones are hidden: 1, 0, or NaN.

    `truth` are the numbers of X (n, width). Categories without an order have no intervals, and NaN.
    """
    layout = imputer._layout
    low, high = (layout.encode(end, "missing") for end in imputer.intervals(X, coverage, missing=hidden))
    apart = 1e-6 * np.abs(truth)  # distributions are in single precision
    inside = (low <= truth + apart) & (truth - apart <= high)
    result = np.full(hidden.shape, np.nan)
    for j, (column, at) in enumerate(layout.places()):
        if column.kind not in WITHOUT_INTERVAL and column.width:
            result[:, j] = inside[:, at][:, 0]
    return result


def hide_as_others_lack(missing: Mask, layout: Layout, rng: np.random.RandomState) -> Mask:
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


def _score(column: Column, truth: Array, guesses: dict[str, Array], coverage: float, hidden: Mask) -> Score:
    """Return the score of a column with values `truth` (n,), given what is guessed for its hidden cells."""
    categorical = column.kind in CATEGORICAL
    seen = truth[~hidden & ~np.isnan(truth)]
    if categorical:
        guesses["most frequent"] = np.full(hidden.sum(), _most_frequent(seen))
    else:
        guesses |= {"mean": np.full(hidden.sum(), seen.mean()), "median": np.full(hidden.sum(), np.median(seen))}
    loss = {name: _loss(guess, truth[hidden], categorical) for name, guess in guesses.items()}
    value = {name: 1 - each.mean() if categorical else np.sqrt(each.mean()) for name, each in loss.items()}
    ours = loss.pop("imputer")
    best = min(loss, key=lambda name: float(loss[name].mean()))
    gain = loss[best] - ours
    as_good = gain.mean() <= max(ERRORS * gain.std() / np.sqrt(len(gain)), SHARE * loss[best].mean())
    return Score(
        str(column.name), column.kind, int(hidden.sum()), "accuracy" if categorical else "RMSE",
        float(value.pop("imputer")), {name: float(each) for name, each in value.items()}, coverage,
        best if as_good else None,
    )  # fmt: skip


def fill_numbers(imputer: StagedImputer, X: Any) -> tuple[Array, Array]:
    """Return the numbers of X (n, width), NaN where missing, and those with holes filled, before they are rounded."""
    rows = imputer._read(X)
    return rows, np.where(np.isnan(rows), imputer._unscale(imputer._complete(rows)), rows)


def settle(column: Column, codes: Array) -> Array:
    """Return filled numbers (n, width) as those of the values that `transform` gives: rounded, or one category."""
    values = column.decode(codes)
    found = values if column.kind in CATEGORICAL else np.array(values, dtype=np.float64)
    return column.encode(found, np.zeros(len(codes), dtype=bool), "error")


def values_of(column: Column, codes: Array) -> Array:
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
