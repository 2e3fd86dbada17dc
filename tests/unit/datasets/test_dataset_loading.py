"""Where data sets are looked for, and what can go wrong."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from public_files import expect, lines, numbers, pictures, write, zipped

from emflow import ParameterError
from emflow.datasets import SPECS, load, load_images, store
from emflow.errors import DatasetError, EMFlowError

# --- folders


def test_the_local_folder_goes_before_the_cache(folders, monkeypatch):
    data, cache = folders
    cache.mkdir()
    columns = SPECS["wine"].columns
    X = expect(monkeypatch, "wine", numbers("wine", 3))
    write(cache / "wine.parquet", X, columns)
    np.testing.assert_array_equal(load("wine").X, X)
    write(data / "wine.parquet", X[::-1], columns)
    with pytest.raises(DatasetError, match=re.escape(str(data / "wine.parquet"))):  # rows in another order
        load("wine")
    monkeypatch.delenv("EMFLOW_DATA")
    np.testing.assert_array_equal(load("wine").X, X)


def test_values_in_float32_come_back_with_the_decimals_of_the_source(folders, monkeypatch):
    X = expect(monkeypatch, "wine", numbers("wine", 50))
    write(folders[0] / "wine.parquet", X, SPECS["wine"].columns, np.float32)
    np.testing.assert_array_equal(load("wine").X, X)


def test_the_checksum_sees_values_but_not_the_last_digits():
    X = np.array([[1.0389581322669983, 0.1], [13.275433157104999, -2]])
    copy = np.array([[1.038958132267, 0.1], [13.2754331571049, -2]])  # as a program with 15 digits saves it
    assert store.table_checksum(X) == store.table_checksum(np.asfortranarray(copy))
    assert store.table_checksum(X) != store.table_checksum(X * (1 + 1e-6))
    assert store.table_checksum(X) != store.table_checksum(X[::-1])


def test_a_folder_that_is_not_there(folders, monkeypatch):
    monkeypatch.setenv("EMFLOW_DATA", str(folders[0] / "typo"))
    with pytest.raises(DatasetError, match=r"EMFLOW_DATA names .*typo, which is no folder"):
        load("wine")


def test_the_cache_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("EMFLOW_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.cache_folder() == tmp_path / "emflow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.cache_folder() == tmp_path / ".cache" / "emflow"


def test_a_known_part_is_recognised(folders, monkeypatch):
    X = numbers("song", 3)
    partial = replace(SPECS["song"].partial, rows=3, checksum=store.table_checksum(X))
    expect(monkeypatch, "song", partial=partial)
    write(folders[0] / "song_head.parquet", X, SPECS["song"].columns)
    data = load("song")
    assert not data.whole
    assert "fragment of 1176 rows" in data.note
    whole = numbers("song", 4, seed=1)
    expect(monkeypatch, "song", whole, checksum=None)
    write(folders[0] / "song.parquet", whole, SPECS["song"].columns)
    data = load("song")
    assert data.whole
    assert "first 92743 rows" in data.note
    np.testing.assert_array_equal(data.X, whole)


# --- what can go wrong


def test_a_set_that_cannot_be_downloaded_says_where_to_put_it(folders):
    with pytest.raises(DatasetError) as error:
        load("wine")
    text = str(error.value)
    assert "https://archive.ics.uci.edu/static/public/186/wine+quality.zip" in text
    assert f"put it into {folders[1]}, or put wine.parquet into a folder, and set EMFLOW_DATA" in text
    assert "no network" in text
    assert list(folders[1].iterdir()) == []
    assert isinstance(error.value, EMFlowError)


def test_a_file_put_into_the_cache_by_hand_is_used(folders, monkeypatch):
    X = expect(monkeypatch, "letter", np.arange(32).reshape(2, 16))
    text = lines(["Z", *map(int, row)] for row in X)
    folders[1].mkdir()
    (folders[1] / "letter+recognition.zip").write_bytes(zipped(**{"letter-recognition.data": text}))
    assert load("letter", target=True).target.tolist() == [25, 25]


def test_a_download_that_breaks_off_leaves_nothing(folders, serve):
    serve({SPECS["wine"].urls[0]: b"abc"}, length=lambda content: 10)
    with pytest.raises(DatasetError, match="ended after 3 of 10 bytes"):
        load("wine")
    assert list(folders[1].iterdir()) == []


def test_a_server_that_does_not_tell_the_length(folders, serve):
    serve({SPECS["wine"].urls[0]: b"abc"}, length=lambda content: None)
    with pytest.raises(DatasetError, match=r"wine\+quality\.zip is not a whole zip archive"):
        load("wine")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_cache_write_that_breaks_off_leaves_no_broken_file(folders, monkeypatch, error):
    def break_off(frame, path, **_):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(pd.DataFrame, "to_parquet", break_off)
    target = folders[1] / "wine.parquet"
    with pytest.raises(DatasetError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        store.write_table(target, np.eye(2), ["a", "b"])
    assert list(folders[1].iterdir()) == []
    assert isinstance(error, KeyboardInterrupt) or "disk full; set EMFLOW_CACHE" in str(caught.value)


def test_a_cache_that_cannot_be_made(folders, monkeypatch):
    folders[1].write_text("a file where the folder should be")
    with pytest.raises(DatasetError, match=r"cannot write .*; set EMFLOW_CACHE"):
        store.write_table(folders[1] / "wine.parquet", np.eye(2), ["a", "b"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X + 1, r"the values of wine have checksum \w{64}, not \w{64}; delete or replace .*wine\.parquet"),
        (lambda X: X[:-1], r"should be of shape \(3, 12\), but is of shape \(2, 12\); delete"),
        (lambda X: X[:, :-1], "should have 12 columns, but has 11 columns; delete"),
        (lambda X: X * [np.nan, *[1] * 11], "should be complete, but 3 cells are not; delete"),
        (lambda X: X * 1e300, "have checksum"),
    ],
)
def test_another_table(folders, monkeypatch, change, message):
    X = expect(monkeypatch, "wine", numbers("wine", 3) + 1)
    other = change(X)
    write(folders[0] / "wine.parquet", other, SPECS["wine"].columns[: other.shape[1]])
    with pytest.raises(DatasetError, match=message):
        load("wine")


def test_other_column_names(folders, monkeypatch):
    X = expect(monkeypatch, "wine", numbers("wine", 3))
    write(folders[0] / "wine.parquet", X, [*SPECS["wine"].columns[:-1], "score"])
    with pytest.raises(DatasetError, match="has a column 'score' in place of 'quality'"):
        load("wine")


def test_a_source_that_changed_is_not_cached(folders, serve, monkeypatch):
    X = numbers("wine", 3)
    expect(monkeypatch, "wine", X + 1)
    header = SPECS["wine"].columns
    files = {"winequality-red.csv": lines([header, *X[:1]], ";"), "winequality-white.csv": lines([header, *X[1:]], ";")}
    serve({SPECS["wine"].urls[0]: zipped(**files)})
    with pytest.raises(DatasetError, match=r"checksum.*wine\+quality\.zip is damaged: delete it"):
        load("wine")
    assert not (folders[1] / "wine.parquet").exists()
    serve({SPECS["wine"].urls[0]: zipped(other="")})
    (folders[1] / "wine+quality.zip").unlink()
    with pytest.raises(DatasetError, match=r"holds no winequality-red\.csv"):
        load("wine")
    (folders[1] / "wine+quality.zip").write_bytes(zipped(**{"winequality-red.csv": "pH;density\n1;2\n"}))
    with pytest.raises(DatasetError, match="has no column 'fixed acidity'"):
        load("wine")


@pytest.mark.parametrize("name", ["wine.parquet", "mnist.npz"])
def test_a_broken_local_file(folders, name):
    (folders[0] / name).write_bytes(b"broken")
    with pytest.raises(DatasetError, match=f"{re.escape(name)} is no.*: delete or replace it"):
        (load if name == "wine.parquet" else load_images)(name.split(".")[0])


def test_other_images(folders, monkeypatch):
    arrays = dict(zip(store.IMAGE_KEYS, pictures((2, 3, 3), 2, (1, 3, 3), 1), strict=True))
    np.savez(folders[0] / "mnist.npz", **arrays)
    with pytest.raises(DatasetError, match=r"images of mnist \(x_train \(2, 3, 3\).*checksum"):
        load_images("mnist")


def test_a_target_that_is_missing_or_of_another_length(folders, monkeypatch):
    X = expect(monkeypatch, "letter", np.arange(32).reshape(2, 16))
    write(folders[0] / "letter.parquet", X, SPECS["letter"].columns)
    assert load("letter").target is None
    with pytest.raises(DatasetError, match=r"letter_target\.parquet is missing"):
        load("letter", target=True)
    write(folders[0] / "letter_target.parquet", [[1], [2], [3]], ["letter"])
    with pytest.raises(DatasetError, match="should hold the column 'letter' with 2 rows"):
        load("letter", target=True)


def test_web_is_not_known(folders):
    with pytest.raises(DatasetError, match=r"has not been identified.*Web Traffic") as error:
        load("web")
    assert "Put web.parquet (58638 x 550) into a folder and set EMFLOW_DATA" in str(error.value)


def test_web_takes_any_table_of_its_shape(folders, monkeypatch):
    expect(monkeypatch, "web", rows=2, paper_shape=(2, 3))
    write(folders[0] / "web.parquet", np.eye(2, 3), "abc")
    assert load("web").columns == ["a", "b", "c"]


def test_names_that_are_not_sets(folders):
    with pytest.raises(ParameterError, match="no data set is called 'iris'; known are news, air"):
        load("iris")
    with pytest.raises(ParameterError, match="mnist is read by load_images"):
        load("mnist")
    with pytest.raises(ParameterError, match=r"wine is read by load$"):
        load_images("wine")
    with pytest.raises(ParameterError, match="wine has no target; these sets have one: news, letter, credit"):
        load("wine", target=True)


def test_without_pandas_only_reading_fails():
    """In a package without its `__init__`, for torch takes seconds to import and is not needed here."""
    code = (
        "import sys, types; sys.modules.update(pandas=None, pyarrow=None, torch=None)\n"
        "sys.modules['emflow'] = package = types.ModuleType('emflow'); package.__path__ = [sys.argv[1]]\n"
        "from emflow.datasets import store\n"
        "try: store.read_table('x')\n"
        "except OSError as error: print(error)"
    )
    folder = Path(store.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert run.stderr == ""
    assert 'pip install "emflow-impute[bench]"' in run.stdout
