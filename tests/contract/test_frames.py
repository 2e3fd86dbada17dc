"""A frame comes back as it went in, of the same kind and with the same types, with its holes filled."""

import datetime as dt
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from emflow import DataError, EMFlowImputer, GaussianImputer, ParameterError

N = 60
GRADES = ["low", "middle", "high", "none so far"]


def columns():
    """Columns that depend on each other, by name, with None in a seventh of their cells."""
    rng = np.random.default_rng(0)
    level = rng.normal(size=N)
    day = [dt.date(2020, 3, 1) + dt.timedelta(days=int(100 * x)) for x in level]
    time = [dt.datetime(2020, 3, 1, 12) + dt.timedelta(seconds=int(1e6 * x)) for x in level]
    values = {
        "number": (level + 0.1 * rng.normal(size=N)).tolist(),
        "count": rng.poisson(np.exp(level)).tolist(),
        "flag": (level > 0).tolist(),
        "word": np.array(["red", "green", "blue"])[np.digitize(level, [-0.5, 0.5])].tolist(),
        "grade": np.array(GRADES[:3])[np.digitize(level, [-0.3, 0.8])].tolist(),
        "day": day,
        "time": time,
    }
    holes = {
        name: [None if (i + j) % 7 == 3 else v for i, v in enumerate(v)] for j, (name, v) in enumerate(values.items())
    }
    return holes | {"row": list(range(N)), "note": [f"seen on day {i}" for i in range(N)]}


def in_pandas():
    c = columns()
    return pd.DataFrame(
        {
            "number": c["number"],
            "single": np.array(c["number"], dtype="float32"),
            "nullable": pd.array(c["number"], dtype="Float64"),
            "count": pd.array(c["count"], dtype="Int64"),
            "tiny": pd.array(c["count"], dtype="Int8"),
            "arrow": pd.array(c["count"], dtype="int64[pyarrow]"),
            "flag": pd.array(c["flag"], dtype="boolean"),
            "flag as object": pd.Series(c["flag"], dtype=object),
            "word": c["word"],
            "word as object": pd.Series(c["word"], dtype=object),
            "word as string": pd.array(c["word"], dtype="string"),
            "category": pd.Categorical(c["word"], categories=["violet", "blue", "red", "green"]),
            "grade": pd.Categorical(c["grade"], categories=GRADES, ordered=True),
            "time": pd.to_datetime(c["time"]),
            "nanoseconds": pd.to_datetime(c["time"]).astype("datetime64[ns]"),
            "time there": pd.to_datetime(c["time"]).tz_localize("Asia/Tokyo"),
            "day": pd.Series(c["day"], dtype=object),
            "day in arrow": pd.array(c["day"], dtype="date32[pyarrow]"),
            "row": c["row"],
            "note": c["note"],
            "complete": np.arange(N) % 5,
        }
    ).set_index(pd.Index(np.arange(N)[::-1] % 50, name="twice"))


def in_polars():
    frame = pl.DataFrame(columns())
    return frame.with_columns(
        pl.col("number").cast(pl.Float32).alias("single"),
        pl.col("count").cast(pl.UInt8).alias("tiny"),
        pl.col("word").cast(pl.Categorical).alias("category"),
        pl.col("grade").cast(pl.Enum(GRADES)).alias("enumeration"),
        pl.col("time").dt.replace_time_zone("Asia/Tokyo").alias("time there"),
        pl.col("time").dt.cast_time_unit("ms").alias("milliseconds"),
    )


def in_pyarrow():
    table = pa.table(columns())
    words = pa.dictionary(pa.int8(), pa.string())
    return table.append_column("category", table["word"].cast(words)).append_column("flags", table["flag"])


MAKE = {"pandas": in_pandas, "polars": in_polars, "pyarrow": in_pyarrow}


def types(frame):
    if isinstance(frame, pa.Table):
        return frame.schema
    return frame.schema if isinstance(frame, pl.DataFrame) else frame.dtypes.to_dict()


def cells(frame):
    """Return all cells as Python objects, None where missing."""
    if isinstance(frame, pd.DataFrame):
        return {name: [None if pd.isna(v) else v for v in frame[name].tolist()] for name in frame}
    return frame.to_pydict() if isinstance(frame, pa.Table) else frame.to_dict(as_series=False)


def fitted(frame, **parameters):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="left as they are")
        return GaussianImputer(random_state=0, **parameters).fit(frame)


