"""Tables about images from a file of results made by hand."""

import pytest

from emflow.experiments.table import table


@pytest.fixture
def folder(write, image_record):
    return write("table2", [
        image_record("table2", "mnist", "emflow", 0.1, rmse=0.07264, accuracy=0.98936, clean_accuracy=0.993),
        image_record("table2", "mnist", "emflow", 0.2, rmse=0.07756, accuracy=0.9883, clean_accuracy=0.993),
        image_record("table2", "mnist", "emflow", 0.3, rmse=0.08, accuracy=0.99, clean_accuracy=0.993),
        image_record("table2", "mnist", "mcflow", 0.1, rmse=0.0835, timed_out=True),
        image_record("table2", "mnist", "mcflow", 0.2, rmse=None, timed_out=True),
        image_record("table2", "cifar10", "emflow_gaussian", 0.9, rmse=0.1, train_rows=50, warnings=["it diverged"]),
        image_record("table2", "mnist", "nearest", 0.5, rmse=0.2) | {"seed": 1},  # not a cell of this table
    ])  # fmt: skip


def row(text, name, block=0):
    """Return the cells of a line of the Markdown table, without its name."""
    lines = [line for line in text.splitlines() if line.startswith((f"| {name} |", f"| {name} ["))]
    return [cell.strip() for cell in lines[block].strip("|").split("|")][1:]


def test_a_line_per_method_and_one_for_what_is_published(folder):
    text = table("table2", folder, "markdown")
    assert row(text, "missing rate") == [".1", ".2", ".3", ".4", ".5", ".6", ".7", ".8", ".9"]
    assert row(text, "EMFlow") == [".0726*", ".0776", ".0800*", *["-"] * 6]
    assert row(text, "EMFlow, published")[:2] == [".0726", ".0775"]
    assert row(text, "MCFlow") == [".0835†", "timed out", *["-"] * 7]
    assert row(text, "GAIN, published", block=1)[-1] == ".5388"
    assert "nearest pixel" not in text  # it was not run
    assert text.count(", published |") == 2 * 4


def test_notes(folder):
    text = table("table2", folder, "markdown")
    assert "| EMFlow without its network [a] | - | - | - | - | - | - | - | - | .1000‡* |" in text
    assert "[a] Trained on 50 of the 200 training images." in text
    for mark in ("* At least as good as the published EMFlow", "† Stopped by the time budget", "‡ Training diverged"):
        assert f"- {mark}" in text
    empty = table("table2", folder / "empty", "markdown")
    assert "*" not in empty.replace("**", "")
    assert "[a]" not in empty


def test_table_3_reads_the_accuracy_off_the_same_cells_and_higher_is_better(folder):
    text = table("table3", folder, "markdown")
    assert row(text, "EMFlow") == [".9894*", ".9883", ".9900*", *["-"] * 6]
    assert row(text, "MCFlow")[:2] == ["-", "timed out"]  # the first one did not measure it
    assert "Accuracy on the complete test images of MNIST: .9930." in text
    assert "test images of CIFAR-10" not in text
    assert "[a]" not in text


def test_latex(folder):
    text = table("table2", folder, "latex")
    assert r"EMFlow & $.0726$* & $.0776$ & $.0800$* & - &" in text
    assert r"$.0835$\textsuperscript{\dag} & timed out" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and line.count("&")]
    assert len(rows) == 2 * (1 + 4) + 3
    assert {line.count("&") for line in rows} == {9}


def test_text_is_aligned(folder):
    block = table("table2", folder).split("\n\n")[1].splitlines()
    assert block[0] == "MNIST"
    ours = next(line for line in block if line.startswith("EMFlow  "))
    assert ours.index(".0776") == block[2].index(".2")


def test_quick_results_are_not_mixed_in(folder):
    text = table("table2", folder, "markdown", quick=True)
    assert "| EMFlow |" not in text
    assert "smoke test" in text
