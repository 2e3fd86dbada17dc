"""Imports point down: the rooms know nothing of the front door, nor of each other where they need not."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import emflow

ROOT = Path(emflow.__file__).parent
KNOWN = {"flow": {"flow"}, "latent": {"latent"}, "table": {"errors", "table"}, "errors": set(), "files": {"errors"}}
KNOWN["threads"] = KNOWN["order"] = KNOWN["progress"] = KNOWN["compiled"] = set()
KNOWN["learn"] = {"latent", "flow", "files", "errors", "learn", "order", "progress", "threads"}
KNOWN["refine"] = {"compiled", "errors", "order", "progress", "threads", "refine"}
KNOWN["formats"] = {"errors", "files", "formats", "table"}
KNOWN["uncertainty"] = {"latent", "learn", "refine"}
KNOWN["limits"] = {"table", "errors"}
KNOWN["base"] = {"limits", "table", "errors"}
KNOWN["baselines"] = {"base", "limits", "flow", "table", "errors", "threads", "baselines"}
KNOWN["pool"] = {"errors"}
KNOWN["bootstrap"] = {"errors", "table"}
KNOWN["further"] = {"errors", "refine", "table"}
KNOWN["plot"] = {"errors", "evaluation", "plot", "staged", "table"}
KNOWN["report"] = {"evaluation", "files", "imputer", "plot", "report", "staged", "table"}
KNOWN["missingness"] = KNOWN["metrics"] = KNOWN["datasets"] = {"errors", "datasets"}
IMPORTERS = {
    "table": {
        "table",
        "limits",
        "base",
        "staged",
        "imputer",
        "gaussian_imputer",
        "bootstrap",
        "further",
        "evaluation",
        "plot",
        "report",
        "baselines",
        "experiments",
        "formats",
    },
    "plot": {"plot", "report", "commands"},
    "report": {"report", "commands"},
    "formats": {"formats", "commands", "cli"},
    "commands": {"cli"},
    "cli": {"__main__"},
}
IMPORTERS["table"] |= {"model_file", "commands", "cli"}  # kinds of columns, for the user
IMPORTERS |= {
    "experiments": {"experiments", "cli"},
    "datasets": {"datasets", "experiments"},
    "baselines": {"baselines", "experiments"},
}


def imported(path):
    """Names of all modules that a file imports, at its top or within functions."""
    package = ("emflow", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*start, *filter(None, [node.module])))
            yield from ((f"{module}.{alias.name}" for alias in node.names) if module == "emflow" else [module])


def edges():
    """Pairs (room, room it imports); a room is a folder or file of the package."""
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for module in imported(path):
            if module.split(".")[0] == "emflow":
                yield room, module.removeprefix("emflow.").split(".")[0]


@pytest.mark.parametrize("room", KNOWN)
def test_a_room_imports_only_what_it_may_know(room):
    assert {target for source, target in edges() if source == room} <= KNOWN[room]


@pytest.mark.parametrize("room", IMPORTERS)
def test_a_room_is_imported_only_by_those_who_may(room):
    assert {source for source, target in edges() if target == room} <= IMPORTERS[room]


def test_the_walk_sees_the_imports_we_know_of():
    assert {("imputer", "learn"), ("learn", "latent"), ("staged", "table"), ("learn", "files")} <= set(edges())


def test_importing_emflow_imports_nothing_heavy():
    """Scikit-learn imports pandas, which imports pyarrow, where they are installed: here they are made to be absent."""
    code = (
        "import sys; sys.modules.update(pandas=None, pyarrow=None)\n"
        "import emflow, emflow.report\n"
        "heavy = ('matplotlib', 'emflow.experiments', 'emflow.datasets', 'emflow.baselines')\n"
        "sys.exit(', '.join(name for name in heavy if name in sys.modules) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""
