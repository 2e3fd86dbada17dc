"""Small files in the form of the public ones, and specs that expect them."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd

from emflow.datasets import SPECS, store


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def expect(monkeypatch, name, X=None, **changes):
    """Let the spec of `name` expect these values."""
    if X is not None:
        X = np.asarray(X, float)
        changes = {"checksum": store.table_checksum(X), "rows": len(X), **changes}
    monkeypatch.setitem(SPECS, name, replace(SPECS[name], **changes))
    return X


def numbers(name, n, seed=0):
    """Return a table (n, p) of numbers with two decimals for the columns of a set."""
    return np.random.default_rng(seed).integers(0, 500, (n, len(SPECS[name].columns))) / 100


def write(path, X, columns, dtype=float):
    pd.DataFrame(np.asarray(X, dtype), columns=list(columns)).to_parquet(path)


def lines(rows, separator=","):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def pictures(*shapes):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
