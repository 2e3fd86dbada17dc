"""Simulators of missing values: from a complete table X (n, p) to a boolean array that says which cells to hide.

All of them take X, any array-like of finite numbers, and `random_state`: None, a seed, or a NumPy Generator. They
return `missing` (n, p), True where a value is to be hidden; `np.where(missing, np.nan, X)` hides it. The rate is the
expected share of hidden cells, exactly: where a logistic function gives probabilities, its intercept is solved for.

- Missing completely at random, where values play no role: `mcar`, `monotone`, `block`, `like`.
- Missing at random, where values that stay visible decide: `mar`, and `mar_paper` for the paper's experiments.
- Missing not at random, where the hidden values themselves decide: `mnar_logistic`, `mnar_quantile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.utils import check_array

from emflow.errors import DataError, ParameterError

Array = NDArray[np.float64]
Missing = NDArray[np.bool_]
Columns = Sequence[int] | None
Seed = int | np.random.Generator | None
STEEPEST = 1000  # weight of a standardised column: a step already, and rounding does not yet spoil the rate


def mcar(X: ArrayLike, rate: float = 0.2, *, random_state: Seed = None) -> Missing:
    """Hide each cell with probability `rate`, independently of everything."""
    _check("rate", rate, 0, 1)
    return _generator(random_state).random(_read(X).shape) < rate


def monotone(X: ArrayLike, rate: float, *, order: Columns = None, random_state: Seed = None) -> Missing:
    """Let rows drop out: once a cell is hidden, so are all later ones of its row.

    The first column is always seen. At each later one a row that is still there drops out with the same probability
    h, which solves: mean of 1 - (1 - h)^j over j = 0..p-1 = rate. The rate is that of all cells, those of the first
    column included; so it cannot exceed (p - 1) / p.

    Parameters
    ----------
    order : sequence of int, optional
        All columns, in the order in which they are measured; by default the order of the table.
    """
    n, p = _read(X).shape
    _check("rate", rate, 0, (p - 1) / p)
    columns = _columns(order, p, "order")
    if len(columns) < p:
        raise ParameterError(f"order must name all {p} columns, but it has {len(columns)}")
    steps = np.argsort(columns)  # how many columns come before each one
    hazard = brentq(lambda h: np.mean(1 - (1 - h) ** steps) - rate, 0, 1, xtol=1e-15)
    # One uniform number per row, against thresholds that rise along the order, makes the pattern monotone.
    return np.asarray(_generator(random_state).random((n, 1)) < 1 - (1 - hazard) ** steps)


def block(X: ArrayLike, rate: float, *, height: int = 10, width: int = 2, random_state: Seed = None) -> Missing:
    """Hide rectangles of neighbouring rows and columns, like sensors that fail for a while.

    Every position is the upper left corner of a rectangle with the same probability q, independently; a cell is
    hidden if at least one rectangle covers it. Rectangles may overlap, and those that begin above or to the left of
    the table reach into it. So each cell has height * width possible corners, wherever it is, and q solves
    1 - (1 - q)^(height * width) = rate.

    Parameters
    ----------
    height, width : int
        Rows and columns of a rectangle, at most those of the table.
    """
    n, p = _read(X).shape
    _check("rate", rate, 0, 1)
    _check("height", height, 1, n, Integral)
    _check("width", width, 1, p, Integral)
    q = 1.0 if rate == 1 else -np.expm1(np.log1p(-rate) / (height * width))
    corners: Missing = _generator(random_state).random((n + height - 1, p + width - 1)) < q
    return np.asarray(_any_of_last(_any_of_last(corners, height).T, width).T)


def like(X: ArrayLike, other: ArrayLike, *, random_state: Seed = None) -> Missing:
    """Copy the patterns of another table: each row gets the pattern of a row of `other`, drawn with replacement.

    Parameters
    ----------
    other : array-like of shape (m, p)
        Numbers with NaN where missing, or a boolean array, True where missing; the columns of X, any number of rows.
    """
    n, p = _read(X).shape
    numbers = _read(other, "other", complete=False)
    patterns = numbers == 1 if np.asarray(other).dtype == bool else np.isnan(numbers)
    if patterns.shape[1] != p:
        raise DataError(f"other has {patterns.shape[1]} columns, X has {p}: they must be the same")
    if not patterns.any():
        raise DataError("other has no missing value: mark them by NaN, or pass a boolean array, True where missing")
    return np.asarray(patterns[_generator(random_state).integers(len(patterns), size=n)])


def mar_paper(X: ArrayLike, rate: float | None = None, *, literal: bool = False, random_state: Seed = None) -> Missing:
    """Hide values of the last columns as the paper's experiments do (equation 32, appendix E).

    The first k = floor(0.7 p) columns are kept. Each cell of the others is hidden with probability
    sigmoid(b + x_i1 + ... + x_ik), where x is X with every column scaled to [0, 1] by its minimum and maximum.

    Deviation: the paper has no intercept b. But a sum of values in [0, 1] is not negative, so that without b no
    probability is below one half; on the paper's data the rates would be above .75, and its own table has .12 to .62.
    So b is solved such that the mean probability equals `rate`.

    Parameters
    ----------
    rate : float
        Rate of the columns that lose values, the last ones, as in the paper's table. Required unless `literal`.
    literal : bool
        Take b = 0, as printed; the rate then follows from the data.
    """
    n, p = (x := _read(X)).shape
    if p < 2:
        raise DataError("X has one column: this simulator keeps some and hides others, so it needs two")
    if literal and rate is not None:
        raise ParameterError(f"rate must be None with literal=True, where it follows from the data, but it is {rate!r}")
    kept = 7 * p // 10
    score = _unit(x[:, :kept]).sum(1)
    probability = expit(score) if literal else _solve(score, rate)
    missing = np.zeros((n, p), dtype=bool)
    missing[:, kept:] = _generator(random_state).random((n, p - kept)) < probability[:, None]
    return missing


def mar(
    X: ArrayLike, rate: float, *, columns: Sequence[int], weights: ArrayLike | None = None, random_state: Seed = None
) -> Missing:
    """Hide values of some columns with a probability that depends on the other ones, which stay complete.

    The probability of a row is sigmoid(b + sum of w_j z_ij over the other columns j), with z the standardised
    columns; the cells of the row are then hidden independently of each other.

    Parameters
    ----------
    rate : float
        Rate of the columns that lose values.
    columns : sequence of int
        The columns that lose values.
    weights : array-like of shape (p - len(columns),), optional
        w, for the other columns in the order of the table; by default drawn standard normal. The larger they are, and
        the more columns there are, the sharper the line between rows with and without gaps.
    """
    x = _read(X)
    hit = _columns(columns, x.shape[1])
    others = np.setdiff1d(np.arange(x.shape[1]), hit)
    if not len(others):
        raise ParameterError("columns names all columns: at least one must stay complete to decide about the others")
    generator = _generator(random_state)
    w = generator.standard_normal(len(others)) if weights is None else np.asarray(weights)
    if w.shape != others.shape or w.dtype.kind not in "iuf" or not (np.abs(w) <= STEEPEST).all():
        raise ParameterError(f"weights must be {len(others)} numbers, at most {STEEPEST} in size, but are {weights!r}")
    probability = _solve(_standardise(x[:, others]) @ w, rate)
    missing = np.zeros(x.shape, dtype=bool)
    missing[:, hit] = generator.random((len(x), len(hit))) < probability[:, None]
    return missing


def mnar_logistic(
    X: ArrayLike, rate: float, *, columns: Columns = None, strength: float = 2.0, random_state: Seed = None
) -> Missing:
    """Hide values with a probability that rises with the value itself (self-masking).

    The probability of a cell is sigmoid(b_j + strength * z_ij), with z the standardised column.

    Parameters
    ----------
    rate : float
        Rate of each column that loses values.
    columns : sequence of int, optional
        The columns that lose values; by default all.
    strength : float
        0 is missing completely at random, and a negative one hides low values rather than high ones.
    """
    x = _read(X)
    _check("strength", strength, -STEEPEST, STEEPEST)
    generator = _generator(random_state)
    missing = np.zeros(x.shape, dtype=bool)
    for j in _columns(columns, x.shape[1]):
        missing[:, j] = generator.random(len(x)) < _solve(strength * _standardise(x[:, j]), rate)
    return missing


def mnar_quantile(
    X: ArrayLike,
    rate: float,
    *,
    columns: Columns = None,
    side: str = "high",
    share: float = 0.5,
    random_state: Seed = None,
) -> Missing:
    """Hide values beyond a quantile of their column, and no others.

    The outer cells of a column are its k = ceil(share * n) highest or lowest ones, or floor(k / 2) lowest and the
    rest highest ones; between equal values at the border chance decides. Each outer cell is hidden with probability
    rate * n / k, independently. With `share` equal to `rate`, and a whole number of cells, all of them are.

    Parameters
    ----------
    rate : float
        Rate of each column that loses values; at most `share`.
    columns : sequence of int, optional
        The columns that lose values; by default all.
    side : {"high", "low", "both"}
        Which end of the column loses values.
    share : float
        Share of the cells of a column that may be hidden.
    """
    n, p = (x := _read(X)).shape
    _check("rate", rate, 0, 1)
    _check("share", share, rate, 1)
    k = max(1, ceil(share * n))
    lowest = {"high": 0, "low": k, "both": k // 2}
    if side not in lowest:
        raise ParameterError(f'side must be "high", "low" or "both", but it is {side!r}')
    generator = _generator(random_state)
    missing = np.zeros((n, p), dtype=bool)
    for j in _columns(columns, p):
        rows = generator.permutation(n)  # sorting keeps equal values in this random order
        rows = rows[np.argsort(x[rows, j], kind="stable")]
        outer = np.roll(rows, -lowest[side])[n - k :]
        missing[outer, j] = generator.random(k) < rate * n / k
    return missing


def _solve(score: Array, rate: float | None) -> Array:
    """Return sigmoid(b + score) (n,), with the intercept b for which its mean is `rate`."""
    _check("rate", rate, 0, 1)
    if rate in (0, 1):
        return np.full(len(score), rate, dtype=np.float64)
    low, high = logit(rate) - score.max() - 1, logit(rate) - score.min() + 1  # all probabilities below, above the rate
    intercept = brentq(lambda b: expit(b + score).mean() - rate, low, high, xtol=1e-13, maxiter=1000)
    return np.asarray(expit(intercept + score))


def _unit(x: Array) -> Array:
    """Scale columns to [0, 1] by minimum and maximum; a constant one is 0."""
    with np.errstate(over="ignore"):
        span = np.ptp(x, axis=0)
    if not np.isfinite(span).all():
        raise DataError("a column of X spans more than double precision can hold: rescale it")
    return np.asarray((x - x.min(0)) / np.where(span > 0, span, 1))


def _standardise(x: Array) -> Array:
    """Give columns mean 0 and standard deviation 1; a constant one is 0."""
    x = _unit(x)  # first, so that squares neither overflow nor vanish
    spread = x.std(0)
    return np.asarray((x - x.mean(0)) / np.where(spread > 0, spread, 1))


def _any_of_last(flags: Missing, size: int) -> Missing:
    """Return for each row i from `size` - 1 on whether any of the `size` rows that end in i is True, per column."""
    count = np.cumsum(flags, axis=0, dtype=np.int32)
    count[size:] -= count[:-size].copy()
    return np.asarray(count[size - 1 :] > 0)


def _read(X: ArrayLike, name: str = "X", *, complete: bool = True) -> Array:
    """Return a table as floats, or raise an error; a complete one must be finite, and the error names the cell."""
    if isinstance(X, np.ma.MaskedArray):  # NumPy would uncover what is masked
        X = np.ma.filled(X.astype(np.float64), np.nan)
    try:
        x = np.asarray(check_array(X, dtype=np.float64, ensure_all_finite=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be a table of numbers, with rows and columns: {error}") from error
    if complete and not np.isfinite(x).all():
        i, j = np.argwhere(~np.isfinite(x))[0]
        raise DataError(f"{name} holds {x[i, j]} in row {i}, column {j}: values can be hidden in a complete table only")
    return x


def _check(name: str, value: float | None, low: float, high: float, kind: type = Real) -> None:
    if value is None or not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
        whole = "whole " if kind is Integral else ""
        raise ParameterError(f"{name} must be a {whole}number from {low:.6g} to {high:.6g}, but it is {value!r}")


def _columns(columns: Columns, p: int, name: str = "columns") -> NDArray[np.intp]:
    """Return indices of columns, all of them for None."""
    array = np.arange(p) if columns is None else np.asarray(columns)
    valid = array.ndim == 1 and array.size and array.dtype.kind in "iu" and array.min() >= 0 and array.max() < p
    if not valid or len(np.unique(array)) < len(array):
        raise ParameterError(f"{name} must be different whole numbers from 0 to {p - 1}, but it is {columns!r}")
    return array.astype(np.intp)


def _generator(random_state: Seed) -> np.random.Generator:
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"random_state must be None, a seed or a Generator, but it is {random_state!r}") from error
