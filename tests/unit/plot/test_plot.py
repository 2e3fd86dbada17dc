import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from matplotlib.colors import to_hex
from matplotlib.dates import num2date
from matplotlib.figure import Figure

from emflow import DataError, EMFlowError, EMFlowImputer, GaussianImputer, ParameterError, plot
from emflow.plot.canvas import IMPUTED, number, percent, short
from emflow.plot.coverage import LEVELS
from emflow.plot.distribution import MOST_CATEGORIES
from emflow.plot.patterns import MOST_COLUMNS, MOST_PATTERNS

FRAMES = {"pandas": lambda frame: frame, "polars": pl.from_pandas, "pyarrow": pa.Table.from_pandas}


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def frame():
    """Column b follows a; both, a category, a date and a whole number have holes."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=400)
    frame = pd.DataFrame(
        {
            "a": a,
            "b": a + 0.2 * rng.normal(size=400),
            "kind": np.array(["low", "middle", "high"], dtype=object)[np.digitize(a, [-0.5, 0.5])],
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta((100 * a).round(), unit="D"),
            "count": pd.array(np.round(3 + a).astype(int), dtype="Int64"),
        }
    )
    for j, name in enumerate(["b", "kind", "day", "count"]):
        frame.loc[rng.random(400) < 0.1 + 0.05 * j, name] = None
    return frame


@pytest.fixture(scope="module")
def gaussian(frame):
    return GaussianImputer(random_state=0).fit(frame)


def texts(labels):
    return [label.get_text() for label in labels]


# --- patterns


def drawn_cells(ax):
    """Cells that are drawn as missing: pairs (line, pattern)."""
    return {
        (round(bar.get_y() + bar.get_height() / 2), round(bar.get_x() + bar.get_width() / 2))
        for bar in ax.patches
        if to_hex(bar.get_facecolor()) == IMPUTED
    }


@pytest.mark.parametrize("as_frame", FRAMES.values(), ids=FRAMES)
def test_patterns_are_drawn_from_the_most_frequent_on(ax, as_frame):
    frame = pd.DataFrame({"full": [1.0] * 6, "$x$": [None, 1, 1, 1, 1, 1], "word": [None, None, None, "a", "b", "c"]})
    assert plot.missing_patterns(as_frame(frame), ax) is ax
    assert texts(ax.get_yticklabels()) == ["word  50 %", "$x$  17 %"]
    assert texts(ax.get_xticklabels()) == ["3", "2", "1"]
    assert drawn_cells(ax) == {(0, 1), (0, 2), (1, 2)}
    assert not any(label.get_parse_math() for label in ax.get_yticklabels())


def test_patterns_of_arrays_are_named_by_number_and_the_rest_is_counted(ax):
    X = np.random.default_rng(0).random((500, 40))
    X[X < 0.1] = np.nan
    plot.missing_patterns(X, ax)
    assert len(ax.get_yticks()) == MOST_COLUMNS
    assert len(ax.get_xticks()) == MOST_PATTERNS
    assert all(label.split()[0].isdigit() for label in texts(ax.get_yticklabels()))
    shown = sum(int(label) for label in texts(ax.get_xticklabels()))
    assert f"more patterns in {percent(1 - shown / 500)} of rows" in ax.get_xlabel()
    assert "10 more columns with fewer holes" in ax.get_xlabel()


def test_a_table_without_holes_has_no_patterns(ax):
    plot.missing_patterns(np.eye(3), ax)
    assert texts(ax.texts) == ["nothing is missing"]
    with pytest.raises(DataError, match="no columns"):
        plot.missing_patterns(pd.DataFrame(), ax)


# --- distributions


@pytest.mark.parametrize("as_frame", FRAMES.values(), ids=FRAMES)
def test_observed_and_imputed_values_are_drawn_as_shares(ax, frame, as_frame):
    given = as_frame(frame)
    imputer = GaussianImputer(random_state=0).fit(given)
    assert plot.density(imputer, given, "b", ax) is ax
    observed, imputed = ax.patches
    holes = frame["b"].isna().to_numpy()
    assert [f"observed ({(~holes).sum()})", f"imputed ({holes.sum()})"] == texts(ax.get_legend().get_texts())
    filled = imputer.transform(frame)["b"].to_numpy() if as_frame is FRAMES["pandas"] else None
    for patch in (observed, imputed):
        assert patch.get_data().values.sum() == pytest.approx(1)
    if filled is not None:
        expected = np.histogram(filled[holes], imputed.get_data().edges)[0] / holes.sum()
        np.testing.assert_allclose(imputed.get_data().values, expected)


@pytest.mark.parametrize("kind", ["nominal", ["low", "middle", "high"]])
def test_categories_are_bars(ax, frame, kind):
    imputer = GaussianImputer(kinds={"kind": kind}, random_state=0).fit(frame)
    plot.density(imputer, frame, "kind", ax)
    names = texts(ax.get_yticklabels())
    observed, imputed = ([bar.get_width() for bar in bars] for bars in ax.containers)
    share = frame["kind"].value_counts(normalize=True)
    np.testing.assert_allclose(observed, [share[name] for name in names])
    filled = imputer.transform(frame)["kind"][frame["kind"].isna()].value_counts(normalize=True)
    np.testing.assert_allclose(imputed, [filled.get(name, 0) for name in names])


def test_the_most_frequent_of_many_categories_are_drawn(ax):
    names = np.repeat([f"c{i:02d}" for i in range(20)], range(1, 21)).astype(object)
    frame = pd.DataFrame({"c": names, "x": np.arange(len(names)) * 1.0})
    frame.loc[1::9, "c"] = None
    plot.density(GaussianImputer().fit(frame), frame, "c", ax)
    assert len(ax.get_yticks()) == MOST_CATEGORIES
    assert {"c19", "c18"} <= set(texts(ax.get_yticklabels()))
    assert "10 more categories" in ax.get_xlabel()


def test_dates_have_an_axis_of_dates(ax, frame, gaussian):
    plot.density(gaussian, frame, "day", ax)
    edges = ax.patches[0].get_data().edges
    assert num2date(edges[0]).replace(tzinfo=None) == frame["day"].min()
    assert any("20" in text for text in texts(ax.get_xticklabels()))


def test_whole_numbers_are_in_the_middle_of_their_bins(ax, frame, gaussian):
    plot.density(gaussian, frame, "count", ax)
    heights, edges, _ = ax.patches[0].get_data()
    assert (edges % 1 == 0.5).all()
    share = (frame["count"] == 3).sum() / frame["count"].notna().sum()
    assert heights[int(3 - edges[0])] == pytest.approx(share)


def test_values_far_away_do_not_squeeze_the_picture(ax):
    X = np.random.default_rng(0).normal(size=(300, 2))
    X[0, 0], X[5, 0] = 1e6, np.nan
    plot.density(GaussianImputer().fit(X), X, 0, ax)
    assert ax.get_xlim()[1] < 10
    assert "without the outer 1 %" in ax.get_xlabel()


def test_a_column_without_holes_has_observed_values_alone(ax, frame, gaussian):
    plot.density(gaussian, frame, "a", ax)
    assert texts(ax.get_legend().get_texts()) == ["observed (400)", "imputed (0)"]


def test_what_has_no_distribution_is_refused(ax, frame, gaussian):
    with pytest.raises(ParameterError, match="no column 'c' that is filled; there are \\['a', 'b'"):
        plot.density(gaussian, frame, "c", ax)
    images = np.random.default_rng(0).random((20, 4, 4))
    with pytest.raises(DataError, match="for tables"):
        plot.density(GaussianImputer(n_iterations=1).fit(images), images, 0, ax)


# --- convergence


def test_em_is_drawn_with_its_tolerance(ax, gaussian):
    assert plot.convergence(gaussian, ax) is ax
    change, tolerance = ax.lines
    assert change.get_ydata().tolist() == [record["change"] for record in gaussian.history_]
    assert set(tolerance.get_ydata()) == {gaussian.tol}
    assert ax.get_yscale() == "log"


@pytest.fixture(scope="module")
def flow():
    X = np.random.default_rng(0).normal(size=(120, 1)) ** 2 + np.random.default_rng(1).normal(size=(120, 3))
    settings = {"n_iterations": 2, "n_epochs": 3, "refine": "on", "refine_steps": 5, "batch_size": 60}
    return EMFlowImputer(**settings, patience=2, random_state=0).fit(X)


def test_each_part_of_the_history_of_emflow_can_be_drawn(flow):
    refine, iterations, epochs = (
        plot.convergence(flow, Figure().subplots(), part=part) for part in ("refine", "iterations", "epochs")
    )
    assert refine.lines[0].get_xdata().tolist() == [record["step"] for record in flow.history_["refine"]]
    assert refine.lines[0].get_ydata().tolist() == [record["loss"] for record in flow.history_["refine"]]
    found = [record["validation_rmse"] for record in flow.history_["iterations"]]
    assert iterations.lines[0].get_ydata().tolist() == found
    assert list(iterations.lines[1].get_ydata()) == [found[flow.best_iteration_]]
    losses = [record["l1"] + record["l2"] for record in flow.history_["epochs"]]
    assert epochs.lines[0].get_ydata().tolist() == losses
    assert [line.get_xdata()[0] for line in epochs.lines[1:]] == [3.5]


def test_the_learned_e_step_comes_first(ax, flow):
    assert plot.convergence(flow, ax).get_title() == "learned E-step"
    with pytest.raises(ParameterError, match="part must be one of refine, iterations, epochs"):
        plot.convergence(flow, ax, part="loss")


def test_without_validation_the_change_is_drawn(ax):
    X = np.random.default_rng(0).normal(size=(60, 3))
    X[::4, 0] = np.nan
    imputer = EMFlowImputer.paper(n_iterations=2, n_epochs=1, random_state=0).fit(X)
    plot.convergence(imputer, ax)
    assert ax.lines[0].get_ydata().tolist() == [record["change"] for record in imputer.history_["iterations"]]
    assert ax.get_ylabel() == "change of the imputation"


# --- calibration


@pytest.mark.parametrize("as_frame", FRAMES.values(), ids=FRAMES)
def test_coverage_of_a_gaussian_is_what_it_should_be(ax, frame, as_frame):
    assert plot.calibration(GaussianImputer(random_state=0), as_frame(frame[["a", "b", "kind"]]), ax=ax) is ax
    diagonal, found = ax.lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]
    assert tuple(found.get_xdata()) == LEVELS
    np.testing.assert_allclose(found.get_ydata(), LEVELS, atol=0.25)
    assert (np.diff(found.get_ydata()) >= 0).all()


def test_cells_hidden_by_the_caller_are_those_that_count(ax):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    hidden = np.zeros(X.shape, dtype=bool)
    hidden[:100, 1] = True
    imputer = GaussianImputer(random_state=0).fit(X, missing=hidden)
    X[:100, 1] += 50  # which no interval holds
    plot.calibration(imputer, X, hidden, ax)
    assert set(ax.lines[1].get_ydata()) == {0}
    assert texts(ax.get_legend().get_texts())[1] == "100 hidden cells"
    with pytest.raises(DataError, match="no cell that has an interval is hidden"):
        plot.calibration(imputer, X, np.zeros(X.shape, dtype=bool), ax)


# --- axes, text


def test_new_axes_are_made_where_none_are_given():
    backend = mpl.get_backend()
    mpl.use("agg")
    from matplotlib import pyplot as plt

    ax = plot.missing_patterns(np.array([[1.0, np.nan], [2, 3]]))
    assert plt.get_fignums() == [ax.figure.number]
    plt.close(ax.figure)
    mpl.use(backend)


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EMFlowError, match=r'pip install "emflow-impute\[plot\]"'):
        plot.missing_patterns(np.array([[1.0, np.nan]]))


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.001, "<1 %"), (0.5, "50 %"), (0.9999, ">99 %"), (1, "100 %")]
)
def test_shares_in_words(share, text):
    assert percent(share) == text


def test_names_and_numbers_fit():
    assert short("a  name\nof two lines") == "a name of two lines"
    assert short("x" * 30) == "x" * 21 + "…"
    assert [number(value) for value in (0.123456, 12345.6, -2e5, 1e15)] == ["0.1235", "12,346", "-200,000", "1e+15"]
