import naive
import pytest
import torch

from emflow import FileError, files
from emflow.flow.realnvp import RealNVP
from emflow.learn.reimpute import Stage
from emflow.learn.state import stages_from_tensors, stages_to_tensors
from emflow.learn.train import reimputation_phase, train, training_epoch

X, MISSING = naive.random(60, 4).sigmoid(), naive.random_missing(60, 4, 0.3)
X[0] = 0  # as what is missing looks when it is masked
START = Stage(RealNVP(4, n_couplings=0).double(), naive.random_gaussian(4))


def record(run, errors):
    """Record an outer iteration for each error on the hidden cells."""
    for error in errors:
        run.iteration += 1
        run.x_hat.put_(run.hidden, run.hidden_values + error)
        run.record_iteration(change=0.0, seconds=0.0)


# --- settings


@pytest.mark.parametrize(
    ("schedule", "betas"),
    [((0.1,), [0.1, 0.1, 0.1]), ((0.3, 0.2), [0.3, 0.2, 0.2]), ((0.3, 0.2, 0.1), [0.3, 0.2, 0.1]), ((), [0, 0, 0])],
)
def test_last_inflation_of_the_schedule_holds(new_run, schedule, betas):
    settings = new_run(X, MISSING, covariance_inflation=schedule).settings
    assert [settings.beta(iteration) for iteration in range(3)] == betas


# --- stopping


@pytest.mark.parametrize(
    ("errors", "patience", "best", "stopped"),
    [
        ([3, 2, 1], 1, 3, False),
        ([3, 2, 2.5], 1, 2, True),
        ([3, 2, 1.999], 1, 3, True),  # better, but by less than tol
        ([3, 4], 2, 1, False),
        ([3, 4, 2], 2, 3, False),
        ([3, 4, 5], 2, 1, True),
    ],
)
def test_stops_when_hidden_cells_no_longer_improve(new_run, errors, patience, best, stopped):
    run = new_run(X, MISSING, hidden=[0, 5], patience=patience, tol=1e-2, n_iterations=10)
    record(run, errors)
    assert [r["validation_rmse"] for r in run.history["iterations"]] == pytest.approx(errors)
    assert (run.best_iteration, run.finished) == (best, stopped)


def test_stops_at_the_maximum(new_run):
    run = new_run(X, MISSING, n_iterations=2)
    for finished in (False, True):
        record(run, [1.0])
        assert run.finished == finished


def test_last_iteration_is_the_best_without_hidden_cells(new_run):
    run = new_run(X, MISSING)
    record(run, [1.0, 1.0])
    assert run.best_iteration == 2
    assert run.history["iterations"][-1]["validation_rmse"] is None


@pytest.mark.parametrize(("errors", "best"), [([0.1], 1), ([0.3, 0.25], 0)])
def test_start_is_kept_when_nothing_is_better(new_run, errors, best):
    """It counts as iteration 0, and its error on the hidden cells is 0.2."""
    run = new_run(X, MISSING, hidden=[0, 5], error=0.2, start=START)
    run.stages = [Stage(run.flow, START.gaussian) for _ in errors]
    record(run, errors)
    assert run.best_iteration == best
    assert run.model == [START, *run.stages[:best]]


def test_probabilities_are_judged_by_squares(new_run):
    """Where 3 of 10 are one, .3 is a better answer than 0, though its absolute error is larger."""
    x = X.clone()
    x[:, 1] = (torch.arange(60) % 10 < 3).double()
    run = new_run(x, MISSING, hidden=list(range(1, 120, 4)))
    zero, share = (run.error(torch.full_like(x, value)) for value in (0.0, 0.3))
    assert share.mean() > zero.mean()
    assert run.gain(zero, share) == -run.gain(share, zero) > 1
    others = new_run(x, MISSING, hidden=list(range(2, 120, 4)))
    errors = torch.full((30,), 0.5), torch.linspace(0, 0.9, 30)
    assert others.gain(*errors) == pytest.approx((0.05 / errors[1].std(correction=0) * 30**0.5).item(), rel=1e-4)


@pytest.mark.parametrize("hidden", [[], [0, 5]])
def test_run_that_has_learnt_nothing_has_no_model(new_run, hidden):
    assert new_run(X, MISSING, hidden=hidden).model == []


# --- checkpoints


@pytest.mark.parametrize("epochs", [0, 1, 2, 3])
def test_resumed_run_goes_on_as_the_other_would_have(new_run, epochs, tmp_path):
    """Saved at the start, in the first outer iteration, between both, and in the second one."""
    run, resumed = (new_run(X, MISSING, n_iterations=2, n_epochs=2) for _ in range(2))
    for _ in range(epochs):
        training_epoch(run)
        if run.epoch == 2:
            reimputation_phase(run, started=0.0)
    run.save(tmp_path / "run")
    resumed.restore(*files.read(tmp_path / "run"))
    for each in (run, resumed):
        train(each)
    tensors, others = stages_to_tensors(run.stages), stages_to_tensors(resumed.stages)
    assert len(run.stages) == len(resumed.stages) == 2
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert torch.equal(run.x_hat, resumed.x_hat)


FLIPPED = torch.cat([~MISSING[:1], MISSING[1:]])
OTHERS = {
    "value": (X + 1e-9, MISSING, {}),
    "missing cells": (X, FLIPPED, {}),
    "setting": (X, MISSING, {"learning_rate": 0.5}),
}


@pytest.mark.parametrize(("x", "missing", "changes"), OTHERS.values(), ids=OTHERS)
def test_checkpoint_of_another_run_is_refused(new_run, x, missing, changes, tmp_path):
    new_run(X, MISSING).save(tmp_path / "run")
    with pytest.raises(FileError, match="checkpoint was made from other"):
        new_run(x, missing, **changes).restore(*files.read(tmp_path / "run"))


def test_stages_survive_a_file(tmp_path):
    flows = [RealNVP(4, n, width=3, generator=torch.Generator().manual_seed(n)) for n in (0, 3)]
    stages = [Stage(flow, naive.random_gaussian(4, seed=n)) for n, flow in enumerate(flows)]
    files.write(tmp_path / "model", stages_to_tensors(stages), {"shapes": [flow.shape for flow in flows]})
    tensors, header = files.read(tmp_path / "model")
    found = stages_from_tensors(tensors, header["shapes"], torch.device("cpu"))
    z = naive.random(5, 4).float()
    for stage, again in zip(stages, found, strict=True):
        assert torch.equal(stage.gaussian.mean, again.gaussian.mean)
        assert torch.equal(stage.gaussian.cov, again.gaussian.cov)
        assert torch.equal(stage.flow.decode(z)[0], again.flow.decode(z)[0])
