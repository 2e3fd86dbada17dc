"""The multivariate Gaussian of the latent space (paper, equation 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

MAX_RETRIES = 12


class NotPositiveDefiniteError(ArithmeticError):
    """A covariance is not finite, or has no Cholesky factor whatever is added to its diagonal."""


def inflate(cov: Tensor, beta: float) -> Tensor:
    """Enlarge the diagonal in proportion, cov + beta Diag(cov): equation 31. Leading dimensions are batches."""
    return cov + beta * torch.diag_embed(cov.diagonal(dim1=-2, dim2=-1))


def stable_cholesky(a: Tensor) -> tuple[Tensor, int]:
    """Return the lower Cholesky factor of `a` (..., p, p) and how many times it had to be retried.

    A factor counts as failed also where a pivot is below sqrt(eps) of its diagonal entry: a column that the others
    explain to 8 digits leaves rounding error in the place of its own variance. Failed matrices get a larger diagonal,
    sqrt(eps) of it at first and ten times as much at each further try.

    Raises
    ------
    NotPositiveDefiniteError
        If `a` is not finite or no diagonal was large enough.
    """
    info = torch.finfo(a.dtype)
    beta = math.sqrt(info.eps)
    for retry in range(MAX_RETRIES):
        factor, failure = torch.linalg.cholesky_ex(a)
        diagonal = a.diagonal(dim1=-2, dim2=-1)
        pivots = factor.diagonal(dim1=-2, dim2=-1).square()
        large = pivots >= 0.5 * beta * diagonal  # False where not a number
        if large.all() and not failure.any():
            return factor, retry
        sound = large.all(-1) & (failure == 0)
        largest = diagonal.amax(-1, keepdim=True)
        floor = info.eps * torch.where(largest > 0, largest, 1)  # for columns without variance
        grown = diagonal.clamp_min(floor) * (1 + beta * 10**retry)
        a = a + torch.diag_embed(torch.where(sound[..., None], 0, grown - diagonal))
    finite = bool(torch.isfinite(a).all())
    raise NotPositiveDefiniteError(
        "a covariance could not be factorised" if finite else "a covariance holds values that are not finite"
    )


@dataclass(frozen=True)
class Gaussian:
    """N(mean, cov), factorised once and only when it is used.

    Attributes
    ----------
    mean : Tensor of shape (p,)
    cov : Tensor of shape (p, p)
    """

    mean: Tensor
    cov: Tensor

    @cached_property
    def _factor(self) -> tuple[Tensor, int]:
        return stable_cholesky(self.cov)

    @property
    def cholesky(self) -> Tensor:
        """Lower triangular L with L L' = cov."""
        return self._factor[0]

    @property
    def retries(self) -> int:
        """How often the factorisation of `cov` had to be repeated with a larger diagonal."""
        return self._factor[1]

    @cached_property
    def precision(self) -> Tensor:
        """The inverse of `cov`."""
        return torch.cholesky_inverse(self.cholesky)

    @cached_property
    def log_normaliser(self) -> Tensor:
        """Return log of (2 pi)^(p/2) |cov|^(1/2), a scalar."""
        return 0.5 * len(self.mean) * math.log(2 * math.pi) + self.cholesky.diagonal().log().sum()

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-density (n,) of the rows of z (n, p), computed in the precision of the Gaussian."""
        return self.log_prob_and_slope(z)[0].to(z.dtype)

    def log_prob_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-density (n,) and its gradient by z (n, p): -inv(cov) (z - mean)."""
        centred = z.to(self.mean.dtype) - self.mean
        slope = centred @ -self.precision
        return 0.5 * torch.linalg.vecdot(slope, centred) - self.log_normaliser, slope

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n rows (n, p)."""
        noise = torch.randn(n, len(self.mean), generator=generator, dtype=self.mean.dtype).to(self.mean.device)
        return self.mean + noise @ self.cholesky.mT

    def deviation(self, order: Tensor) -> Tensor:
        """Return that (p,) of each coordinate, given those before it in an order (p,)."""
        factor, _ = stable_cholesky(self.cov[order][:, order])
        return torch.empty_like(self.mean).index_copy_(0, order, factor.diagonal())

    def inflated(self, beta: float) -> Gaussian:
        """Return the robust estimate of equation 31."""
        return Gaussian(self.mean, inflate(self.cov, beta)) if beta else self
