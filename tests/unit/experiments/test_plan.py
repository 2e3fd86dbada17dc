"""Plans: what the TOML files say, and the cells that follow from it."""

import ast
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from emflow import datasets
from emflow.errors import ParameterError
from emflow.experiments import catalogue, cli
from emflow.experiments.methods import METHODS
from emflow.experiments.plan import NAMES, Cell, Experiment, label
from emflow.experiments.run import METRICS


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_is_whole(name):
    experiment = Experiment.load(name)
    assert {spec.imputer for spec in experiment.methods.values()} <= set(METHODS)
    assert all(set(spec.mechanisms) <= set(experiment.mechanisms) for spec in experiment.methods.values())
    for mechanism in experiment.mechanisms:
        for dataset in experiment.sets_of.get(mechanism, experiment.sets):
            if experiment.published:
                assert {"emflow", "mcflow", "gain"} == set(experiment.published[mechanism][dataset])
            for method, spec in experiment.methods.items():
                cells = list(experiment.cells(dataset, mechanism, method, folds=1))
                assert bool(cells) == spec.runs_on(mechanism)


def test_the_command_line_knows_the_same_names():
    assert (cli.TABLES, cli.FIGURES, cli.EXPERIMENTS) == (catalogue.TABLES, catalogue.FIGURES, catalogue.NAMES)


def test_published_numbers_are_those_of_the_paper():
    published = Experiment.load("table1").published
    assert published["mcar"]["news"]["mcflow"] == [0.167, 0.0015]
    assert published["mar"]["review"] == {"emflow": [0.194, 0.004], "mcflow": [0.191, 0.004], "gain": [0.234, 0.014]}
    assert sum(len(numbers) for sets in published.values() for numbers in sets.values()) == 2 * 11 * 3
    assert Experiment.load("congeniality").published["mcar"]["credit"]["gain"] == [1.331, 0.1378]
    assert Experiment.load("convergence").published == published


def test_mar_has_the_rate_of_its_set_and_the_inflation_of_the_paper():
    experiment = Experiment.load("table1")
    (mcar,) = experiment.cells("ctg", "mcar", "emflow", folds=1)
    (mar,) = experiment.cells("ctg", "mar", "emflow", folds=1)
    assert (mcar.rate, mcar.parameters) == (0.2, {})
    assert (mar.rate, mar.parameters) == (0.29, {"covariance_inflation": [1e-2, 1e-2, 1e-3, 1e-3, 0.0]})
    assert mar.rate == datasets.SPECS["ctg"].mar_rate


def test_quick_cells_are_other_cells():
    experiment = Experiment.load("table1")
    (whole,) = experiment.cells("ctg", "mcar", "mcflow", folds=1)
    (quick,) = experiment.cells("ctg", "mcar", "mcflow", folds=1, quick=True)
    assert whole.max_rows is None
    assert quick.max_rows == experiment.quick["max_rows"]
    assert quick.parameters["n_epochs"] < whole.parameters["n_epochs"]
    assert quick.parameters["batch_size"] == whole.parameters["batch_size"]


def test_folds_by_size():
    experiment = Experiment.load("table1")
    assert [experiment.n_folds(n) for n in (9999, 10_000)] == [5, 2]
    assert experiment.n_folds(9999, quick=True) == 1
    assert Experiment.load("convergence").n_folds(9999) == 5


def test_convergence_shares_the_cells_of_table_1():
    plans = [Experiment.load(name) for name in ("table1", "convergence")]
    assert set(plans[1].methods) == {"emflow", "mcflow"}
    for dataset, method in (("ctg", "emflow"), ("letter", "mcflow")):
        both = [list(plan.cells(dataset, "mcar", method)) for plan in plans]
        assert both[0] == both[1]
        assert all(cell.with_curve for cell in both[0])
    others = [("ctg", "mar", "emflow"), ("ctg", "mcar", "gain"), ("wine", "mcar", "emflow")]
    assert not any(cell.with_curve for other in others for cell in plans[0].cells(*other))


def test_congeniality_shares_the_cells_of_table_1():
    both = [list(Experiment.load(name).cells("credit", "mcar", "gain")) for name in ("table1", "congeniality")]
    assert both[0] == both[1]
    assert both[0][0].regression == "logistic"


def test_a_sweep_moves_one_hyperparameter_at_a_time_and_runs_the_common_point_once():
    cells = list(Experiment.load("hyperparameters").cells("news", "mcar", "emflow", folds=1))
    points = [(cell.parameters["step_exponent"], cell.parameters["reconstruction_weight"]) for cell in cells]
    assert len(points) == len(set(points)) == 7
    assert all(gamma == 0.8 or alpha == 1e6 for gamma, alpha in points)
    assert {alpha for _, alpha in points} == {1e4, 1e5, 1e6, 1e7}


def test_the_key_survives_json_and_tells_cells_apart():
    cells = list(Experiment.load("table1").cells("ctg", "mar", "emflow"))
    assert [Cell(**json.loads(json.dumps(asdict(cell)))).key for cell in cells] == [cell.key for cell in cells]
    assert len({cell.key for cell in cells}) == 5


def test_no_field_of_a_cell_has_the_name_of_a_measurement():
    assert not set(Cell.__dataclass_fields__) & {*METRICS, "curve", "rows", "columns", "note", "time", "budget"}


def test_names_that_are_not_there():
    with pytest.raises(ParameterError, match="no experiment 'table9'"):
        catalogue.load("table9")
    with pytest.raises(ParameterError, match="table1 has no set 'iris': choose from news, air"):
        Experiment.load("table1").select(["iris"], None, None)
    assert Experiment.load("convergence").select(None, ["mcflow"], None) == (
        ["letter", "ctg", "news"],
        ["mcflow"],
        ["mcar"],
    )


def test_labels_are_those_of_the_paper():
    assert [label(name) for name in ("ctg", "news")] == ["CTG", "News"]


def test_the_command_line_loads_nothing_else_until_it_is_used():
    tree = ast.parse(Path(cli.__file__).read_text())
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith("emflow")} == {"emflow.errors"}
