"""A small table with holes, and both imputers with settings that fit it in a blink."""

from functools import partial

import numpy as np
import pytest

from emflow import EMFlowImputer, GaussianImputer

SHORT = {"n_iterations": 1, "n_epochs": 2, "batch_size": 32, "refine": "off", "random_state": 0}
IMPUTERS = {
    "emflow": partial(EMFlowImputer, **SHORT, initial_fill="median"),
    "emflow from a gaussian": partial(EMFlowImputer, **SHORT, initial_fill="gaussian"),
    "emflow, refined": partial(EMFlowImputer, refine="on", refine_steps=3, random_state=0),
    "gaussian": partial(GaussianImputer, n_iterations=20, random_state=0),
}


@pytest.fixture
def complete():
    """Rows (60, 4) of correlated columns in different units."""
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(60, 1))
    return (factor + 0.3 * rng.normal(size=(60, 4))) * [1, 10, 0.1, 100] + [0, 5, -3, 1000]


@pytest.fixture
def x(complete):
    """The same with a fifth of the cells missing."""
    return np.where(np.random.default_rng(1).random(complete.shape) < 0.2, np.nan, complete)


@pytest.fixture(params=IMPUTERS)
def make(request):
    """A function that makes an imputer from parameters."""
    return IMPUTERS[request.param]


@pytest.fixture
def make_emflow():
    return IMPUTERS["emflow"]


@pytest.fixture
def make_refined():
    return IMPUTERS["emflow, refined"]


@pytest.fixture
def make_gaussian():
    return IMPUTERS["gaussian"]
