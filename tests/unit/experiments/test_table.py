"""Tables from a file of results made by hand."""

import re

import pytest

from emflow.datasets import SPECS
from emflow.errors import EMFlowError
from emflow.experiments.entry import Entry, number, published_text
from emflow.experiments.render import FORMATS
from emflow.experiments.table import table

pytestmark = pytest.mark.usefixtures("small_data")


@pytest.fixture
def folder(write, record):
    cells = [
        record("table1", "letter", "emflow", fold=fold, rmse=rmse, note="One row more.")
        for fold, rmse in enumerate((0.108, 0.110))
    ]
    cells.append(record("table1", "letter", "mcflow", rmse=0.1201, timed_out=True))
    cells.append(record("table1", "letter", "missforest", rmse=None, timed_out=True))
    cells.append(record("table1", "letter", "gain", rmse=0.9) | {"seed": 1})  # not a cell of this table
    return write("table1", cells)


def row(text, name, block=0):
    """Return the cells of a row of the Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {name}")]
    return [cell.strip() for cell in lines[block].strip("|").split("|")]


def test_ours_published_and_difference(folder):
    cells = row(table("table1", folder, "markdown"), "Letter")
    assert re.fullmatch(r"Letter \[[a-z]\]", cells[0])
    assert cells[1:5] == ["1-2", ".1090 ± .0014", ".111 ± .001", "-2.0"]
    assert cells[5:8] == [".1201†", ".121 ± .000", "-1.8"]  # in units of .0005, since .000 is no unit
    assert cells[8:11] == ["-", ".127 ± .001", ""]
    assert "timed out" in cells[11:]


def test_rows_without_results_say_why(folder):
    text = table("table1", folder, "markdown")
    assert row(text, "CTG")[:4] == ["CTG", "", "not run", ".104 ± .006"]
    web = row(text, "Web", block=1)
    assert web[2:4] == ["no data", ".002 ± .004"]
    assert f"{web[0].removeprefix('Web ')} {SPECS['web'].note}" in text
    for name in ("News", "Air", "Letter", "Concrete", "Review", "Credit", "Energy", "CTG", "Song", "Wine", "Web"):
        assert len([line for line in text.splitlines() if line.startswith(f"| {name}")]) == 2


def test_a_part_of_a_set_is_left_out_once_there_is_more(write, record):
    part = [record("table1", "wine", "emflow", fold=fold, rmse=0.5, rows=10) for fold in range(2)]
    whole = [record("table1", "wine", "emflow", rmse=0.07, rows=20)]
    assert row(table("table1", write("table1", part), "markdown"), "Wine")[1:3] == ["2", ".5000 ± .0000"]
    assert row(table("table1", write("table1", part + whole), "markdown"), "Wine")[1:3] == ["1", ".0700"]


def test_divergence_is_marked(write, record):
    folder = write("table1", [record("table1", "wine", "emflow", rmse=0.07, warnings=["training diverged in ..."])])
    text = table("table1", folder, "markdown")
    assert row(text, "Wine")[2] == ".0700‡"
    assert "‡ Training diverged" in text


def test_what_differs_is_said_below(folder):
    text = table("table1", folder)
    below = " ".join(text.split("\n\n")[-1].split())
    for note in ("One row more.", "The MAR formula of the paper", "counts as .0005", "† Stopped by the time budget"):
        assert note in below
    assert "†" not in table("table1", folder / "empty")


def test_text_is_aligned(folder):
    block = table("table1", folder).split("\n\n")[1].splitlines()
    header = block[2]
    assert block[1] == block[3] == block[-1]
    letter = next(line for line in block if line.startswith("Letter"))
    assert letter.index(".1090 ± .0014") == header.index("EMFlow")
    assert letter.index(".1201†") == header.index("MCFlow")


def test_latex(folder):
    text = table("table1", folder, "latex")
    assert r"$.1090\pm.0014$ & $.111\pm.001$ & $-2.0$ & $.1201$\textsuperscript{\dag}" in text
    assert r"MCAR, 20 \% of all cells" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and line.count("&")]
    assert len(rows) == 2 * (1 + 11)
    assert len({line.count("&") for line in rows}) == 1
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert "±" not in text
    assert "†" not in text


def test_congeniality_reads_the_results_of_table_1(write, record):
    folder = write("table1", [record("table1", "credit", "emflow", congeniality=1.0253)])
    text = table("congeniality", folder, "markdown")
    assert row(text, "Credit")[2:5] == ["1.0253", ".9141 ± .1112", "+1.0"]
    assert row(text, "Letter")[2] == "not run"


def test_quick_results_are_not_mixed_in(folder, record):
    text = table("table1", folder, "markdown", quick=True)
    assert row(text, "Letter")[2] == "not run"
    assert "smoke test" in text


def test_a_figure_is_no_table(tmp_path):
    with pytest.raises(EMFlowError, match="figure convergence"):
        table("convergence", tmp_path)


def test_numbers():
    assert [number(value, 3) for value in (0.1234, 1.5, 0.0)] == [".123", "1.500", ".000"]
    assert published_text([0.167, 0.0015], 3) == ".167 ± .0015"
    assert published_text([1.331, 0.024], 4) == "1.3310 ± .0240"
    assert Entry([], False, False, 0).text(4) == "-"
    assert Entry([0.5, 0.7], True, True, 3).text(1) == ".6 ± .1†‡ (1 of 3 timed out)"
    assert set(FORMATS) == {"text", "markdown", "latex"}
