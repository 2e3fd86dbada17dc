"""Plans of the experiments on images: what the TOML files say, and the cells that follow from it."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from emflow import datasets
from emflow.errors import ParameterError
from emflow.experiments.image_methods import METHODS
from emflow.experiments.image_plan import NAMES, TABLES, ImageCell, ImageExperiment, load_images
from emflow.experiments.run import IMAGE_METRICS

RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_is_whole(name):
    experiment = ImageExperiment.load(name)
    assert set(experiment.methods) <= set(METHODS)
    for quick in (False, True):
        sets, methods, rates = experiment.select(None, None, None, quick)
        keys = [
            cell.key
            for dataset in sets
            for method in methods
            for rate in rates
            for cell in experiment.cells(dataset, rate, method, quick)
        ]
        assert len(keys) == len(set(keys)) >= len(sets) * len(methods) * len(rates) > 0


@pytest.mark.parametrize("name", TABLES)
def test_a_number_is_published_for_every_rate(name):
    experiment = ImageExperiment.load(name)
    assert experiment.rates == RATES
    for dataset in experiment.sets:
        assert "emflow" in experiment.published[dataset]
        assert {len(numbers) for numbers in experiment.published[dataset].values()} == {9}


def test_published_numbers_are_those_of_the_paper():
    rmse, accuracy = (ImageExperiment.load(name).published for name in TABLES)
    assert (rmse["mnist"]["emflow"][4], rmse["mnist"]["mcflow"][8], rmse["cifar10"]["gain"][8]) == (
        0.0986,
        0.202,
        0.5388,
    )
    assert (rmse["cifar10"]["emflow"][0], rmse["cifar10"]["misgan"][3]) == (0.0444, 0.1326)
    assert (accuracy["mnist"]["emflow"][8], accuracy["cifar10"]["mcflow"][1]) == (0.7502, 0.7081)
    sums = {name: round(sum(numbers), 4) for name, numbers in rmse["mnist"].items()}
    assert sums == {"gain": 1.5701, "misgan": 1.3349, "mcflow": 1.0429, "emflow": 1.0035}


def test_the_settings_of_the_paper_for_cifar10():
    experiment = ImageExperiment.load("table2")
    (mnist,) = experiment.cells("mnist", 0.5, "emflow_paper")
    (cifar,) = experiment.cells("cifar10", 0.5, "emflow_paper")
    assert mnist.parameters == {}
    assert cifar.parameters == {
        "flow": "convolutional",
        "reconstruction_weight": 1e6,
        "covariance_inflation": [1e-2, 1e-2, 1e-3, 1e-3, 0.0],
    }


def test_table_3_and_the_samples_share_the_cells_of_table_2():
    table2, *others = (ImageExperiment.load(name) for name in ("table2", "table3", "samples"))
    for other in others:
        for method in other.methods:
            assert list(other.cells("cifar10", 0.5, method)) == list(table2.cells("cifar10", 0.5, method))


def test_only_what_table_3_shows_is_classified_and_nothing_in_quick_runs():
    table2, table3 = (ImageExperiment.load(name) for name in TABLES)
    assert set(table3.methods) == set(table2.classified)
    for method in table2.methods:
        (whole,), (quick,) = (list(table2.cells("mnist", 0.5, method, quick)) for quick in (False, True))
        assert whole.with_accuracy == (method in table3.methods)
        assert not quick.with_accuracy
        assert (quick.max_train, quick.max_test) == (table2.quick["max_train"], table2.quick["max_test"])
        assert whole.max_test is None


def test_the_initial_imputation_is_all_that_differs():
    nearest, zero = ImageExperiment.load("initial").cells("mnist14", 0.9, "emflow_paper")
    assert nearest.with_history
    assert (nearest.parameters["initial_fill"], zero.parameters["initial_fill"]) == ("nearest", "zero")
    assert replace(nearest, parameters=nearest.parameters | {"initial_fill": "zero"}) == zero


def test_the_key_survives_json_and_names_the_picture():
    cells = [next(iter(ImageExperiment.load("table2").cells("cifar10", rate, "emflow_paper"))) for rate in RATES]
    assert [ImageCell(**json.loads(json.dumps(asdict(cell)))).key for cell in cells] == [cell.key for cell in cells]
    assert len({cell.picture for cell in cells}) == 9


def test_no_field_of_a_cell_has_the_name_of_a_measurement():
    measured = {*IMAGE_METRICS, "history", "rows", "columns", "note", "time", "budget"}
    assert not set(ImageCell.__dataclass_fields__) & measured


def test_selection():
    experiment = ImageExperiment.load("table2")
    assert experiment.select(["mnist"], ["mean"], [0.9, 0.9], quick=False) == (["mnist"], ["mean"], [0.9])
    assert experiment.select(None, ["mean"], None, quick=True) == (["mnist", "cifar10"], ["mean"], [0.5, 0.9])
    with pytest.raises(ParameterError, match=r"table2 has no rate 0\.55: choose from 0\.1, 0\.2"):
        experiment.select(None, None, [0.55], quick=False)
    with pytest.raises(ParameterError, match="table3 has no method 'gain'"):
        ImageExperiment.load("table3").select(None, ["gain"], None, quick=False)


def test_halved_images(monkeypatch):
    pixels = np.arange(64, dtype=np.uint8).reshape(2, 4, 8) * np.uint8(3)
    whole = datasets.Images("mnist", pixels, np.zeros(2), pixels[:1], np.zeros(1), "")
    monkeypatch.setattr(datasets, "load_images", {"mnist": whole}.__getitem__)
    images = load_images("mnist14")
    assert (images.x_train.shape, images.x_test.shape, images.x_train.dtype) == ((2, 2, 4), (1, 2, 4), np.uint8)
    assert images.x_train[1, 1, 2] == round(pixels[1, 2:4, 4:6].mean())
    assert load_images("mnist") is whole
