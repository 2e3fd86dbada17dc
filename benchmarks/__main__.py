"""Run the benchmarks named on the command line, or all but the long ones: `python -m benchmarks kernel step letter`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import accuracy, filling, intervals, kernel, large, nominal, step
from benchmarks.accuracy import DataMissingError

BENCHMARKS = {
    "kernel": kernel.run,
    "wide": kernel.run_wide,
    "step": step.run,
    "letter": lambda: accuracy.run("letter", goal=0.112),
    "wine": lambda: accuracy.run("wine", goal=0.078),
    "ctg": lambda: accuracy.run("ctg", goal=0.116),
    "gaussian": accuracy.run_gaussian,
    "filling": filling.run,
    "intervals": intervals.run,
    "nominal": nominal.run,
    "large": large.run,
}
LONG = {"filling", "intervals", "nominal", "large"}  # from ten minutes to half an hour, most of it missForest's


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; default: the short ones")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results.jsonl"), help="default: %(default)s")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    missed = []
    for name in arguments.names or [name for name in BENCHMARKS if name not in LONG]:
        started = time.perf_counter()
        print(f"\n== {name}", flush=True)
        try:
            report = BENCHMARKS[name]()
        except DataMissingError as error:
            print(f"skipped: {error}")
            continue
        for line in report["lines"]:
            mark = "reached" if line["reached"] else "MISSED "
            print(f"{mark}  {line['what']}: {line['value']:.4g} (goal {line['goal']})")
        missed += [f"{name}: {line['what']}" for line in report["lines"] if not line["reached"]]
        record = {"benchmark": name, "total_seconds": time.perf_counter() - started, **report, **_circumstances()}
        with open(arguments.results, "a") as file:
            file.write(json.dumps(record) + "\n")
    print("\n" + (f"goals missed: {'; '.join(missed)}" if missed else "every goal that was run is reached"))
    return 1 if missed else 0


def _circumstances() -> dict[str, object]:
    """Commit, versions and machine, so that a line can be understood later."""
    git = ["git", "describe", "--always", "--dirty"]
    packages = ("emflow-impute", "torch", "numpy", "scikit-learn")
    return {
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
    }


if __name__ == "__main__":
    sys.exit(main())
