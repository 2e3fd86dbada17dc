"""Categories of Credit (sex, education, marriage): how often the right one is filled in, next to a mixed missForest.

scikit-learn's IterativeImputer has one kind of forest for all columns; the one here has classifiers for categories.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from benchmarks.accuracy import SEED, Array, load_frame
from benchmarks.timing import line
from emflow import EMFlowImputer

NOMINAL = "SEX", "EDUCATION", "MARRIAGE"
RATE, ROUNDS = 0.2, 5
FOREST = {"n_estimators": 50, "max_features": 0.5, "random_state": SEED}


def run() -> dict[str, Any]:
    """Fit both to four fifths of the rows, and compare them on the categories hidden in the rest."""
    X = load_frame("credit")
    rng = np.random.default_rng(SEED)
    missing = rng.random(X.shape) < RATE
    test, train = np.split(rng.permutation(len(X)), [len(X) // 5])
    holes = X.astype(dict.fromkeys(NOMINAL, "category")).mask(missing)
    filled, seconds = {}, {}
    for name, fill in {"EMFlowImputer": _ours, "missForest": _miss_forest}.items():
        started = time.perf_counter()
        filled[name] = fill(holes.iloc[train], holes.iloc[test])
        seconds[name] = time.perf_counter() - started
    right = {
        name: {column: _accuracy(X, rows, test, missing, column) for column in NOMINAL} for name, rows in filled.items()
    }
    usual = {column: float((X[column] == X[column].mode()[0]).mean()) for column in NOMINAL}
    for column in NOMINAL:
        print(f"{column}: " + ", ".join(f"{name} {share[column]:.4f}" for name, share in right.items()), usual[column])
    gains = [(column, right["EMFlowImputer"][column] - right["missForest"][column]) for column in NOMINAL]
    return {
        "lines": [line(f"accuracy of {column} beyond missForest's", gain, 0, at_least=True) for column, gain in gains],
        "seed": SEED, "results": right, "most_frequent": usual, "seconds": seconds,
    }  # fmt: skip


def _accuracy(X: pd.DataFrame, filled: pd.DataFrame, rows: Array, missing: Array, column: str) -> float:
    hidden = missing[rows, X.columns.get_loc(column)]
    return float((filled[column].to_numpy()[hidden] == X[column].to_numpy()[rows][hidden]).mean())


def _ours(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    filled: pd.DataFrame = EMFlowImputer(random_state=SEED).fit(train).transform(test)
    return filled


def _miss_forest(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """Fill columns in turns, those that lack least first, by forests grown on the training rows."""
    start = {name: train[name].mode()[0] if name in NOMINAL else train[name].mean() for name in train}
    rows = [part.astype(float).fillna(start) for part in (train, test)]
    for _ in range(ROUNDS):
        for name in train.isna().sum().sort_values().index:
            kind = ExtraTreesClassifier if name in NOMINAL else ExtraTreesRegressor
            seen = train[name].notna().to_numpy()
            forest = kind(**FOREST).fit(rows[0].drop(columns=name)[seen], train[name][seen].astype(float))
            for part, holes in zip(rows, (train, test), strict=True):
                hidden = holes[name].isna().to_numpy()
                part.loc[hidden, name] = forest.predict(part.drop(columns=name)[hidden])
    return rows[1]
