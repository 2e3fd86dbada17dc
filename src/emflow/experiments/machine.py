"""Where a result comes from: versions, commit, time and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__)


def provenance(threads: int) -> dict[str, Any]:
    """Return what a line of results says of its origin; `threads` is what its cell was given."""
    return {
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "numpy", "scikit-learn", "emflow-impute")},
        "commit": commit(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processor": processor(), "cores": usable_cores(), "threads": threads},
    }


@cache
def commit() -> str | None:
    """Return the commit of the source, "-dirty" if the package has changed since; None for an installed package.

    An environment may lie within a repository that is not ours: the commit counts only if git knows this file.
    """
    try:
        _git("ls-files", "--error-unmatch", HERE.name)
        changed = _git("status", "--porcelain", "--", str(HERE.parents[1]))
        return _git("describe", "--always") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def usable_cores() -> int:
    """Return how many cores this process may use; those it is kept from would only make its threads wait."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@cache
def processor() -> str:
    """Return the name of the processor as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
