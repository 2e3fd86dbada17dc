"""A cell does not outlive the run that wants its result."""

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


def test_a_cell_ends_when_its_run_is_killed(tmp_path):
    script, number = tmp_path / "run.py", tmp_path / "number"
    script.write_text(RUN)
    run = subprocess.Popen([sys.executable, script, number], env=os.environ | {"PYTHONPATH": str(HERE)})
    try:
        assert wait_for(lambda: number.exists() and number.read_text())
        pid = int(number.read_text())
        assert alive(pid)
    finally:
        run.kill()
        run.wait()
    assert wait_for(lambda: not alive(pid))
