"""The two losses against torch.distributions, and their gradients against plain autograd."""

import naive
import pytest
import torch
from torch.autograd.functional import jacobian
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from emflow.flow.realnvp import RealNVP
from emflow.latent.condition import Conditional
from emflow.latent.gaussian import Gaussian
from emflow.latent.patterns import Patterns
from emflow.learn.objective import composite_loss, negative_log_likelihood

BEFORE, AFTER = naive.random_gaussian(5, seed=1), naive.random_gaussian(5, seed=2)  # an update of the Gaussian
X_HAT, MISSING = naive.random(8, 5), naive.random_missing(8, 5, 0.4)


@pytest.fixture
def flow():
    return RealNVP(5, generator=torch.Generator().manual_seed(0)).double()


def normal(gaussian):
    return MultivariateNormal(gaussian.mean, gaussian.cov)


def impute(flow, gaussian, x_hat):
    """Return z_hat, part of the graph."""
    layout = Patterns(MISSING).layout(torch.arange(len(x_hat)))
    return Conditional(gaussian, layout).mean(flow.encode(x_hat)[0])


def log_density(flow, gaussian, x):
    """Return the log-density of rows in data space, equation 3, with the Jacobian of autograd."""
    z = flow.encode(x)[0].detach()
    log_det = [jacobian(lambda row: flow.encode(row[None])[0][0], row).slogdet().logabsdet for row in x]
    return normal(gaussian).log_prob(z) + torch.stack(log_det)


def plain_first_loss(flow, weights):
    z, log_det = naive.encode(flow, weights, X_HAT)
    return -(normal(AFTER).log_prob(z) + log_det).mean()


def plain_second_loss(flow, weights, alpha):
    """Return equation 14 with every step in the graph; the density of x_rec takes a second encode."""
    z_hat, _ = naive.conditional_moments(BEFORE, naive.encode(flow, weights, X_HAT)[0], MISSING)
    x_rec, _ = naive.decode(flow, weights, z_hat)
    z, log_det = naive.encode(flow, weights, x_rec)
    reconstruction = ((x_rec - X_HAT)[~MISSING] ** 2).sum() / len(X_HAT)
    return -(normal(AFTER).log_prob(z) + log_det).mean() + alpha * reconstruction


def test_first_loss(flow):
    expected = -log_density(flow, AFTER, X_HAT).mean()
    assert_close(negative_log_likelihood(flow, AFTER, X_HAT).detach(), expected)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_second_loss(flow, alpha):
    z_hat = impute(flow, BEFORE, X_HAT)
    loss, reconstruction = composite_loss(flow, AFTER, z_hat, X_HAT, MISSING, alpha)
    x_rec = flow.decode(z_hat)[0].detach()
    error = sum(((x_rec - X_HAT)[i, ~MISSING[i]] ** 2).sum() for i in range(len(X_HAT))) / len(X_HAT)
    assert_close(reconstruction.detach(), error)
    assert_close(loss.detach(), -log_density(flow, AFTER, x_rec).mean() + alpha * error)


def test_gradient_of_first_loss(flow):
    found = torch.autograd.grad(negative_log_likelihood(flow, AFTER, X_HAT), flow.weights)
    assert_close(found, torch.autograd.grad(plain_first_loss(flow, flow.weights), flow.weights))


@pytest.mark.parametrize("alpha", [0.0, 3.0, 1e6])
def test_gradient_of_second_loss_flows_through_z_hat(flow, alpha):
    loss, _ = composite_loss(flow, AFTER, impute(flow, BEFORE, X_HAT), X_HAT, MISSING, alpha)
    found = torch.autograd.grad(loss, flow.weights)
    assert_close(found, torch.autograd.grad(plain_second_loss(flow, flow.weights, alpha), flow.weights))


def test_no_gradient_into_the_gaussian(flow):
    gaussian = Gaussian(BEFORE.mean.clone().requires_grad_(), BEFORE.cov.clone().requires_grad_())
    loss, _ = composite_loss(flow, gaussian, impute(flow, gaussian, X_HAT), X_HAT, MISSING, 3.0)
    (loss + negative_log_likelihood(flow, gaussian, X_HAT)).backward()
    assert gaussian.mean.grad is None
    assert gaussian.cov.grad is None
    assert flow.weights.grad.abs().max() > 0


def test_nothing_to_reconstruct_where_nothing_is_missing(flow):
    """z_hat is z then: x_rec is x_hat, and both losses are the same."""
    z, _ = flow.encode(X_HAT)
    loss, reconstruction = composite_loss(flow, AFTER, z, X_HAT, torch.zeros_like(MISSING), 3.0)
    assert_close(reconstruction, torch.zeros_like(reconstruction))
    assert_close(loss, negative_log_likelihood(flow, AFTER, X_HAT))
