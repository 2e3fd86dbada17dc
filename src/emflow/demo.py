"""The demo: hide cells of data sets that scikit-learn ships, fill them by several methods, print a table and draw."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer
from tqdm.auto import tqdm

from emflow import EMFlowImputer, GaussianImputer

Array = NDArray[np.float64]
RATE = 0.2
SETS = {"breast cancer": load_breast_cancer, "diabetes": load_diabetes, "digits 8x8": load_digits}
METHODS: dict[str, Callable[[], Any]] = {
    "mean": lambda: SimpleImputer(keep_empty_features=True),
    "IterativeImputer": lambda: IterativeImputer(random_state=0),
    "Gaussian EM": lambda: GaussianImputer(random_state=0),
    "EMFlow": lambda: EMFlowImputer(random_state=0),
}


def run(folder: Path, seed: int = 0) -> None:
    """Print the table and write `digits.png` into the folder."""
    results: dict[tuple[str, str], tuple[float, float]] = {}
    completed: dict[str, Array] = {}
    tables = {name: _hide(load().data, seed) for name, load in SETS.items()}
    with tqdm(total=len(SETS) * len(METHODS), desc="emflow demo", unit="fit") as bar:
        for name, (X, missing) in tables.items():
            for method, make in METHODS.items():
                bar.set_postfix_str(f"{method}, {name}")
                started = time.perf_counter()
                filled = _fill(make(), np.where(missing, np.nan, X))
                seconds = time.perf_counter() - started
                error = (filled - X)[missing]
                results[method, name] = (float(np.sqrt((error**2).mean())), seconds)
                completed[method] = filled
                bar.update()
    print(f"\nRMSE on {RATE:.0%} of the cells, hidden at random (columns scaled to [0, 1]), and seconds to fill them\n")
    print(_table(results))
    digits, missing = tables["digits 8x8"]
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "digits.png"
    _draw(digits, missing, completed, picture)
    print(f"\nThe digits, with their holes and filled: {picture}")


def _hide(X: Array, seed: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return X scaled to [0, 1] by column, and the cells to hide."""
    span = np.ptp(X, 0)
    scaled = (X - X.min(0)) / np.where(span > 0, span, 1)
    return scaled, np.random.default_rng(seed).random(X.shape) < RATE


def _fill(imputer: Any, X: Array) -> Array:
    with warnings.catch_warnings():  # ten rounds of IterativeImputer, its default, are not always enough for it
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(imputer.fit_transform(X))


def _table(results: dict[tuple[str, str], tuple[float, float]]) -> str:
    lines = ["".join([f"{'':18}", *(f"{name:>20}" for name in SETS)])]
    for method in METHODS:
        cells = (f"{results[method, name][0]:.4f} {results[method, name][1]:8.2f} s" for name in SETS)
        lines.append("".join([f"{method:18}", *(f"{cell:>20}" for cell in cells)]))
    return "\n".join(lines)


def _draw(X: Array, missing: NDArray[np.bool_], completed: dict[str, Array], path: Path) -> None:
    """Draw a column per digit 0 to 9: truth, holes, and the digit as filled by each method."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = {"truth": X, "holes": np.where(missing, np.nan, X), **completed}
    figure, axes = plt.subplots(len(rows), 10, figsize=(8, 0.85 * len(rows)), layout="constrained")
    greys = mpl.colormaps["gray_r"].with_extremes(bad="tab:orange")
    for line, (label, images) in zip(axes, rows.items(), strict=True):
        for n, axis in enumerate(line):
            axis.imshow(images[n].reshape(8, 8), cmap=greys, vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.savefig(path, dpi=150)
    plt.close(figure)
