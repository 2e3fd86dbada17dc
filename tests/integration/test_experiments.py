"""Runs of experiments, each cell in a process of its own; the work of all but one is a stand-in."""

import argparse
import json
import os

import pytest
import stub_cell

from emflow import datasets
from emflow.errors import DatasetError, EMFlowError, ParameterError
from emflow.experiments import cli
from emflow.experiments import run as module
from emflow.experiments.cell import run_cell
from emflow.experiments.machine import usable_cores
from emflow.experiments.run import run


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(datasets, "load", stub_cell.load)
    monkeypatch.setattr(module, "run_cell", stub_cell.run_cell)


def lines(folder, name="table1"):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def main(*arguments):
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["experiments", *map(str, arguments)])
    parsed.run(parsed)


def test_no_finished_cell_is_run_again_and_a_cut_line_is(tmp_path, capsys):
    """Credit has a target, so that its lines hold every kind of field."""
    order = ("run", "table1", "--sets", "credit", "--methods", "mean,gaussian", "--mechanisms", "mcar", "--folds", 2)
    order += ("--results", tmp_path, "--jobs", 2, "--quiet")
    main(*order)
    assert "4 cells run, 0 were there already" in capsys.readouterr().err
    first = lines(tmp_path)
    assert {(line["method"], line["fold"]) for line in first} == {(m, f) for m in ("mean", "gaussian") for f in (0, 1)}
    for line in first:
        assert (line["rmse"], line["congeniality"], line["regression"]) == (0.25, 1.5, "logistic")
        assert (line["rows"], line["columns"], line["note"], line["budget"]) == (100, 5, "A note.", 1200)
        assert line["machine"]["threads"] == line["threads_seen"] == max(1, usable_cores() // 2)
        assert set(line["versions"]) == {"python", "torch", "numpy", "scikit-learn", "emflow-impute"}
    main(*order)
    assert "0 cells run, 4 were there already" in capsys.readouterr().err
    assert lines(tmp_path) == first

    path = tmp_path / "table1.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(RuntimeWarning, match="unfinished"):
        main(*order)
    assert "1 cells run, 3 were there already" in capsys.readouterr().err
    again = lines(tmp_path)
    assert again[:3] == first[:3]
    assert (again[3]["method"], again[3]["fold"]) == (first[3]["method"], first[3]["fold"])
    main("table", "table1", "--results", tmp_path, "--format", "markdown")
    assert "| 2 | - | .125 ± .001 |" in capsys.readouterr().out


def test_failures_are_told_and_not_recorded(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ODD", "fail")
    order = ("run", "table1", "--sets", "wine", "--mechanisms", "mcar", "--folds", 1, "--results", tmp_path, "--quiet")
    with pytest.raises(EMFlowError, match=r"(?s)1 cells failed.*wine, mcar, knn, fold 1: ValueError: this one is odd"):
        main(*order, "--methods", "mean,knn")
    assert "Traceback" in capsys.readouterr().err
    assert [line["method"] for line in lines(tmp_path)] == ["mean"]
    monkeypatch.setenv("ODD", "work")
    main(*order, "--methods", "mean,knn")
    assert [line["method"] for line in lines(tmp_path)] == ["mean", "knn"]


ONE = {"sets": ["wine"], "methods": ["knn"], "mechanisms": ["mcar"], "folds": 1, "quiet": True}


def test_a_killed_process_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setenv("ODD", "kill")
    report = run("table1", tmp_path, **ONE)
    assert [message for _, message in report.errors] == ["the process ended with code -9"]


def test_a_method_that_cannot_stop_itself_is_killed_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("ODD", "wait")
    report = run("table1", tmp_path, budget=0.5, **ONE)
    assert (report.finished, report.errors) == (1, [])
    (line,) = lines(tmp_path)
    assert (line["timed_out"], line["rmse"], line["budget"]) == (True, None, 0.5)


def test_quick_results_are_kept_apart(tmp_path):
    run("table1", tmp_path, quick=True, **ONE)
    assert [path.name for path in tmp_path.iterdir()] == ["table1-quick.jsonl"]


def test_a_set_that_cannot_be_had_is_passed_over_unless_it_was_asked_for(tmp_path, monkeypatch):
    with pytest.raises(DatasetError, match="web cannot be had"):
        run("table1", tmp_path, **ONE | {"sets": ["web"]})
    monkeypatch.setattr(module, "execute", lambda *_: {"rmse": 1.0, "timed_out": False, "budget": 1.0})
    report = run("table1", tmp_path, **ONE | {"sets": None})
    assert report.unavailable == {"web": "web cannot be had"}
    assert report.finished == 10


def test_cheap_cells_come_first(tmp_path, monkeypatch):
    order = []
    done = {"rmse": 1.0, "timed_out": False, "budget": 1.0}
    monkeypatch.setattr(module, "execute", lambda cell, *_: order.append(cell.method) or done)
    run("table1", tmp_path, **ONE | {"methods": ["mcflow", "missforest", "mean", "emflow"]})
    assert order == ["mean", "emflow", "missforest", "mcflow"]


@pytest.mark.parametrize("wrong", [{"folds": 0}, {"folds": 6}, {"jobs": 0}, {"budget": 0.0}, {"sets": ["iris"]}])
def test_bad_arguments(tmp_path, wrong):
    with pytest.raises(ParameterError):
        run("table1", tmp_path, **ONE | wrong)


def test_the_real_process_tells_its_error(tmp_path, monkeypatch):
    """Without its data a cell fails, which takes the imports and nothing more."""
    monkeypatch.setattr(module, "run_cell", run_cell)
    monkeypatch.setenv("EMFLOW_DATA", str(tmp_path))
    monkeypatch.setenv("EMFLOW_CACHE", str(tmp_path))
    (tmp_path / "wine.parquet").write_text("no table")
    report = run("table1", tmp_path, **ONE)
    ((_, message),) = report.errors
    assert "wine.parquet" in message


def test_cores_are_those_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 5, 7}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert usable_cores() == 4
