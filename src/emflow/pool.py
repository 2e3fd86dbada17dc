"""Rubin's rules: one estimate, with its uncertainty, from the same analysis of m completed tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from emflow.errors import DataError, ParameterError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pooled:
    """What `pool` returns. Arrays have the shape (k,), an entry per quantity; `print` shows them as a table.

    Attributes
    ----------
    estimate : ndarray
        Q, the mean of the m estimates.
    standard_error : ndarray
        Root of the total variance T = U + (1 + 1/m) B.
    dof : ndarray
        Degrees of freedom nu of the t distribution of (Q - true value) / standard error.
    within, between : ndarray
        U, the mean of the m squared standard errors, and B, the variance of the m estimates, with divisor m - 1.
    relative_increase : ndarray
        r = (1 + 1/m) B / U: how much larger the missing values make the variance; infinite if U is 0 and B is not.
    missing_information : ndarray
        gamma, the fraction of missing information: see `pool`. It is not lambda, which is r / (1 + r).
    names : tuple of str
        The k quantities.
    n_imputations : int
        m.
    """

    estimate: Array
    standard_error: Array
    dof: Array
    within: Array
    between: Array
    relative_increase: Array
    missing_information: Array
    names: tuple[str, ...]
    n_imputations: int

    def interval(self, coverage: float = 0.95) -> tuple[Array, Array]:
        """Return lower and upper ends (k,) of the intervals that cover the true values with this probability.

        With no degrees of freedom they are infinite.
        """
        if not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise ParameterError(f"coverage must be a number in (0, 1), but it is {coverage!r}")
        quantile = np.where(self.dof > 0, t.ppf((1 + coverage) / 2, self.dof), np.inf)
        return self.estimate - quantile * self.standard_error, self.estimate + quantile * self.standard_error

    def p_value(self, null: ArrayLike = 0.0) -> Array:
        """Return the p-values (k,) of the two-sided t tests that the true values are `null`, a number or k of them.

        With no degrees of freedom they are 1.
        """
        gap = np.abs(self.estimate - _numbers(null, "null", self.estimate.shape))
        with np.errstate(divide="ignore"):  # estimates without any error are infinitely far from other values
            distance = np.divide(gap, self.standard_error, out=np.zeros_like(gap), where=gap > 0)
        return np.where(self.dof > 0, 2 * t.sf(distance, self.dof), 1.0)

    def __str__(self) -> str:
        low, high = self.interval()
        columns = {
            "estimate": self.estimate, "std. error": self.standard_error, "95 % from": low, "to": high,
            "dof": self.dof, "p": self.p_value(), "fmi": self.missing_information,
        }  # fmt: skip
        left = max(map(len, self.names))
        cells = [[name.ljust(left) for name in ("", *self.names)]]
        for head, column in columns.items():
            texts = [head, *(f"{number:.4g}" for number in column)]
            width = max(map(len, texts))
            cells.append([text.rjust(width) for text in texts])
        rows = ["  ".join(row) for row in zip(*cells, strict=True)]
        return "\n".join([f"Pooled over {self.n_imputations} imputations", *rows])


def pool(
    estimates: Any,
    standard_errors: ArrayLike | None = None,
    *,
    dof: ArrayLike = np.inf,
    names: Sequence[str] | None = None,
) -> Pooled:
    """Pool the results of an analysis that was made on each of m imputations, by Rubin's rules.

    `pool(estimates, standard_errors)` takes numbers, `pool(results)` a list of fitted models of statsmodels.

    With U, B and T as in `Pooled` and lambda = (1 + 1/m) B / T, the degrees of freedom are those of Barnard and Rubin
    (Biometrika 86, 1999)::

        1 / nu = 1 / nu_old + 1 / nu_obs
        nu_old = (m - 1) / lambda^2                                (Rubin 1987, equation 3.1.6)
        nu_obs = (1 - lambda) dof (dof + 1) / (dof + 3)

    They are nu_old if `dof` is infinite, nu_obs if the estimates do not differ (nothing that is missing matters), and
    0 if the standard errors are 0 and the estimates differ, with finite `dof`: such data tell nothing. The fraction of
    missing information is::

        gamma = (r + 2 / (nu + 3)) / (1 + r) = lambda (nu + 1) / (nu + 3) + 2 / (nu + 3)

    as in van Buuren, Flexible Imputation of Missing Data (2nd edition), sections 2.3.5 and 2.3.6, with the nu above;
    Rubin's equation 3.1.10 has nu_old, which is the same only if `dof` is infinite.

    The intervals are as good as the imputations. Draws of `sample_imputations` come from one fitted model, without the
    uncertainty of its own parameters, so intervals are too short where much is missing. With `bootstrap=True` there is
    a model for each draw, which mends that (`benchmarks/pooling.py`).

    Parameters
    ----------
    estimates : array-like of shape (m,) or (m, k), or list of m results
        A row per imputation. A result is anything with `params`, `bse` and `df_resid`.
    standard_errors : array-like, of the shape of `estimates`
        Their standard errors; left out if results are given.
    dof : float or array-like of shape (k,)
        Degrees of freedom that the analysis of a complete table has, say n - k of a regression. Of results it is their
        `df_resid`, the smallest of them.
    names : sequence of k str
        What is estimated. Of results they are `params.index` or `model.exog_names`. Numbers from 0, if there are none.
    """
    if standard_errors is None:
        if names is not None or np.ndim(dof) or dof != np.inf:
            raise ParameterError("dof and names are read from results: give them with estimates and standard errors")
        estimates, standard_errors, dof, names = _read(estimates)
    q, s = _table(estimates, "estimates"), _table(standard_errors, "standard_errors")
    if q.shape != s.shape:
        raise DataError(f"estimates and standard_errors have shapes {q.shape} and {s.shape}: they must be alike")
    m, k = q.shape
    if m < 2:
        raise DataError("there is only 1 imputation: how much imputations differ is seen from 2 on")
    labels = tuple(map(str, range(k) if names is None else names))
    if len(labels) != k:
        raise ParameterError(f"names has {len(labels)} entries for {k} estimates")
    _require(np.isfinite(q), q, "estimate", labels, "must be finite")
    _require(np.isfinite(s) & (s >= 0), s, "standard error", labels, "must be finite and not negative")
    return _pool(q, s, _numbers(dof, "dof", (k,), positive=True), labels)


def _pool(q: Array, s: Array, complete: Array, names: tuple[str, ...]) -> Pooled:
    """Pool estimates q and standard errors s (m, k), with complete-data degrees of freedom (k,)."""
    m = len(q)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = q - q[0]  # so that equal estimates have a variance of 0, whatever the rounding of their mean
        within, between = (s**2).mean(0), apart.var(0, ddof=1)
        added = (1 + 1 / m) * between
        total = within + added
    if not np.isfinite(total).all():
        name = names[int(np.argmin(np.isfinite(total)))]
        raise DataError(f"the variance of {name!r} is beyond double precision: rescale the estimates")
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(added > 0, added / total, 0.0)  # lambda
        increase = np.where(added > 0, added / within, 0.0)
        of_complete = np.where(np.isinf(complete), 0.0, (complete + 3) / (complete * (complete + 1)) / (1 - share))
        dof = 1 / (share**2 / (m - 1) + of_complete)
    return Pooled(
        estimate=q[0] + apart.mean(0),
        standard_error=np.sqrt(total),
        dof=dof,
        within=within,
        between=between,
        relative_increase=increase,
        missing_information=share + (1 - share) * 2 / (dof + 3),  # the formula in lambda: r may be infinite
        names=names,
        n_imputations=m,
    )


def _read(results: Any) -> tuple[list[Any], list[Any], float, tuple[str, ...]]:
    """Return estimates, standard errors, degrees of freedom and names of fitted models."""
    try:
        fitted = list(results)
    except TypeError as error:
        raise DataError(f"results must be a list, with one for each imputation, not {type(results)}") from error
    if not fitted:
        raise DataError("there are no results: give one for each imputation")
    for i, result in enumerate(fitted):
        for attribute in ("params", "bse", "df_resid"):
            if not hasattr(result, attribute):
                raise DataError(
                    f"imputation {i} has no {attribute}: give results of statsmodels, or estimates and standard_errors"
                )
        if np.ndim(result.params) != 1 or np.shape(result.bse) != np.shape(result.params):
            shapes = f"{np.shape(result.params)} and {np.shape(result.bse)}"
            raise DataError(f"params and bse of imputation {i} have shapes {shapes}: they must be vectors, and alike")
        if not isinstance(result.df_resid, Real) or not float(result.df_resid) > 0:
            raise DataError(f"df_resid of imputation {i} is {result.df_resid!r}: it must be a number above 0")
        if (names := _names(result)) != (first := _names(fitted[0])):
            what = ", ".join(sorted(set(names) ^ set(first))) or "the order"
            raise DataError(f"imputations 0 and {i} do not estimate the same, but differ in: {what}")
    dof = min(float(result.df_resid) for result in fitted)
    return [result.params for result in fitted], [result.bse for result in fitted], dof, _names(fitted[0])


def _names(result: Any) -> tuple[str, ...]:
    names = getattr(result.params, "index", None)
    if names is None or callable(names):  # as that of a list is
        names = getattr(getattr(result, "model", None), "exog_names", None)
    k = len(result.params)
    return tuple(map(str, range(k) if names is None or len(names) != k else names))


def _table(values: ArrayLike, name: str) -> Array:
    """Return numbers of shape (m,) or (m, k) as (m, k), with NaN and infinity allowed."""
    if isinstance(values, np.ma.MaskedArray):  # NumPy would uncover what is masked
        values = np.ma.filled(values.astype(np.float64), np.nan)
    try:
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers, a row of equal length for each imputation: {error}") from error
    if x.ndim not in (1, 2) or not x.size:
        raise DataError(f"{name} must have shape (m,) or (m, k), but it has {x.shape}")
    return x[:, None] if x.ndim == 1 else x


def _numbers(values: ArrayLike, name: str, shape: tuple[int, ...], *, positive: bool = False) -> Array:
    """Return a parameter that is a number or an array of this shape, as the array."""
    try:
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        x = np.full((), np.nan)
    if x.shape not in ((), shape) or np.isnan(x).any() or (positive and (x <= 0).any()):
        above = " above 0" if positive else ""
        raise ParameterError(f"{name} must be a number{above}, or {shape[0]} of them, but it is {values!r}")
    return np.broadcast_to(x, shape)


def _require(good: NDArray[np.bool_], x: Array, what: str, names: tuple[str, ...], rule: str) -> None:
    """Raise an error that says which of the numbers x (m, k) is not good."""
    if not good.all():
        i, j = np.argwhere(~good)[0]
        raise DataError(f"the {what} of {names[j]!r} in imputation {i} is {x[i, j]}: it {rule}")
