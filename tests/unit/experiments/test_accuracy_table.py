import pytest

from emflow.experiments import table
from emflow.experiments.plan import Experiment
from emflow.experiments.results import Results

PLAN = Experiment.load("accuracy")


def fill(folder, errors, dataset="wine", mechanism="mcar", coverage=0.9):
    """Write results: method -> error of each seed."""
    results = Results(folder, "accuracy")
    for method, values in errors.items():
        for cell, value in zip(PLAN.cells(dataset, mechanism, method), values, strict=False):
            results.append(vars(cell) | {
                "rmse": value, "coverage": coverage, "rows": 9, "note": "", "timed_out": False, "warnings": [],
                "fit_seconds": 20.0 + cell.seed, "transform_seconds": 6.0 if cell.method == "missforest" else 0.5,
            })  # fmt: skip


def row(text, heading, name):
    block = text.split(heading)[1]
    return next(line for line in block.splitlines() if line.startswith(f"| {name} ")).split(" | ")[1:]


@pytest.fixture
def text(tmp_path):
    fill(tmp_path, {"ours": [0.06, 0.07, 0.08], "missforest": [0.08], "missforest_full": [0.1], "mean": [0.2]})
    fill(tmp_path, {"ours": [0.05], "missforest": [0.04], "without_like": [0.06]}, dataset="ctg")
    fill(tmp_path, {"without_rows": [0.07], "without_like": [0.09]})
    fill(tmp_path, {"ours": [0.09]}, mechanism="mcar40", coverage=0.8)
    return table.table("accuracy", tmp_path, "markdown")


def test_errors_and_their_ratio_to_the_better_forest(text):
    cells = row(text, "MCAR, 20 %", "Wine")
    assert cells[0] == ".0700 ± .0100*"
    assert cells[1] == "-"
    assert cells[-1] == ".750 |"  # of the first seed, which all have
    assert row(text, "MCAR, 20 %", "CTG")[-1] == "1.250 |"
    assert row(text, "MCAR, 20 %", "geometric mean")[-1] == ".968 |"


def test_what_a_part_is_worth(text):
    assert "hiding any cells" not in text.split("Without a part")[0]
    headings = text.split("Without a part")[1].splitlines()[2].split(" | ")[1:]
    place = [heading.strip(" |") for heading in headings].index("hiding any cells")
    assert row(text, "Without a part; MCAR, 20 %", "CTG")[place].strip(" |") == ".0600"
    assert row(text, "Without a part; MCAR, 20 %", "Wine")[:2] == [".0700 ± .0100", ".0700"]
    means = row(text, "Without a part; MCAR, 20 %", "geometric mean of the ratio to the whole")
    assert means[1] == "1.000"
    assert means[place].strip(" |") == "1.242"  # of 9/7 and 6/5


def test_parts_have_mechanisms_of_their_own():
    assert not list(PLAN.cells("wine", "mcar40", "without_like"))
    assert len(list(PLAN.cells("wine", "mar", "without_like"))) == 3


def test_the_other_rate_has_its_own_block(text):
    assert row(text, "MCAR, 40 %", "Wine")[0] == ".0900*"
    assert "CTG" not in text.split("MCAR, 40 % of")[1].split("**Without a part")[0]


def test_seconds_and_coverage(text):
    seconds = row(text, "Seconds to fit / to fill the test rows, seed 0; MCAR, 20 %", "Wine")
    assert seconds[:3] == ["20.0 / 0.50", "20.0 / 6.00", "20.0 / 6.00"]
    assert seconds[-1] == "12.0 |"
    assert row(text, "Seconds to fit / to fill the test rows, seed 0; MCAR, 40 %", "Wine")[-1] == "- |"
    assert row(text, "Share of hidden cells", "Wine") == [".900", "-", ".800 |"]


def test_seeds_take_the_place_of_folds():
    cells = list(PLAN.cells("wine", "mcar40", "missforest_full"))
    assert [(cell.seed, cell.fold) for cell in cells] == [(0, 0), (1, 0), (2, 0)]
    assert {(cell.mechanism, cell.rate, cell.method) for cell in cells} == {("mcar", 0.4, "missforest")}
    assert not list(PLAN.cells("ctg", "mcar40", "ours"))
    assert PLAN.n_folds(10**6) == 3
