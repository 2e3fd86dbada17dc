"""How good an imputation is: cell by cell, as a distribution, and for the model that is fitted afterwards.

- Cell by cell, against the hidden truth: `rmse`, `mae`.
- As a distribution, rows against rows in no particular order: `sliced_wasserstein`, `energy_distance`.
- For a regression on the completed table: `congeniality`.

All are distances: lower is better, and 0 is perfect. Columns count by their units, so scale them first, to [0, 1] say.
"""

from __future__ import annotations

import warnings
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils import check_array

from emflow.errors import DataError, ParameterError

Array = NDArray[np.float64]
Seed = int | np.random.Generator | None

CHUNK = 1 << 22  # numbers in a temporary array: 32 MB


def rmse(X: ArrayLike, filled: ArrayLike, missing: ArrayLike) -> float:
    """Return the root mean square error over the hidden cells.

    Parameters
    ----------
    X, filled : array-like of shape (n, p)
        The true and the completed table. Only their values at the hidden cells count.
    missing : boolean array-like of shape (n, p)
        True where a value was hidden.
    """
    return float(np.sqrt(np.mean(_errors(X, filled, missing) ** 2)))


def mae(X: ArrayLike, filled: ArrayLike, missing: ArrayLike) -> float:
    """Return the mean absolute error over the hidden cells; the parameters are those of `rmse`."""
    return float(np.mean(np.abs(_errors(X, filled, missing))))