def assert_only_holes_changed(filled, frame):
    assert type(filled) is type(frame)
    assert types(filled) == types(frame)
    before, after = cells(frame), cells(filled)
    assert list(before) == list(after)
    for name in before:
        assert None not in after[name], name
        assert [v for v, b in zip(after[name], before[name], strict=True) if b is not None] == [
            b for b in before[name] if b is not None
        ]
    if isinstance(frame, pd.DataFrame):
        assert filled.index.equals(frame.index)
        assert filled.index.name == frame.index.name


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_only_the_holes_of_a_frame_are_changed(make):
    frame = make()
    before = cells(frame)
    imputer = fitted(frame)
    assert_only_holes_changed(imputer.transform(frame), frame)
    assert cells(frame) == before


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_what_is_filled_in_is_of_use(make):
    """The columns all follow one level; numbers come back near it, and words mostly right."""
    frame = make()
    values, true = cells(fitted(frame).transform(frame)), columns()
    level = np.array(values["number"])
    holes = [i for i in range(N) if cells(frame)["word"][i] is None]
    right = np.array(["red", "green", "blue"])[np.digitize(level, [-0.5, 0.5])]
    assert np.mean([values["word"][i] == right[i] for i in holes]) > 0.7
    holes = [i for i in range(N) if cells(frame)["time"][i] is None]
    seconds = [(pd.Timestamp(values["time"][i]) - pd.Timestamp(2020, 3, 1, 12)).total_seconds() for i in holes]
    assert np.corrcoef(seconds, level[holes])[0, 1] > 0.8
    assert all(pd.Timestamp(day).hour == 0 for day in values["day"])
    assert all(pd.Timestamp(time).microsecond == 0 for time in values["time"])
    assert true["note"] == values["note"]


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_draws_are_frames_too(make):
    frame = make()
    imputer = fitted(frame)
    first, second = imputer.sample_imputations(frame, 2)
    assert_only_holes_changed(first, frame)
    assert_only_holes_changed(second, frame)
    assert cells(first) != cells(second)
    assert cells(imputer.sample_imputations(frame, 2)[1]) == cells(second)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_saved_model_fills_frames_alike(make, tmp_path):
    frame = make()
    imputer = fitted(frame, kinds={"word": "nominal", "grade": GRADES}, bounds={"count": (0, 3)})
    imputer.save(tmp_path / "model")
    loaded = GaussianImputer.load(tmp_path / "model")
    assert loaded.kinds == imputer.kinds
    assert loaded.layout_ == imputer.layout_
    assert cells(loaded.transform(frame)) == cells(imputer.transform(frame))


def test_kinds_are_those_of_the_types():
    kinds = {column.name: column.kind for column in fitted(in_pandas()).layout_.columns}
    assert [name for name, kind in kinds.items() if kind == "continuous"] == ["number", "single", "nullable"]
    assert [name for name, kind in kinds.items() if kind == "integer"] == ["count", "tiny", "arrow", "complete"]
    assert [name for name, kind in kinds.items() if kind == "ordinal"] == ["grade"]
    assert [name for name, kind in kinds.items() if kind == "binary"] == ["flag", "flag as object"]
    assert [name for name, kind in kinds.items() if kind == "pass"] == ["row", "note"]


def test_columns_left_alone_are_named():
    with pytest.warns(UserWarning, match=r"'row' \(identifier\), 'note' \(text\)"):
        GaussianImputer().fit(in_polars())


def test_a_kind_can_be_named():
    """Numbers that are names: what is filled in is one of them."""
    frame = pd.DataFrame({"zip": [10115.0, 80331, np.nan, 20095, 10115, 10115], "x": [1.0, 2, 1, 3, 1, np.nan]})
    filled = fitted(frame, kinds={"zip": "nominal"}).transform(frame)
    assert filled["zip"].isin([10115, 80331, 20095]).all()
    assert filled["zip"].dtype == float
    assert not fitted(frame).transform(frame)["zip"].isin([10115, 80331, 20095]).all()


def test_an_order_can_be_named():
    frame = pd.DataFrame({"size": ["S", "L", None, "M"] * 5, "x": [1.0, 3, 2, 2] * 5})
    imputer = fitted(frame, kinds={"size": ["S", "M", "L"]})
    assert imputer.layout_.columns[0].categories == ("S", "M", "L")
    assert imputer.transform(frame)["size"].tolist() == ["S", "L", "M", "M"] * 5
    with pytest.raises(DataError, match=r"'size' holds 'L', which is none of its categories"):
        fitted(frame, kinds={"size": ["S", "M"]})


