"""Online EM of the latent Gaussian (paper, section 3.3 and appendices B and D)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from emflow.latent.gaussian import Gaussian


@dataclass(frozen=True)
class Statistics:
    """Expected sufficient statistics of some rows. They add: batches, super-batches, streams and workers just sum.

    Attributes
    ----------
    count : float
        Number of rows, or the sum of their weights.
    total : Tensor of shape (p,)
        Sum of E[z | observed part].
    outer : Tensor of shape (p, p)
        Sum of E[zz' | observed part].
    """

    count: float
    total: Tensor
    outer: Tensor

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(self.count + other.count, self.total + other.total, self.outer + other.outer)

    @classmethod
    def none(cls, z: Tensor) -> Statistics:
        """Return the statistics of no rows at all, of the width, type and place of z."""
        return cls(0, z.new_zeros(z.shape[1]), z.new_zeros(z.shape[1], z.shape[1]))

    @classmethod
    def of(cls, z: Tensor) -> Statistics:
        """Return the statistics of complete rows z (n, p)."""
        return cls(len(z), z.sum(0), z.mT @ z)

    @classmethod
    def behind(cls, gaussian: Gaussian, count: float) -> Statistics:
        """Return the statistics of so many rows of which a Gaussian is the maximiser."""
        mean = gaussian.mean
        return cls(count, count * mean, count * (gaussian.cov + torch.outer(mean, mean)))

    def maximiser(self) -> Gaussian:
        """Return the M-step of these rows alone: equation 22, the maps g_mu and g_Sigma of equation 5."""
        mean, second = self.total / self.count, self.outer / self.count
        cov = second - torch.outer(mean, mean)
        cov = 0.5 * (cov + cov.mT)
        # a variance below the rounding error of this difference, as of equal rows, is that error and no more
        floor = 4 * torch.finfo(cov.dtype).eps * second.diagonal()
        cov.diagonal().copy_(torch.maximum(cov.diagonal(), floor))
        return Gaussian(mean, cov)


class OnlineEM:
    """Running estimate of mean and covariance, moved towards that of each batch by rho_t = C t^-gamma.

    With `step_scale=1` and `step_exponent=0`, and all rows as the one batch, this is the plain EM of appendix B.1.

    Parameters
    ----------
    step_scale, step_exponent : float
        C and gamma of equation 10.
    super_batch_size : int
        S_super of appendix D: an update uses the statistics of the latest batches that together have at most so many
        rows. 0 uses the current batch alone.
    dtype : torch.dtype
        Precision of the Gaussian.
    """

    def __init__(
        self,
        step_scale: float,
        step_exponent: float,
        super_batch_size: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.step_scale, self.step_exponent = step_scale, step_exponent
        self.super_batch_size, self.dtype = super_batch_size, dtype
        self.recent: deque[Statistics] = deque()
        self.t = 0
        self.estimate: Gaussian | None = None

    def start(self, z: Tensor) -> Gaussian:
        """Initialise from the sample mean and covariance of the first rows z (n, p): appendix D."""
        self.estimate = Statistics.of(z.to(self.dtype)).maximiser()
        return self.estimate

    def step_size(self, t: int) -> float:
        """rho_t of equation 10."""
        return self.step_scale * math.pow(t, -self.step_exponent)

    def update(self, statistics: Statistics) -> Gaussian:
        """Take in the statistics of a batch and return the new estimate: equations 7 and 8."""
        assert self.estimate is not None
        self.t += 1
        rho = self.step_size(self.t)
        local = self._super_batch(statistics).maximiser()
        self.estimate = Gaussian(
            rho * local.mean + (1 - rho) * self.estimate.mean, rho * local.cov + (1 - rho) * self.estimate.cov
        )
        return self.estimate

    def _super_batch(self, statistics: Statistics) -> Statistics:
        if not self.super_batch_size:
            return statistics
        self.recent.append(statistics)
        while len(self.recent) > 1 and sum(s.count for s in self.recent) > self.super_batch_size:
            self.recent.popleft()
        return sum(self.recent, Statistics.none(statistics.total[None]))
