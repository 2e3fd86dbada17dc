"""Two pieces of code timed against each other in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def alternate(
    first: Callable[[], object], second: Callable[[], object], rounds: int, warm_up: int = 1
) -> tuple[float, float]:
    """Return the median seconds of both, called in turns: what else the machine does then falls on both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for n in range(warm_up + rounds):
        for call, seconds in zip((first, second), times, strict=True):
            started = time.perf_counter()
            call()
            if n >= warm_up:
                seconds.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def line(what: str, value: float, goal: float, *, at_least: bool) -> dict[str, object]:
    """Describe a measurement and whether it reaches its goal."""
    reached = value >= goal if at_least else value <= goal
    return {"what": what, "value": value, "goal": f"{'>=' if at_least else '<='} {goal}", "reached": reached}
