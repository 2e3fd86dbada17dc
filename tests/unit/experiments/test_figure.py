"""Figures from results made by hand: files of both kinds, and the summary in words."""

import sys
from math import inf

import pytest

from emflow.errors import EMFlowError
from emflow.experiments.figure import figure, ratio


@pytest.fixture
def curves(write, record):
    emflow = {"loss": [(1, 5.0), (2, 3.0)], "rmse": [(1, 0.13), (2, 0.12), (4, 0.1113)]}
    mcflow = {"loss": [(1, 9.0), (2, 8.0)], "rmse": [(10, 0.3), (20, 0.1209)]}
    slower = {"loss": [(3, 5.0)], "rmse": [(3, 0.15), (4, 0.12), (6, 0.1113)]}
    return write("table1", [
        record("convergence", "letter", "emflow", curve=emflow),
        record("convergence", "letter", "emflow", fold=1, curve=slower),
        record("convergence", "letter", "mcflow", curve=mcflow, timed_out=True),
        record("convergence", "ctg", "emflow", curve=emflow),
    ])  # fmt: skip


def check(paths):
    png, svg = paths
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 10_000
    assert "</svg>" in svg.read_text()


def test_convergence(curves, tmp_path):
    paths, summary = figure("convergence", curves, tmp_path / "new" / "folder")
    check(paths)
    words = paths[1].read_text()
    assert "Letter (MCFlow stopped by budget)" in words
    assert words.count("stopped by budget") == 1
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    lines = summary.splitlines()
    assert lines[0].startswith("Letter: seconds")
    assert "(folds: EMFlow 2, MCFlow 1)" in lines[0]
    assert "0.111 (EMFlow, published): EMFlow after 3.0 to 5.0 s, MCFlow not within 20.0 s; at least 4.0" in lines[1]
    assert "0.121 (MCFlow, published): EMFlow after 2.0 to 3.0 s, MCFlow after 10.0 to 20.0 s; at least 3.3" in lines[2]
    assert lines[3:5] == ["CTG: not run (mcflow)", "News: not run (emflow, mcflow)"]


def test_ratio():
    assert ratio((1, 2), (6, 9)) == "at least 3.0 times as long"
    assert ratio((1, 2), (6, inf)) == "at least 3.0 times as long"
    assert ratio((2, inf), (6, 9)) == "only the other gets there"
    assert ratio((2, inf), (6, inf)) == "neither gets there"


def test_hyperparameters(write, record, tmp_path):
    records = [
        record("hyperparameters", "news", "emflow", fold=fold, configuration=n, rmse=0.14 + 0.001 * n + 0.002 * fold)
        | {"timed_out": n == 1 and fold == 1}
        for n in range(7)
        for fold in range(2)
    ]
    paths, summary = figure("hyperparameters", write("hyperparameters", records), tmp_path)
    check(paths)
    assert "step_exponent = 0.6: RMSE 0.1410, folds: 2\n" in summary
    assert "step_exponent = 0.7: RMSE 0.1420, folds: 2, 1 of them stopped by budget" in summary
    assert "reconstruction_weight = 1e+06: RMSE 0.1430" in summary  # the common point, third of the first sweep
    assert len(summary.splitlines()) == 8


@pytest.mark.parametrize("name", ["convergence", "hyperparameters"])
def test_without_results_there_is_nothing_to_draw(name, tmp_path):
    with pytest.raises(EMFlowError, match=f"emflow experiments run {name} --quick"):
        figure(name, tmp_path, tmp_path / "figures", quick=True)
    assert not (tmp_path / "figures").exists()


def test_a_table_is_no_figure(tmp_path):
    with pytest.raises(EMFlowError, match="table table1"):
        figure("table1", tmp_path, tmp_path)
