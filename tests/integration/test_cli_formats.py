"""A table with every kind of column goes through the command line in every format, and only its holes change."""

import csv
import datetime as dt
import io
import json

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from emflow.cli import main

N = 60
QUICK = ["--method", "gaussian", "--quiet"]
ALONE = {"row", "note"}  # columns that are left alone
WARNING = "left as they are, and not used: 'row' (identifier), 'note' (text)"


@pytest.fixture
def columns():
    """Columns that depend on each other, by name, with None in a seventh of the cells of all but two."""
    rng = np.random.default_rng(0)
    level = rng.normal(size=N)
    values = {
        "number": (level + 0.1 * rng.normal(size=N)).round(4).tolist(),
        "count": rng.poisson(np.exp(level)).tolist(),
        "flag": (level > 0).tolist(),
        "word": np.array(["red", 'a "deep", blue', "green"])[np.digitize(level, [-0.5, 0.5])].tolist(),
        "day": [dt.date(2020, 3, 1) + dt.timedelta(days=int(100 * x)) for x in level],
        "time": [dt.datetime(2020, 3, 1, 12) + dt.timedelta(seconds=int(1e6 * x)) for x in level],
    }
    holes = {n: [None if (i + j) % 7 == 3 else v for i, v in enumerate(v)] for j, (n, v) in enumerate(values.items())}
    return {"row": list(range(1, N + 1)), **holes, "note": [f"seen on day {i}" for i in range(N)]}


def texts(columns):
    return {n: ["" if v is None else str(v).lower() if n == "flag" else str(v) for v in c] for n, c in columns.items()}


def write_csv(path, columns, delimiter=","):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\r\n")
        writer.writerow(columns)
        writer.writerows(zip(*texts(columns).values(), strict=True))


def read_csv(path, delimiter=","):
    with open(path, newline="") as file:
        names, *rows = csv.reader(file, delimiter=delimiter)
    cells = dict(zip(names, zip(*rows, strict=True), strict=True))
    convert = {
        "row": int, "number": float, "count": int, "flag": {"true": True, "false": False}.__getitem__, "word": str,
        "day": dt.date.fromisoformat, "time": dt.datetime.fromisoformat, "note": str,
    }  # fmt: skip
    return {n: [convert[n](cell) if cell else None for cell in column] for n, column in cells.items()}


def write_jsonl(path, columns):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))


