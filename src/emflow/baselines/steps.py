"""The loop of the baselines that train by steps: time, records of the losses, progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from emflow.errors import DivergedError

RECORD = 100  # steps between two records of the history


def take_steps(
    step: Callable[[], Tensor], names: Sequence[str], n_steps: int, max_time: float | None, title: str, verbose: bool
) -> tuple[list[dict[str, Any]], bool]:
    """Call `step`, which returns the named losses, until the steps or the seconds are over.

    Return the history, with the losses averaged since the last record, and whether time ended it.
    """
    history: list[dict[str, Any]] = []
    totals, since = torch.zeros(len(names)), 0
    started, deadline = time.monotonic(), math.inf if max_time is None else max_time
    for number in tqdm(range(1, n_steps + 1), desc=title.lower(), unit="step", disable=not verbose):
        totals += step()
        since += 1
        seconds = time.monotonic() - started
        last = number == n_steps or seconds > deadline
        if last or since == RECORD:
            losses = totals / since
            if not losses.isfinite().all():
                raise DivergedError(f"the losses of {title} are not finite at step {number}: lower learning_rate")
            named = dict(zip(names, losses.tolist(), strict=True))
            history.append({"step": number, **named, "seconds": seconds})
            totals, since = torch.zeros(len(names)), 0
        if last:
            break
    return history, number < n_steps
