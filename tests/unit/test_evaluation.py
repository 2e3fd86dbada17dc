import numpy as np
import pandas as pd
import pytest

from emflow import DataError, EMFlowImputer, GaussianImputer, evaluate
from emflow.evaluation import hide_as_others_lack
from emflow.table.frame import Layout


@pytest.fixture
def frame():
    """Columns b and kind follow a, noise follows nothing, and three of them have holes."""
    rng = np.random.default_rng(0)
    a, noise = rng.normal(size=2000), rng.normal(size=2000)
    b = a + 0.2 * rng.normal(size=2000)
    kind = np.array(["low", "middle", "high"], dtype=object)[np.digitize(a, [-0.5, 0.5])]
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta((100 * a).round(), unit="D")
    frame = pd.DataFrame({"a": a, "b": b, "noise": noise, "kind": kind, "day": day, "row": np.arange(2000)})
    for j, name in enumerate(["b", "noise", "kind", "day"]):
        frame.loc[rng.random(2000) < 0.1 + 0.1 * j, name] = None
    return frame


@pytest.fixture
def scores(frame):
    with pytest.warns(UserWarning, match="'row'"):
        return {score.column: score for score in evaluate(frame, GaussianImputer()).scores}


def test_columns_without_holes_are_not_asked(scores):
    assert list(scores) == ["b", "noise", "kind", "day"]


def test_errors_are_in_the_units_of_the_column(scores):
    assert scores["b"].measure == "RMSE"
    assert scores["b"].value == pytest.approx(0.2, abs=0.05)
    assert scores["b"].simple["mean"] == pytest.approx(1.0, abs=0.15)
    assert scores["day"].value < 60 < scores["day"].simple["median"]
    assert scores["kind"].measure == "accuracy"
    assert scores["kind"].simple["most frequent"] < 0.5 < scores["kind"].value


def test_where_a_simple_method_does_as_well_is_said(frame, scores):
    assert scores["noise"].as_good in ("mean", "median")
    assert scores["b"].as_good is None
    with pytest.warns(UserWarning, match="'row'"):
        said = str(evaluate(frame, GaussianImputer()))
    assert f"{scores['noise'].as_good} does as well in noise" in said
    assert "b       continuous" in said


def test_coverage_is_that_of_the_intervals(scores):
    for name in ("b", "noise"):
        assert scores[name].coverage == pytest.approx(0.9, abs=0.1)
    assert np.isnan(scores["kind"].coverage)


def test_the_same_cells_are_hidden_by_the_same_seed():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1)) + rng.normal(size=(60, 3))
    first, again, other = (evaluate(X, GaussianImputer(random_state=0), random_state=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_the_gaussian_is_compared_with_emflow():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 3))
    imputer = EMFlowImputer(n_iterations=1, n_epochs=1, random_state=0)
    scores = evaluate(X, imputer).scores
    assert all(score.simple["Gaussian"] < score.simple["mean"] for score in scores)
    assert not hasattr(imputer, "stages_")


def test_hidden_cells_are_observed_ones_that_others_lack():
    rng = np.random.RandomState(0)
    missing = rng.random_sample((500, 3)) < [0.4, 0.2, 0.0]
    hidden = hide_as_others_lack(missing, Layout.numbers(3), rng)
    assert not (hidden & missing).any()
    assert hidden.sum(0)[2] == 0
    assert hidden.sum(0)[0] > hidden.sum(0)[1] > 20
    assert 0.2 < hidden.any(1).mean() < 0.5


def test_columns_keep_half_of_their_values():
    missing = np.ones((100, 2), dtype=bool)
    missing[:6, 0] = missing[:3, 1] = False
    hidden = hide_as_others_lack(missing, Layout.numbers(2), np.random.RandomState(0))
    assert 0 < hidden[:, 0].sum() <= 3
    assert hidden[:, 1].sum() <= 1


def test_what_cannot_be_evaluated_is_refused():
    with pytest.raises(DataError, match="for tables"):
        evaluate(np.random.default_rng(0).random((5, 4, 4)))
    with pytest.raises(DataError, match="no cell to hide"):
        evaluate(np.array([[1.0, 2], [3, 4]]))