def sliced_wasserstein(
    X: ArrayLike, filled: ArrayLike, *, n_projections: int = 100, random_state: Seed = None
) -> float:
    """Return the sliced 2-Wasserstein distance between two sets of rows.

    Both sets are projected on random directions, uniform on the unit sphere. On each of them the squared distance is
    W2^2 = integral over u in (0, 1) of (F^-1(u) - G^-1(u))^2, with the quantile functions of the two projected sets;
    these are step functions, so the integral is an exact sum, for sets of different size as well. The result is the
    root of the mean of W2^2 over the directions.

    Parameters
    ----------
    X, filled : array-like of shapes (n, p) and (m, p)
        The two sets of rows.
    n_projections : int
        Number of directions. The result is random through them alone.
    random_state : int, Generator or None
        Seeds the directions.
    """
    x, y = _two_sets(X, filled)
    _check_whole("n_projections", n_projections)
    n, m = len(x), len(y)
    # Where either quantile function steps, in units of 1 / (n m): so the levels are whole numbers, free of rounding.
    levels = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    weights = np.diff(levels, prepend=0) / (n * m)
    of_x, of_y = (levels - 1) // m, (levels - 1) // n  # the ranks on the step that ends in each level
    directions = _generator(random_state).standard_normal((n_projections, x.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    total = 0.0
    for some in np.array_split(directions, -(-n_projections * len(levels) // CHUNK)):
        gap = np.sort(some @ x.T, axis=1)[:, of_x] - np.sort(some @ y.T, axis=1)[:, of_y]
        total += float((gap**2 @ weights).sum())
    return float(np.sqrt(total / n_projections))


def energy_distance(
    X: ArrayLike, filled: ArrayLike, *, max_rows: int | None = None, random_state: Seed = None
) -> float:
    """Return the energy distance 2 E|x - y| - E|x - x'| - E|y - y'| between two sets of rows.

    It is the V-statistic: the means run over all pairs, those of a row with itself included. So it is the distance
    between the two empirical distributions, never negative, and 0 only if these are equal. It is not the root, which
    some call by the same name. Time grows with the product of the numbers of rows, memory does not.

    Parameters
    ----------
    X, filled : array-like of shapes (n, p) and (m, p)
        The two sets of rows.
    max_rows : int, optional
        Use at most so many rows of each set, drawn without replacement; the same ones of both, if both have the same
        number. The statistic depends on the number of rows, so compare only results with the same `max_rows`.
    random_state : int, Generator or None
        Seeds that draw.
    """
    x, y = _two_sets(X, filled)
    if max_rows is not None:
        _check_whole("max_rows", max_rows)
        generator = _generator(random_state)
        order = generator.permutation(len(x))
        other = order if len(x) == len(y) else generator.permutation(len(y))
        x, y = x[order[:max_rows]], y[other[:max_rows]]
    return max(0.0, 2 * _mean_distance(x, y) - _mean_distance(x, x) - _mean_distance(y, y))


def congeniality(X: ArrayLike, filled: ArrayLike, target: ArrayLike, *, kind: str) -> float:
    """Return how far a regression moves if it is fitted on the completed rows instead of the true ones.

    It is the Euclidean distance between the two vectors (for more than two classes, matrices) of coefficients, as in
    appendix G.1 of the paper, where the rows are those of the test fold.

    Deviation: the paper tells neither the penalty nor the scaling nor whether the intercept counts. Here it does not.
    The linear regression is ordinary least squares, with the shortest solution where columns depend on each other.
    The logistic one has scikit-learn's penalty, C = 1, without which separable classes have no finite solution; for
    many classes it is multinomial. Columns are taken as they are, and expected in [0, 1] as everywhere in the paper.

    Parameters
    ----------
    X, filled : array-like of shape (n, p)
        The true and the completed rows.
    target : array-like of shape (n,)
        What is regressed on the rows: numbers, or the classes for a logistic regression.
    kind : {"linear", "logistic"}
        The regression.
    """
    x, y = _two_sets(X, filled)
    if x.shape != y.shape:
        raise DataError(f"filled has shape {y.shape}, X has {x.shape}: they must be alike")
    if kind not in ("linear", "logistic"):
        raise ParameterError(f'kind must be "linear" or "logistic", but it is {kind!r}')
    labels = np.asarray(target)
    if labels.shape != (len(x),):
        raise DataError(f"target has shape {labels.shape}, but it must be ({len(x)},), one value per row of X")
    return float(np.linalg.norm(_coefficients(x, labels, kind) - _coefficients(y, labels, kind)))


def _errors(X: ArrayLike, filled: ArrayLike, missing: ArrayLike) -> Array:
    """Return filled - X at the hidden cells, as a vector."""
    x, y, hidden = _numbers(X, "X"), _numbers(filled, "filled"), np.asarray(missing)
    if not x.shape == y.shape == hidden.shape:
        raise DataError(f"X, filled and missing have shapes {x.shape}, {y.shape}, {hidden.shape}: they must be alike")
    if hidden.dtype != bool:
        raise DataError(f"missing must be a boolean array, True where a value was hidden, but it has {hidden.dtype}")
    if not hidden.any():
        raise DataError("missing is False everywhere: there is no hidden cell to measure an error on")
    _require_finite(x, "X", hidden)
    _require_finite(y, "filled", hidden)
    return np.asarray(y[hidden] - x[hidden])


def _mean_distance(x: Array, y: Array) -> float:
    """Return the mean Euclidean distance over all pairs of a row of x and a row of y."""
    size = max(1, CHUNK // len(y))
    total = sum(float(cdist(x[start : start + size], y).sum()) for start in range(0, len(x), size))
    return total / (len(x) * len(y))


def _coefficients(x: Array, target: NDArray[np.generic], kind: str) -> Array:
    # The tolerance is far below scikit-learn's, so that the distance is that of the regressions and not of the solver.
    model = LinearRegression() if kind == "linear" else LogisticRegression(C=1.0, tol=1e-6, max_iter=10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            return np.asarray(model.fit(x, target).coef_)
        except ConvergenceWarning as warning:
            raise DataError("the logistic regression does not converge: scale the columns to [0, 1]") from warning
        except ValueError as error:
            raise DataError(f"target does not suit a {kind} regression: {error}") from error


def _two_sets(X: ArrayLike, filled: ArrayLike) -> tuple[Array, Array]:
    """Return two tables of finite numbers with the same columns."""
    x, y = _numbers(X, "X"), _numbers(filled, "filled")
    if x.shape[1] != y.shape[1]:
        raise DataError(f"filled has {y.shape[1]} columns, X has {x.shape[1]}: they must be the same")
    _require_finite(x, "X", np.True_)
    _require_finite(y, "filled", np.True_)
    return x, y


def _numbers(X: ArrayLike, name: str) -> Array:
    """Return a table as floats, with NaN and infinity allowed."""
    if isinstance(X, np.ma.MaskedArray):  # NumPy would uncover what is masked
        X = np.ma.filled(X.astype(np.float64), np.nan)
    try:
        return np.asarray(check_array(X, dtype=np.float64, order="C", ensure_all_finite=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be a table of numbers, with rows and columns: {error}") from error


def _require_finite(x: Array, name: str, cells: NDArray[np.bool_] | np.bool_) -> None:
    """Raise an error that names the first of these cells which is not finite."""
    bad = ~np.isfinite(x) & cells
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise DataError(f"{name} holds {x[i, j]} in row {i}, column {j}, where a finite number is needed")


def _check_whole(name: str, value: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ParameterError(f"{name} must be a whole number of at least 1, but it is {value!r}")


def _generator(random_state: Seed) -> np.random.Generator:
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"random_state must be None, a seed or a Generator, but it is {random_state!r}") from error
