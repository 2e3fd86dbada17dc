"""What emflow computes, written slowly and plainly: loops over rows, scipy, and gradients left to autograd."""

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import multivariate_normal
from torch.nn.functional import leaky_relu

from emflow.latent.gaussian import Gaussian
from emflow.latent.online_em import Statistics

# --- random inputs


def random(*shape, seed=0):
    """Draw standard normal values in double precision."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_gaussian(p, seed=0):
    """Draw a mean and a well-conditioned covariance with correlations."""
    root = random(p, 2 * p, seed=seed)
    return Gaussian(random(p, seed=seed + 1), root @ root.mT / (2 * p) + 0.1 * torch.eye(p, dtype=torch.float64))


def random_missing(n, p, rate, seed=0):
    """Draw cells that are missing completely at random."""
    return torch.rand(n, p, generator=torch.Generator().manual_seed(seed)) < rate


# --- the latent Gaussian, row by row


def condition(gaussian, missing):
    """Return A, C (p, p) of one row, whose z given its observed part is N(mean + A (z - mean), C): equations 6, 19."""
    m, o = missing.numpy(), ~missing.numpy()
    cov = gaussian.cov.numpy()
    gain, spread = np.diag(o.astype(float)), np.zeros_like(cov)
    regression = cho_solve(cho_factor(cov[np.ix_(o, o)]), cov[np.ix_(o, m)]).T
    gain[np.ix_(m, o)] = regression
    spread[np.ix_(m, m)] = cov[np.ix_(m, m)] - regression @ cov[np.ix_(o, m)]
    return torch.from_numpy(gain), torch.from_numpy(spread)


def conditional_moments(gaussian, z, missing):
    """Return z_hat (n, p) and the conditional covariances (n, p, p) of the rows; autograd can follow z_hat."""
    gains, spreads = map(torch.stack, zip(*(condition(gaussian, row) for row in missing), strict=True))
    return gaussian.mean + torch.einsum("nij,nj->ni", gains, z - gaussian.mean), spreads


def statistics(gaussian, z, missing):
    """Return the count, the sum of E[z] and the sum of E[zz'] of the rows."""
    z_hat, spreads = conditional_moments(gaussian, z, missing)
    return Statistics(len(z), z_hat.sum(0), (z_hat[:, :, None] * z_hat[:, None, :] + spreads).sum(0))


def em_step(gaussian, z, missing):
    """Return the Gaussian after one classic EM step: equation 22."""
    z_hat, spreads = conditional_moments(gaussian, z, missing)
    centred = z_hat - z_hat.mean(0)
    return Gaussian(z_hat.mean(0), (centred[:, :, None] * centred[:, None, :] + spreads).mean(0))


def log_likelihood(gaussian, x, missing):
    """Return the log-likelihood of the observed cells: the objective of EM, equation 1."""
    mean, cov = gaussian.mean.numpy(), gaussian.cov.numpy()
    total = 0.0
    for row, o in zip(x.numpy(), ~missing.numpy(), strict=True):
        if o.any():
            total += multivariate_normal(mean[o], cov[np.ix_(o, o)]).logpdf(row[o])
    return total


# --- the flow, coupling by coupling


def couplings(flow, weights):
    """Return kept features, changed features and the layers (weight, bias) of each coupling of a RealNVP.

    `weights` is its flat parameter, or another tensor of that length; [0] of a layer is of the scale, [1] of the shift.
    """
    result = []
    for n, layers in enumerate(flow._cut(weights)):
        halves = flow.orders[n // 2].tensor_split([flow.orders.shape[1] // 2])
        result.append((halves[n % 2], halves[1 - n % 2], [(layer.weight, layer.bias) for layer in layers]))
    return result


def network(layers, x):
    """Return the output of a linear network with LeakyReLU between its layers."""
    for n, (weight, bias) in enumerate(layers):
        x = (leaky_relu(x, 0.01) if n else x) @ weight.mT + bias.mT
    return x


def couple(x, kept, changed, layers, decode):
    """Apply one affine coupling with the features in the order of x: equation 16."""
    scale = network([(weight[0], bias[0]) for weight, bias in layers], x[:, kept]).tanh()
    shift = network([(weight[1], bias[1]) for weight, bias in layers], x[:, kept])
    new = (x[:, changed] - shift) / scale.exp() if decode else x[:, changed] * scale.exp() + shift
    return x.index_copy(1, changed, new), -scale.sum(1) if decode else scale.sum(1)


def encode(flow, weights, x):
    """Return z and log|det dz/dx|."""
    return walk(couplings(flow, weights), x, decode=False)


def decode(flow, weights, z):
    """Return x and log|det dx/dz|."""
    return walk(couplings(flow, weights)[::-1], z, decode=True)


def walk(steps, x, decode):
    log_det = x.new_zeros(len(x))
    for step in steps:
        x, part = couple(x, *step, decode)
        log_det = log_det + part
    return x, log_det
