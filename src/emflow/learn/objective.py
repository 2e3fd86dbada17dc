"""The two losses of Algorithm 1, each with its gradients by what the flow made.

The Gaussian is a constant in both: only the flow learns by gradient. A loss is a handful of sums behind the flow, and
its gradients are at hand as soon as its value is; automatic differentiation would spend more than the numbers cost.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from emflow.latent.gaussian import Gaussian


class FirstLoss(NamedTuple):
    """L1 and its gradients."""

    value: Tensor
    by_z: Tensor
    by_log_det: Tensor


class SecondLoss(NamedTuple):
    """L2 and its gradients."""

    value: Tensor
    reconstruction: Tensor  # the error of equation 15, averaged over the batch
    by_z_hat: Tensor
    by_x_rec: Tensor
    by_log_det: Tensor


def negative_log_likelihood(gaussian: Gaussian, z: Tensor, log_det: Tensor) -> FirstLoss:
    """L1, equation 11: mean over the batch of -log p_X(x_hat), with p_X as in equation 3 and z, log_det of x_hat."""
    log_prob, slope = gaussian.log_prob_and_slope(z)
    n = len(z)
    return FirstLoss(-(log_prob + log_det).mean(), (slope / -n).to(z.dtype), torch.full_like(log_det, -1 / n))


def composite_loss(
    gaussian: Gaussian, z_hat: Tensor, x_rec: Tensor, log_det: Tensor, x_hat: Tensor, missing: Tensor, alpha: float
) -> SecondLoss:
    """L2, equation 14, with x_rec = f(z_hat) and log_det = log|det dx/dz|, minus the one of equation 3.

    The density of x_rec needs no second encode: its latent is z_hat.
    """
    log_prob, slope = gaussian.log_prob_and_slope(z_hat)
    n, error = len(x_hat), (x_rec - x_hat).masked_fill_(missing, 0)
    reconstruction = error.square().sum() / n
    loss = (log_det - log_prob).mean() + alpha * reconstruction
    by_z_hat, by_log_det = (slope / -n).to(z_hat.dtype), torch.full_like(log_det, 1 / n)
    return SecondLoss(loss, reconstruction, by_z_hat, error.mul_(2 * alpha / n), by_log_det)
