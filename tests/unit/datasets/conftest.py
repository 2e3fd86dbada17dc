"""Empty folders and a server that stands in for the public sources."""

import io
from email.message import Message
from urllib.error import URLError

import pytest

from emflow.datasets import store


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Return empty folders for EMFLOW_DATA and the cache; the second is not made yet."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("EMFLOW_DATA", str(data))
    monkeypatch.setenv("EMFLOW_CACHE", str(cache))
    monkeypatch.setattr(store, "urlopen", refuse)
    return data, cache


def refuse(url, timeout):
    raise URLError("no network")


class Answer(io.BytesIO):
    def __init__(self, content, length):
        super().__init__(content)
        self.headers = Message()
        if length is not None:
            self.headers["Content-Length"] = str(length)


@pytest.fixture
def serve(monkeypatch):
    """Return a function that puts contents at addresses, and gives the list of those asked for."""

    def start(contents, length=len):
        asked = []

        def urlopen(url, timeout):
            assert timeout > 0
            asked.append(url)
            return Answer(contents[url], length(contents[url]))

        monkeypatch.setattr(store, "urlopen", urlopen)
        return asked

    return start
