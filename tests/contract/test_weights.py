"""Weights of rows: so many rows of the same kind, for the Gaussian exactly, for what is trained in the long run."""

import naive
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch.testing import assert_close

from emflow import DataError, EMFlowImputer, GaussianImputer
from emflow.latent import patterns
from emflow.latent.condition import Conditional
from emflow.order import shuffled
from emflow.table.schema import Schema


@pytest.fixture
def weight(x):
    return np.random.default_rng(5).integers(0, 4, len(x)).astype(float)


def moments(imputer):
    schema, span = imputer.schema_, np.asarray(imputer.schema_.span)
    return imputer.latent_mean_ * span + schema.low, imputer.latent_covariance_ * np.outer(span, span)


@pytest.mark.parametrize("n_columns", [4, 2])
@pytest.mark.parametrize("share", [0.2, 0.7])  # by missing and by observed coordinates
def test_whole_weights_are_repeated_rows(complete, weight, n_columns, share):
    rng = np.random.default_rng(3)
    x = np.where(rng.random(complete.shape) < share, np.nan, complete)[:, :n_columns]
    repeated = np.repeat(x, weight.astype(int), 0)
    one, other = GaussianImputer().fit(x, sample_weight=weight), GaussianImputer().fit(repeated)
    assert one.n_iter_ == other.n_iter_
    assert one.schema_ == other.schema_
    for found, expected in zip(moments(one), moments(other), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(one.transform(x), other.transform(x), rtol=1e-8)
    assert not np.allclose(one.transform(x), GaussianImputer().fit(x).transform(x), rtol=1e-4)


def test_images_too(weight):
    images = np.random.default_rng(0).normal(size=(60, 3, 3)).cumsum(1)
    images[np.random.default_rng(1).random(images.shape) < 0.3] = np.nan
    one = GaussianImputer().fit(images, sample_weight=weight)
    other = GaussianImputer().fit(np.repeat(images, weight.astype(int), 0))
    np.testing.assert_allclose(one.transform(images), other.transform(images), rtol=1e-7)
    assert one.schema_.middle == pytest.approx(other.schema_.middle)


def test_draws_of_wide_data_are_weighted(monkeypatch):
    """Where blocks are too large to be factorised, draws stand for the inverses: on average these are the same."""
    n, p = 4000, 5
    gaussian, missing = naive.random_gaussian(p), naive.random_missing(n, p, 0.5)
    x = gaussian.sample(n, torch.Generator().manual_seed(0))
    weight = torch.arange(n).double() % 4
    found = []
    for large in (False, True):
        if large:
            monkeypatch.setattr(patterns, "WIDE", 2)
            monkeypatch.setattr(patterns, "LARGE_BLOCK", 0)
        layout = patterns.Patterns(missing).layout(torch.arange(n))
        assert (layout.too_large is not None) == large
        kernel = Conditional(gaussian, layout, torch.Generator().manual_seed(0))
        found.append(kernel.statistics(kernel.mean(x), weight))
    assert found[0].count == found[1].count == weight.sum()
    assert_close(found[0].outer / n, found[1].outer / n, atol=0.1, rtol=0)


@pytest.mark.parametrize(
    "kind", [np.asarray, lambda x: pd.DataFrame(x).set_index(x[:, 0]), pl.DataFrame, np.ndarray.tolist]
)
def test_weight_zero_leaves_a_row_out(make, x, weight, kind):
    keep = weight > 0
    missing = np.random.default_rng(6).random(x.shape) < 0.05
    one = make().fit(kind(x), missing=missing, sample_weight=keep)
    other = make().fit(kind(x[keep]), missing=missing[keep])
    np.testing.assert_array_equal(one.transform(kind(x)), other.transform(kind(x)))


@pytest.mark.parametrize("sample_weight", [None, 1, [1] * 60, pd.Series([1.0] * 60)])
def test_weights_of_one_are_none(make, x, sample_weight):
    one, other = make().fit(x, sample_weight=sample_weight), make().fit(x)
    np.testing.assert_array_equal(one.transform(x), other.transform(x))


def test_equal_weights_change_nothing(x):
    one, other = GaussianImputer().fit(x, sample_weight=2.5), GaussianImputer().fit(x)
    np.testing.assert_allclose(one.transform(x), other.transform(x), rtol=1e-10)
    assert (one.n_seen_, other.n_seen_) == (150, 60)


SETTINGS = {
    "flow": {"n_iterations": 1, "n_epochs": 20, "initial_fill": "draw", "refine": "off"},
    "table": {"refine": "on", "refine_steps": 60},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_what_is_trained_follows_the_weights(settings):
    """Of two relations between columns, it learns the one whose rows have the weight."""
    rng = np.random.default_rng(0)
    first = rng.uniform(-1, 1, 400)
    sign = np.where(np.arange(400) % 2, 1, -1)
    X = np.column_stack([first, sign * first + 0.05 * rng.normal(size=400), rng.normal(size=400)])
    X[rng.random(X.shape) < 0.1] = np.nan
    new = np.array([[0.8, np.nan, 0.0]])
    for side in (-1, 1):
        weight = np.where(sign == side, 1.0, 0.02)
        imputer = EMFlowImputer(**settings, validation_fraction=0, random_state=0).fit(X, sample_weight=weight)
        assert side * imputer.transform(new)[0, 1] > 0.3


def test_errors_on_hidden_cells_are_weighted(new_run):
    x = torch.rand(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    run = new_run(x, torch.zeros(6, 3, dtype=torch.bool), hidden=(1, 9))  # of rows 0 and 3
    run.x_hat = run.x_hat.put(run.hidden, run.hidden_values + torch.tensor([1.0, 3.0]).double())
    run.weight = torch.tensor([5.0, 9, 9, 2, 9, 9]).double()
    run.record_iteration(0.0, 0.0)
    assert run.history["iterations"][-1]["validation_rmse"] == pytest.approx(((5 * 1 + 2 * 9) / 7) ** 0.5)


@pytest.mark.parametrize(
    ("sample_weight", "match"),
    [
        ([1.0, 2.0], r"sample_weight has shape \(2,\), but X has 60 rows"),
        (np.ones((60, 2)), r"sample_weight has shape \(60, 2\)"),
        ([1.0] * 59 + [-1.0], r"sample_weight of row 59 is -1.0: it must be finite"),
        ([np.nan] + [1.0] * 59, "sample_weight of row 0 is nan"),
        ([np.inf] + [1.0] * 59, "sample_weight of row 0 is inf"),
        (np.zeros(60), "sample_weight is zero in every row"),
        (["much"] * 60, "sample_weight must be numbers"),
    ],
)
def test_weights_that_are_none_are_refused(make, x, sample_weight, match):
    with pytest.raises(DataError, match=match):
        make().fit(x, sample_weight=sample_weight)


def test_a_median_by_weight(x):
    weight = np.random.default_rng(4).integers(1, 4, 60)
    found = Schema.learn(None, x, None, weight.astype(float)).middle
    assert found == Schema.learn(None, np.repeat(x, weight, 0)).middle


def test_rows_come_as_often_as_they_weigh():
    generator = torch.Generator().manual_seed(0)
    assert_close(shuffled(10, generator).sort().values, torch.arange(10))
    weight = torch.tensor([0.5, 1.0, 2.0, 0.5])
    counts = torch.stack([shuffled(4, generator, weight).bincount(minlength=4) for _ in range(400)]).double()
    assert ((counts - weight).abs() < 1).all()
    assert_close(counts.mean(0), weight.double(), atol=0.1, rtol=0)
    places = torch.stack([shuffled(4, generator, weight) for _ in range(400)])
    assert_close((places == 2).double().mean(0), torch.full((4,), 0.5).double(), atol=0.12, rtol=0)
