"""The baselines keep the contract of the imputers: scikit-learn's checks, and no parameter without an effect."""

import inspect

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from emflow import ParameterError
from emflow.baselines import GAINImputer, MCFlowImputer

SHORT = {
    MCFlowImputer: {"n_epochs": 2, "batch_size": 32, "random_state": 0},
    GAINImputer: {"n_steps": 5, "batch_size": 16, "random_state": 0},
}
CHANGED = {
    MCFlowImputer: {
        "n_epochs": 4, "batch_size": 8, "learning_rate": 1e-2, "n_couplings": 2, "flow_sees_network_loss": True,
        "max_time": 1e-9, "random_state": 1,
    },
    GAINImputer: {
        "n_steps": 6, "batch_size": 8, "learning_rate": 1e-2, "hint_rate": 0.1, "reconstruction_weight": 1.0,
        "max_time": 1e-9, "random_state": 1,
    },
}  # fmt: skip
EVERY_CHANGE = [pytest.param(cls, name, id=f"{cls.__name__}-{name}") for cls in CHANGED for name in CHANGED[cls]]


@parametrize_with_checks([cls(**parameters) for cls, parameters in SHORT.items()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("cls", "name"), EVERY_CHANGE)
def test_every_parameter_changes_what_is_learnt(cls, name, x):
    results = [
        cls(**parameters).fit(x).transform(x) for parameters in (SHORT[cls], SHORT[cls] | {name: CHANGED[cls][name]})
    ]
    assert not np.array_equal(*results)


@pytest.mark.parametrize("cls", SHORT)
def test_no_parameter_is_left_out_here(cls):
    of_images = {"flow"} if cls is MCFlowImputer else set()
    assert set(inspect.signature(cls).parameters) == {*CHANGED[cls], *of_images, "device", "verbose"} == set(cls.limits)


@pytest.mark.parametrize("cls", SHORT)
def test_a_bad_parameter_is_named(cls):
    with pytest.raises(ParameterError, match=f"learning_rate of {cls.__name__} must be a positive number"):
        cls(learning_rate=0).fit([[1.0], [2.0]])


@pytest.mark.parametrize("cls", SHORT)
def test_a_device_that_cannot_be_used_is_refused(cls):
    with pytest.raises(ParameterError, match="device"):
        cls(device="nowhere").fit([[1.0], [2.0]])


@pytest.mark.parametrize("cls", SHORT)
def test_progress_is_shown_on_request(cls, x, capsys):
    cls(**SHORT[cls], verbose=True).fit(x)
    assert cls.__name__.removesuffix("Imputer").lower() in capsys.readouterr().err


@pytest.mark.parametrize("cls", SHORT)
@pytest.mark.parametrize("rows", [[5], [40, 3, 3, 17]], ids=len)
def test_a_row_does_not_depend_on_the_rows_beside_it(cls, x, rows):
    fitted = cls(**SHORT[cls]).fit(x)
    np.testing.assert_allclose(fitted.transform(x[rows]), fitted.transform(x)[rows], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cls", SHORT)
def test_global_generators_are_left_alone(cls, x):
    before = torch.get_rng_state()
    cls(**SHORT[cls]).fit(x).transform(x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("cls", SHORT)
def test_filled_cells_stay_in_range_and_observed_ones_are_kept(cls, x):
    filled, missing = cls(**SHORT[cls]).fit(x).transform(x), np.isnan(x)
    np.testing.assert_array_equal(filled[~missing], x[~missing])
    assert (filled >= np.nanmin(x, 0)).all()
    assert (filled <= np.nanmax(x, 0)).all()
