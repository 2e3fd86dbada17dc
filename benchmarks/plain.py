"""The paper's pieces written plainly, as the references that the benchmarks compare with.

Nothing here is imported by the package. Each function says what it costs and is checked against the package's result
in the benchmark that uses it: a reference that computes something else would make any ratio worthless.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal


def conditional(mean: Tensor, cov: Tensor, z: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """Return z_hat (n, p) and the conditional covariances (n, p, p) by one padded Cholesky per row.

    The rows and columns of missing coordinates are those of the identity, so that all rows have one shape: n p^3 / 3
    for the factors, n p^3 for the solutions and again for the covariances, and n p^2 numbers for each of them.
    """
    observed = ~missing
    padded = cov.where(observed[:, :, None] & observed[:, None, :], 0.0)
    padded.diagonal(dim1=1, dim2=2).add_(missing)
    factor = torch.linalg.cholesky(padded)
    del padded
    cross = cov.where(observed[:, :, None] & missing[:, None, :], 0.0)  # cov_om, zero elsewhere
    gain = torch.cholesky_solve(cross, factor)  # inv(cov_oo) cov_om
    del factor
    filled = mean + ((z - mean) * observed)[:, None, :].matmul(gain)[:, 0]
    spread = (cov - cross.mT @ gain).where(missing[:, :, None] & missing[:, None, :], 0.0)
    return torch.where(missing, filled, z), spread


class Coupling(nn.Module):
    """An affine coupling with a mask that is multiplied and one network each for scale and shift."""

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        p = len(keep)
        self.register_buffer("keep", keep.float())
        self.scale, self.shift = (
            nn.Sequential(
                nn.Linear(p, p), nn.LeakyReLU(), nn.Linear(p, p), nn.LeakyReLU(),
                nn.Linear(p, p), nn.LeakyReLU(), nn.Linear(p, p),
            )
            for _ in range(2)
        )  # fmt: skip

    def amounts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x * self.keep
        return torch.tanh(self.scale(kept)) * (1 - self.keep), self.shift(kept) * (1 - self.keep)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        s, t = self.amounts(x)
        return x * torch.exp(s) + t, s.sum(1)

    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        s, t = self.amounts(z)
        return (z - t) * torch.exp(-s), -s.sum(1)


class PlainStep:
    """Algorithm 1, line by line: every use of the Gaussian factorises it again."""

    def __init__(self, p: int) -> None:
        self.couplings = nn.ModuleList()
        for _ in range(3):
            keep = torch.zeros(p, dtype=torch.bool)
            keep[torch.randperm(p)[: p // 2]] = True
            self.couplings += [Coupling(keep), Coupling(~keep)]
        self.optimiser = torch.optim.Adam(self.couplings.parameters(), lr=1e-4)
        self.mean, self.cov, self.t = torch.zeros(p), torch.eye(p), 0

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = torch.zeros(len(x))
        for coupling in self.couplings:
            x, part = coupling.encode(x)
            log_det = log_det + part
        return x, log_det

    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_det = torch.zeros(len(z))
        for coupling in reversed(self.couplings):
            z, part = coupling.decode(z)
            log_det = log_det + part
        return z, log_det

    def descend(self, loss: Tensor) -> float:
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.item()

    def __call__(self, x: Tensor, missing: Tensor) -> None:
        z, log_det = self.encode(x)
        self.descend(-(MultivariateNormal(self.mean, self.cov).log_prob(z) + log_det).mean())

        z, _ = self.encode(x)
        z_hat, _ = conditional(self.mean, self.cov, z, missing)
        with torch.no_grad():
            z_em, spread = conditional(self.mean, self.cov, z, missing)
            local_mean = z_em.mean(0)
            centred = z_em - local_mean
            local_cov = (centred.mT @ centred + spread.sum(0)) / len(x)
            self.t += 1
            rho = 0.99 * self.t**-0.8
            self.mean = rho * local_mean + (1 - rho) * self.mean
            self.cov = rho * local_cov + (1 - rho) * self.cov

        x_rec, log_det = self.decode(z_hat)
        density = MultivariateNormal(self.mean, self.cov).log_prob(z_hat) - log_det
        reconstruction = (((x_rec - x) * ~missing) ** 2).sum(1)
        self.descend(-(density - 1e6 * reconstruction).mean())
