import pytest

from emflow.errors import FileError
from emflow.experiments.page import insert


def test_a_table_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("Above ±\n<!-- one -->\nold\nlines\n<!-- /one -->\nbelow\n<!-- two -->\n\n<!-- /two -->\n")
    insert(path, "one", "new")
    insert(path, "two", "a\nb")
    assert path.read_text() == ("Above ±\n<!-- one -->\nnew\n<!-- /one -->\nbelow\n<!-- two -->\na\nb\n<!-- /two -->\n")


@pytest.mark.parametrize("text", ["", "<!-- one -->\nno end", "no start\n<!-- /one -->"])
def test_a_page_without_a_place_stays_as_it_is(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(FileError, match="no place for one"):
        insert(path, "one", "new")
    assert path.read_text() == text
