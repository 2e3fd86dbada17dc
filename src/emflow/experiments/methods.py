"""The imputers by the names they have in the plans, from the paper's own to scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emflow.errors import ParameterError

# From cheap to dear: the order in which cells are run.
METHODS = ("mean", "gaussian", "knn", "bayesian_ridge", "ours", "missforest", "gain", "emflow", "mcflow")
# They take `max_time` and keep what they have learnt by then; two of them are for images alone.
STOP_THEMSELVES = frozenset({"gaussian", "ours", "emflow", "emflow_paper", "mcflow", "gain", "misgan"})

SHORTEST: dict[str, dict[str, Any]] = {
    "emflow": {"n_iterations": 1, "n_epochs": 1},
    "ours": {"refine_steps": 1, "refine": "on"},
    "mcflow": {"n_epochs": 1},
    "gain": {"n_steps": 1},
}


def build(name: str, parameters: dict[str, Any], seed: int, max_time: float) -> Any:
    """Return the imputer, not fitted.

    Parameters
    ----------
    name : str
        One of `METHODS`.
    parameters : dict
        Constructor parameters beyond the defaults; those of the paper's preset for EMFlow.
    max_time : float
        Seconds for fitting, for the methods that can stop themselves.
    """
    if name not in METHODS:
        raise ParameterError(f"there is no method {name!r}: choose one of {', '.join(METHODS)}")
    if name in STOP_THEMSELVES:
        parameters = parameters | {"max_time": max_time}
    return _BUILDERS[name](seed, parameters)


def warm_up(name: str, parameters: dict[str, Any]) -> None:
    """Fit a few rows for a moment: the first fit of a process waits for what torch loads and numba compiles.

    Once with holes anywhere and once in one column: other loops learn from these.
    """
    if name in SHORTEST:
        rng = np.random.default_rng(0)
        for n_complete in (0, 3):
            X = rng.random((64, 4))
            X[:, n_complete:][rng.random((64, 4 - n_complete)) < 0.2] = np.nan
            build(name, parameters | SHORTEST[name], seed=0, max_time=60.0).fit(X).transform(X)


def _emflow(seed: int, parameters: dict[str, Any]) -> Any:
    from emflow import EMFlowImputer

    return EMFlowImputer.paper(random_state=seed, **parameters)


def _ours(seed: int, parameters: dict[str, Any]) -> Any:
    from emflow import EMFlowImputer

    return EMFlowImputer(random_state=seed, **parameters)


def _mcflow(seed: int, parameters: dict[str, Any]) -> Any:
    from emflow.baselines import MCFlowImputer

    return MCFlowImputer(random_state=seed, **parameters)


def _gain(seed: int, parameters: dict[str, Any]) -> Any:
    from emflow.baselines import GAINImputer

    return GAINImputer(random_state=seed, **parameters)


def _gaussian(seed: int, parameters: dict[str, Any]) -> Any:
    from emflow import GaussianImputer

    return GaussianImputer(random_state=seed, **parameters)


def _mean(seed: int, parameters: dict[str, Any]) -> Any:
    from sklearn.impute import SimpleImputer

    return SimpleImputer(**parameters)


def _knn(seed: int, parameters: dict[str, Any]) -> Any:
    from sklearn.impute import KNNImputer

    return KNNImputer(**parameters)


def _bayesian_ridge(seed: int, parameters: dict[str, Any]) -> Any:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    return IterativeImputer(random_state=seed, **parameters)


def _missforest(seed: int, parameters: dict[str, Any]) -> Any:
    """Round-robin regression with trees; the parameters are those of the forest, but for two of the rounds."""
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    rounds = {name: parameters[name] for name in ("max_iter", "skip_complete") if name in parameters}
    forest = {name: value for name, value in parameters.items() if name not in rounds}
    trees = ExtraTreesRegressor(n_jobs=1, random_state=seed, **forest)
    return IterativeImputer(trees, random_state=seed, **rounds)


_BUILDERS: dict[str, Callable[[int, dict[str, Any]], Any]] = {
    "mean": _mean, "gaussian": _gaussian, "knn": _knn, "bayesian_ridge": _bayesian_ridge, "missforest": _missforest,
    "gain": _gain, "ours": _ours, "emflow": _emflow, "mcflow": _mcflow,
}  # fmt: skip
