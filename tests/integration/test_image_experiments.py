"""Runs of experiments on images. Most work in this process, on small images; one has a process of its own."""

import argparse
import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from emflow import datasets
from emflow.errors import DatasetError, ParameterError
from emflow.experiments import cli
from emflow.experiments import run as module
from emflow.experiments.run import run

QUICK = {"sets": ["mnist"], "rates": [0.5], "quick": True, "quiet": True}


def digits(name):
    """Stand in for `datasets.load_images`; there is no cifar10."""
    if name == "cifar10":
        raise DatasetError("cifar10 cannot be had")
    x, y = load_digits(return_X_y=True)
    x = (15 * x.reshape(-1, 8, 8)).astype(np.uint8)
    return datasets.Images(name, x[:400], y[:400], x[400:600], y[400:600], "")


@pytest.fixture
def here(monkeypatch):
    """Run cells in this process, where the stand-ins are seen."""
    monkeypatch.setattr(datasets, "load_images", digits)
    monkeypatch.setattr(module, "call", lambda work, arguments, *_: work(*arguments))


def lines(folder, name="table2-quick"):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def main(*arguments):
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["experiments", *map(str, arguments)])
    parsed.run(parsed)


@pytest.mark.usefixtures("here")
def test_run_table_and_figure_and_no_cell_twice(tmp_path, capsys):
    order = ("run", "table2", "--quick", "--methods", "mean,nearest", "--results", tmp_path, "--quiet")
    main(*order)
    said = capsys.readouterr().err
    assert "passed over: cifar10: cifar10 cannot be had" in said
    assert "4 cells run, 0 were there already" in said
    found = lines(tmp_path)
    assert {(line["method"], line["rate"]) for line in found} == {
        (m, r) for m in ("mean", "nearest") for r in (0.5, 0.9)
    }
    for line in found:
        assert (line["rows"], line["columns"], line["train_rows"], line["test_rows"]) == (400, 64, 300, 100)
        assert line["budget"] == 3600
        assert 0.1 < line["rmse"] < 0.6
        assert "commit" in line
    main(*order)
    assert "0 cells run, 4 were there already" in capsys.readouterr().err
    assert lines(tmp_path) == found
    main("table", "table2", "--quick", "--format", "markdown", "--results", tmp_path)
    rmse = {(line["method"], line["rate"]): f"{line['rmse']:.4f}"[1:] for line in found}
    shown = capsys.readouterr().out
    assert f"| mean [a] | - | - | - | - | {rmse['mean', 0.5]} | - | - | - | {rmse['mean', 0.9]} |" in shown
    main("figure", "samples", "--quick", "--results", tmp_path, "-o", tmp_path / "figures")
    assert "MNIST, missing rate 0.9, test RMSE: nearest pixel 0." in capsys.readouterr().out
    assert (tmp_path / "figures" / "samples-quick.png").is_file()


@pytest.mark.usefixtures("here")
def test_a_cell_without_its_images_is_run_again_for_the_samples_alone(tmp_path):
    run("table2", tmp_path, methods=["nearest"], **QUICK)
    (picture,) = (tmp_path / "images").iterdir()
    picture.unlink()
    assert run("table2", tmp_path, methods=["nearest"], **QUICK).already == 1
    assert run("samples", tmp_path, methods=["nearest"], **QUICK).finished == 1
    assert picture.exists()
    assert run("samples", tmp_path, methods=["nearest"], **QUICK).already == 1


def test_a_cell_that_was_killed_has_no_images_and_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_images", digits)
    monkeypatch.setattr(module, "call", lambda *_: None)
    assert run("samples", tmp_path, methods=["nearest"], **QUICK).finished == 1
    (line,) = lines(tmp_path)
    assert (line["rmse"], line["accuracy"], line["timed_out"]) == (None, None, True)
    assert run("samples", tmp_path, methods=["nearest"], **QUICK).already == 1
    assert run("samples", tmp_path, methods=["nearest"], budget=9999.0, **QUICK).finished == 1


@pytest.mark.usefixtures("here")
def test_the_classifier_is_trained_before_the_cells_and_only_if_they_need_it(tmp_path, monkeypatch):
    events = []

    def classifier(dataset, *, verbose=False):
        events.append(dataset)
        return SimpleNamespace(accuracy=lambda images, labels: 0.5, test_accuracy=0.9)

    monkeypatch.setattr("emflow.experiments.classify.classifier", classifier)
    monkeypatch.setattr(module, "call", lambda work, arguments, *_: events.append("cell") or work(*arguments))
    whole = QUICK | {"quick": False}
    run("table2", tmp_path, methods=["mean"], **whole)
    run("table2", tmp_path, methods=["nearest"], **QUICK)
    assert events == ["cell", "cell"]
    run("table3", tmp_path, methods=["nearest"], **whole)
    assert events[2:] == ["mnist", "cell", "mnist"]
    assert [line["accuracy"] for line in lines(tmp_path, "table2")] == [None, 0.5]
    run("table3", tmp_path, methods=["nearest"], **whole)
    assert len(events) == 5


def test_budgets_are_those_of_the_plan_unless_told(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load_images", digits)
    given = []
    done = {"rmse": 1.0, "timed_out": False, "budget": 1.0}
    monkeypatch.setattr(module, "execute", lambda cell, budget, *_: given.append((cell.method, budget)) or done)
    run("table2", tmp_path, methods=["mean", "gain"], **QUICK)
    run("table2", tmp_path, methods=["nearest"], budget=5.0, **QUICK)
    assert given == [("mean", 3600.0), ("gain", 300), ("nearest", 5.0)]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("table2", {"folds": 2}, "table2 is about images and takes no folds"),
        ("table2", {"mechanisms": ["mar"]}, "takes no mechanisms"),
        ("table1", {"rates": [0.5]}, "table1 is about tables and takes no rates"),
        ("table2", {"rates": [0.25]}, r"no rate 0\.25"),
        ("table9", {}, "no experiment 'table9'"),
    ],
)
def test_bad_arguments(tmp_path, name, wrong, message):
    with pytest.raises(ParameterError, match=message):
        run(name, tmp_path, **wrong)


def test_the_real_process_reads_the_set_itself(tmp_path, monkeypatch):
    """What the run found is not what the cell finds, which tells its error: the imports, and nothing more."""
    monkeypatch.setattr(datasets, "load_images", digits)
    monkeypatch.setenv("EMFLOW_DATA", str(tmp_path))
    monkeypatch.setenv("EMFLOW_CACHE", str(tmp_path))
    (tmp_path / "mnist.npz").write_text("no images")
    report = run("table2", tmp_path, methods=["mean"], **QUICK)
    ((_, message),) = report.errors
    assert "mnist.npz" in message
    assert not (tmp_path / "table2-quick.jsonl").exists()
