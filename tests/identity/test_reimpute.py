"""Algorithm 2: what it changes, and what it must not."""

import naive
import pytest
import torch
from torch.testing import assert_close

from emflow.flow.realnvp import RealNVP
from emflow.latent.patterns import Patterns
from emflow.learn import reimpute as module
from emflow.learn.reimpute import Stage, reimpute, row_chunks

X_HAT, MISSING = naive.random(50, 6), naive.random_missing(50, 6, 0.4)


@pytest.fixture
def stage():
    return Stage(RealNVP(6, generator=torch.Generator().manual_seed(0)).double(), naive.random_gaussian(6))


def test_missing_cells_are_those_of_the_reconstruction(stage):
    flow, gaussian = stage
    z, _ = naive.encode(flow, flow.weights, X_HAT)
    x_rec, _ = naive.decode(flow, flow.weights, naive.conditional_moments(gaussian, z, MISSING)[0])
    found = reimpute(stage, X_HAT, Patterns(MISSING), clip=False)
    assert_close(found[MISSING], x_rec[MISSING].detach())


@pytest.mark.parametrize("clip", [False, True])
def test_observed_cells_stay_as_they_are(stage, clip):
    """Also those outside [0, 1], of which there are many here."""
    found = reimpute(stage, X_HAT, Patterns(MISSING), clip)
    assert torch.equal(found[~MISSING], X_HAT[~MISSING])
    assert not torch.isclose(found[MISSING], X_HAT[MISSING]).any()


@pytest.mark.parametrize("clip", [False, True])
def test_nothing_missing_leaves_the_input_unchanged(stage, clip):
    assert torch.equal(reimpute(stage, X_HAT, Patterns(torch.zeros_like(MISSING)), clip), X_HAT)


def test_input_is_not_written_to(stage):
    x_hat = X_HAT.clone()
    reimpute(stage, x_hat, Patterns(MISSING), clip=True)
    assert torch.equal(x_hat, X_HAT)


def test_clip_holds_the_range(stage):
    free = reimpute(stage, X_HAT, Patterns(MISSING), clip=False)[MISSING]
    assert free.min() < 0
    assert free.max() > 1
    assert_close(reimpute(stage, X_HAT, Patterns(MISSING), clip=True)[MISSING], free.clamp(0, 1))


def test_chunks_do_not_change_the_answer(stage, monkeypatch):
    whole = reimpute(stage, X_HAT, Patterns(MISSING), clip=False)
    monkeypatch.setattr(module, "CHUNK_CELLS", 1)
    assert len(row_chunks(X_HAT, most=len(X_HAT))) == 4
    assert_close(reimpute(stage, X_HAT, Patterns(MISSING), clip=False), whole)


def test_order_of_the_rows_does_not_change_the_answer(stage):
    found = reimpute(stage, X_HAT.flip(0), Patterns(MISSING.flip(0)), clip=False)
    assert_close(found.flip(0), reimpute(stage, X_HAT, Patterns(MISSING), clip=False))


def test_flow_in_single_precision_is_used_in_that_of_the_rows(stage):
    single = Stage(stage.flow.float(), stage.gaussian)
    found = reimpute(single, X_HAT, Patterns(MISSING), clip=False)
    assert single.flow.weights.dtype == torch.float32
    double = Stage(stage.flow.double(), stage.gaussian)
    assert torch.equal(found, reimpute(double, X_HAT, Patterns(MISSING), clip=False))
