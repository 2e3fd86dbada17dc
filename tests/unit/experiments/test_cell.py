"""One cell: its data, its measurements, its curve. In this process, on a small stand-in for the data."""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from emflow import metrics
from emflow.errors import DataError, ParameterError
from emflow.experiments import cell
from emflow.experiments.cell import peak_memory, prepare, run_cell
from emflow.experiments.curve import average, time_to_reach
from emflow.experiments.methods import METHODS, STOP_THEMSELVES, build
from emflow.experiments.plan import Cell, Experiment
from emflow.experiments.run import METRICS

pytestmark = pytest.mark.usefixtures("small_data")
MEAN = Cell("table1", "ctg", "mcar", 0.2, "mean", {}, fold=0, seed=0)


def test_folds_share_scale_and_holes_and_leave_no_row_out():
    splits = [prepare(replace(MEAN, fold=fold)) for fold in range(5)]
    X = np.concatenate([split.test for split in splits])
    assert X.shape == (120, 5)
    np.testing.assert_allclose([X.min(0), X.max(0)], [[0] * 5, [1] * 5])
    assert len(np.unique(X, axis=0)) == 120
    assert {len(split.train) for split in splits} == {96}
    hidden = sum(split.missing.sum() for split in splits)
    assert hidden == np.isnan(splits[0].train).sum() + splits[0].missing.sum()
    assert 0.15 < hidden / 600 < 0.25


def test_mar_leaves_the_first_columns_complete():
    split = prepare(replace(MEAN, mechanism="mar", rate=0.5))
    assert not np.isnan(split.train[:, :3]).any()
    assert 0.35 < np.isnan(split.train[:, 3:]).mean() < 0.65


def test_max_rows():
    split = prepare(replace(MEAN, max_rows=50))
    assert (len(split.train), len(split.test)) == (40, 10)


def test_a_target_that_is_a_column_is_no_predictor_and_scaled_like_it():
    split = prepare(replace(MEAN, dataset="news", regression="linear"))
    assert split.predictors.tolist() == [True, True, False, True, True]
    np.testing.assert_allclose(split.target, split.test[:, 2])


def test_measurements():
    result = run_cell(MEAN, max_time=60.0)
    split = prepare(MEAN)
    error = (np.nanmean(split.train, 0) - split.test)[split.missing]
    assert result["rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    assert result["congeniality"] is None
    assert set(METRICS) <= set(result)
    assert not result["timed_out"]
    assert 0 < result["peak_memory_before_fit_mb"] <= result["peak_memory_mb"] <= peak_memory()


def test_congeniality_where_it_is_wanted():
    assert run_cell(replace(MEAN, dataset="credit", regression="logistic"), max_time=60.0)["congeniality"] > 0


def test_warnings_of_a_method_become_part_of_the_result():
    result = run_cell(replace(MEAN, method="bayesian_ridge", parameters={"max_iter": 1, "tol": 1e-9}), max_time=60.0)
    assert any("not reached" in warning for warning in result["warnings"])


def test_the_curve_of_emflow_has_early_epochs_and_every_iteration():
    parameters = {"n_iterations": 2, "n_epochs": 4}
    cell = replace(MEAN, method="emflow", parameters=parameters, with_curve=True)
    result = run_cell(cell, max_time=60.0)
    curve = result["curve"]
    assert len(curve["rmse"]) == 3 + 2
    assert len(curve["loss"]) == 2 * 4
    assert curve["rmse"][-1] == (pytest.approx(result["fit_seconds"]), result["rmse"])
    times = [seconds for seconds, _ in curve["loss"]]
    assert times == sorted(times)
    assert times[-1] < result["fit_seconds"]
    alone = run_cell(replace(cell, parameters={"n_iterations": 1, "n_epochs": 2}, with_curve=False), max_time=60.0)
    assert curve["rmse"][1][1] == alone["rmse"]


def test_the_curve_of_mcflow_has_every_stage():
    cell = replace(MEAN, method="mcflow", parameters={"n_epochs": 5}, with_curve=True)
    result = run_cell(cell, max_time=60.0)
    assert len(result["curve"]["loss"]) == 5
    assert len(result["curve"]["rmse"]) == 3  # after epochs 2, 4 and 5
    assert result["curve"]["rmse"][-1] == (pytest.approx(result["fit_seconds"]), result["rmse"])


def test_others_have_no_curve():
    with pytest.raises(ParameterError, match="mean has no curve"):
        run_cell(replace(MEAN, with_curve=True), max_time=60.0)


@pytest.mark.parametrize("method", ["emflow", "mcflow", "gaussian"])
def test_a_fit_that_is_cut_short_says_so(method):
    assert run_cell(replace(MEAN, method=method), max_time=1e-6)["timed_out"]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("emflow", {"n_iterations": 1, "n_epochs": 1}), ("mcflow", {"n_epochs": 1}), ("gaussian", {}), ("mean", {})],
)
def test_a_fit_that_ends_in_time_does_not(method, parameters):
    assert not run_cell(replace(MEAN, method=method, parameters=parameters), max_time=60.0)["timed_out"]