def test_bounds_take_the_place_of_the_observed_range():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    frame = pd.DataFrame({"x": x, "y": np.where(x > 1, np.nan, 2 * x + 0.1 * rng.normal(size=200))})
    wide = fitted(frame, bounds={"y": (None, 10)}).transform(frame)["y"]
    tight = fitted(frame, bounds={"y": (None, 1.5)}).transform(frame)["y"]
    assert frame["y"].max() < 3 < wide.max()
    assert (tight[frame["y"].isna()] <= 1.5).all()
    assert tight[frame["y"].notna()].equals(frame["y"].dropna())


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"kinds": {"z": "nominal"}}, "kinds: there is no column 'z'"),
        ({"bounds": {"z": (0, 1)}}, "bounds: there is no column 'z'"),
        ({"bounds": {"word": (0, 1)}}, "'word': it is nominal, not a number"),
        ({"bounds": {"number": (2, 1)}}, "'number': 2 is not below 1"),
    ],
)
def test_columns_that_cannot_be_so_are_named(parameters, match):
    with pytest.raises(ParameterError, match=match):
        fitted(in_polars(), **parameters)


def test_a_category_that_is_new():
    frame = in_polars()
    new = frame.with_columns(pl.when(pl.col("row") == 4).then(pl.lit("mauve")).otherwise(pl.col("word")).alias("word"))
    with pytest.raises(DataError, match=r"'word' holds the category 'mauve' in row 4.*unseen=\"missing\""):
        fitted(frame).transform(new)
    filled = fitted(frame, unseen="missing").transform(new)
    assert filled["word"][4] in ("red", "green", "blue")


def test_a_column_complete_at_fit_is_filled_later():
    frame = in_polars()
    complete = frame.with_columns(pl.col("word").fill_null("red"), pl.col("number").fill_null(0.0))
    assert_only_holes_changed(fitted(complete).transform(frame), frame)


def test_of_many_categories_the_frequent_ones_are_filled_in():
    rng = np.random.default_rng(0)
    words = [f"w{k}" for k in np.minimum(rng.geometric(0.04, 2000), 120)]
    frame = pd.DataFrame({"word": words, "x": rng.normal(size=2000)})
    frame.loc[::9, "word"] = None
    imputer = fitted(frame)
    assert imputer.layout_.columns[0].width == 40
    frequent = frame["word"].value_counts().index[:40]
    filled = imputer.transform(frame)
    assert filled.loc[::9, "word"].isin(frequent).all()
    assert filled["word"].drop(filled.index[::9]).equals(frame["word"].drop(frame.index[::9]))


def test_infinity_is_named():
    frame = in_polars().with_columns(
        pl.when(pl.col("row") == 7).then(np.inf).otherwise(pl.col("number")).alias("number")
    )
    with pytest.raises(DataError, match="'number' holds infinity in row 7"):
        fitted(frame)


def test_a_lazy_frame_is_to_be_collected():
    with pytest.raises(DataError, match="collect"):
        GaussianImputer().fit(in_polars().lazy())


def test_nothing_but_prose_is_refused():
    with pytest.raises(DataError, match="no column holds"), pytest.warns(UserWarning, match="note"):
        GaussianImputer().fit(in_polars().select("note"))


