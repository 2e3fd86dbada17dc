"""Plain EM of a Gaussian in data space (paper, appendix B.1): the E-step kernel without the flow."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from emflow.latent.condition import Conditional
from emflow.latent.gaussian import Gaussian
from emflow.latent.online_em import OnlineEM, Statistics
from emflow.latent.patterns import Layout, Patterns
from emflow.latent.start import pairwise_start, semi_definite
from emflow.learn.reimpute import row_chunks
from emflow.progress import progress

NEGLIGIBLE = {torch.float64: 1e-15, torch.float32: 1e-4}  # share of the largest variance
KEPT_CELLS = 2**24  # of a table whose layouts are kept from one pass to the next


def fit_gaussian(
    x: Tensor,
    patterns: Patterns,
    generator: torch.Generator,
    n_iterations: int = 100,
    tol: float = 3e-4,
    beta: float = 1e-3,
    max_time: float = math.inf,
    verbose: bool = False,
    start: Gaussian | None = None,
    relaxation: float = 1.0,
    weight: Tensor | None = None,
    known: Statistics | None = None,
) -> tuple[Gaussian, list[dict[str, Any]]]:
    """Return the Gaussian that EM finds for the rows x (n, p), whose missing cells hold anything finite, and a history.

    Starts from `start`, or from the moments of pairs of observed cells. Each pass goes `relaxation` times as far as the
    M-step says: beyond 1, and below 2, a few passes get further where much is missing, but the likelihood may fall.
    Stops when means move by less than `tol` standard deviations, and covariances by less than `tol` in the scale of a
    correlation, in the root mean square; or after the pass in which `max_time` seconds are over. With weights (n,) a
    row counts as if it were there so many times. `known` statistics, of other rows, are added to those of x.
    """
    em = OnlineEM(step_scale=1.0, step_exponent=0.0, dtype=x.dtype)  # rho = 1: each update is a whole M-step
    estimate = em.estimate = pairwise_start(x, patterns.missing, weight) if start is None else start
    gaussian = regular(estimate, beta)
    batches = _Batches(x, patterns, weight)
    history: list[dict[str, Any]] = []
    began = time.monotonic()
    for iteration in (bar := progress(range(1, n_iterations + 1), desc="EM", verbose=verbose)):
        started = time.monotonic()
        statistics, retries = Statistics.none(x) if known is None else known, 0
        for z, layout, share in batches:
            conditional = Conditional(gaussian, layout, generator)
            statistics += conditional.statistics(conditional.mean(z), share)
            retries += conditional.retries
        estimate = _beyond(estimate, em.update(statistics), relaxation)
        before, gaussian = gaussian, regular(estimate, beta)
        change = _change(before, gaussian)
        bar.set_postfix(change=change)
        now = time.monotonic()
        history.append({
            "iteration": iteration, "change": change, "frobenius": gaussian.cov.norm().item(), "retries": retries,
            "seconds": now - started,
        })  # fmt: skip
        if change <= tol or now - began > max_time:
            break
    return gaussian, history


class _Batches:
    """The rows, their layouts and weights, batch by batch; laid out once, unless they are too many to be kept."""

    def __init__(self, x: Tensor, patterns: Patterns, weight: Tensor | None) -> None:
        self.x, self.patterns, self.weight, self.chunks = x, patterns, weight, row_chunks(x, most=2**15)
        self.kept = list(self._make()) if x.numel() <= KEPT_CELLS else None

    def __iter__(self) -> Iterator[tuple[Tensor, Layout, Tensor | None]]:
        return self._make() if self.kept is None else iter(self.kept)

    def _make(self) -> Iterator[tuple[Tensor, Layout, Tensor | None]]:
        for rows in self.chunks:
            yield self.x[rows], self.patterns.layout(rows), None if self.weight is None else self.weight[rows]


def _beyond(before: Gaussian, after: Gaussian, relaxation: float) -> Gaussian:
    """Return the estimate that is `relaxation` times as far from the one before as the M-step's."""
    if relaxation == 1:
        return after
    mean, cov = (torch.lerp(*pair, relaxation) for pair in ((before.mean, after.mean), (before.cov, after.cov)))
    return Gaussian(mean, semi_definite(cov))


def regular(gaussian: Gaussian, beta: float) -> Gaussian:
    """Return the robust estimate of equation 31, without a variance that is negligible next to the largest one.

    The covariances of a column that never changes are rounding errors; next to a variance that is one, too, they would
    pass for correlations.
    """
    gaussian = gaussian.inflated(beta)
    variance = gaussian.cov.diagonal()
    lacking = (NEGLIGIBLE[variance.dtype] * variance.max() - variance).clamp_min(0)
    return Gaussian(gaussian.mean, gaussian.cov + torch.diag(lacking))


def _change(before: Gaussian, after: Gaussian) -> float:
    """Root mean square of the moves of means and covariances, in standard deviations and correlations."""
    scale = after.cov.diagonal().sqrt()
    scale = scale.clamp_min(scale.max() * 1e-6).clamp_min(1e-30)  # what constant columns do is rounding error
    in_mean = (after.mean - before.mean) / scale
    in_cov = (after.cov - before.cov) / scale / scale[:, None]
    return math.sqrt(max(in_mean.square().mean().item(), in_cov.square().mean().item()))
