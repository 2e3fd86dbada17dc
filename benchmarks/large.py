"""Many rows: ten times Credit, its rows resampled with jitter, 20 % MCAR. How long a fit takes, and how much memory.

missForest would take hours there: its time is extrapolated from fits to fewer rows.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
import warnings
from typing import Any

import numpy as np

from benchmarks.accuracy import SEED, Array, load, rmse
from benchmarks.timing import line
from emflow import EMFlowImputer, GaussianImputer

ROWS, JITTER, RATE = 300_000, 0.01, 0.2
FEWER = 3000, 10_000, 30_000
TESTED = 2000  # further rows, to measure the error


def run() -> dict[str, Any]:
    """Fit in a fresh process, whose memory is looked at; then missForest to fewer rows."""
    load("credit")  # so that missing data is noticed here
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ours = pool.apply(_fit)
    print(", ".join(f"{name} {value:.4g}" for name, value in ours.items()), flush=True)
    seconds = []
    for n in FEWER:
        seconds.append(_miss_forest(n))
        print(f"missForest, {n} rows: {seconds[-1]:.0f} s", flush=True)
    exponent, constant = np.polyfit(np.log(FEWER), np.log(seconds), 1)
    extrapolated = float(np.exp(constant) * ROWS**exponent)
    print(f"missForest, {ROWS} rows: {extrapolated / 60:.0f} min, extrapolated: time ~ rows^{exponent:.2f}")
    return {
        "lines": [
            line("minutes to fit 300,000 x 23", ours["fit_seconds"] / 60, 10, at_least=False),
            line("peak memory, GiB", ours["peak_gib"], 4, at_least=False),
        ],
        "seed": SEED,
        "results": {"EMFlowImputer": ours, "missForest": dict(zip(map(str, FEWER), seconds, strict=True))},
        "missforest_extrapolated_seconds": extrapolated,
    }


def _table(n: int, seed: int) -> tuple[Array, Array, Array]:
    """Return n rows with holes, the same without, and where the holes are."""
    X, rng = load("credit"), np.random.default_rng(seed)
    X = X[rng.integers(len(X), size=n)] + JITTER * rng.standard_normal((n, X.shape[1]))
    missing = rng.random(X.shape) < RATE
    return np.where(missing, np.nan, X), X, missing


def _fit() -> dict[str, float]:
    holes, _, _ = _table(ROWS, SEED)
    started = time.perf_counter()
    imputer = EMFlowImputer(random_state=SEED).fit(holes)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    new, X, missing = _table(TESTED, SEED + 1)
    started = time.perf_counter()
    filled = imputer.transform(new)
    return {
        "fit_seconds": seconds,
        "peak_gib": peak,
        "microseconds_per_row": (time.perf_counter() - started) / TESTED * 1e6,
        "rmse": rmse(filled, X, missing),
        "rmse_gaussian": rmse(GaussianImputer().fit(holes[:30_000]).transform(new), X, missing),
    }


def _miss_forest(n: int) -> float:
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    trees = ExtraTreesRegressor(50, max_features=0.5, random_state=SEED, n_jobs=1)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        IterativeImputer(trees, max_iter=5, random_state=SEED).fit(_table(n, SEED)[0])
    return time.perf_counter() - started
