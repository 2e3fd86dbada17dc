import threading

import numba
import numpy as np
import pytest
import torch

from emflow import compiled
from emflow.compiled import by_rows


def double(x):
    for i in range(len(x)):
        x[i] *= 2


def test_a_function_is_compiled():
    x = np.arange(5.0)
    kernel = compiled.compiled(double)
    kernel(x)
    assert x.tolist() == [0, 2, 4, 6, 8]
    assert kernel.nopython_signatures


def test_without_a_folder_to_keep_it_in_it_is_compiled_all_the_same(monkeypatch):
    njit = numba.njit

    def without_folder(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", without_folder)
    x = np.ones(3)
    compiled.compiled(finite=True)(double)(x)
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize(("n", "n_threads"), [(0, 4), (10, 4), (11, 1), (23, 4)])
def test_every_row_is_worked_on_once(monkeypatch, n, n_threads):
    monkeypatch.setattr(compiled, "ENOUGH_ROWS", 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    parts, lock = [], threading.Lock()

    def work(first, last):
        with lock:
            parts.append((first, last))

    by_rows(n, work)
    assert sorted(i for part in parts for i in range(*part)) == list(range(n))
    assert len(parts) == max(1, min(n_threads, n // 5))


def test_what_goes_wrong_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(compiled, "ENOUGH_ROWS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def work(first, last):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        by_rows(4, work)
