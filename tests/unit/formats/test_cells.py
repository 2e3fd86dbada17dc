"""Cells of a file as an array, and what is filled in as a cell of that file."""

from datetime import date, datetime

import numpy as np
import pytest

from emflow import DataError
from emflow.formats.cells import MISSING, categories, parse


def read(cells, kind=None, typed=False):
    return parse(cells, kind, lambda row: f"row {row}", typed=typed)


GUESSED = {
    "whole numbers": (["1", "-2", "+3", "0", ""], "i", [1, -2, 3, 0, None]),
    "numbers": (["1", "2.50", "1e3", ".5", "-3.", "NA"], "f", [1.0, 2.5, 1000.0, 0.5, -3.0, None]),
    "more digits than fit": (["1", "123456789012345678901"], "f", [1.0, 123456789012345678901.0]),
    "truth values": (["true", "FALSE", "True", "?"], "b", [True, False, True, None]),
    "days": (["2024-02-29", "null", "1999-12-31"], "M", [date(2024, 2, 29), None, date(1999, 12, 31)]),
    "no days": (["2024-02-30", "2024-02-29"], "O", ["2024-02-30", "2024-02-29"]),
    "moments": (
        ["2024-02-29 12:30", "2024-02-29T12:30:01.5", "2024-02-29"],
        "M",
        [datetime(2024, 2, 29, 12, 30), datetime(2024, 2, 29, 12, 30, 1, 500_000), datetime(2024, 2, 29)],
    ),
    "moments elsewhere": (
        ["2024-02-29T12:30:00+02:00", "2024-02-29T12:30:00Z"],
        "M",
        [datetime(2024, 2, 29, 10, 30), datetime(2024, 2, 29, 12, 30)],
    ),
    "words": (["red", " blue ", "", "1"], "O", ["red", "blue", None, "1"]),
    "codes": (["01234", "90210", "n/a"], "O", ["01234", "90210", None]),
    "no numbers of Python's": (["1_000", "0x10"], "O", ["1_000", "0x10"]),
    "nothing": (["", " ", "NaN"], "i", [None, None, None]),
}


@pytest.mark.parametrize("name", GUESSED)
def test_text_is_read_as_what_it_looks_like(name):
    cells, dtype, values = GUESSED[name]
    column = read(cells).values
    assert column.dtype.kind == dtype
    assert column.tolist() == values


@pytest.mark.parametrize("mark", sorted(MISSING))
def test_marks_of_missing_values(mark):
    assert read(["1", f" {mark.upper()} "]).values.tolist() == [1, None]


TYPED = {
    "whole numbers": ([1, None, 3], "i"),
    "numbers": ([1, 2.5, None], "f"),
    "truth values": ([True, None, False], "b"),
    "texts of numbers": (["1", "2"], "O"),
    "texts of dates": (["2024-02-29", None], "M"),
    "dates": ([date(2024, 2, 29), None], "M"),
    "lists of one length": ([[1, 2], [3, 4], None], "O"),
}


@pytest.mark.parametrize("name", TYPED)
def test_values_keep_their_types(name):
    cells, dtype = TYPED[name]
    parsed = read(cells, typed=True)
    assert parsed.values.dtype.kind == dtype
    assert [None if v is None else parsed.to_cell(v) for v in parsed.values.tolist()] == cells


def test_a_text_among_numbers_is_named():
    with pytest.raises(DataError, match=r"row 2: 'red' is not a number: .*--kinds"):
        read(["1", "", "red", "2", "03"])
    with pytest.raises(DataError, match="row 0: 'red' is not a number"):
        read(["red", 1, 2], typed=True)
    assert read(["1", "red", "blue"]).values.tolist() == ["1", "red", "blue"]


def test_kinds_of_the_user_count_more_than_looks():
    assert read(["1", "red", "2"], "nominal").values.tolist() == ["1", "red", "2"]
    assert read(["1", "2"], "text").values.tolist() == ["1", "2"]
    assert read(["01", "12"], "integer").values.tolist() == [1, 12]
    assert read(["1", "2"], "continuous").values.dtype == np.float64
    assert read(["1", "2", "10"], "ordinal").values.tolist() == [1, 2, 10]
    with pytest.raises(DataError, match="row 1: 'soon' is not a date"):
        read(["2024-02-29", "soon"], "date")
    with pytest.raises(DataError, match="row 0: 'many' is not a number"):
        read(["many", "few"], "integer")


def test_categories_are_read_as_cells_are():
    assert categories(["1", "2", "10"]) == [1, 2, 10]
    assert categories(["1", "2", "3+"]) == ["1", "2", "3+"]


@pytest.mark.parametrize(
    ("cells", "value", "cell"),
    [
        (["1", "2"], 3, "3"),
        (["1.50"], 2.123456789, "2.1234568"),
        (["TRUE", "FALSE"], True, "TRUE"),
        (["TRUE"], False, "false"),
        (["2024-02-29"], date(2024, 3, 1), "2024-03-01"),
        (["2024-02-29 12:30"], datetime(2024, 3, 1, 1, 2, 3), "2024-03-01 01:02"),
        (["2024-02-29T12:30:10"], datetime(2024, 3, 1, 1, 2, 3), "2024-03-01T01:02:03"),
        (["2024-02-29T12:30:10.5Z"], datetime(2024, 3, 1, 1, 2, 3), "2024-03-01T01:02:03.000000Z"),
        (["2024-02-29T12:30+02:00"], datetime(2024, 3, 1, 1, 2, 3), "2024-03-01T01:02+00:00"),
        (["red"], "red", "red"),
    ],
)
def test_what_is_filled_in_looks_like_the_rest(cells, value, cell):
    assert read(cells).to_cell(value) == cell
