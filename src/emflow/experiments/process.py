"""A process of its own for every cell, so that its time and its peak memory are its own, and it can be killed.

Importing torch and scikit-learn takes seconds. On Linux one server imports them once, and every cell is forked from
it, as fresh as at the end of the imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from emflow.errors import EMFlowError

T = TypeVar("T")
LAST_WORDS = 10.0  # seconds that a process may take to end once it has answered
_FORK = sys.platform == "linux"  # elsewhere system libraries do not bear a fork once they are loaded
CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORK else "spawn")  # their types differ, their use does not
if _FORK:
    CONTEXT.set_forkserver_preload(["emflow.experiments.image_cell", "emflow.experiments.cell", "emflow.baselines"])


class CellError(EMFlowError):
    """A cell failed; the message is what its process said."""


def call(
    work: Callable[..., T], arguments: tuple[Any, ...], limit: float, threads: int, running: set[BaseProcess]
) -> T | None:
    """Return `work(*arguments)` computed in a fresh process, or None if it takes longer than `limit` seconds.

    Parameters
    ----------
    work : callable
        A function at the top of a module; arguments and result can be pickled.
    threads : int
        That it may use.
    running : set
        Holds the process while it runs, for somebody else to kill.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_answer, args=(sender, dict(os.environ), threads, work, arguments))
    process.start()
    running.add(process)
    sender.close()  # the process has the other one: if it dies, the end of the pipe comes
    try:
        if not receiver.poll(limit):
            process.kill()
            return None
        failed, value = receiver.recv()
    except (EOFError, OSError):  # it died, before or while it answered
        process.join()
        raise CellError(f"the process ended with code {process.exitcode}") from None
    finally:
        process.join(LAST_WORDS)  # one that has answered cleans up after itself
        process.kill()
        process.join()
        running.discard(process)
        receiver.close()
    if failed:
        raise CellError(value)
    return value


def _answer(
    sender: Connection, environment: dict[str, str], threads: int, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Run in the process: send (False, result) or (True, traceback)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the terminal goes to all; the run ends its cells
    os.environ.update(environment)  # that of the server may be an older one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit_threads(threads)
    try:
        answer = False, work(*arguments)
    except Exception:  # whatever it is, it is told
        answer = True, traceback.format_exc().strip()
    sender.send(answer)


def _limit_threads(threads: int) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(threads)


def _end_with_parent() -> None:
    """Wait for the death of the run, with which nobody is left to take the answer."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
