"""The file of results: appended line by line, cut where a run was killed."""

import pytest

from emflow.errors import FileError
from emflow.experiments.plan import Experiment
from emflow.experiments.results import Results


@pytest.fixture
def cell():
    return next(iter(Experiment.load("table1").cells("ctg", "mcar", "mean")))


def test_what_is_appended_is_there_and_is_read_back(tmp_path, cell, record):
    results = Results(tmp_path / "new", "table1")
    assert results.get(cell) is None
    results.append(record("table1", "ctg", "mean", rmse=0.3))
    results.append(record("table1", "ctg", "mean", rmse=0.2))
    results.append(record("table1", "ctg", "mean", fold=1, rmse=0.1))
    assert results.path.read_text().count("\n") == 3
    for again in (results, Results(tmp_path / "new", "table1")):
        assert again.get(cell)["rmse"] == 0.2  # the last line counts


def test_quick_results_have_a_file_of_their_own(tmp_path):
    assert Results(tmp_path, "table1", quick=True).path != Results(tmp_path, "table1").path


def test_a_cell_that_ran_out_of_time_is_finished_for_that_budget_only(tmp_path, cell, record):
    results = Results(tmp_path, "table1")
    results.append(record("table1", "ctg", "mean", timed_out=True, budget=60.0))
    assert [results.finished(cell, budget, 120) for budget in (30.0, 60.0, 61.0)] == [True, True, False]
    results.append(record("table1", "ctg", "mean", timed_out=False, budget=60.0))
    assert results.finished(cell, 61.0, 120)
    assert not results.finished(cell, 61.0, 200)  # on other rows it is another measurement


def test_an_unfinished_last_line_is_not_counted_and_cut_off(write, cell, record):
    folder = write("table1", [record("table1", "ctg", "mean"), record("table1", "ctg", "mean", fold=1)])
    path = folder / "table1.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="last line is unfinished"):
        results = Results(folder, "table1")
    second = list(Experiment.load("table1").cells("ctg", "mcar", "mean"))[1]
    assert results.get(cell) is not None
    assert results.get(second) is None
    results.repair()
    results.append(record("table1", "ctg", "mean", fold=1))
    assert Results(folder, "table1").get(second) is not None  # without a warning


@pytest.mark.parametrize("line", ["{", '{"dataset": "ctg"}', "3"])
def test_a_line_that_is_no_result_is_an_error_with_its_number(write, record, line):
    folder = write("table1", [record("table1", "ctg", "mean")])
    with open(folder / "table1.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(FileError, match=r"table1\.jsonl, line 2"):
        Results(folder, "table1")
