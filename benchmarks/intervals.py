"""Are 90 % intervals right, and draws more like the truth than conditional means? 20 % of the cells, MCAR and MAR."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.accuracy import SEED, Array, load
from benchmarks.timing import line
from emflow import EMFlowImputer, metrics, missingness
from emflow.missingness import Missing

SETS = ("wine", "ctg", "concrete", "letter", "credit")
RATE, COVERAGE, ROUNDING = 0.2, 0.9, 1e-6
COMPARED = 2000  # rows, as the energy distance compares all pairs


def _last_half(X: Array, rate: float, *, random_state: int) -> Missing:
    """Hide cells of the last half of the columns, depending on the others, which are complete."""
    columns = range(X.shape[1] // 2, X.shape[1])
    return missingness.mar(X, rate, columns=columns, random_state=random_state)


MECHANISMS = {"mcar": missingness.mcar, "mar": _last_half}


def run() -> dict[str, Any]:
    """Fit to four fifths of the rows of each set, and look at the cells hidden in the rest.

    The energy distance is that of the filled rows from the complete ones of the other four fifths.
    """
    results = {f"{name}, {mechanism}": _look(name, mechanism) for name in SETS for mechanism in MECHANISMS}
    covered = [result["coverage"] for result in results.values()]
    worse = sum(result["energy_of_draws"] >= result["energy_of_means"] for result in results.values())
    return {
        "lines": [
            line("mean coverage of 90 % intervals, at least", float(np.mean(covered)), 0.88, at_least=True),
            line("mean coverage of 90 % intervals, at most", float(np.mean(covered)), 0.92, at_least=False),
            line("tables whose draws are no nearer to the truth than means, in energy", worse, 0, at_least=False),
        ],
        "seed": SEED,
        "results": results,
    }


def _look(name: str, mechanism: str) -> dict[str, Any]:
    X = load(name)
    missing = MECHANISMS[mechanism](X, RATE, random_state=SEED)
    test, train = np.split(np.random.default_rng(SEED).permutation(len(X)), [len(X) // 5])
    holes = np.where(missing, np.nan, X)
    imputer = EMFlowImputer(random_state=SEED).fit(holes[train])
    lower, upper = imputer.intervals(holes[test], COVERAGE)
    inside = (lower - ROUNDING <= X[test]) & (X[test] <= upper + ROUNDING)
    hidden = missing[test]
    fills = {"means": imputer.transform(holes[test]), "draws": imputer.sample_imputations(holes[test], 1)[0]}
    energy = {
        f"energy_of_{kind}": metrics.energy_distance(X[train], filled, max_rows=COMPARED, random_state=SEED)
        for kind, filled in fills.items()
    }
    result: dict[str, Any] = {
        "coverage": float(inside[hidden].mean()),
        **energy,
        "rmse": metrics.rmse(X[test], fills["means"], hidden),
        "coverage_of_columns": [
            round(float(column[holes].mean()), 3) if holes.any() else None
            for column, holes in zip(inside.T, hidden.T, strict=True)
        ],
    }
    print(f"{name}, {mechanism}: " + ", ".join(f"{key} {value}" for key, value in result.items()), flush=True)
    return result
