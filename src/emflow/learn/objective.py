"""The two losses of Algorithm 1. The Gaussian is a constant in both: only the flow learns by gradient."""

from __future__ import annotations

from torch import Tensor

from emflow.flow.realnvp import RealNVP
from emflow.latent.gaussian import Gaussian


def negative_log_likelihood(flow: RealNVP, gaussian: Gaussian, x_hat: Tensor) -> Tensor:
    """L1, equation 11: mean over the batch of -log p_X(x_hat), with p_X as in equation 3."""
    z, log_det = flow.encode(x_hat)
    return -(gaussian.log_prob(z) + log_det).mean()


def composite_loss(
    flow: RealNVP, gaussian: Gaussian, z_hat: Tensor, x_hat: Tensor, missing: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return L2, equation 14, and its reconstruction error (equation 15) averaged over the batch.

    The gradient flows through z_hat: through encode, the conditional mean and decode. Without that, training goes to
    nonsense. The density of x_rec = f(z_hat) needs no second encode: its latent is z_hat.
    """
    x_rec, log_det = flow.decode(z_hat)  # log|det dx/dz|: minus the one of equation 3
    reconstruction = (x_rec - x_hat).masked_fill(missing, 0).square().sum() / len(x_hat)
    return -(gaussian.log_prob(z_hat) - log_det).mean() + alpha * reconstruction, reconstruction
