"""Small stand-ins: a data set, a record as a finished cell leaves it, a file of such records."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from emflow import datasets
from emflow.errors import DatasetError
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
