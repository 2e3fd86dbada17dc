"""Bad input has a defined result or an error that names the culprit; no NaN ever leaves `transform`."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

from emflow import DataError

NAMES = list("abcd")


def frame(x):
    return pd.DataFrame(x, columns=NAMES)


def put(x, row, column, value):
    """Return a copy with one cell (or, with slices, several) replaced."""
    x = x.astype(object) if isinstance(value, str) else x.copy()
    x[row, column] = value
    return x


def column_of(values):
    """Return a function that makes a frame whose column b is `values`, repeated."""
    return lambda x: frame(x).assign(b=pd.Series(values * (len(x) // len(values))))


# --- what cannot be used

UNUSABLE = {
    "scalar": (lambda x: 3.0, ValueError, "2D"),
    "one-dimensional": (lambda x: x[:, 0], ValueError, "2D"),
    "five-dimensional": (lambda x: x[None, None, None], ValueError, "dim"),
    "no rows": (lambda x: x[:0], ValueError, "0 sample"),
    "no rows in a frame": (lambda x: frame(x)[:0], ValueError, "0 sample"),
    "no columns": (lambda x: x[:, :0], ValueError, "0 feature"),
    "empty frame": (lambda x: pd.DataFrame(), ValueError, "(?i)sample|feature|row|column"),
    "inf": (lambda x: put(x, 5, 2, np.inf), DataError, "column 2 .*row 5"),
    "minus inf in a frame": (lambda x: frame(put(x, 7, 1, -np.inf)), DataError, "column 'b' .*row 7"),
    "text": (lambda x: put(x, 7, 1, "red"), DataError, "column 1 .*'red'.*row 7"),
    "text in a frame": (lambda x: frame(put(x, 7, 1, "red")), DataError, "column 'b' .*'red'.*row 7"),
    "text array": (lambda x: put(x, 7, 1, "red").astype(str), DataError, "column 1 .*'red'.*row 7"),
    "complex": (lambda x: x + 1j, ValueError, "[Cc]omplex"),
    "sparse": (lambda x: csr_array(np.nan_to_num(x)), TypeError, "dense"),
}


@pytest.mark.parametrize("case", UNUSABLE)
@pytest.mark.parametrize("when", ["fit", "transform", "score_samples"])
def test_unusable_tables_are_refused(make, x, when, case):
    bad, error, match = UNUSABLE[case]
    named = hasattr(bad(x), "columns") and case != "empty frame"
    imputer = make() if when == "fit" else make().fit(frame(x) if named else x)
    with pytest.raises(error, match=match):
        getattr(imputer, when)(bad(x))


NOT_NUMBERS = {
    "text column": (column_of(["u", "v"]), "column 'b' .*'u'.*row 0.*continuous"),
    "categorical column": (lambda x: column_of(["u", "v"])(x).astype({"b": "category"}), "column 'b' .*'u'.*row 0"),
    "dates": (column_of([pd.Timestamp("2020-01-01")]), "column 'b' was continuous .*dates"),
}


@pytest.mark.parametrize("case", NOT_NUMBERS)
@pytest.mark.parametrize("when", ["transform", "score_samples"])
def test_what_was_a_number_must_be_one(make, x, when, case):
    other, match = NOT_NUMBERS[case]
    imputer = make().fit(frame(x))
    with pytest.raises(DataError, match=match):
        getattr(imputer, when)(other(x))


@pytest.mark.parametrize(
    ("empty", "match"), [([1], "column 1:"), ([0, 3], "column 0, 3:")], ids=["one column", "two columns"]
)
def test_a_column_without_values_is_named_by_number(make, x, empty, match):
    with pytest.raises(DataError, match=match):
        make().fit(put(x, slice(None), empty, np.nan))


def test_a_column_without_values_is_named_by_name(make, x):
    with pytest.raises(DataError, match="column 'b'"):
        make().fit(frame(put(x, slice(None), 1, np.nan)))


@pytest.mark.parametrize("method", ["transform", "score_samples", "sample", "save"])
def test_an_imputer_that_is_not_fitted_says_so(make, x, method):
    with pytest.raises(NotFittedError, match="not fitted"):
        getattr(make(), method)(x)


OTHER_COLUMNS = {
    "fewer": (lambda x: x, lambda x: x[:, :3], "3 features.* 4 features"),
    "more": (lambda x: x, lambda x: np.hstack([x, x]), "8 features.* 4 features"),
    "other name": (frame, lambda x: frame(x).rename(columns={"b": "z"}), "(?s)unseen.* z.*missing.* b"),
    "other order": (frame, lambda x: frame(x)[["b", "a", "c", "d"]], "same order"),
}


@pytest.mark.parametrize("case", OTHER_COLUMNS)
@pytest.mark.parametrize("method", ["transform", "score_samples"])
def test_other_columns_than_fitted_are_refused(make, x, method, case):
    fitted, given, match = OTHER_COLUMNS[case]
    imputer = make().fit(fitted(x))
    with pytest.raises(ValueError, match=match):
        getattr(imputer, method)(given(x))


# --- what can

NULLABLE = {"i": ("Int64", [1, 2, None, 4, 9]), "f": ("Float64", [0.5, None, 2.5, 3, 4]), "t": ("boolean", [True] * 5)}
USABLE = {
    "one column": lambda x: x[:, :1],
    "one row": lambda x: x[~np.isnan(x).any(1)][:1],
    "two rows": lambda x: x[~np.isnan(x).any(1)][:2],
    "fewer rows than columns": lambda x: np.vstack([put(x[:1], 0, [0, 1], 1.0), put(x[1:3], 0, [2, 3], [2.0, 3.0])]),
    "row without values": lambda x: put(x, 4, slice(None), np.nan),
    "nothing missing": lambda x: np.nan_to_num(x),
    "identical columns": lambda x: x[:, [0, 0, 1, 1]],
    "bool": lambda x: x > 1,
    "int": lambda x: np.nan_to_num(x).astype(int),
    "float16": lambda x: x.astype(np.float16),
    "list with None": lambda x: np.where(np.isnan(x), None, x).tolist(),
    "object with None": lambda x: np.where(np.isnan(x), None, x),
    "masked array": lambda x: np.ma.masked_invalid(x),
    "object with pd.NA": lambda x: np.where(np.isnan(x), pd.NA, x.astype(object)),
    "object with NaT": lambda x: np.where(np.isnan(x), pd.NaT, x.astype(object)),
    "object frame with pd.NA": lambda x: frame(np.where(np.isnan(x), pd.NA, x.astype(object))),
    "nullable": lambda x: pd.DataFrame({name: pd.array(v * 4, dtype=kind) for name, (kind, v) in NULLABLE.items()}),
    "polars with null": lambda x: pl.DataFrame({"a": [1.0, None, 3.0, 7.0] * 5, "b": [1, 2, None, 4] * 5}),
}


def as_floats(table):
    if isinstance(table, np.ma.MaskedArray):
        return table.filled(np.nan)
    cells = np.array(table.to_numpy() if hasattr(table, "to_numpy") else table, dtype=object)
    return np.where(pd.isna(cells), np.nan, cells).astype(float)


@pytest.mark.parametrize("case", USABLE)
def test_usable_tables_are_filled(make, x, case):
    table = USABLE[case](x)
    known = as_floats(table)
    filled = make().fit_transform(table)
    assert filled.shape == known.shape
    if hasattr(table, "columns"):
        assert type(filled) is type(table)
        filled = as_floats(filled)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(known)], known[~np.isnan(known)])


@pytest.mark.parametrize("clip", [True, False])
def test_a_constant_column_is_filled_with_the_constant(make, x, clip):
    constant = np.where(np.isnan(x[:, 1]), np.nan, 7.3)
    filled = make(clip=clip).fit_transform(put(x, slice(None), 1, constant))
    np.testing.assert_array_equal(filled[:, 1], 7.3)


def test_constant_columns_alone(make, x):
    np.testing.assert_array_equal(make().fit_transform(np.where(np.isnan(x), np.nan, 3.3)), np.full(x.shape, 3.3))


def test_a_row_without_values_gets_values_within_range(make, x):
    filled = make().fit(x).transform(np.full((1, 4), np.nan))
    assert (np.nanmin(x, 0) <= filled).all()
    assert (filled <= np.nanmax(x, 0)).all()


def test_more_rows_than_fitted(make, x):
    filled = make().fit(np.nan_to_num(x[:10])).transform(x)
    assert filled.shape == x.shape
    assert np.isfinite(filled).all()


def test_one_row_fitted_fills_others(make, complete, x):
    assert np.isfinite(make().fit(complete[:1]).transform(x)).all()


def test_a_column_complete_at_fit_may_be_missing_later(make, complete):
    filled = make().fit(complete).transform(put(complete, slice(None), 2, np.nan))
    assert np.isfinite(filled).all()
    assert np.ptp(filled[:, 2]) > 0  # it depends on the row


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [1e-36, 1e-20, 0.1, 0.95])
@pytest.mark.parametrize("sign", [1, -1])
def test_far_from_the_training_data_is_filled_or_refused(make, x, clip, dtype, share, sign):
    rows = np.array([x[0], [sign * share * np.finfo(dtype).max, np.nan, np.nan, 1000]], dtype=dtype)
    imputer = make(clip=clip).fit(x)
    try:
        filled = imputer.transform(rows)
    except DataError as error:
        assert "row 1" in str(error)  # noqa: PT017 (either is fine)
    else:
        assert np.isfinite(filled).all()


def test_the_density_far_from_the_training_data_is_a_number(make, x):
    scores = make().fit(x).score_samples(np.array([[1e6, 0, 0, 0], [1e60, 0, 0, 0], [1e200, 0, 0, 0]]))
    assert (scores < -1e6).all()  # minus infinity, if need be


def test_a_range_beyond_floating_point_is_filled_or_refused(make, x):
    rows = put(x, [0, 1, 2], 1, [-1e308, 1e308, np.nan])
    try:
        filled = make().fit_transform(rows)
    except DataError as error:
        assert "column 1" in str(error)  # noqa: PT017 (either is fine)
    else:
        assert np.isfinite(filled).all()


def test_a_range_of_the_smallest_numbers(make, x):
    filled = make().fit_transform(x * 1e-310)
    assert np.isfinite(filled).all()


@pytest.mark.parametrize("n_samples", [0, -1, 1.5, "3", None])
def test_samples_are_counted_in_whole_numbers(make, x, n_samples):
    with pytest.raises(ValueError, match="n_samples"):
        make().fit(x).sample(n_samples)
