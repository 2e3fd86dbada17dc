"""Every set is read from a small file in the form of its public one."""

import gzip
import io
import sys
import tarfile

import numpy as np
import pandas as pd
import pytest
from public_files import expect, lines, numbers, pictures, zipped

from emflow.datasets import SPECS, formats, load, load_images, store
from emflow.errors import DatasetError


def test_letter_has_its_class_first(folders, serve, monkeypatch):
    X = expect(monkeypatch, "letter", np.arange(48).reshape(3, 16))
    text = lines([letter, *map(int, row)] for letter, row in zip("TIA", X, strict=True))
    asked = serve({SPECS["letter"].urls[0]: zipped(**{"Index": "", "letter-recognition.data": text})})
    for _ in range(2):
        data = load("letter", target=True)
        np.testing.assert_array_equal(data.X, X)
        assert data.X.dtype == np.float64
        assert data.target.tolist() == [19, 8, 0]
        assert data.target.dtype == np.int64
    assert asked == ["https://archive.ics.uci.edu/static/public/59/letter+recognition.zip"]  # the second was cached
    assert {path.name for path in folders[1].iterdir()} == {
        *("letter+recognition.zip", "letter.parquet", "letter_target.parquet")
    }


def test_news_has_spaces_in_its_header(folders, serve, monkeypatch):
    X = numbers("news", 4)
    expect(monkeypatch, "news", X, checksum=None)
    header = ", ".join(["url", *SPECS["news"].columns])
    text = header + "\n" + "".join(f"http://a.b/{i}/, " + ", ".join(map(str, row)) + "\n" for i, row in enumerate(X))
    serve({SPECS["news"].urls[0]: zipped(**{"OnlineNewsPopularity/OnlineNewsPopularity.csv": text})})
    data = load("news", target=True)
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.target, X[:, data.columns.index("shares")])
    assert data.whole
    assert data.note == ""


def test_review_leaves_out_the_rows_with_a_gap(folders, serve, monkeypatch):
    X = expect(monkeypatch, "review", numbers("review", 3))
    rows = [["User", *SPECS["review"].columns, ""], *([f"User {i}", *row, ""] for i, row in enumerate(X))]
    rows.insert(2, ["User 1348", *X[0, :22], '".26\t"', "", 1.04])
    rows.insert(4, ["User 2713", *X[0, :10], "2\t2.", "", *X[0, 12:], 2.58])
    serve({SPECS["review"].urls[0]: zipped(**{"google_review_ratings.csv": lines(rows)})})
    np.testing.assert_array_equal(load("review").X, X)


def test_energy_drops_the_date_and_wine_has_red_first(folders, serve, monkeypatch):
    X = expect(monkeypatch, "energy", numbers("energy", 2))
    rows = [["date", *SPECS["energy"].columns], *(["2016-01-11 17:00:00", *row] for row in X)]
    text = lines([f'"{cell}"' for cell in row] for row in rows)
    Y = expect(monkeypatch, "wine", numbers("wine", 5))
    header = [f'"{name}"' for name in SPECS["wine"].columns]
    red, white = (lines([header, *part], ";") for part in (Y[:2], Y[2:]))
    archive = zipped(**{"winequality-white.csv": white, "winequality-red.csv": red})
    serve({SPECS["energy"].urls[0]: zipped(**{"energydata_complete.csv": text}), SPECS["wine"].urls[0]: archive})
    np.testing.assert_array_equal(load("energy").X, X)
    np.testing.assert_array_equal(load("wine").X, Y)


def test_song_takes_the_first_rows_without_the_year(folders, serve, monkeypatch):
    X = numbers("song", 4)
    expect(monkeypatch, "song", X, checksum=None)
    assert "".join(SPECS["song"].urls).endswith("203/yearpredictionmsd.zip")
    serve({SPECS["song"].urls[0]: zipped(**{"YearPredictionMSD.txt": lines([2001, *row] for row in X)})})
    np.testing.assert_array_equal(load("song").X, X)


def test_song_stops_at_the_number_of_the_paper(tmp_path):
    (tmp_path / "song.zip").write_bytes(zipped(**{"YearPredictionMSD.txt": "2001,1\n" * 92800}))
    X = formats.headless("YearPredictionMSD.txt", 1, n_rows=92743)([tmp_path / "song.zip"])["X"]
    assert X.shape == (92743, 1)


def test_letters_that_are_none_and_short_lines_are_left_out(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped(a="B,1,2\n\n?,3,4\nA,5\nA,6,7\n"))
    arrays = formats.headless("a", 2, classes="AB")([tmp_path / "a.zip"])
    assert arrays["X"].tolist() == [[1, 2], [6, 7]]
    assert arrays["target"].tolist() == [1, 0]


def sheets(monkeypatch, asked, grid):
    """Stand in for pandas.read_excel, whose engines need not be installed."""

    def read_excel(source, sheet_name, header, engine):
        assert source.read() == b"a sheet"
        assert header is None
        asked.append((sheet_name, engine))
        return pd.DataFrame(grid)

    monkeypatch.setattr(pd, "read_excel", read_excel)


def test_ctg_takes_the_rates_and_not_the_counts(folders, serve, monkeypatch):
    X = expect(monkeypatch, "ctg", numbers("ctg", 3))
    names = [None, "b", "AC", "FM", None, *SPECS["ctg"].columns, "NSP"]
    blank = [None] * len(names)
    sums = [None] * 10 + [564.0] * (len(names) - 10)
    grid = [blank, names, blank, *([None, 1, 7, 7, None, *row, 2] for row in X), blank, sums]
    serve({SPECS["ctg"].urls[0]: zipped(**{"CTG.xls": b"a sheet"})})
    sheets(monkeypatch, asked := [], grid)
    np.testing.assert_array_equal(load("ctg").X, X)
    assert asked == [("Data", "xlrd")]


