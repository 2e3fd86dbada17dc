"""The command line, run as a user would."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from emflow import EMFlowImputer, GaussianImputer, evaluate
from emflow.cli import _parser, main

QUICK = ["--method", "gaussian", "--quiet"]


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


def fit(*options):
    assert main(["fit", "IN.csv", "-o", "m.safetensors", "--method", "gaussian", "--quiet", *options]) == 0


def test_a_fitted_model_fills_another_file(table, capsys):
    fit()
    Path("new.csv").write_text("c,a,b\n1.0,1.0,\n")
    assert main(["transform", "m.safetensors", "new.csv", "-o", "filled.csv"]) == 0
    assert capsys.readouterr().err == "1 of 3 cells filled, written to filled.csv\n"
    assert float(read("filled.csv")[1][2]) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("with_model", [True, False])
def test_draws_are_several_files(with_model, table, capsys):
    _, cells = table
    options = ["--method", "gaussian"]
    if with_model:
        fit()
        options = ["--seed", "3"]
    inputs = ["m.safetensors", "IN.csv"] if with_model else ["IN.csv"]
    assert main(["draw", *inputs, "-o", "draw.csv", "--draws", "10", "--quiet", *options]) == 0
    files = sorted(Path().glob("draw*"))
    assert [file.name for file in files] == [f"draw-{n:02}.csv" for n in range(1, 11)]
    draws = [read(file)[1:] for file in files]
    assert len({draw[0][0] for draw in draws}) == 10  # a hole
    assert {draw[1][0] for draw in draws} == {cells[1][0]}
    assert main(["draw", *inputs, "-o", "again.csv", "--draws", "10", "--quiet", *options]) == 0
    assert read("again-07.csv")[1:] == draws[6]
    assert capsys.readouterr().err == ""


def test_draws_by_another_seed(table):
    fit()
    for seed in "12":
        assert main(["draw", "m.safetensors", "IN.csv", "-o", f"{seed}.csv", "--seed", seed, "--draws", "1"]) == 0
    assert Path("1-1.csv").read_text() != Path("2-1.csv").read_text()


@pytest.mark.parametrize("with_model", [True, False])
def test_draws_by_bootstrap_are_those_of_python(with_model, table):
    fit()
    inputs = ["m.safetensors", "IN.csv"] if with_model else ["IN.csv", "--method", "gaussian"]
    assert main(["draw", *inputs, "-o", "draw.csv", "--draws", "2", "--bootstrap", "--quiet"]) == 0
    frame = pd.read_csv("IN.csv", na_values="?", skipinitialspace=True)
    expected = GaussianImputer(random_state=0).fit(frame).sample_imputations(frame, 2, bootstrap=True)
    for number, draw in enumerate(expected, start=1):
        np.testing.assert_allclose(pd.read_csv(f"draw-{number}.csv").to_numpy(), draw.to_numpy(), rtol=1e-6)


def test_bounds_hold(table):
    assert main(["impute", "IN.csv", "-o", "OUT.csv", "--bounds", "a=9:,b=:-9,c=-7:-6", *QUICK]) == 0
    filled = pd.read_csv("OUT.csv").to_numpy()[[5 * n for n in range(9)], [n % 3 for n in range(9)]]
    assert (filled.reshape(3, 3) == [9, -9, -6]).all()  # all others are about zero


def test_evaluate_prints_what_evaluate_gives(table, capsys):
    assert main(["evaluate", "IN.csv", "--method", "gaussian", "--quiet"]) == 0
    frame = pd.read_csv("IN.csv", na_values="?", skipinitialspace=True)
    assert capsys.readouterr().out == f"{evaluate(frame, GaussianImputer(random_state=0))}\n"


def test_info_says_what_a_model_is(table, capsys):
    rows = [f"{n % 5},{'abcdefgh'[n % 8]},{n % 3}.5" for n in range(60)]
    Path("IN.csv").write_text("\n".join(["count,letter,number", *rows]))
    fit()
    assert main(["info", "m.safetensors"]) == 0
    kind, training, stored, n_columns, *columns = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"GaussianImputer of emflow [\d.]+, 0\.\d\d MB", kind)
    assert re.fullmatch(r"EM of a Gaussian: \d+ iterations, the last change [\d.e-]+", training)
    assert (stored, n_columns) == ("training rows in the file: 0", "3 columns:")
    assert [line.split(maxsplit=2) for line in columns] == [
        ["count", "integer"],
        ["letter", "nominal", "'a', 'b', 'c', 'd', 'e', 'f' and 2 more"],
        ["number", "continuous"],
    ]


REFINED = {"refine": "on", "refine_steps": 5, "store_rows": 50}
RMSE = r", RMSE 0\.\d{4} on hidden cells, columns scaled to \[0, 1\]"


@pytest.mark.parametrize(
    ("settings", "training", "stored"),
    [
        ({"n_iterations": 1, "n_epochs": 1}, rf"outer iterations of the flow: 1, kept [01]{RMSE}", 0),
        (REFINED, rf"outer [^\n]+: 0, kept 0{RMSE}\nlearned E-step: 5 steps in \d+ s, not kept{RMSE}", 0),
        (
            {**REFINED, "validation_fraction": 0.0},
            r"outer iterations of the flow: 0, kept 0\nlearned E-step: 5 steps in \d+ s, kept",
            50,
        ),
    ],
)
def test_info_of_a_model_with_a_flow(settings, training, stored, table, capsys):
    EMFlowImputer(**settings, bounds={2: (0, None)}, random_state=0).fit(table[0]).save("m")
    assert main(["info", "m"]) == 0
    _, *lines, columns, _, _, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{training}\ntraining rows in the file: {stored}", "\n".join(lines))
    assert (columns, last) == ("3 columns:", "  2  continuous  bounds 0:")


def test_no_header_and_delimiter(folder):
    rows = [f"{n};{2 * n}.5" for n in range(0, 58, 2)] + ["60;"]
    Path("IN.csv").write_text("\n".join(rows))
    assert main(["impute", "IN.csv", "-o", "OUT.csv", "--no-header", "--delimiter", ";", *QUICK]) == 0
    lines = Path("OUT.csv").read_text().splitlines()
    assert lines[:29] == rows[:29]
    assert float(lines[29].split(";")[1]) == pytest.approx(112.5, abs=3)  # clipped to the observed range


def test_standard_input_and_output(table, monkeypatch, capsysbinary):
    assert main(["impute", "IN.csv", "-o", "OUT.csv", *QUICK]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("IN.csv").read_bytes())))
    assert main(["impute", "-", "-o", "-", *QUICK]) == 0
    assert capsysbinary.readouterr().out == Path("OUT.csv").read_bytes()


def test_standard_input_and_output_in_another_format(table, monkeypatch, capsysbinary):
    lines = "\n".join(json.dumps({"a": n, "b": 2 * n if n else None}) for n in range(9))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["impute", "-", "-o", "-", "--format", "jsonl", *QUICK]) == 0
    assert [json.loads(line).keys() for line in capsysbinary.readouterr().out.splitlines()] == [{"a", "b"}] * 9


def test_a_reader_of_standard_output_that_goes_away(table):
    """As `head` does: no traceback, and nothing after it."""
    code = "import sys; from emflow.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "impute", "IN.csv", "-o", "-", *QUICK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
    process.stderr.close()


def test_csv_needs_no_library_of_frames(table):
    """And another format says what to install."""
    lacking = "pandas", "polars", "pyarrow", "openpyxl", "matplotlib"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({lacking!r}))\n"
        "from emflow.cli import main\n"
        "for ending in ('csv', 'parquet', 'xlsx'):\n"
        f"    print(main(['impute', 'IN.csv', '-o', 'OUT.' + ending, *{QUICK!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1", "1"]
    assert done.stderr.splitlines() == [
        "emflow: error: Parquet files need pyarrow: pip install 'emflow-impute[parquet]'",
        "emflow: error: Excel files need openpyxl: pip install 'emflow-impute[excel]'",
    ]


# --- mistakes


BAD_FILES = {
    "a text among numbers": ("a,b\n1,2\n3,red\n4,5\n", r"IN\.csv, line 3, column 'b': 'red' is not a number"),
    "a short line": ("a,b\n1,2\n3\n", r"line 3: 1 cells, but the table has 2 columns"),
    "a long line": ('a,b\n"1\n",2\n3,4,5\n', r"line 4: 3 cells, but the table has 2 columns"),
    "an open quote": ('a,b\n1,"2\n', r"IN\.csv is not a CSV file.*unexpected end"),
    "a header alone": ("a,b\n", "has no rows"),
    "nothing": ("", "has no rows"),
    "empty lines": ("\n\n", "has no rows"),
    "a column of holes": ("a,b\n1,\n2,\n", "no observed value in column 'b'"),
    "infinity": ("a,b\n1,inf\n2,3\n", "column 'b' holds infinity in row 0"),
    "a name twice": ("a,b,a\n1,2,3\n", "two columns of the name 'a'"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_name_the_culprit_and_write_nothing(name, folder, capsys):
    text, message = BAD_FILES[name]
    Path("IN.csv").write_text(text)
    assert main(["impute", "IN.csv", "-o", "OUT.csv", "--quiet"]) == 1
    assert_one_line(capsys, message)
    assert not Path("OUT.csv").exists()


def assert_one_line(capsys, message):
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.startswith("emflow: error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0" * 9, b"a,b\n1,\x00\n\xe9,2\n"])
def test_a_file_that_is_no_text_is_named(content, folder, capsys):
    Path("IN.csv").write_bytes(content)
    assert main(["impute", "IN.csv", "-o", "OUT.csv"]) == 1
    assert_one_line(capsys, r"IN\.csv is not a CSV file of text in UTF-8")
    assert not Path("OUT.csv").exists()


@pytest.mark.parametrize("name", ["in.parquet", "in.feather", "in.xlsx", "in.jsonl"])
@pytest.mark.parametrize("content", [b"no such thing", b"", b"[1]\n"])
def test_a_file_of_another_format_is_named(name, content, folder, capsys):
    Path(name).write_bytes(content)
    assert main(["impute", name, "-o", "OUT.csv"]) == 1
    assert_one_line(capsys, rf"{name}.* (is|has) n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("impute absent.csv -o OUT.csv", "absent.csv"),
        ("impute IN.doc -o OUT.csv", r"IN\.doc: the ending says no format; known are \.csv, \.tsv"),
        ("impute IN.csv -o OUT", "OUT: the ending says no format"),
        ("impute IN.csv -o there.csv", r"there\.csv exists: .*--force"),
        ("impute IN.csv -o IN.csv", r"IN\.csv exists"),
        ("impute IN.csv -o folder.csv", r"folder\.csv is a folder"),
        ("impute IN.csv -o nowhere/OUT.csv", "no such folder: nowhere"),
        ("impute IN.csv -o OUT.csv --kinds d=nominal", "there is no column 'd'; there are .*'a', 'b', 'c'"),
        ("impute IN.csv -o OUT.csv --kinds a=date", r"line 3, column 'a': '\S+' is not a date like"),
        ("fit IN.csv -o OUT.csv", r"OUT\.csv: the name of a model's file must end in \.safetensors"),
        ("fit IN.csv -o m.safetensors", r"m\.safetensors exists"),
        ("transform IN.csv IN.csv -o OUT.csv", r"IN\.csv is not a whole emflow file"),
        ("transform absent IN.csv -o OUT.csv", "no such file: absent"),
        ("transform m.safetensors fewer.csv -o OUT.csv", r"fewer\.csv lacks the column 'c', which the model has"),
        (
            "transform m.safetensors more.csv -o OUT.csv",
            r"more\.csv has the columns 'd', 'e', which the model does not",
        ),
        ("transform m.safetensors text.csv -o OUT.csv", r"text\.csv, line 3, column 'b': 'red' is not a number"),
        (
            "transform m.safetensors text.parquet -o OUT.csv",
            r"column 'b' is continuous in the model, of numbers, but text\.parquet holds texts: convert",
        ),
        ("transform array IN.csv -o OUT.csv", "array was not fitted to a table whose columns have names"),
        ("draw m.safetensors IN.csv -o -", "draws are several files"),
        ("draw m.safetensors IN.csv -o OUT.csv --max-time 3", "are for fitting"),
        ("draw m.safetensors IN.csv -o OUT.csv --bounds a=0:1", "are for fitting"),
        ("impute IN.csv -o OUT.csv --bounds d=0:", "there is no column 'd'"),
        ("draw IN.csv -o drawn.csv", r"drawn-2\.csv exists"),
        ("info IN.csv", r"IN\.csv is not a whole emflow file"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments, message, table, monkeypatch, capsys):
    fit()
    for name in ("there.csv", "drawn-2.csv", "IN.doc"):
        Path(name).touch()
    Path("folder.csv").mkdir()
    Path("fewer.csv").write_text("a,b\n1,2\n")
    Path("more.csv").write_text("d,a,b,c,e\n1,2,3,4,5\n")
    Path("text.csv").write_text("a,b,c\n1,2,3\n1,red,3\n")
    pq.write_table(pa.table({"a": [1.0], "b": ["red"], "c": [1.0]}), "text.parquet")
    GaussianImputer().fit(table[0]).save("array")
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    monkeypatch.setattr(GaussianImputer, "fit", lambda *_: pytest.fail("hours of work before the mistake is noticed"))
    if "--kinds" not in arguments and "--bounds d" not in arguments:
        monkeypatch.setattr(EMFlowImputer, "fit", lambda *_: pytest.fail("hours of work before the mistake is noticed"))
    assert main(arguments.split()) == 1
    assert_one_line(capsys, message)
    assert before == {path: path.stat().st_mtime_ns for path in Path().iterdir()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kinds a=number", "'number' of 'a' is no kind; there are continuous, integer"),
        ("--kinds a", "'a' is not like age=integer"),
        ("--bounds a=1", "'a=1' is not like age=0:120"),
        ("--bounds 0:1", "'0:1' is not like age=0:120"),
        ("--bounds a=low:1", "'a=low:1' is not like age=0:120"),
        ("--seed -1", "'-1' is not a whole number of at least 0"),
        ("--max-time soon", "'soon' is not a number of seconds"),
        ("--max-time 0", "'0' is not a number of seconds"),
        ("--delimiter ,,", "',,' is not one character"),
        ("--format doc", "invalid choice"),
    ],
)
def test_wrong_use_ends_with_two(options, message, table, capsys):
    with pytest.raises(SystemExit) as left:
        main(["impute", "IN.csv", "-o", "OUT.csv", *options.split()])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_the_report_has_the_options_of_the_others():
    text = "report IN.csv -o R.html --seed 3 --quiet --max-time 9 --force --kinds a=nominal"
    arguments = vars(_parser().parse_args(text.split()))
    wanted = {"input": "IN.csv", "output": "R.html", "seed": 3, "quiet": True, "max_time": 9, "force": True}
    assert wanted.items() <= arguments.items()


def test_categories_that_the_model_does_not_know(folder, capsys):
    Path("IN.csv").write_text("\n".join(["word,x", *(f"{'ab'[n % 2]},{n % 2}.5" for n in range(30))]))
    fit()
    Path("new.csv").write_text("word,x\nc,1.5\n")
    assert main(["transform", "m.safetensors", "new.csv", "-o", "OUT.csv"]) == 1
    assert_one_line(capsys, "column 'word' holds the category 'c' in row 0")
    assert main(["transform", "m.safetensors", "new.csv", "-o", "OUT.csv", "--unseen", "missing"]) == 0
    assert Path("OUT.csv").read_text() == "word,x\nb,1.5\n"


def test_force_overwrites_even_the_input(table):
    assert main(["impute", "IN.csv", "-o", "IN.csv", "--force", *QUICK]) == 0
    assert all(cell not in ("", "NA") for row in read("IN.csv") for cell in row)


def test_max_time_stops_a_fit_and_says_so(table, capsys):
    assert main(["impute", "IN.csv", "-o", "OUT.csv", "--method", "gaussian", "--max-time", "1e-9"]) == 0
    assert "stopped after 1e-09 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (KeyboardInterrupt(), 130),
        (OSError("disk full"), 1),
        (signal.SIGTERM, 143),
    ],
    ids=repr,
)
@pytest.mark.parametrize("arguments", ["impute IN.csv -o OUT.csv", "fit IN.csv -o OUT.safetensors"])
def test_a_run_that_ends_early_leaves_nothing(arguments, failure, code, table, monkeypatch, capsys):
    def fail_when_written(descriptor):
        if isinstance(failure, signal.Signals):
            os.kill(os.getpid(), failure)
        else:
            raise failure

    monkeypatch.setattr("emflow.files.os.fsync", fail_when_written)
    before = signal.getsignal(signal.SIGTERM)
    if code == 143:
        with pytest.raises(SystemExit, match="143"):
            main([*arguments.split(), *QUICK])
    else:
        assert main([*arguments.split(), *QUICK]) == code
    assert list(Path().iterdir()) == [Path("IN.csv")]
    assert "Traceback" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_demo_prints_a_table_and_draws(folder, monkeypatch, capsys):
    from emflow import demo

    monkeypatch.setattr(demo, "SETS", {name: demo.SETS[name] for name in ("diabetes", "digits 8x8")})
    quick = {"mean": demo.METHODS["mean"], "EMFlow": lambda: EMFlowImputer(n_iterations=1, n_epochs=1, random_state=0)}
    monkeypatch.setattr(demo, "METHODS", quick)
    assert main(["demo", "-o", "pictures"]) == 0
    output = capsys.readouterr()
    mean, ours = (re.findall(r"\d\.\d{4}", line) for line in output.out.splitlines() if line[:4] in ("mean", "EMFl"))
    assert all(float(b) < float(a) for a, b in zip(mean, ours, strict=True))
    assert "fit" in output.err
    assert Path("pictures/digits.png").read_bytes().startswith(b"\x89PNG")
