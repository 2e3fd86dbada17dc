"""The E-step kernel against a padded batched Cholesky, on the same inputs in double precision."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import torch

from benchmarks.plain import conditional as plain_conditional
from benchmarks.timing import alternate, line
from emflow.latent.condition import Conditional
from emflow.latent.gaussian import Gaussian
from emflow.latent.patterns import Patterns
from emflow.threads import few_threads


def problem(n: int, p: int, rate: float) -> tuple[Gaussian, torch.Tensor, torch.Tensor]:
    """Return a Gaussian with correlated coordinates, rows drawn from it, and which of their cells are missing."""
    generator = torch.Generator().manual_seed(0)
    loadings = torch.randn(p, p // 4 + 1, generator=generator, dtype=torch.float64) / (p // 4 + 1) ** 0.5
    cov = loadings @ loadings.mT + 0.1 * torch.eye(p, dtype=torch.float64)
    gaussian = Gaussian(torch.randn(p, generator=generator, dtype=torch.float64), cov)
    return gaussian, gaussian.sample(n, generator), torch.rand(n, p, generator=generator) < rate


def ours(gaussian: Gaussian, z: torch.Tensor, missing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return z_hat and the sum of E[zz'], from scratch: nothing is factorised yet, and no pattern known."""
    fresh = Gaussian(gaussian.mean, gaussian.cov)
    with few_threads(z.numel()):  # as in training; the plain one has all threads, with which it is faster
        conditional = Conditional(fresh, Patterns(missing).layout(torch.arange(len(z))))
        z_hat = conditional.mean(z)
        return z_hat, conditional.statistics(z_hat).outer


def plain(gaussian: Gaussian, z: torch.Tensor, missing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same by a padded Cholesky per row."""
    z_hat, spread = plain_conditional(gaussian.mean, gaussian.cov, z, missing)
    return z_hat, z_hat.mT @ z_hat + spread.sum(0)


def run() -> dict[str, Any]:
    """Compare conditional means and summed covariances."""
    lines = []
    for n, p, rate, goal, rounds in ((256, 60, 0.2, 8, 100), (512, 784, 0.5, 4, 1)):
        inputs = problem(n, p, rate)
        for a, b in zip(ours(*inputs), plain(*inputs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
        fast, slow = alternate(partial(ours, *inputs), partial(plain, *inputs), rounds, warm_up=0)
        print(f"{n} x {p}, {rate:.0%} missing: {slow * 1e3:.1f} ms plain, {fast * 1e3:.1f} ms ours")
        lines.append(line(f"speed-up at {n} x {p}, {rate:.0%} missing", slow / fast, goal, at_least=True))
    return {"lines": lines, "seed": 0}


WIDE = """
import time, torch
from benchmarks.kernel import problem
from emflow.latent.condition import Conditional
from emflow.latent.patterns import Patterns
gaussian, z, missing = problem(512, 3072, 0.5)
started = time.perf_counter()
conditional = Conditional(gaussian, Patterns(missing).layout(torch.arange(512)), torch.Generator().manual_seed(0))
z_hat = conditional.mean(z)
statistics = conditional.statistics(z_hat)
gradient = conditional.pull_back(torch.ones_like(z))
assert torch.isfinite(statistics.outer).all() and torch.isfinite(gradient).all() and conditional.retries == 0
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # of this process alone, in KiB
print(time.perf_counter() - started, int(peak.split()[1]) / 2**20)
"""


def run_wide() -> dict[str, Any]:
    """Means, statistics and gradient of one batch at the size of CIFAR-10, in a process of its own for its memory."""
    output = subprocess.run([sys.executable, "-c", WIDE], capture_output=True, text=True, check=True).stdout
    seconds, gibibytes = map(float, output.split())
    print(f"512 x 3072, 50% missing: {seconds:.1f} s, peak memory {gibibytes:.2f} GiB")
    return {
        "lines": [line("GiB at 512 x 3072, 50% missing", gibibytes, 3, at_least=False)],
        "seed": 0,
        "seconds": seconds,
    }