def test_credit_has_its_names_in_the_second_row(folders, serve, monkeypatch):
    X = expect(monkeypatch, "credit", numbers("credit", 3))
    names = ["ID", *SPECS["credit"].columns, "default payment next month"]
    grid = [["", *(f"X{i}" for i in range(1, 24)), "Y"], names, *([i, *row, i % 2] for i, row in enumerate(X))]
    serve({SPECS["credit"].urls[0]: zipped(**{"default of credit card clients.xls": b"a sheet"})})
    sheets(monkeypatch, [], grid)
    data = load("credit", target=True)
    np.testing.assert_array_equal(data.X, X)
    assert data.target.tolist() == [0, 1, 0]


@pytest.mark.parametrize(("name", "member"), [("air", "AirQualityUCI.xlsx"), ("concrete", "Concrete_Data.xls")])
def test_sheets_whose_names_have_other_spaces(folders, serve, monkeypatch, name, member):
    X = expect(monkeypatch, name, numbers(name, 2))
    names = ["Date", *(f"{column.replace('  ', ' ')} " for column in SPECS[name].columns)]
    sheets(monkeypatch, asked := [], [names, *(["10/03/2004", *row] for row in X)])
    serve({SPECS[name].urls[0]: zipped(**{f"folder/{member}": b"a sheet"})})
    data = load(name)
    np.testing.assert_array_equal(data.X, X)
    assert data.columns == list(SPECS[name].columns)
    assert asked == [(0, "openpyxl" if name == "air" else "xlrd")]


def test_a_sheet_without_the_names(folders, serve, monkeypatch):
    sheets(monkeypatch, [], [["Date", "CO(GT)", "T"], [1, 2, 3]])
    serve({SPECS["air"].urls[0]: zipped(**{"AirQualityUCI.xlsx": b"a sheet"})})
    with pytest.raises(DatasetError, match="has no row of names 'CO"):
        load("air")


@pytest.mark.parametrize(("name", "package"), [("air", "openpyxl"), ("concrete", "xlrd"), ("ctg", "xlrd")])
def test_excel_files_name_the_package_they_need(folders, serve, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    members = {"air": "AirQualityUCI.xlsx", "concrete": "Concrete_Data.xls", "ctg": "CTG.xls"}
    serve({SPECS[name].urls[0]: zipped(**{members[name]: b"a sheet"})})
    with pytest.raises(DatasetError, match=f"{members[name]} .* is an Excel file: pip install {package}"):
        load(name)


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.tobytes())


def test_mnist_is_read_from_idx_files(folders, serve, monkeypatch):
    arrays = pictures((5, 28, 28), 5, (2, 28, 28), 2)
    expect(monkeypatch, "mnist", checksum=store.images_checksum(dict(zip(store.IMAGE_KEYS, arrays, strict=True))))
    asked = serve(dict(zip(SPECS["mnist"].urls, map(idx, arrays), strict=True)))
    for _ in range(2):
        images = load_images("mnist")
        for found, array in zip((images.x_train, images.y_train, images.x_test, images.y_test), arrays, strict=True):
            np.testing.assert_array_equal(found, array, strict=True)
    assert len(asked) == 4
    assert asked[2].endswith("t10k-images-idx3-ubyte.gz")


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        gzip.compress(b"\0\0\x08"),  # no number of axes
        gzip.compress(b"\0\0\x0d\x01\0\0\0\0"),  # floats
        idx(np.zeros(9, np.uint8))[:-9],  # ends early
        gzip.compress(gzip.decompress(idx(np.zeros(9, np.uint8)))[:-1]),  # holds too little
    ],
)
def test_what_is_not_idx(folders, serve, content):
    serve(dict.fromkeys(SPECS["mnist"].urls, content))
    with pytest.raises(DatasetError, match=r"train-images-idx3-ubyte\.gz is not .*: delete it"):
        load_images("mnist")


def cifar(batches):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def test_cifar_is_read_from_binary_batches(folders, serve, monkeypatch):
    names = ["test_batch.bin", *(f"data_batch_{i}.bin" for i in range(5, 0, -1)), "readme.html"]
    x, y = pictures((7, 32, 32, 3), 7)  # test first, then the training batches from the last to the first
    records = [bytes([label]) + picture.transpose(2, 0, 1).tobytes() for picture, label in zip(x, y, strict=True)]
    batches = dict(zip(names, [*records[:6], b"<html>"], strict=True))
    order = [5, 4, 3, 2, 1]
    expected = dict(zip(store.IMAGE_KEYS, (x[order], y[order], x[:1], y[:1]), strict=True))
    expect(monkeypatch, "cifar10", checksum=store.images_checksum(expected))
    serve({SPECS["cifar10"].urls[0]: cifar(batches)})
    images = load_images("cifar10")
    for key, array in expected.items():
        np.testing.assert_array_equal(getattr(images, key), array, strict=True)


def test_cifar_without_a_batch(folders, serve):
    serve({SPECS["cifar10"].urls[0]: cifar({"data_batch_1.bin": bytes(3073)})})
    with pytest.raises(DatasetError, match="not the binary CIFAR-10"):
        load_images("cifar10")
