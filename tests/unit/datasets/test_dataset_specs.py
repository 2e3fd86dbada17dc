"""The specs against the paper, and the real data against the specs where its folder is there."""

import os
from pathlib import Path

import numpy as np
import pytest

from emflow.datasets import SPECS, load, load_images

TABLES = [name for name, spec in SPECS.items() if not spec.images]


def test_specs_are_those_of_the_papers_table():
    paper = {
        "news": (60, 39644, 0.35), "air": (13, 9357, 0.62), "letter": (16, 19999, 0.57), "concrete": (9, 1030, 0.50),
        "review": (24, 5454, 0.49), "credit": (23, 30000, 0.30), "energy": (28, 19735, 0.39), "ctg": (21, 2126, 0.29),
        "song": (90, 92743, 0.32), "wine": (12, 6497, 0.26), "web": (550, 58638, 0.12),
    }  # fmt: skip
    found = {name: (*SPECS[name].paper_shape[::-1], SPECS[name].mar_rate) for name in TABLES}
    assert found.pop("spam") == (57, 4601, 0.30)
    assert SPECS["spam"].note.startswith("Not in the paper")
    assert found == paper
    for name in TABLES:
        assert name == "web" or len(set(SPECS[name].columns)) == SPECS[name].paper_shape[1]
        assert SPECS[name].rows == SPECS[name].paper_shape[0] or "where the paper says" in SPECS[name].note


def real(name):
    folder = os.environ.get("EMFLOW_DATA")
    if not folder or not Path(folder, name).exists():
        pytest.skip(f"set EMFLOW_DATA to a folder that holds {name}")


@pytest.mark.parametrize("name", [name for name in TABLES if SPECS[name].checksum])
def test_real_tables_pass_their_check(name):
    real(f"{name}.parquet")
    data = load(name)
    assert data.X.shape == (SPECS[name].rows, SPECS[name].paper_shape[1])
    assert data.whole


@pytest.mark.parametrize("name", ["news", "song"])
def test_real_parts_are_recognised_as_such(name):
    part = SPECS[name].partial
    real(f"{part.stem}.parquet")
    data = load(name)
    if data.whole:
        pytest.skip(f"EMFLOW_DATA holds all of {name}")
    assert len(data.X) == part.rows
    assert str(part.rows) in data.note


def test_real_targets():
    real("letter_target.parquet")
    counts = np.bincount(load("letter", target=True).target)
    assert len(counts) == 26
    assert (counts.min(), counts.max()) == (734, 813)
    real("credit_target.parquet")
    assert load("credit", target=True).target.mean() == 0.2212


def test_real_oddities_are_as_noted():
    real("air.parquet")
    assert round((load("air").X == -200).mean(), 3) == 0.137
    real("energy.parquet")
    X = load("energy").X
    np.testing.assert_array_equal(X[:, -2], X[:, -1])


def test_real_mnist():
    real("mnist.npz")
    images = load_images("mnist")
    assert images.x_train.shape == SPECS["mnist"].paper_shape == (60000, 28, 28)
    assert (images.y_train.shape, images.x_test.shape, images.y_test.shape) == ((60000,), (10000, 28, 28), (10000,))
