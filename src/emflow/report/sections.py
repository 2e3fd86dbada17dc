"""What the report says, part by part."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from emflow.evaluation import COVERAGE, Evaluation, Score, Trial
from emflow.plot import calibration, convergence, missing_patterns
from emflow.plot.canvas import number, percent
from emflow.plot.distribution import draw_density
from emflow.plot.history import convergence_parts
from emflow.plot.patterns import MOST_COLUMNS, MOST_PATTERNS
from emflow.report.doubt import OF_A_COLUMN, Doubts, Filling, worst_cells
from emflow.report.page import Html, bar, element, join, picture, section, table, tiles
from emflow.table.frame import missing_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LISTED, DRAWN = 50, 12  # columns in tables, and in pictures
LIBRARIES = "emflow-impute", "numpy", "scipy", "scikit-learn", "torch", "narwhals", "matplotlib"
ANY_GUESS = 3.3  # standard deviations: as wide is a 90 % interval of a bell curve without the rest of its row


@dataclass(frozen=True)
class Findings:
    """All that the page tells of; `fitted` is whether the imputer that fills came fitted."""

    trial: Trial
    evaluation: Evaluation
    filling: Filling
    fitted: bool


def sections(found: Findings, title: str) -> list[Html]:
    """Return all parts of the page but the last."""
    names, missing = missing_cells(found.trial.X)
    doubts = found.filling.doubts()
    return [
        _summary(found, missing, title),
        _missing(found, names, missing),
        _quality(found),
        _distributions(found.filling),
        _doubts(doubts),
        _convergence(found),
    ]


def _summary(found: Findings, missing: Any, title: str) -> Html:
    n, p = missing.shape
    complete = int((~missing.any(1)).sum())
    scores = found.evaluation.scores
    better = sum(score.as_good is None for score in scores)
    facts = [
        (percent(missing.mean()), f"of the cells are missing: {missing.sum():,} of {missing.size:,}"),
        (percent(complete / n), f"of the rows are complete: {complete:,} of {n:,}"),
        (f"{better} of {len(scores)}", "columns that were tried are filled better than by any simple method"),
    ]
    if known := [score for score in scores if not np.isnan(score.coverage)]:
        coverage = np.average([s.coverage for s in known], weights=[s.n_hidden for s in known])
        facts.append((percent(float(coverage)), f"of hidden values lie within their {percent(COVERAGE)} intervals"))
    size = element("p", f"A table of {n:,} rows and {p:,} columns, filled by {_name(found)}.", "soft")
    return element("header", join([element("h1", title), size, tiles(facts)]))


def _name(found: Findings) -> str:
    return type(found.trial.imputer).__name__


def _missing(found: Findings, names: list[Any], missing: Any) -> Html:
    count = missing.sum(0)
    order = [j for j in np.argsort(-count, kind="stable") if count[j]]
    if not order:
        return section("What is missing", element("p", "Nothing: every cell has a value."))
    kinds = {column.name: column.kind for column in found.trial.imputer._layout.columns}
    share = missing.mean(0)
    rows = [
        (names[j], _kind(kinds[names[j]]), f"{count[j]:,}", percent(share[j]), bar(share[j])) for j in order[:LISTED]
    ]
    patterns = len(np.unique(missing, axis=0))
    words = f"{len(order)} of {len(names)} columns have holes, in {_many(patterns, 'pattern')}."
    drawn = picture(
        partial(missing_patterns, found.trial.X),
        2.2 + 0.2 * min(patterns, MOST_PATTERNS),
        1.5 + 0.2 * min(len(order), MOST_COLUMNS),
        "patterns of missing cells",
        "Columns that are missing together (orange), by number of rows. Beside the names: share of missing cells.",
    )
    listed = table(("column", "kind", "missing", "share", ""), rows, (2, 3))
    left = join([listed, _not_shown(len(order) - LISTED, " with fewer holes")])
    both = join([element("div", left), element("div", drawn, "scroll")])
    return section("What is missing", element("p", words), element("div", both, "pair"))


def _kind(kind: str) -> str:
    return "left alone" if kind == "pass" else kind


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _not_shown(n: int, with_what: str = "") -> Html:
    if n <= 0:
        return Html()
    return element("p", f"{_many(n, 'column')}{with_what} {'is' if n == 1 else 'are'} not shown.", "soft")


def _quality(found: Findings) -> Html:
    scores = found.evaluation.scores
    compared = ["mean or mode", "median", *["Gaussian"] * any("Gaussian" in score.simple for score in scores)]
    head = ("column", "verdict", "measure", "imputer", *compared, "in interval", "hidden", "kind")
    how = (
        f"{int(found.trial.hidden.sum()):,} observed cells were hidden, where other rows have holes, and filled by "
        f"{_name(found)}, fitted to the rest. RMSE: root mean squared error in the units of the column, of dates in "
        "days; the lower the better. Accuracy: the share of categories that were right; mode: the most frequent one. "
        f"The interval is that of {percent(COVERAGE)}."
    )
    parts = [
        element("p", found.evaluation.verdict, "verdict"),
        element("p", how),
        table(head, [_score(score, compared) for score in scores[:LISTED]], range(3, len(head) - 1)),
        _not_shown(len(scores) - LISTED),
    ]
    if any(not np.isnan(score.coverage) for score in scores):
        draw = partial(calibration, found.trial.imputer, found.trial.X, found.trial.hidden)
        words = "Share of hidden cells within intervals, against what it should be; below the line they are too narrow."
        parts.append(picture(draw, 3.8, 3.6, "coverage of intervals", words))
    return section("How well each column can be filled", *parts)


def _score(score: Score, compared: list[str]) -> tuple[Any, ...]:
    def shown(value: float) -> str:
        return number(value) if score.measure == "RMSE" else f"{100 * value:.1f} %"

    verdict = element("span", "better", "good")
    if score.as_good is not None:
        verdict = element("span", f"{score.as_good} does as well", "warn")
    simple = {("mean or mode" if name in ("mean", "most frequent") else name): v for name, v in score.simple.items()}
    return (
        score.column, verdict, score.measure, element("b", shown(score.value)),
        *(shown(simple[name]) if name in simple else "" for name in compared),
        "" if np.isnan(score.coverage) else percent(score.coverage), f"{score.n_hidden:,}", score.kind,
    )  # fmt: skip


def _distributions(filling: Filling) -> Html:
    columns = filling.imputer._layout.columns
    count = filling.missing.sum(0)
    order = [j for j in np.argsort(-count, kind="stable") if count[j]]
    if not order:
        return Html()
    pictures = [
        picture(_density(filling, j), 3.2, 2.4, f"observed and imputed values of {columns[j].name}")
        for j in order[:DRAWN]
    ]
    words = (
        "They need not be alike: what is missing may differ from what is observed. Single values are filled in by what "
        "is expected, so that imputed values scatter less than observed ones; draws (sample_imputations) do not."
    )
    left = _not_shown(len(order) - DRAWN, " with fewer holes")
    return section("Observed and imputed values", element("p", words), element("div", join(pictures), "grid"), left)


def _density(filling: Filling, j: int) -> Callable[[Axes], Any]:
    column, values = filling.imputer._layout.columns[j], filling.values(j)
    return lambda ax: draw_density(column, *values, ax)


def _doubts(doubts: list[Doubts]) -> Html:
    if not doubts:
        return Html()
    words = (
        f"Width: that of the {percent(COVERAGE)} interval of a cell, in standard deviations of its column. About "
        f"{ANY_GUESS} is as wide as without knowing the rest of the row. Rows are counted from 0, and at the most "
        f"{OF_A_COLUMN} cells of a column are named."
    )
    columns = [(each.column, f"{each.n_filled:,}", _amount(each.typical, each.is_share)) for each in doubts[:LISTED]]
    left = [
        table(("column", "filled", "median"), columns, (1, 2), "By column: median width, or probability of categories"),
        _not_shown(len(doubts) - LISTED),
    ]
    right = []
    if wide := worst_cells(doubts, is_share=False):
        cells = [(c.column, c.row, c.value, c.interval, _amount(c.amount, False)) for c in wide]
        head = ("column", "row", "filled in", "interval", "width")
        right.append(table(head, cells, (1, 4), "Cells with the widest intervals"))
    if improbable := worst_cells(doubts, is_share=True):
        rows = [(c.column, c.row, c.value, _amount(c.amount, True)) for c in improbable]
        right.append(table(("column", "row", "filled in", "probability"), rows, (1, 3), "Least probable categories"))
    both = join([element("div", join(left)), element("div", join(right))])
    return section("Cells not to trust", element("p", words), element("div", both, "pair"))


def _amount(amount: float, is_share: bool) -> str:
    return percent(amount) if is_share else f"{amount:.2f}"


def _convergence(found: Findings) -> Html:
    imputer: Any = found.filling.imputer
    names = {
        "em": "Change of mean and covariance, by iteration of EM.",
        "refine": "Loss of the learned E-step.",
        "iterations": "Outer iterations: error on cells hidden for validation, columns scaled to [0, 1].",
        "epochs": "Loss of flow and Gaussian.",
    }
    drawn = [
        picture(partial(convergence, imputer, part=part), 3.8, 2.7, "convergence", names[part])
        for part in convergence_parts(imputer)
    ]
    return section("Convergence", element("p", _outcome(imputer)), element("div", join(drawn), "grid"))


def _outcome(imputer: Any) -> str:
    words = []
    if imputer.timed_out_:
        words.append("Training was cut short by max_time.")
    if isinstance(imputer.history_, list):
        words.append(f"EM ran {_many(imputer.n_iter_, 'iteration')}.")
    elif refine := imputer.history_.get("refine"):
        last, kept = refine[-1], imputer.refinement_ is not None
        words.append(f"The learned E-step ran {last['step']:,} steps and was {'kept' if kept else 'not kept'}.")
        if "validation_rmse" in last:
            words.append(
                f"RMSE on cells hidden for validation, columns scaled to [0, 1]: {last['validation_rmse']:.4f}, "
                f"without it {last['validation_rmse_before']:.4f}."
            )
    else:
        kept = imputer.best_iteration_
        words.append(
            f"Of {_many(imputer.n_iter_, 'outer iteration')}, {f'number {kept}' if kept else 'none'} was kept."
        )
    return " ".join(words)


def details(found: Findings, random_state: Any, seconds: Mapping[str, float]) -> Html:
    """Return the last part: how the page was made."""
    imputer = found.filling.imputer
    how = (
        "The imputer came fitted, and fills the holes; a copy of it, fitted with cells hidden, is what was evaluated."
        if found.fitted
        else "One fit serves for all: the imputer, fitted with cells hidden, is judged by these, and fills the holes."
    )
    facts = [
        ("seed of the hidden cells", random_state),
        ("seed of the imputer", imputer.random_state),
        *((f"seconds: {name}", f"{value:.1f}") for name, value in seconds.items()),
        ("seconds in all", f"{sum(seconds.values()):.1f}"),
        ("Python", platform.python_version()),
        *((name, version(name)) for name in LIBRARIES),
    ]
    settings = table(("parameter", "value"), [(k, repr(v)) for k, v in imputer.get_params(deep=False).items()], ())
    folded = element("details", join([element("summary", f"Settings of {type(imputer).__name__}"), settings]))
    return section("How this was made", element("p", how), table(("", ""), facts, ()), folded)
