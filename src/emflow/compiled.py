"""Loops that are compiled, by numba, when they are first called; the machine code is kept beside the source.

For what matrix products do not say well: descending trees, picking the best of few, many small steps for each row. They
see every row by itself, so that what comes out for one does not depend on the others, and let other threads work.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar, overload

import numba
import torch

Function = TypeVar("Function", bound=Callable[..., Any])
ENOUGH_ROWS = 256  # for a thread of its own


@overload
def compiled(function: Function) -> Function: ...
@overload
def compiled(*, finite: bool) -> Callable[[Function], Function]: ...
def compiled(function: Any = None, *, finite: bool = False) -> Any:
    """Compile a function of arrays; a decorator. `finite` says that it meets no infinite numbers, nor NaN.

    Then, and only then, sums may be taken in any order, and several numbers at a time.
    """
    if function is None:
        return partial(compiled, finite=finite)
    options: dict[str, Any] = {"nogil": True, "fastmath": finite, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder that could be written to: it is compiled anew in every process
        return numba.njit(**options)(function)


def by_rows(n: int, work: Callable[[int, int], None]) -> None:
    """Call work(first, last) for parts of n rows, as many at once as torch has threads."""
    n_threads = max(1, min(torch.get_num_threads(), n // ENOUGH_ROWS))
    edges = [n * i // n_threads for i in range(n_threads + 1)]
    if n_threads == 1:
        work(0, n)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for done in [pool.submit(work, *part) for part in pairwise(edges)]:
            done.result()
