"""How many times as fast as missForest new rows are filled: both are fitted, then asked in turns, on one thread each.

In the experiment on accuracy they are asked at different times, and the machine does other things meanwhile.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from benchmarks.accuracy import SEED, load
from benchmarks.timing import alternate, line
from emflow import missingness
from emflow.datasets import SPECS
from emflow.experiments.methods import build, warm_up

SETS = ("concrete", "ctg", "wine", "air", "review", "spam", "letter", "credit", "energy")
MECHANISMS = ("mcar", "mar")
RATE, GOAL, ROUNDS = 0.2, 10.0, 5
FOREST = {"n_estimators": 50, "max_features": 0.5, "max_iter": 5}


def run(sets: Iterable[str] = SETS, mechanisms: Iterable[str] = MECHANISMS) -> dict[str, Any]:
    """Compare on each set, as in the experiment: four fifths of the rows to fit to, the others to fill."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mechanisms = tuple(mechanisms)
        results = {f"{name}, {mechanism}": _compare(name, mechanism) for name in sets for mechanism in mechanisms}
    finally:
        torch.set_num_threads(threads)
    lines = [
        line(f"times as fast, {name}", result["times_as_fast"], GOAL, at_least=True) for name, result in results.items()
    ]
    return {"lines": lines, "seed": SEED, "results": results}


def _compare(name: str, mechanism: str) -> dict[str, float]:
    X = load(name)
    rate = SPECS[name].mar_rate if mechanism == "mar" else RATE
    assert rate is not None
    hide = missingness.mar_paper if mechanism == "mar" else missingness.mcar
    holes = np.where(hide(X, rate, random_state=SEED), np.nan, X)
    test, train = np.split(np.random.default_rng(SEED).permutation(len(X)), [len(X) // 5])
    forest = FOREST | ({"skip_complete": True} if mechanism == "mar" else {})
    imputers = {
        method: build(method, options, SEED, 3600.0) for method, options in (("ours", {}), ("missforest", forest))
    }
    result = {}
    for method, imputer in imputers.items():
        warm_up(method, {})
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # missForest's: five rounds are not enough for it to converge
            imputer.fit(holes[train])
        result[f"{method}_fit_seconds"] = time.perf_counter() - started
    ours, theirs = alternate(*(lambda each=each: each.transform(holes[test]) for each in imputers.values()), ROUNDS)
    result |= {"seconds": ours, "missforest_seconds": theirs, "times_as_fast": theirs / ours}
    print(f"{name}, {mechanism}: " + ", ".join(f"{key} {value:.4g}" for key, value in result.items()), flush=True)
    return result
