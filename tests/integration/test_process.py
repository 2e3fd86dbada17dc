"""Killed runs: no cell outlives its run, and none that was finished is run again."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RUN = """
import sys
from pathlib import Path
import stub_cell
from emflow.experiments.process import call
if __name__ == "__main__":
    call(stub_cell.linger, (Path(sys.argv[1]),), 600.0, 1, set())
"""


def alive(pid):
    """Whether a process runs; one that has ended and waits for its parent to take notice does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def kill_when(condition, script, *arguments, **environment):
    """Start a script, kill it as soon as the condition holds, and tell whether it held."""
    environment = os.environ | {"PYTHONPATH": str(HERE)} | environment
    run = subprocess.Popen([sys.executable, script, *map(str, arguments)], env=environment)
    try:
        return wait_for(condition)
    finally:
        run.kill()
        run.wait()


def test_a_cell_ends_when_its_run_is_killed(tmp_path):
    script, number = tmp_path / "run.py", tmp_path / "number"
    script.write_text(RUN)
    assert kill_when(lambda: number.exists() and number.read_text(), script, number)
    assert wait_for(lambda: not alive(int(number.read_text())))


RUN_AGAIN = """
import sys
import stub_cell
from emflow import datasets
from emflow.experiments import run
if __name__ == "__main__":
    datasets.load, run.run_cell = stub_cell.load, stub_cell.run_cell
    run.run("table1", sys.argv[1], sets=["wine"], methods=["mean", "gaussian", "knn"], mechanisms=["mcar"], quiet=True)
"""


def test_a_killed_run_repeats_no_finished_cell(tmp_path):
    script, results = tmp_path / "again.py", tmp_path / "table1.jsonl"
    script.write_text(RUN_AGAIN)
    lines = lambda: results.read_text().splitlines() if results.exists() else []  # noqa: E731
    assert kill_when(lambda: len(lines()) == 10, script, tmp_path, ODD="wait")  # the neighbours wait for ever
    first = lines()
    subprocess.run([sys.executable, script, tmp_path], env=os.environ | {"PYTHONPATH": str(HERE)}, check=True)
    assert lines()[:10] == first
    cells = [(record["method"], record["fold"]) for record in map(json.loads, lines())]
    assert sorted(cells) == sorted((method, fold) for method in ("mean", "gaussian", "knn") for fold in range(5))