def read_jsonl(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, convert in (("day", dt.date.fromisoformat), ("time", dt.datetime.fromisoformat)):
        columns[name] = [None if cell is None else convert(cell) for cell in columns[name]]
    return columns


def write_excel(path, columns):
    book = openpyxl.Workbook()
    book.active.append(list(columns))
    for row in zip(*columns.values(), strict=True):
        book.active.append(row)
    book.save(path)


def read_excel(path):
    names, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["day"] = [None if cell is None else cell.date() for cell in columns["day"]]
    return columns


FORMATS = {
    "csv": (write_csv, read_csv),
    "tsv": (lambda path, c: write_csv(path, c, "\t"), lambda path: read_csv(path, "\t")),
    "jsonl": (write_jsonl, read_jsonl),
    "xlsx": (write_excel, read_excel),
    "parquet": (
        lambda path, c: parquet.write_table(pa.table(c), path),
        lambda path: parquet.read_table(path).to_pydict(),
    ),
    "feather": (
        lambda path, c: feather.write_feather(pa.table(c), path),
        lambda path: feather.read_table(path).to_pydict(),
    ),
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command line and returns what it wrote on standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        assert main(list(map(str, arguments))) == 0, capsys.readouterr().err
        return capsys.readouterr().err

    return run


def assert_only_holes_changed(before, after):
    assert list(before) == list(after)
    for name, cells in before.items():
        kind = type(next(cell for cell in cells if cell is not None))
        assert [type(cell) for cell in after[name]] == [kind] * N, name
        assert [cell for cell, b in zip(after[name], cells, strict=True) if b is not None] == [
            cell for cell in cells if cell is not None
        ]
    assert set(after["word"]) <= set(before["word"])


@pytest.mark.parametrize("ending", FORMATS)
def test_only_holes_change(ending, columns, run, tmp_path):
    write, read = FORMATS[ending]
    write(tmp_path / f"in.{ending}", columns)
    assert read(tmp_path / f"in.{ending}") == columns  # the test itself
    assert WARNING in run("impute", f"in.{ending}", "-o", f"out.{ending}", *QUICK)
    assert_only_holes_changed(columns, read(tmp_path / f"out.{ending}"))


def test_all_formats_are_filled_alike(columns, run, tmp_path):
    """And each can be written as each other: what is read from CSV is what the typed formats hold."""
    filled = []
    for ending, (write, _) in FORMATS.items():
        write(tmp_path / f"in.{ending}", columns)
        run("impute", f"in.{ending}", "-o", f"{ending}.jsonl", *QUICK)
        filled.append(read_jsonl(tmp_path / f"{ending}.jsonl"))
    for other in filled[1:]:
        for name, cells in other.items():
            assert cells == (pytest.approx(filled[0][name]) if name == "number" else filled[0][name])


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_can_be_written_from_csv_and_from_parquet(ending, columns, run, tmp_path):
    write_csv(tmp_path / "in.csv", columns)
    parquet.write_table(pa.table(columns), tmp_path / "in.parquet")
    for name in ("csv", "parquet"):
        run("impute", f"in.{name}", "-o", f"{name}.{ending}", *QUICK)
        assert_only_holes_changed(columns, FORMATS[ending][1](tmp_path / f"{name}.{ending}"))


def test_lines_of_csv_stay_byte_for_byte(run, tmp_path):
    """Quotes, spaces, line ends, odd numbers, empty lines and the mark of the encoding."""
    rows = [f'"{n}",+{2 * n}.50e0 , "a",TRUE\r\n'.encode() for n in range(25)]
    header = b'\xef\xbb\xbf"fi""rst",b,c,d\r\n\r\n'
    last = b'"b, ""c""\nd",NA, "a",\n"3",4.50, "a",FALSE'
    (tmp_path / "in.csv").write_bytes(header + b"".join(rows) + last)
    run("impute", "in.csv", "-o", "out.csv", "--kinds", 'fi"rst=nominal', *QUICK)
    written = (tmp_path / "out.csv").read_bytes()
    assert written.startswith(header + b"".join(rows) + b'"b, ""c""\nd",')
    assert written.endswith(b'\n"3",4.50, "a",FALSE')
    (row,) = csv.reader(io.StringIO(written[len(header) + sum(map(len, rows)) :].decode().rsplit("\n", 1)[0]))
    assert row[0] == 'b, "c"\nd'
    assert 0 <= float(row[1]) <= 48.5
    assert row[2:] in ([' "a"', "TRUE"], [' "a"', "FALSE"])


def test_a_model_of_one_format_fills_the_others(columns, run, tmp_path):
    for ending, (write, _) in FORMATS.items():
        order = columns if ending == "csv" else dict(reversed(columns.items()))  # which is of no account
        write(tmp_path / f"in.{ending}", order)
    filled = {}
    for fitted in ("csv", "parquet"):
        run("fit", f"in.{fitted}", "-o", f"{fitted}.safetensors", *QUICK)
        for ending, (_, read) in FORMATS.items():
            text = run("transform", f"{fitted}.safetensors", f"in.{ending}", "-o", f"{fitted}.{ending}")
            assert text == f"52 of 480 cells filled, written to {fitted}.{ending}\n"
            filled[fitted, ending] = read(tmp_path / f"{fitted}.{ending}")
            assert next(iter(filled[fitted, ending])) == ("row" if ending == "csv" else "note")
        for ending in FORMATS:
            for name, cells in filled[fitted, ending].items():
                expected = filled[fitted, "csv"][name]
                assert cells == (pytest.approx(expected, rel=1e-6) if name == "number" else expected)


def test_categories_of_numbers_and_of_texts(run, tmp_path):
    """Post codes keep their zeros; with a model they are texts even where none of them has a zero in front."""
    codes = ["01234", "10115", "20095"]
    rows = [f"{codes[n % 3]},{n % 3},{n % 3 + n / 90:.2f}" for n in range(60)]
    (tmp_path / "in.csv").write_text("\n".join(["zip,kind,x", *rows]) + "\n")
    (tmp_path / "new.csv").write_text("zip,kind,x\n10115,,1.3\n,2,2.3\n20095,2,\n")
    run("fit", "in.csv", "-o", "m.safetensors", "--kinds", "kind=nominal", *QUICK)
    run("transform", "m.safetensors", "new.csv", "-o", "out.csv")
    zip_code, kind, x = zip(*(line.split(",") for line in (tmp_path / "out.csv").read_text().split()[1:]), strict=True)
    assert (zip_code, kind) == (("10115", "20095", "20095"), ("1", "2", "2"))
    assert float(x[2]) == pytest.approx(2.3, abs=0.4)


def test_an_order_of_categories(run, tmp_path):
    grades = ["low", "middle", "high"]
    rows = [f"{grades[n % 3]},{n % 3}.5" for n in range(60)] + [",0.5", ",1.5", ",2.5"]
    (tmp_path / "in.csv").write_text("\n".join(["grade,x", *rows]) + "\n")
    run("fit", "in.csv", "-o", "m.safetensors", "--kinds", "grade=low<middle<high", *QUICK)
    run("transform", "m.safetensors", "in.csv", "-o", "out.csv")
    assert (tmp_path / "out.csv").read_text().split()[-3:] == ["low,0.5", "middle,1.5", "high,2.5"]


def test_a_workbook_keeps_its_formats_and_formulas(run, tmp_path):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["a", "b", None, None])
    for n in range(30):
        sheet.append([n * 1.5, 2.0 * n if n != 4 else None, "beside", "it"])
    sheet["A1"].font = openpyxl.styles.Font(bold=True)
    sheet["B6"].number_format = "0.00"
    book.create_sheet("other")["A1"] = "=1+1"
    book.save(tmp_path / "in.xlsx")
    run("impute", "in.xlsx", "-o", "out.xlsx", *QUICK)
    filled = openpyxl.load_workbook(tmp_path / "out.xlsx")
    assert filled.active["B6"].value == pytest.approx(8, abs=1)
    assert filled.active["B6"].number_format == "0.00"
    assert filled.active["A1"].font.bold
    assert filled["other"]["A1"].value == "=1+1"
    assert [cell.value for cell in filled.active["C"]] == [None] + ["beside"] * 30


def test_a_formula_without_a_value_is_no_hole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    book = openpyxl.Workbook()
    for row in (["a", "b"], [1.5, 2], [2.5, "=A3*2"]):
        book.active.append(row)
    book.save("in.xlsx")
    assert main(["impute", "in.xlsx", "-o", "out.xlsx", *QUICK]) == 1
    assert "in.xlsx, cell B3 is a formula whose value is not in the file" in capsys.readouterr().err


def test_metadata_and_types_of_parquet_stay(columns, run, tmp_path):
    table = pa.table(columns).replace_schema_metadata({"made by": "us"})
    table = table.set_column(2, "count", table["count"].cast(pa.int8()))
    table = table.set_column(4, "word", table["word"].dictionary_encode())
    parquet.write_table(table, tmp_path / "in.parquet")
    run("impute", "in.parquet", "-o", "out.parquet", *QUICK)
    written = parquet.read_table(tmp_path / "out.parquet")
    assert written.schema.equals(parquet.read_table(tmp_path / "in.parquet").schema, check_metadata=True)
    assert sum(column.null_count for column in written.columns) == 0


def test_a_key_that_a_line_does_not_have_is_filled(run, tmp_path):
    lines = [json.dumps({"a": n, "b": 2 * n, "tags": [n, n]}) for n in range(30)] + ["", '{"b": 20.0}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    assert "'tags' (objects)" in run("impute", "in.jsonl", "-o", "out.jsonl", *QUICK)
    written = (tmp_path / "out.jsonl").read_text().splitlines()
    assert written[:31] == lines[:31]
    assert json.loads(written[31]) == {"b": 20.0, "a": pytest.approx(10, abs=1)}
