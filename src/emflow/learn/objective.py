"""The two losses of Algorithm 1. The Gaussian is a constant in both: only the flow learns by gradient.

What follows the flow in a loss is a handful of sums, and its gradient is at hand as soon as its value is. So it is
written out, and automatic differentiation sees a single node: it would spend more on the others than on the numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from emflow.flow.realnvp import RealNVP
from emflow.latent.gaussian import Gaussian


def negative_log_likelihood(flow: RealNVP, gaussian: Gaussian, x_hat: Tensor) -> Tensor:
    """L1, equation 11: mean over the batch of -log p_X(x_hat), with p_X as in equation 3."""
    z, log_det = flow.encode(x_hat)
    with torch.no_grad():
        log_prob, slope = gaussian.log_prob_and_slope(z)
        loss, n = -(log_prob + log_det).mean(), len(z)
        grads = (slope / -n).to(z.dtype), torch.full_like(log_det, -1 / n)
    return _WithGradients.apply(loss, grads, z, log_det)  # type: ignore[no-any-return, no-untyped-call]


def composite_loss(
    flow: RealNVP, gaussian: Gaussian, z_hat: Tensor, x_hat: Tensor, missing: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return L2, equation 14, and its reconstruction error (equation 15) averaged over the batch.

    The gradient flows through z_hat: through encode, the conditional mean and decode. Without that, training goes to
    nonsense. The density of x_rec = f(z_hat) needs no second encode: its latent is z_hat.
    """
    x_rec, log_det = flow.decode(z_hat)  # log|det dx/dz|: minus the one of equation 3
    with torch.no_grad():
        log_prob, slope = gaussian.log_prob_and_slope(z_hat)
        error, n = (x_rec - x_hat).masked_fill_(missing, 0), len(x_hat)
        reconstruction = error.square().sum() / n
        loss = (log_det - log_prob).mean() + alpha * reconstruction
        grads = (slope / -n).to(z_hat.dtype), error.mul_(2 * alpha / n), torch.full_like(log_det, 1 / n)
    return _WithGradients.apply(loss, grads, z_hat, x_rec, log_det), reconstruction  # type: ignore[no-untyped-call]


class _WithGradients(torch.autograd.Function):
    """A number computed elsewhere, with its gradients by the tensors that it was computed from."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, grads: tuple[Tensor, ...], *tensors: Tensor) -> Tensor:
        ctx.grads = grads
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(grad.to(g.dtype) * g for g in ctx.grads)
