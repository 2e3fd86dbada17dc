"""The two losses against torch.distributions, and their gradients against plain autograd."""

import naive
import pytest
import torch
from torch.autograd.functional import jacobian
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from emflow import EMFlowImputer
from emflow.flow.realnvp import Pass, RealNVP
from emflow.latent.condition import Conditional
from emflow.latent.patterns import Patterns
from emflow.learn.objective import composite_loss, negative_log_likelihood
from emflow.learn.state import Run
from emflow.learn.train import training_step

BEFORE, AFTER = naive.random_gaussian(5, seed=1), naive.random_gaussian(5, seed=2)  # an update of the Gaussian
X_HAT, MISSING = naive.random(8, 5), naive.random_missing(8, 5, 0.4)


@pytest.fixture
def flow():
    return RealNVP(5, generator=torch.Generator().manual_seed(0)).double()


def normal(gaussian):
    return MultivariateNormal(gaussian.mean, gaussian.cov)


def conditional(gaussian):
    return Conditional(gaussian, Patterns(MISSING).layout(torch.arange(len(X_HAT))))


def second_loss(flow, alpha, missing=MISSING):
    """Return L2 as a training step makes it, and the passes that it is made from."""
    encoding, kernel = Pass(flow, X_HAT), conditional(BEFORE)
    z_hat = kernel.mean(encoding.result)
    decoding = Pass(flow, z_hat, decode=True)
    return composite_loss(AFTER, z_hat, decoding.result, decoding.log_det, X_HAT, missing, alpha), decoding


def log_density(flow, gaussian, x):
    """Return the log-density of rows in data space, equation 3, with the Jacobian of autograd."""
    z = flow.encode(x)[0].detach()
    log_det = [jacobian(lambda row: flow.encode(row[None])[0][0], row).slogdet().logabsdet for row in x]
    return normal(gaussian).log_prob(z) + torch.stack(log_det)


def plain_first_loss(flow, weights, gaussian):
    z, log_det = naive.encode(flow, weights, X_HAT)
    return -(normal(gaussian).log_prob(z) + log_det).mean()


def plain_second_loss(flow, weights, alpha):
    """Return equation 14 with every step in the graph; the density of x_rec takes a second encode."""
    z_hat, _ = naive.conditional_moments(BEFORE, naive.encode(flow, weights, X_HAT)[0], MISSING)
    x_rec, _ = naive.decode(flow, weights, z_hat)
    z, log_det = naive.encode(flow, weights, x_rec)
    reconstruction = ((x_rec - X_HAT)[~MISSING] ** 2).sum() / len(X_HAT)
    return -(normal(AFTER).log_prob(z) + log_det).mean() + alpha * reconstruction


def test_first_loss(flow):
    encoding = Pass(flow, X_HAT)
    expected = -log_density(flow, AFTER, X_HAT).mean()
    assert_close(negative_log_likelihood(AFTER, encoding.result, encoding.log_det).value, expected)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_second_loss(flow, alpha):
    loss, decoding = second_loss(flow, alpha)
    x_rec = decoding.result
    error = sum(((x_rec - X_HAT)[i, ~MISSING[i]] ** 2).sum() for i in range(len(X_HAT))) / len(X_HAT)
    assert_close(loss.reconstruction, error)
    assert_close(loss.value, -log_density(flow, AFTER, x_rec).mean() + alpha * error)


def test_nothing_to_reconstruct_where_nothing_is_missing(flow):
    """z_hat is z then: x_rec is x_hat, and both losses are the same."""
    encoding = Pass(flow, X_HAT)
    decoding = Pass(flow, encoding.result, decode=True)
    none = torch.zeros_like(MISSING)
    loss = composite_loss(AFTER, encoding.result, decoding.result, decoding.log_det, X_HAT, none, 3.0)
    assert_close(loss.reconstruction, torch.zeros_like(loss.reconstruction))
    assert_close(loss.value, negative_log_likelihood(AFTER, encoding.result, encoding.log_det).value)


# --- gradients: what a training step hands to the optimiser


class Recorder:
    """Takes the place of the optimiser and leaves the weights as they are."""

    def __init__(self, flow):
        self.flow, self.gradients = flow, []

    def step(self):
        self.gradients.append(self.flow.weights.grad.clone())


def gradients_of_a_step(flow, alpha):
    settings = EMFlowImputer.paper(reconstruction_weight=alpha).settings(len(X_HAT))
    none = torch.zeros(0)
    run = Run(settings, X_HAT, Patterns(MISSING), none.long(), none, torch.Generator(), seed=0)
    run.flow, run.optimiser, run.em.estimate = flow, Recorder(flow), BEFORE
    run.em.update = lambda statistics: AFTER
    training_step(run, torch.arange(len(X_HAT)))
    return run.optimiser.gradients


@pytest.mark.parametrize("alpha", [0.0, 3.0, 1e6])
def test_gradients_of_a_step(flow, alpha):
    """They are those of both losses with every operation in autograd's graph: that of L2 flows through z_hat."""
    plain = plain_first_loss(flow, flow.weights, BEFORE), plain_second_loss(flow, flow.weights, alpha)
    expected = [torch.autograd.grad(loss, flow.weights)[0] for loss in plain]
    assert_close(gradients_of_a_step(flow, alpha), expected)
