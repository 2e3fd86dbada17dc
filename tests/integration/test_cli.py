"""The command line, run as a user would."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from emflow.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def table(folder):
    """Write IN.csv, 80 rows of three columns that nearly agree, with every kind of mark for a hole."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 1)) + 0.05 * rng.normal(size=(80, 3))
    cells = [[f"{v:.4f}" for v in row] for row in X]
    for n, mark in enumerate(["", "NA", "NaN", "nan", "null", "None", "?", " ", "n/a"]):
        cells[5 * n][n % 3] = mark
    cells[1][0] = "+1.50e0"  # odd, but a number
    Path("IN.csv").write_text("\n".join(",".join(row) for row in [["a", "b", "c"], *cells]) + "\n")
    return X, cells


def read(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("method", ["emflow", "gaussian"])
def test_impute_fills_holes_and_keeps_the_text_of_the_rest(method, table, capsys):
    X, cells = table
    assert main(["impute", "IN.csv", "-o", "OUT.csv", "--method", method, "--quiet"]) == 0
    header, *rows = read("OUT.csv")
    assert header == ["a", "b", "c"]
    holes = [(5 * n, n % 3) for n in range(9)]
    for i, (row, before) in enumerate(zip(rows, cells, strict=True)):
        for j in range(3):
            if (i, j) in holes:
                assert float(row[j]) == pytest.approx(X[i, j], abs=0.5)
            else:
                assert row[j] == before[j]
    assert capsys.readouterr().err == ""


def test_seed_repeats_and_summary_counts(table, capsys):
    for name in ("1.csv", "2.csv"):
        assert main(["impute", "IN.csv", "-o", name, "--method", "gaussian", "--seed", "1"]) == 0
    assert Path("1.csv").read_text() == Path("2.csv").read_text()
    assert "9 of 240 cells filled" in capsys.readouterr().err


def test_saved_model_fills_another_file(table):
    assert main(["impute", "IN.csv", "-o", "OUT.csv", "--method", "gaussian", "--save-model", "m", "--quiet"]) == 0
    Path("new.csv").write_text("a,b,c\n1.0,,1.0\n")
    assert main(["impute", "new.csv", "-o", "filled.csv", "--method", "gaussian", "--model", "m", "--quiet"]) == 0
    assert float(read("filled.csv")[1][1]) == pytest.approx(1.0, abs=0.2)


def test_no_header_and_delimiter(folder):
    rows = [f"{n};{2 * n}" for n in range(1, 30)] + ["30;"]
    Path("IN.csv").write_text("\n".join(rows))
    arguments = [
        "impute",
        "IN.csv",
        "-o",
        "OUT.csv",
        "--no-header",
        "--delimiter",
        ";",
        "--method",
        "gaussian",
        "--quiet",
    ]
    assert main(arguments) == 0
    lines = Path("OUT.csv").read_text().splitlines()
    assert lines[:29] == rows[:29]
    assert float(lines[29].split(";")[1]) == pytest.approx(58, abs=3)  # clipped to the observed range


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,red\n", r"line 3, column 'b': 'red' is not a number"),
        ("a,b\n1,2\n3\n", r"line 3: 1 cells, but the table has 2 columns"),
        ("a,b\n", "has no rows"),
        ("", "has no rows"),
        ("a,b\n1,\n2,\n", "no observed value in column 1"),
        ("a,b\n1,inf\n2,3\n", "column 1 holds infinity in row 0"),
    ],
)
def test_bad_files_name_the_culprit_and_write_nothing(text, message, folder, capsys):
    Path("IN.csv").write_text(text)
    assert main(["impute", "IN.csv", "-o", "OUT.csv", "--quiet"]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not Path("OUT.csv").exists()


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0" * 9, b"a,b\n1,\x00\n\xe9,2\n"])
def test_a_file_that_is_no_text_is_named(content, folder, capsys):
    Path("IN.csv").write_bytes(content)
    assert main(["impute", "IN.csv", "-o", "OUT.csv"]) != 0
    assert re.search(r"IN\.csv is not a CSV file of text in UTF-8", capsys.readouterr().err)
    assert not Path("OUT.csv").exists()


def test_missing_file_and_output_onto_input(table, capsys):
    assert main(["impute", "absent.csv", "-o", "OUT.csv"]) == 1
    assert "absent.csv" in capsys.readouterr().err
    before = Path("IN.csv").read_text()
    assert main(["impute", "IN.csv", "-o", "IN.csv"]) == 1
    assert "is the input" in capsys.readouterr().err
    assert Path("IN.csv").read_text() == before


def test_demo_prints_a_table_and_draws(folder, monkeypatch, capsys):
    from emflow import EMFlowImputer, demo

    monkeypatch.setattr(demo, "SETS", {name: demo.SETS[name] for name in ("diabetes", "digits 8x8")})
    quick = {"mean": demo.METHODS["mean"], "EMFlow": lambda: EMFlowImputer(n_iterations=1, n_epochs=1, random_state=0)}
    monkeypatch.setattr(demo, "METHODS", quick)
    assert main(["demo", "-o", "pictures"]) == 0
    output = capsys.readouterr()
    mean, ours = (re.findall(r"\d\.\d{4}", line) for line in output.out.splitlines() if line[:4] in ("mean", "EMFl"))
    assert all(float(b) < float(a) for a, b in zip(mean, ours, strict=True))
    assert "fit" in output.err
    assert Path("pictures/digits.png").read_bytes().startswith(b"\x89PNG")
