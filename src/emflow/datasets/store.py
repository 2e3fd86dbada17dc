"""Where files are kept, and how they are read, written, fetched and checked."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from emflow.errors import DatasetError

if TYPE_CHECKING:
    from types import ModuleType

Array = NDArray[Any]
IMAGE_KEYS = ("x_train", "y_train", "x_test", "y_test")
TIMEOUT = 60  # seconds without an answer
CHUNK = 1 << 20


def pandas() -> ModuleType:
    """Import pandas with pyarrow only when a table is read: both belong to an extra."""
    try:
        import pandas
        import pyarrow  # noqa: F401 (pandas names it only deep in its own message)
    except ImportError as error:
        raise DatasetError(f'tables need pandas and pyarrow ({error}): pip install "emflow-impute[bench]"') from error
    return pandas


# --- folders


def folders() -> list[Path]:
    """Return the folders to look in: that of EMFLOW_DATA, if set, and the cache."""
    chosen = os.environ.get("EMFLOW_DATA")
    if chosen and not Path(chosen).is_dir():
        raise DatasetError(f"EMFLOW_DATA names {chosen}, which is no folder: correct or unset it")
    return [*([Path(chosen)] if chosen else []), cache_folder()]


def cache_folder() -> Path:
    """Return EMFLOW_CACHE, or `emflow` in the user's cache folder; it need not exist yet."""
    if chosen := os.environ.get("EMFLOW_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "emflow"
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(variable) or Path.home() / ".cache") / "emflow"


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Give a temporary file to write, renamed to `path` when all went well and removed otherwise."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # two processes may fetch the same set
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(f"cannot write {path}: {error}; set EMFLOW_CACHE to a folder with space") from error
    finally:
        if temporary.parent.is_dir():
            temporary.unlink(missing_ok=True)


# --- files


def read_table(path: Path) -> tuple[Array, list[str]]:
    """Return values (n, p) in float64 and column names of a Parquet file."""
    pd = pandas()
    try:
        frame = pd.read_parquet(path)
        X = np.column_stack([_decimals(frame[name].to_numpy()) for name in frame])
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(f"{path} is not a whole Parquet file of numbers ({error}): delete or replace it") from error
    return X, [str(name) for name in frame]


def write_table(path: Path, X: Array, columns: list[str]) -> None:
    """Write values (n, p) to a Parquet file, whole or not at all."""
    frame = pandas().DataFrame(X, columns=columns)
    with _whole(path) as temporary:
        frame.to_parquet(temporary, compression="zstd", index=False)


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the four arrays of an image file."""
    try:
        with np.load(path) as file:
            return {key: file[key] for key in IMAGE_KEYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} is no whole file of images ({error}): delete or replace it") from error


def write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Write the four arrays of an image file, whole or not at all."""
    with _whole(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # a stub that takes all names for flags


def _decimals(values: Array) -> Array:
    """Return a column in float64: 2.6 for the float32 nearest to 2.6, not 2.5999999.

    Files keep a column in float32 where its shortest decimals are those of the source, so these bring it back.
    """
    if values.dtype == np.float32:
        distinct, place = np.unique(values, return_inverse=True)
        values = distinct.astype(str).astype(np.float64)[place]
    return values.astype(np.float64) + 0.0  # and no -0.0, which is equal to 0.0 but has other bytes


def table_checksum(X: Array) -> str:
    """Return the SHA-256 of the numbers of a table (n, p) as text, row by row, each with seven digits and a space.

    Public copies of one table differ beyond the 15th digit, by the program that last saved them, and a sum of all 64
    bits would refuse every copy but one. Rounding to float32 is no way out either: columns drawn from multiples of
    2^-32, as those of Energy are, lie right between two of its numbers.
    """
    digest = hashlib.sha256()
    line = "%.6e " * X.shape[1]
    for row in X.tolist():
        digest.update((line % tuple(row)).encode())
    return digest.hexdigest()


def images_checksum(arrays: dict[str, Array]) -> str:
    """Return the SHA-256 of the bytes of the four arrays of an image file, one after the other."""
    digest = hashlib.sha256()
    for key in IMAGE_KEYS:
        digest.update(np.ascontiguousarray(arrays[key]).data)
    return digest.hexdigest()


# --- the public source


def fetch(url: str, folder: Path, otherwise: str) -> Path:
    """Return the file of `url` in `folder`, downloaded there unless it already is.

    `otherwise` ends the message of a failure: what else would do.
    """
    path = folder / unquote(url.rsplit("/", 1)[1])
    if path.is_file():
        return path
    with _whole(path) as temporary:
        try:
            _download(url, temporary, path.name)
        except (OSError, HTTPException) as error:
            advice = f"Get it by hand and put it into {folder}, or put {otherwise}"
            raise DatasetError(f"cannot download {url} to {path}: {error}. {advice}") from error
    return path


def _download(url: str, path: Path, title: str) -> None:
    with urlopen(url, timeout=TIMEOUT) as answer, open(path, "wb") as file:  # noqa: S310 (our own https addresses)
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        with tqdm(total=total, unit="B", unit_scale=True, desc=title, disable=None) as bar:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
        if total is not None and file.tell() != total:  # a lost connection may look like the end
            raise OSError(f"the connection ended after {file.tell()} of {total} bytes")
