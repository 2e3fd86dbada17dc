"""The columns that come out: indicators of what was missing, columns without any value, frames of a chosen library."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from test_frames import MAKE, N, cells, in_pandas, in_polars

from emflow import DataError, EMFlowImputer, GaussianImputer, ParameterError, evaluate

NAMES = list("abcd")


def without(x, *columns):
    """Return a copy without any value in some columns, and with holes in the first and the last one alone."""
    x = x.copy()
    x[:, 1:3] = np.nan_to_num(x[:, 1:3])
    x[:, list(columns)] = np.nan
    return x


def quiet(imputer, frame):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="left as they are")
        return imputer.fit(frame)


# --- add_indicator


def test_indicators_are_those_of_scikit_learn(make, x):
    table = without(x)
    new = x[:20]  # with holes in further columns, which `fit` did not see: they have no indicator
    ours, theirs = make(add_indicator=True).fit(table), SimpleImputer(add_indicator=True).fit(table)
    filled = ours.transform(new)
    assert filled.dtype == float
    np.testing.assert_array_equal(filled[:, 4:], theirs.transform(new)[:, 4:])
    np.testing.assert_array_equal(filled[:, :4], make().fit(table).transform(new))
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    assert list(ours.get_feature_names_out(NAMES))[4:] == ["missingindicator_a", "missingindicator_d"]


@pytest.mark.parametrize("make_frame", MAKE.values(), ids=MAKE)
def test_indicators_of_a_frame(make_frame):
    frame = make_frame()
    imputer = quiet(GaussianImputer(add_indicator=True, random_state=0), frame)
    filled = imputer.transform(frame)
    assert type(filled) is type(frame)
    before, after = cells(frame), cells(filled)
    holed = [name for name, values in before.items() if None in values]
    assert list(after) == [*before, *(f"missingindicator_{name}" for name in holed)]
    for name in holed:
        assert after[f"missingindicator_{name}"] == [value is None for value in before[name]]
    names = imputer.get_feature_names_out()
    assert list(names) == list(after)
    without_them = quiet(GaussianImputer(random_state=0), frame).transform(frame)
    assert {name: after[name] for name in before} == cells(without_them)


def test_an_indicator_tells_of_an_unseen_category_and_of_missing():
    frame = pd.DataFrame({"word": ["u", "v", None, "u"] * 5, "x": [1.0, 2, 3, 4] * 5})
    imputer = GaussianImputer(add_indicator=True, unseen="missing").fit(frame)
    new = pd.DataFrame({"word": ["u", "w"], "x": [1.0, 2]})
    assert imputer.transform(new)["missingindicator_word"].tolist() == [False, True]
    hidden = np.array([[True, False], [False, False]])
    assert imputer.transform(new, missing=hidden)["missingindicator_word"].tolist() == [True, True]


def test_an_indicator_takes_no_columns_name():
    frame = pd.DataFrame({"x": [1.0, np.nan, 3], "missingindicator_x": [1.0, 2, 3]})
    with pytest.raises(DataError, match="'missingindicator_x' is there already"):
        GaussianImputer(add_indicator=True).fit(frame).transform(frame)


def test_indicators_are_for_tables():
    with pytest.raises(ParameterError, match="add_indicator is for tables"):
        GaussianImputer(add_indicator=True).fit(np.zeros((5, 2, 2)))


def test_draws_and_intervals_have_no_indicators(make, x):
    imputer = make(add_indicator=True).fit(x)
    assert imputer.sample_imputations(x, 2).shape == (2, *x.shape)
    assert imputer.intervals(x)[0].shape == x.shape


def test_a_classifier_sees_indicators(complete):
    labels = np.arange(60) % 2
    complete[labels == 1, 0] = np.nan  # that it is missing says it all
    pipelines = (make_pipeline(GaussianImputer(add_indicator=add), LogisticRegression()) for add in (False, True))
    scores = [pipeline.fit(complete, labels).score(complete, labels) for pipeline in pipelines]
    assert scores[0] < 0.9 < scores[1]


# --- keep_empty_features


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_empty_columns_are_kept(make, x, dtype):
    table = without(x, 1, 3).astype(dtype)
    imputer = make(keep_empty_features=True).fit(table)
    filled = imputer.transform(table)
    assert filled.dtype == dtype
    np.testing.assert_array_equal(filled[:, [1, 3]], 0)
    np.testing.assert_array_equal(filled[:, [0, 2]], make().fit(table[:, [0, 2]]).transform(table[:, [0, 2]]))
    new = x[:5].astype(dtype)
    np.testing.assert_array_equal(imputer.transform(new)[:, 1], np.nan_to_num(new[:, 1]))
    assert list(imputer.get_feature_names_out()) == ["x0", "x1", "x2", "x3"]
    draws = imputer.sample_imputations(table, 2)
    np.testing.assert_array_equal(draws[:, :, 3], 0)
    lower, upper = imputer.intervals(table)
    assert np.isnan(lower[:, 1]).all()
    assert (lower[:, 0] <= upper[:, 0]).all()


def test_empty_columns_have_indicators(x):
    table = without(x, 1)
    settings = {"add_indicator": True, "keep_empty_features": True}
    ours, theirs = GaussianImputer(**settings).fit(table), SimpleImputer(**settings).fit(table)
    np.testing.assert_array_equal(ours.transform(x)[:, 4:], theirs.transform(x)[:, 4:])
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())


@pytest.mark.parametrize("as_frame", [False, True])
def test_a_column_may_be_hidden_as_a_whole(make, x, as_frame):
    missing = np.zeros(x.shape, dtype=bool)
    missing[:, 2] = True
    table = pd.DataFrame(x, columns=NAMES) if as_frame else x
    with pytest.raises(DataError, match=r"no observed value in column ('c'|2): .*keep_empty_features=True"):
        make().fit(table, missing=missing)
    filled = np.asarray(make(keep_empty_features=True).fit_transform(table, missing=missing))
    np.testing.assert_array_equal(filled[:, 2], 0)
    assert np.isfinite(filled).all()


EMPTY = {
    "pandas": lambda: in_pandas().assign(
        none=np.nan, whole=pd.array([None] * N, dtype="Int8"), when=pd.to_datetime([None] * N), some=[None] * N
    ),
    "polars": lambda: in_polars().with_columns(
        none=pl.lit(None, pl.Float32),
        whole=pl.lit(None, pl.Int8),
        when=pl.lit(None, pl.Date),
        some=pl.lit(None, pl.String),
    ),
}


@pytest.mark.parametrize("make_frame", EMPTY.values(), ids=EMPTY)
def test_empty_columns_of_a_frame(make_frame, tmp_path):
    frame = make_frame()
    imputer = GaussianImputer(keep_empty_features=True, bounds={"whole": (2, None)}, random_state=0)
    with pytest.warns(UserWarning, match="left as they are") as said:
        imputer.fit(frame)
    assert [str(warning.message) for warning in said][1] == (
        "left as they are, for want of any value: 'when' (date), 'some' (binary)"
    )
    filled = imputer.transform(frame)
    assert dict(zip(filled.columns, filled.dtypes, strict=True)) == dict(zip(frame.columns, frame.dtypes, strict=True))
    values = cells(filled)
    assert values["none"] == [0] * N
    assert values["whole"] == [2] * N
    assert values["when"] == values["some"] == [None] * N
    assert None not in values["number"]
    assert imputer.sample(2)["none"] == [0, 0]
    imputer.save(tmp_path / "model")
    assert cells(GaussianImputer.load(tmp_path / "model").transform(frame)) == values


def test_a_column_needs_a_value_in_any_case():
    with pytest.raises(DataError, match="no column holds any value"):
        GaussianImputer(keep_empty_features=True).fit(np.full((5, 2), np.nan))
    with pytest.raises(DataError, match="no column holds"):
        GaussianImputer(keep_empty_features=True).fit(pd.DataFrame({"a": [np.nan, np.nan]}))


def test_evaluation_takes_both_options(x):
    imputer = EMFlowImputer(
        n_iterations=1, n_epochs=1, refine="off", add_indicator=True, keep_empty_features=True, random_state=0
    )
    found = evaluate(without(x, 1), imputer.set_output(transform="pandas"))
    assert [score.column for score in found.scores] == ["0", "3"]


def test_indicators_survive_a_file(x, tmp_path):
    imputer = GaussianImputer(add_indicator=True).fit(without(x))
    imputer.save(tmp_path / "model")
    loaded = GaussianImputer.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(x), imputer.transform(x))
    assert loaded.transform(x).shape[1] == 6


# --- set_output

LIBRARY = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.parametrize("library", LIBRARY)
@pytest.mark.parametrize("make_frame", MAKE.values(), ids=MAKE)
def test_a_mixed_frame_of_another_library(make_frame, library):
    frame = make_frame()
    imputer = GaussianImputer(add_indicator=True, random_state=0)
    own = cells(quiet(imputer, frame).transform(frame))
    copy = quiet(clone(imputer.set_output(transform=library)), frame)
    filled = copy.transform(frame)
    assert type(filled) is LIBRARY[library]
    assert list(filled.columns) == list(own) == list(copy.get_feature_names_out())
    for name in ("number", "count", "flag", "word", "missingindicator_count"):
        assert cells(filled)[name] == own[name]
    assert filled["number"].dtype in (np.dtype(float), pl.Float64)
    assert filled["missingindicator_count"].dtype in (np.dtype(bool), pl.Boolean)


def test_an_array_as_a_frame(x):
    for library, kind in LIBRARY.items():
        filled = GaussianImputer(add_indicator=True).set_output(transform=library).fit_transform(without(x))
        assert type(filled) is kind
        assert list(filled.columns) == ["x0", "x1", "x2", "x3", "missingindicator_x0", "missingindicator_x3"]


def test_the_configuration_of_scikit_learn_counts():
    frame = in_polars().select("number", "count")
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(GaussianImputer().fit_transform(frame), pd.DataFrame)
    imputer = GaussianImputer().set_output(transform="pandas").set_output(transform="default")
    assert isinstance(imputer.fit_transform(frame), pl.DataFrame)
