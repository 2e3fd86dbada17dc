"""Run fits that kill themselves half way, one process each: python killed_fit.py JOBS.json; prints their exit codes."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch._dynamo  # noqa: F401 (the first step of an optimiser imports it: here once, for all children)

from emflow import EMFlowImputer
from emflow.learn.state import Run


def die_at_call(owner, name, n, after):
    """Kill this process at the n-th call of a method, before or after the call does its work."""
    method, calls = getattr(owner, name), []

    def counted(*args):
        calls.append(name)
        if len(calls) == n and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args)
        if len(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def run(job):
    n = job["n"]
    if job["when"] == "after save":
        die_at_call(Run, "save", n, after=True)
    else:  # the new file is written, the old one still in place
        die_at_call(Path, "replace", n, after=False)
    EMFlowImputer(**job["parameters"]).fit(np.load(job["data"]))


def main():
    codes = []
    for job in json.loads(Path(sys.argv[1]).read_text()):
        child = os.fork()  # nothing was computed yet, so torch has no threads to lose
        if not child:
            run(job)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    json.dump(codes, sys.stdout)


if __name__ == "__main__":
    main()
