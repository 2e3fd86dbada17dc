"""The data of the paper: `load` a table, `load_images` a set of images, `SPECS` for what is known of each.

A set is looked for in the folder that the environment variable EMFLOW_DATA names, then in the cache (EMFLOW_CACHE, or
`emflow` in the user's cache folder), then at its public source, from where it is downloaded, parsed and cached. What
comes out is checked by content, wherever it came from: a checksum of the values, or shape and column names where no
checksum of the whole set is known. Nothing is scaled, shuffled or filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from emflow.datasets import store
from emflow.datasets.spec import SPECS, Partial, Spec
from emflow.datasets.store import Array
from emflow.errors import DatasetError, ParameterError

__all__ = ["SPECS", "Dataset", "Images", "Partial", "Spec", "load", "load_images"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table of the paper.

    Parameters
    ----------
    name : str
        Key of the set in `SPECS`.
    X : ndarray of shape (n, p)
        The raw values in float64, none missing.
    columns : list of str
        Names of the p columns.
    target : ndarray of shape (n,) or None
        What the set is made to predict, if asked for: the class for Letter (0 to 25) and Credit (0 or 1), `shares`
        for News, where it is also a column of X.
    note : str
        What differs from the paper; empty if nothing does.
    whole : bool
        False for a file that holds but a part of the rows.
    """

    name: str
    X: Array
    columns: list[str]
    target: Array | None
    note: str
    whole: bool


@dataclass(frozen=True, eq=False)
class Images:
    """A set of images: pixels in uint8 of shape (n, height, width) or (n, height, width, 3), labels of shape (n,)."""

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    note: str


def load(name: str, *, target: bool = False) -> Dataset:
    """Return a table of the paper, downloaded at the first call unless a local folder holds it.

    Parameters
    ----------
    name : str
        news, air, letter, concrete, review, credit, energy, ctg, song, wine or web.
    target : bool
        Return the target too; only letter, credit and news have one.

    Raises
    ------
    DatasetError
        If the set cannot be had or is not the one it should be; says what to do.
    """
    spec = _spec(name, images=False)
    if target and spec.target is None:
        having = ", ".join(key for key, other in SPECS.items() if other.target)
        raise ParameterError(f"{name} has no target; these sets have one: {having}")
    path = _find(spec) or _download(spec)
    X, columns = store.read_table(path)
    part = _check_table(spec, X, columns, f"delete or replace {path}")
    y = _target(spec, X, path) if target else None
    return Dataset(name, X, columns, y, part.note if part else spec.note, whole=part is None)


def load_images(name: str) -> Images:
    """Return the images `name`, mnist or cifar10, downloaded at the first call unless a local folder holds them.

    Raises
    ------
    DatasetError
        If the set cannot be had or is not the one it should be; says what to do.
    """
    spec = _spec(name, images=True)
    path = _find(spec) or _download(spec)
    arrays = store.read_arrays(path)
    _check_images(spec, arrays, f"delete or replace {path}")
    return Images(name, **{key: arrays[key] for key in store.IMAGE_KEYS}, note=spec.note)


def _spec(name: str, images: bool) -> Spec:
    if name not in SPECS:
        raise ParameterError(f"no data set is called {name!r}; known are {', '.join(SPECS)}")
    if SPECS[name].images != images:
        raise ParameterError(f"{name} is read by {'load' if images else 'load_images'}")
    return SPECS[name]


def _find(spec: Spec) -> Path | None:
    """Return the local file of a set: EMFLOW_DATA before the cache, in either of them whole before partial."""
    stems = [spec.name, *([spec.partial.stem] if spec.partial else [])]
    paths = (folder / f"{stem}{spec.suffix}" for folder in store.folders() for stem in stems)
    return next((path for path in paths if path.is_file()), None)


def _download(spec: Spec) -> Path:
    """Fetch the public files of a set, parse and check them, and return the file written to the cache."""
    if not spec.urls or spec.parse is None:
        file = f"{spec.name}{spec.suffix} ({spec.rows} x {spec.paper_shape[1]})"
        raise DatasetError(f"{spec.title}: {spec.note} Put {file} into a folder and set EMFLOW_DATA to that folder")
    cache = store.cache_folder()
    path = cache / f"{spec.name}{spec.suffix}"
    sources = [store.fetch(url, cache, f"{path.name} into a folder, and set EMFLOW_DATA to it") for url in spec.urls]
    arrays = spec.parse(sources)
    advice = f"the source may have changed, or {', '.join(map(str, sources))} is damaged: delete it and try again"
    if spec.images:
        _check_images(spec, arrays, advice)
        store.write_arrays(path, arrays)
        return path
    _check_table(spec, arrays["X"], list(spec.columns), advice)
    if "target" in arrays:  # written before the table, so that a cached table always has its target
        store.write_table(_target_path(spec, path), arrays["target"][:, None], [cast(str, spec.target)])
    store.write_table(path, arrays["X"], list(spec.columns))
    return path


def _check_table(spec: Spec, X: Array, columns: list[str], advice: str) -> Partial | None:
    """Return None for the whole set, its `Partial` for the known part of it; anything else is an error."""
    if spec.columns and columns != list(spec.columns):
        wrong = next((pair for pair in zip(columns, spec.columns, strict=False) if pair[0] != pair[1]), None)
        found = f"{len(columns)} columns" if wrong is None else f"a column {wrong[0]!r} in place of {wrong[1]!r}"
        raise DatasetError(f"{spec.name} should have {len(spec.columns)} columns, but has {found}; {advice}")
    part = spec.partial
    if part and len(X) == part.rows and store.table_checksum(X) == part.checksum:
        return part
    shape = (spec.rows, spec.paper_shape[1])
    if X.shape != shape:
        raise DatasetError(f"{spec.name} should be of shape {shape}, but is of shape {X.shape}; {advice}")
    if not np.isfinite(X).all():
        raise DatasetError(f"{spec.name} should be complete, but {(~np.isfinite(X)).sum()} cells are not; {advice}")
    if spec.checksum is not None and (found := store.table_checksum(X)) != spec.checksum:
        raise DatasetError(f"the values of {spec.name} have checksum {found}, not {spec.checksum}; {advice}")
    return None


def _check_images(spec: Spec, arrays: dict[str, Array], advice: str) -> None:
    found = store.images_checksum(arrays)
    if found != spec.checksum:
        shapes = ", ".join(f"{key} {arrays[key].shape}" for key in store.IMAGE_KEYS)
        raise DatasetError(f"the images of {spec.name} ({shapes}) have checksum {found}, not {spec.checksum}; {advice}")


def _target(spec: Spec, X: Array, path: Path) -> Array:
    if spec.target in spec.columns:
        return X[:, spec.columns.index(spec.target)].copy()
    path = _target_path(spec, path)
    if not path.is_file():
        raise DatasetError(f"{path} is missing: it holds the target of {spec.name}, a row for each of the table")
    y, columns = store.read_table(path)
    if columns != [spec.target] or len(y) != len(X):
        raise DatasetError(f"{path} should hold the column {spec.target!r} with {len(X)} rows; delete or replace it")
    return y[:, 0].astype(np.int64)


def _target_path(spec: Spec, path: Path) -> Path:
    return path.with_name(f"{spec.name}_target{spec.suffix}")