def test_time_to_reach_rounds_like_the_published_numbers():
    points = [(1.0, 0.2), (2.0, 0.1116), (3.0, 0.1114), (4.0, 0.11)]
    assert time_to_reach(points, 0.111) == (2.0, 3.0)
    assert time_to_reach(points, 0.2) == (0.0, 1.0)
    assert time_to_reach(points, 0.109) == (4.0, inf)


def test_curves_of_folds_are_averaged_point_by_point():
    average_of = average([[(1.0, 0.2), (3.0, 0.1)], [(2.0, 0.4), (4.0, 0.2), (9.0, 0.0)]])
    np.testing.assert_allclose(average_of, [(1.5, 0.3), (3.5, 0.15)])


def test_a_regression_that_fails_does_not_lose_the_fit(monkeypatch):
    def refuse(*_, **__):
        raise DataError("it does not converge")

    monkeypatch.setattr(metrics, "congeniality", refuse)
    result = run_cell(replace(MEAN, dataset="credit", regression="logistic"), max_time=60.0)
    assert result["congeniality"] is None
    assert result["rmse"] > 0
    assert "no congeniality: it does not converge" in result["warnings"]


def test_every_method_is_built_with_the_parameters_of_the_plan():
    built = set()
    for experiment in map(Experiment.load, ("table1", "accuracy")):
        for method, mechanism in product(experiment.methods, ("mcar", "mar")):
            (cell,) = experiment.cells("ctg", mechanism, method, folds=1)
            imputer = build(cell.method, cell.parameters, cell.seed, 7.0)
            found = imputer.get_params()
            found |= {name.removeprefix("estimator__"): value for name, value in found.items()}
            assert {name: found[name] for name in cell.parameters} == cell.parameters
            assert found.get("max_time") == (7.0 if cell.method in STOP_THEMSELVES else None)
            built.add(cell.method)
    assert built == set(METHODS)


def test_an_unknown_method():
    with pytest.raises(ParameterError, match="no method 'magic'"):
        build("magic", {}, 0, 1.0)


def test_coverage_is_measured_where_there_are_intervals():
    ours = replace(MEAN, method="gaussian")
    assert 0.5 < run_cell(ours, max_time=60.0)["coverage"] <= 1
    assert run_cell(MEAN, max_time=60.0)["coverage"] is None


@pytest.mark.parametrize(
    ("seconds", "calls", "median"), [([9], 1, 9), ([0.9] * 3, 3, 0.9), ([0.1, 0.9, 0.3, 0.2, 0.2], 5, 0.2)]
)
def test_short_calls_are_timed_more_than_once(monkeypatch, seconds, calls, median):
    """By a clock of its own; the first call is the one that counts."""
    now, asked = [0.0], []

    class Imputer:
        def transform(self, rows):
            now[0] += seconds[len(asked)]
            asked.append(len(asked))
            return rows + asked[-1]

    monkeypatch.setattr(cell.time, "perf_counter", lambda: now[0])
    filled, found = cell.fill(Imputer(), np.zeros(3))
    assert (filled.tolist(), len(asked)) == ([0, 0, 0], calls)
    assert found == pytest.approx(median)
