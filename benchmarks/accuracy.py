"""Test error on the paper's tables: 20 % MCAR, one of five folds, columns scaled to [0, 1]."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import line
from emflow import EMFlowImputer, GaussianImputer

PUBLISHED = {"letter": ".111 +- .001", "wine": ".076 +- .001", "ctg": ".104 +- .006"}
SEED = 0
Array = NDArray[np.float64]


class DataMissingError(Exception):
    """The folder with the data sets is not there."""


def load_frame(name: str) -> Any:
    """Return a data set of the paper as a pandas frame."""
    folder = os.environ.get("EMFLOW_DATA")
    path = Path(folder or "") / f"{name}.parquet"
    if not folder or not path.is_file():
        raise DataMissingError(f"set EMFLOW_DATA to a folder that holds {name}.parquet")
    import pandas as pd

    return pd.read_parquet(path)


def load(name: str) -> Array:
    """Return it as an array, columns scaled to [0, 1]."""
    X = load_frame(name).to_numpy(float)
    return (X - X.min(0)) / np.ptp(X, 0)


def split(name: str) -> tuple[Array, Array, Array, Array]:
    """Return training rows with holes, test rows with holes, test rows, and the hidden cells of these."""
    X = load(name)
    rng = np.random.default_rng(SEED)
    missing = rng.random(X.shape) < 0.2
    test, train = np.split(rng.permutation(len(X)), [len(X) // 5])
    holes = np.where(missing, np.nan, X)
    return holes[train], holes[test], X[test], missing[test]


def rmse(filled: Array, X: Array, missing: Array) -> float:
    return float(np.sqrt(((filled - X)[missing] ** 2).mean()))


def run(name: str, goal: float) -> dict[str, Any]:
    """Fit the paper's preset for three outer iterations; report the test error after each."""
    train, test, X, missing = split(name)
    started = time.perf_counter()
    imputer = EMFlowImputer.paper(n_iterations=3, random_state=SEED, verbose=True).fit(train)
    seconds = time.perf_counter() - started
    errors = []
    stages = imputer.stages_
    for n in range(1, len(stages) + 1):
        imputer.stages_ = stages[:n]
        errors.append(rmse(imputer.transform(test), X, missing))
    shown = ", ".join(f"{error:.4f}" for error in errors)
    print(f"test RMSE after iterations 1 to 3: {shown}; published {PUBLISHED[name]}; {seconds:.1f} s")
    return {
        "lines": [line(f"test RMSE on {name} after three outer iterations", errors[-1], goal, at_least=False)],
        "seed": SEED, "fit_seconds": seconds, "rmse_by_iteration": errors, "published": PUBLISHED[name],
    }  # fmt: skip


def run_gaussian() -> dict[str, Any]:
    """Compare GaussianImputer with IterativeImputer(BayesianRidge) on letter: fit, and transform of the test rows."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    train, test, X, missing = split("letter")
    results = {}
    for name, make in (
        ("IterativeImputer", lambda: IterativeImputer(random_state=SEED)),
        ("GaussianImputer", GaussianImputer),
    ):
        times = []
        for _ in range(1 if name == "IterativeImputer" else 5):
            started = time.perf_counter()
            filled = make().fit(train).transform(test)
            times.append(time.perf_counter() - started)
        results[name] = {"rmse": rmse(filled, X, missing), "seconds": float(np.median(times))}
        print(f"{name}: RMSE {results[name]['rmse']:.4f}, {results[name]['seconds']:.2f} s")
    ratio = results["GaussianImputer"]["seconds"] / results["IterativeImputer"]["seconds"]
    lines = [
        line("test RMSE of GaussianImputer on letter", results["GaussianImputer"]["rmse"], 0.109, at_least=False),
        line("its time as a share of IterativeImputer's", ratio, 0.1, at_least=False),
    ]
    return {"lines": lines, "seed": SEED, "results": results}
