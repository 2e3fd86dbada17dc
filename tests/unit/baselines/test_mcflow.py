"""MCFlow: its two losses and their gradients against plain autograd, its schedule, and what it learns."""

import math

import naive
import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from emflow.baselines import MCFlowImputer
from emflow.baselines.mcflow import _Training, latent_network, refresh
from emflow.errors import ParameterError
from emflow.flow.image import ImageFlow
from emflow.flow.realnvp import RealNVP

X_HAT, MISSING = naive.random(8, 5).sigmoid(), naive.random_missing(8, 5, 0.4)
STANDARD = MultivariateNormal(torch.zeros(5).double(), torch.eye(5).double())


@pytest.fixture
def make_training():
    def make(**parameters):
        generator = torch.Generator().manual_seed(0)
        return _Training(MCFlowImputer(**parameters), {"n_features": 5}, X_HAT.clone(), MISSING, X_HAT.dtype, generator)

    return make


def plain_losses(training):
    """Return both losses with every operation in the graph of flow and network."""
    flow, weights = training.flow, training.flow.weights
    z, log_det = naive.encode(flow, weights, X_HAT)
    first = -(STANDARD.log_prob(z) + log_det).mean()
    x_rec, _ = naive.decode(flow, weights, training.network(z))
    z_rec, log_det = naive.encode(flow, weights, x_rec)
    second = ((x_rec - X_HAT)[~MISSING] ** 2).sum() - (STANDARD.log_prob(z_rec) + log_det).mean()
    return first, second


class Recorder:
    """Takes the place of an optimiser and leaves the weights as they are."""

    def __init__(self, module):
        self.parameters, self.gradients = list(module.parameters()), []

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.gradients.append([parameter.grad.clone() for parameter in self.parameters])


def test_losses_and_gradients_of_two_steps(make_training):
    training = make_training(flow_sees_network_loss=True)
    first, second = plain_losses(training)
    by_flow = torch.autograd.grad(first, training.flow.weights, retain_graph=True)[0]
    left_over = torch.autograd.grad(second, training.flow.weights, retain_graph=True)[0]
    by_network = torch.autograd.grad(second, list(training.network.parameters()))
    training.flow_optimiser, training.network_optimiser = Recorder(training.flow), Recorder(training.network)
    for _ in range(2):
        assert_close(training.step(torch.arange(8)), torch.stack([first, second]).detach())
    assert_close(training.flow_optimiser.gradients, [[by_flow], [by_flow + left_over]])
    assert_close(training.network_optimiser.gradients, [list(by_network)] * 2)


def test_the_flow_may_follow_its_own_loss_alone(make_training):
    training = make_training()
    expected = torch.autograd.grad(plain_losses(training)[0], training.flow.weights)[0]
    training.flow_optimiser, training.network_optimiser = Recorder(training.flow), Recorder(training.network)
    for _ in range(2):
        training.step(torch.arange(8))
    assert_close(training.flow_optimiser.gradients, [[expected]] * 2)


def test_a_new_completion_comes_with_a_new_flow_and_the_old_network(make_training):
    training = make_training(flow_sees_network_loss=True)
    training.epoch()
    weights, network = training.flow.weights.clone(), [p.clone() for p in training.network.parameters()]
    stage = training.complete_anew()
    assert torch.equal(stage.flow.weights, weights.double())
    assert not torch.equal(training.flow.weights, weights)
    assert all(torch.equal(a, b) for a, b in zip(training.network.parameters(), network, strict=True))
    assert torch.equal(training.left_over, torch.zeros_like(weights))
    assert_close(training.x_hat, refresh(stage, X_HAT, MISSING))
    assert torch.equal(training.x_hat[~MISSING], X_HAT[~MISSING])
    assert training.x_hat[MISSING].min() >= 0
    assert training.x_hat[MISSING].max() <= 1


def test_refresh_decodes_the_moved_latent(make_training):
    flow, network = make_training().flow, latent_network(5, torch.Generator().manual_seed(1)).double()
    x_rec, _ = naive.decode(flow, flow.weights, network(naive.encode(flow, flow.weights, X_HAT)[0]))
    found = refresh((flow, network), X_HAT, MISSING)
    assert_close(found[MISSING], x_rec.detach().clamp(0, 1)[MISSING])


def test_network_has_five_layers_of_width_p():
    network = latent_network(7, torch.Generator().manual_seed(0))
    linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linear] == [(7, 7)] * 5
    assert len(network) == 9
    assert not isinstance(network[-1], torch.nn.LeakyReLU)
    assert max(layer.weight.abs().max().item() for layer in linear) <= 1 / math.sqrt(7)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1)) + 0.1 * rng.normal(size=(400, 4))
    return X, np.where(rng.random(X.shape) < 0.2, np.nan, X)


@pytest.mark.parametrize(("n_epochs", "epochs"), [(1, [1]), (2, [2]), (4, [2, 4]), (11, [2, 4, 8, 11])])
def test_stages_are_taken_at_powers_of_two_and_at_the_end(table, n_epochs, epochs):
    fitted = MCFlowImputer(n_epochs=n_epochs, random_state=0).fit(table[1])
    assert [record["epoch"] for record in fitted.stage_history_] == epochs
    assert len(fitted.stages_) == len(epochs)
    assert [record["epoch"] for record in fitted.history_] == list(range(1, n_epochs + 1))
    assert not fitted.timed_out_


@pytest.mark.parametrize(("epoch", "taken"), [(1, True), (2, True), (4, True), (5, False), (6, True), (7, True)])
def test_out_of_time_a_flow_counts_if_it_has_trained_as_long_as_the_one_before(epoch, taken):
    assert MCFlowImputer()._is_stage(epoch, late=True) == taken


def test_running_out_of_time_is_told():
    fitted = MCFlowImputer(max_time=1e-9, random_state=0).fit(naive.random(30, 3).numpy())
    assert fitted.timed_out_
    assert [record["epoch"] for record in fitted.stage_history_] == [1]


def test_it_learns_from_the_other_columns(table):
    X, holes = table
    fitted = MCFlowImputer(n_epochs=60, learning_rate=1e-2, random_state=0).fit(holes)
    missing = np.isnan(holes)
    error = np.sqrt(((fitted.transform(holes) - X)[missing] ** 2).mean())
    assert error < 0.5 * X[missing].std()
    assert fitted.history_[-1]["network_loss"] < fitted.history_[0]["network_loss"]


@pytest.mark.parametrize(("flow", "kind"), [("auto", ImageFlow), ("convolutional", ImageFlow), ("dense", RealNVP)])
def test_the_flow_of_images(flow, kind):
    X = np.random.default_rng(0).random((6, 4, 4))
    X[:, 0, 0] = X[0, 1] = np.nan
    X[0, 0, 0] = 0.5
    imputer = MCFlowImputer(n_epochs=2, n_couplings=4, flow=flow, random_state=0).fit(X)
    assert [(type(stage.flow), stage.flow.n_couplings) for stage in imputer.stages_] == [(kind, 4)]


def test_convolutions_are_for_images():
    with pytest.raises(ParameterError, match='flow="convolutional" is for images'):
        MCFlowImputer(flow="convolutional").fit(np.eye(3))
