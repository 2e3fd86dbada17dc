"""Files written whole or not at all: tensors with a JSON header in the safetensors format, or anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from emflow.errors import FileError

FORMAT = 1  # raised whenever older versions could not read a file any more
KEY = "emflow"


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path beside `path` to write to; then flush that to disk, and rename: an old file stays until then."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {path.parent}")
    temporary = path.with_name(f"{path.name}.tmp")  # what a killed process left there is overwritten
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_free(path: str | os.PathLike[str], force: bool) -> None:
    """Raise what is in the way of a file at `path`, before hours of work; a file may be overwritten by `force`."""
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder: name a file in it")
    if path.exists() and not force:
        raise FileError(f"{path} exists: name another file, or overwrite it with --force, in Python force=True")
    if not path.parent.is_dir():
        raise FileError(f"no such folder: {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"nothing can be written into the folder {path.parent}")


def write(path: str | os.PathLike[str], tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a header, whole or not at all."""
    text = json.dumps({"format": FORMAT, **header}, allow_nan=False)
    with whole(path) as temporary:
        save_file({k: t.detach().cpu().clone().contiguous() for k, t in tensors.items()}, temporary, {KEY: text})


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and header of a file written by `write`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    FileError
        If it is truncated, not one of ours, or from a newer version.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is None:
                raise FileError(f"{path} is a safetensors file, but not one that emflow wrote")
            header = json.loads(text)
            if not (isinstance(header, dict) and isinstance(header.get("format"), int)):
                raise FileError(f"{path} has no header that emflow can read")
            if header["format"] > FORMAT:
                found = f"{path} has format {header['format']}, this version reads up to {FORMAT}"
                raise FileError(f"{found}: install a newer emflow-impute")
            return {key: file.get_tensor(key) for key in file.keys()}, header  # noqa: SIM118 (not a dict)
    except (SafetensorError, json.JSONDecodeError) as error:
        raise FileError(f"{path} is not a whole emflow file (truncated, or of another kind): {error}") from error
