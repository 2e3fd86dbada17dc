"""What hyperparameters must be: limits as data, each a text and a test, and those of `EMFlowImputer`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from emflow.errors import ParameterError
from emflow.table import column

Limit = tuple[str, Callable[[Any], bool]]  # of a hyperparameter: what it must be, and a test


def check(limits: Mapping[str, Limit], values: Mapping[str, Any], owner: str | None = None) -> None:
    """Raise a ParameterError for the first of the values, parameters of `owner`, that is not within its limit."""
    for name, value in values.items():
        text, test = limits[name]
        try:
            ok = bool(test(value))
        except (TypeError, ValueError, RuntimeError, AssertionError):  # the last one is torch's, without CUDA
            ok = False
        if not ok:
            whose = "" if owner is None else f" of {owner}"
            raise ParameterError(f"{name}{whose} must be {text}, but it is {value!r}")


def integer(low: int) -> Limit:
    """Limit of a hyperparameter: an integer of at least `low`."""
    text = f"an integer of at least {low}"
    return text, lambda v: isinstance(v, Integral) and not isinstance(v, bool) and int(v) >= low


def real(text: str, test: Callable[[Any], bool]) -> Limit:
    """Limit of a hyperparameter: a number that passes a test, described by `text`."""
    return text, lambda v: isinstance(v, Real) and not isinstance(v, bool) and test(v)


def optional(limit: Limit) -> Limit:
    """Limit of a hyperparameter that may also be None."""
    return f"None or {limit[0]}", lambda v: v is None or limit[1](v)


def _usable(device: Any) -> bool:
    return isinstance(device, str) and torch.zeros(1, device=device).double().sum().item() == 0


def _is_kind(kind: Any) -> bool:
    return kind in column.KINDS if isinstance(kind, str) else isinstance(kind, list | tuple) and len(kind) > 0


def _is_pair(bounds: Any) -> bool:
    low, high = bounds
    return all(end is None or (isinstance(end, Real) and abs(float(end)) < np.inf) for end in (low, high))


NOT_NEGATIVE = real("a number of at least 0", lambda v: 0 <= v < np.inf)
POSITIVE = real("a positive number", lambda v: 0 < v < np.inf)
SECONDS = optional(real("a positive number of seconds", lambda v: 0 < v < np.inf))
BOOLEAN = ("True or False", lambda v: isinstance(v, bool | np.bool_))
DEVICE = ('a device with double precision that torch finds here, like "cpu" or "cuda"', _usable)
FLOW = ('"auto", "dense" or "convolutional"', lambda v: v in ("auto", "dense", "convolutional"))
KINDS = (
    f"None, or a dict from columns to {', '.join(map(repr, column.KINDS))} or a list of categories",
    lambda v: v is None or (isinstance(v, dict) and all(_is_kind(kind) for kind in v.values())),
)
BOUNDS = (
    "None, or a dict from columns to pairs (low, high) of numbers, or None for an open end",
    lambda v: v is None or (isinstance(v, dict) and all(_is_pair(pair) for pair in v.values())),
)
UNSEEN = ('"error" or "missing"', lambda v: v in ("error", "missing"))
SEED = ("None, a whole number from 0 to 2**32 - 1, or a RandomState", lambda v: bool(check_random_state(v)))

FILLS = {"gaussian": None, "draw": None, "median": False, "nearest": True, "zero": True, "mean": True}  # for images?
FRACTION = real("a number in [0, 1]", lambda v: 0 <= v <= 1)
BINS = real("an integer from 2 to 1000", lambda v: isinstance(v, Integral) and 2 <= int(v) <= 1000)
SETTINGS = {
    "batch_size": integer(1), "learning_rate": POSITIVE, "width": integer(0), "n_bins": BINS,
    "n_pieces": integer(1), "n_neighbours": integer(1), "n_leaves": integer(1),
    "dropout": real("a number in [0, 1)", lambda v: 0 <= v < 1), "error_weight": NOT_NEGATIVE, "reuse": integer(1),
    "like": FRACTION, "weighed": FRACTION, "haste": POSITIVE, "n_networks": integer(1),
    "n_trees": integer(0), "forest_share": FRACTION,
}  # fmt: skip

EMFLOW: dict[str, Limit] = {
    "n_iterations": optional(integer(0)),
    "n_epochs": optional(integer(1)),
    "batch_size": integer(1),
    "learning_rate": POSITIVE,
    "reconstruction_weight": NOT_NEGATIVE,
    "step_scale": real("a number in (0, 1]", lambda v: 0 < v <= 1),
    "step_exponent": real("a number in [0, 1]", lambda v: 0 <= v <= 1),
    "covariance_inflation": (
        "a number of at least 0, or a sequence of them",
        lambda v: np.ndim(v) <= 1 and all(NOT_NEGATIVE[1](b) for b in (v if np.ndim(v) else [v])),
    ),
    "super_batch_size": integer(0),
    "flow": FLOW,
    "n_couplings": integer(0),
    "hidden_width": optional(integer(1)),
    "reinit": BOOLEAN,
    "initial_fill": (f"one of {', '.join(FILLS)}", lambda v: v in FILLS),
    "refine": (
        '"auto", "on", "off", or a dict of settings',
        lambda v: isinstance(v, dict) or v in ("auto", "on", "off"),
    ),
    "refine_steps": optional(integer(1)),
    "store_rows": (
        "True, False, or an integer of at least 2",
        lambda v: isinstance(v, bool | np.bool_) or integer(2)[1](v),
    ),
    "kinds": KINDS,
    "bounds": BOUNDS,
    "unseen": UNSEEN,
    "add_indicator": BOOLEAN,
    "keep_empty_features": BOOLEAN,
    "clip": BOOLEAN,
    "validation_fraction": real("a number in [0, 0.5]", lambda v: 0 <= v <= 0.5),
    "tol": real("a number in [0, 1)", lambda v: 0 <= v < 1),
    "patience": integer(1),
    "max_time": SECONDS,
    "checkpoint": optional(("the path of a folder", lambda v: bool(os.fspath(v)))),
    "dtype": ('"float32" or "float64"', lambda v: v in ("float32", "float64")),
    "device": DEVICE,
    "random_state": SEED,
    "verbose": BOOLEAN,
}
