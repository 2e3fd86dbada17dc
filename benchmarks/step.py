"""One training step of the package against the paper's step written plainly, at the paper's batch size."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch

from benchmarks.plain import PlainStep
from benchmarks.timing import alternate, line
from emflow import EMFlowImputer
from emflow.latent.patterns import Patterns
from emflow.learn.state import Run
from emflow.learn.train import training_step
from emflow.threads import few_threads

BATCH, BATCHES, ROUNDS = 256, 8, 60


def measure(p: int) -> tuple[float, float]:
    """Return the seconds of our step and of the plain one, over the same batches."""
    torch.manual_seed(0)  # for the plain networks, which draw their weights globally
    x = torch.rand(BATCH * BATCHES, p) * 0.5 + torch.rand(BATCH * BATCHES, 1) * 0.5
    missing = torch.rand(x.shape) < 0.2
    none = torch.zeros(0)  # no cells are hidden for validation
    settings, generator = EMFlowImputer.paper().settings(len(x)), torch.Generator().manual_seed(0)
    state = Run(settings, x, Patterns(missing), none.long(), none, generator, seed=0)
    plain = PlainStep(p)
    numbers = torch.arange(len(x)).split(BATCH)
    batches, plain_batches = cycle(numbers), cycle([(x[rows], missing[rows]) for rows in numbers])
    with few_threads(BATCH * p):
        return alternate(
            lambda: training_step(state, next(batches)), lambda: plain(*next(plain_batches)), ROUNDS, warm_up=5
        )


def run() -> dict[str, Any]:
    """Compare at p = 16 and p = 60, 20 % missing, flow in single precision.

    Both steps run on the number of threads that training takes at this size.
    """
    lines = []
    for p in (16, 60):
        ours, plain = measure(p)
        print(f"p = {p}: {plain * 1e3:.1f} ms plain, {ours * 1e3:.1f} ms ours")
        lines.append(line(f"speed-up of a training step at p = {p}", plain / ours, 3, at_least=True))
    return {"lines": lines, "seed": 0}