def test_the_learned_e_step_takes_categories():
    """And hides all numbers of a category together: otherwise those that are seen would tell those that are not."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 900)
    frame = pd.DataFrame(
        {"a": kind + 0.3 * rng.normal(size=900), "kind": np.array(list("nesw"))[kind], "b": rng.normal(size=900)}
    )
    true = frame["kind"].copy()
    frame.loc[::6, "kind"] = None
    imputer = EMFlowImputer(random_state=0, refine_steps=150).fit(frame)
    assert imputer.refinement_ is not None
    filled = imputer.transform(frame)
    assert (filled["kind"] == true)[::6].mean() > 0.85
    draws = imputer.sample_imputations(frame, 5)
    assert np.mean([(d["kind"] == true)[::6].mean() for d in draws]) > 0.7
    assert_frame_equal(draws[0].drop(index=frame.index[::6]), frame.drop(index=frame.index[::6]))


def test_probable_categories_are_drawn_as_often():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": rng.choice(list("abc"), 3000, p=[0.6, 0.3, 0.1]), "x": rng.normal(size=3000)})
    frame.loc[:1499, "kind"] = None
    drawn = fitted(frame).sample_imputations(frame, 1)[0].loc[:1499, "kind"].value_counts(normalize=True)
    assert drawn["a"] == pytest.approx(0.6, abs=0.05)
    assert drawn["c"] == pytest.approx(0.1, abs=0.03)


def test_how_probable_categories_are():
    frame = in_polars()
    imputer = fitted(frame)
    probable = imputer.probabilities(frame)
    assert list(probable) == ["flag", "word", "grade", "category", "enumeration"]
    filled = imputer.transform(frame)
    for name, share in probable.items():
        categories = imputer.categories_[name]
        np.testing.assert_allclose(share.sum(1), 1)
        assert [categories[k] for k in share.argmax(1)] == filled[name].to_list()
        seen = frame[name].is_not_null().to_numpy()
        assert (share[seen].max(1) == 1).all()
        assert (share[~seen].max(1) < 1).any()


def test_intervals_of_a_frame():
    """Around what is filled in, and none for categories without an order."""
    frame = in_pandas()
    imputer = fitted(frame)
    low, high = imputer.intervals(frame)
    filled = imputer.transform(frame)
    for name in ("number", "count", "grade", "time"):
        assert ((low[name] <= filled[name]) & (filled[name] <= high[name])).all()
        assert (low[name] < high[name])[frame[name].isna()].any()
    for end in (low, high):
        assert end["word"].equals(frame["word"])
        assert end.dtypes.equals(frame.dtypes)


@pytest.mark.parametrize("names", [[0, 1], pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])], ids=["numbers", "levels"])
def test_names_need_not_be_texts(names):
    frame = pd.DataFrame([[1.0, 2], [2, None], [3, 6], [4, 8]], columns=names)
    filled = fitted(frame).transform(frame)
    assert filled.columns.equals(frame.columns)
    assert filled.iloc[1, 1] == pytest.approx(4, abs=0.1)


def test_names_must_differ():
    frame = pd.DataFrame([[1.0, 2], [2, None]], columns=["a", "a"])
    with pytest.raises(DataError, match="'a' 2 times"):
        fitted(frame)


def test_long_texts_of_pyarrow():
    table = in_pyarrow()
    table = table.set_column(3, "word", table["word"].cast(pa.large_string()))
    assert_only_holes_changed(fitted(table).transform(table), table)


def test_a_start_of_ones_own_can_be_a_frame():
    frame = in_pandas()[["number", "word", "day"]]
    start = frame.ffill().bfill()
    imputer = EMFlowImputer(n_iterations=1, n_epochs=1, random_state=0)
    first = imputer.fit(frame, initial=start).transform(frame)
    assert_only_holes_changed(first, frame)
    other = imputer.fit(frame, initial=start[::-1].set_index(start.index)).transform(frame)
    assert not other["number"].equals(first["number"])


def test_new_rows_are_columns_by_name():
    drawn = fitted(in_polars()).sample(50)
    assert set(drawn["word"]) <= {"red", "green", "blue"}
    assert all(isinstance(value, int) for value in drawn["count"])
    assert min(drawn["time"]) > dt.datetime(2019, 1, 1)
    assert "note" not in drawn
    assert pl.DataFrame(drawn).height == 50


def test_dates_as_objects_can_all_be_missing():
    frame = in_pandas()[["number", "day"]]
    gone = frame.assign(day=pd.Series([None] * N, dtype=object, index=frame.index))
    assert all(type(value) is dt.date for value in fitted(frame).transform(gone)["day"])


@pytest.mark.parametrize("make", [list, lambda rows: np.array(rows, dtype=object)], ids=["list", "array of objects"])
def test_kinds_of_lists_and_arrays(make):
    table = make([[1.0, "u"], [2.0, None], [3.0, "w"], [None, "u"], [1.1, "u"]] * 8)
    filled = fitted(table, kinds={1: "nominal"}).transform(table)
    assert filled[0].tolist() == [1.0, "u"]
    assert filled[1, 1] in ("u", "w")
    assert 1 <= filled[3, 0] <= 3


def test_whole_numbers_in_an_array_are_filled_by_fractions():
    X = np.arange(40).reshape(20, 2)
    missing = np.zeros(X.shape, dtype=bool)
    missing[3, 1] = True
    filled = fitted(X, bounds={1: (0, 50)}).transform(X, missing=missing)
    assert filled.dtype == float
    assert filled[3, 1] == pytest.approx(7, abs=0.1)
    assert filled[3, 1] != 7


def test_an_array_with_kinds_must_be_a_table():
    with pytest.raises(DataError, match="2D"):
        fitted(np.arange(5.0), kinds={0: "nominal"})
