"""Two pieces of code timed against each other in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

SAMPLE = 0.05  # seconds that a sample lasts at least


def alternate(
    first: Callable[[], object], second: Callable[[], object], rounds: int, warm_up: int = 1
) -> tuple[float, float]:
    """Return the median seconds of a call of either, sampled in turns: what else the machine does falls on both alike.

    A sample is as many calls in a row as fill `SAMPLE`. Timed by single calls, the quicker of the two would be timed
    with the caches as the slower one has left them, while both run many times in a row where they are used.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for n in range(warm_up + rounds):
        for call, seconds in zip((first, second), times, strict=True):
            started, calls = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - started) < SAMPLE:
                call()
                calls += 1
            if n >= warm_up:
                seconds.append(elapsed / calls)
    return statistics.median(times[0]), statistics.median(times[1])


def line(what: str, value: float, goal: float, *, at_least: bool) -> dict[str, object]:
    """Describe a measurement and whether it reaches its goal."""
    reached = value >= goal if at_least else value <= goal
    return {"what": what, "value": value, "goal": f"{'>=' if at_least else '<='} {goal}", "reached": reached}
