"""Small stand-ins: a data set, a record as a finished cell leaves it, a file of such records."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from sklearn.datasets import load_digits

from emflow import datasets
from emflow.errors import DatasetError
from emflow.experiments.image_plan import ImageExperiment
from emflow.experiments.plan import Experiment


def small(name, *, target=False):
    """Stand in for `datasets.load`: 120 rows of five columns that nearly agree, and no set called web."""
    if name == "web":
        raise DatasetError("web cannot be had")
    rng = np.random.default_rng(0)
    X = 100 * (rng.random((120, 1)) + 0.1 * rng.random((120, 5)))
    y = X[:, 2].copy() if name == "news" else (X[:, 0] > X[:, 0].mean()).astype(int)
    columns = list("abcde")
    return datasets.Dataset(name, X, columns, y if target else None, "One row more." if name == "letter" else "", True)


@pytest.fixture
def small_data(monkeypatch):
    monkeypatch.setattr(datasets, "load", small)


def digits(name):
    """Stand in for `datasets.load_images`: 8 x 8 digits, 200 to train and 80 to test, coloured ones for cifar10."""
    x, y = load_digits(return_X_y=True)
    x = (15 * x[:280].reshape(-1, 8, 8)).astype(np.uint8)
    if name == "cifar10":
        x = np.stack((x, 255 - x, x // 2), axis=3)
    return datasets.Images(name, x[:200], y[:200], x[200:], y[200:280], "")


@pytest.fixture
def small_images(monkeypatch):
    monkeypatch.setattr(datasets, "load_images", digits)


@pytest.fixture
def image_record():
    """Return a function that makes a record of the cell of a rate, changed where told."""

    def make(name, dataset, method, rate, quick=False, configuration=0, **changes):
        cell = list(ImageExperiment.load(name).cells(dataset, rate, method, quick))[configuration]
        measured = {"rmse": 0.1, "mae": 0.05, "accuracy": None, "clean_accuracy": None, "timed_out": False}
        return asdict(cell) | measured | {"budget": 60.0, "rows": 200, "train_rows": 200, "warnings": []} | changes

    return make


@pytest.fixture
def record():
    """Return a function that makes a record of the cell of a fold, changed where told."""

    def make(name, dataset, method, mechanism="mcar", fold=0, quick=False, configuration=0, **changes):
        experiment = Experiment.load(name)
        cells = list(experiment.cells(dataset, mechanism, method, quick=quick))
        cell = [cell for cell in cells if cell.fold == fold][configuration]
        metrics = {
            "rmse": 0.1,
            "congeniality": None,
            "timed_out": False,
            "budget": 60.0,
            "note": "",
            "rows": 120,
            "warnings": [],
        }
        return asdict(cell) | metrics | changes

    return make


@pytest.fixture
def write(tmp_path):
    """Return a function that writes records to the results of an experiment and returns the folder."""

    def write(name, records):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return tmp_path

    return write
