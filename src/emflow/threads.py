"""How many threads a training step takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

ONE_THREAD = 2**14  # cells of a batch below which a second thread does not pay


@contextmanager
def few_threads(cells: int) -> Iterator[None]:
    """Use one thread while batches are so small that threads would wait for each other more than they work."""
    before = torch.get_num_threads()
    if cells < ONE_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
