"""Every code block of the README runs: Python ones in one session from top to bottom, shell ones as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from emflow.cli import main
from emflow.experiments import run as experiments
from emflow.experiments.page import insert
from emflow.experiments.table import table

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
PYTHON = [body for language, body in BLOCKS if language == "python"]
SHELL = [line for language, body in BLOCKS if language == "sh" for line in body.splitlines()]


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = {}
    for block in PYTHON:
        exec(compile(block, "README.md", "exec"), session)
    plt.close("all")  # which would be found open by other tests
    assert not np.isnan(session["filled"]).any()
    assert (tmp_path / "model.safetensors").is_file()


def test_blocks_are_python_or_shell():
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    assert len(PYTHON) >= 5


def test_command_lines_run(tmp_path, monkeypatch):
    """In their order: those of the experiments have tests of their own."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weight = rng.normal(70, 10, size=60).round(1)
    people = pd.DataFrame({"weight": weight, "zip": rng.choice([1010, 4020, 8010], size=60)})
    people["grade"] = np.array(["low", "middle", "high"])[np.digitize(weight, [65, 75])]
    people = people.mask(rng.random(people.shape) < 0.1).astype({"zip": "Int64"})
    people.to_csv("people.csv", index=False)
    people.tail(20).to_parquet("new.parquet", index=False)
    for line in SHELL:
        if line.startswith("emflow") and not line.startswith("emflow experiments"):
            assert main(shlex.split(line, comments=True)[1:]) == 0, line
    assert not pd.read_csv("filled.csv").isna().any(axis=None)
    assert not pd.read_parquet("filled.parquet").isna().any(axis=None)
    assert {f"draw-{k}.csv" for k in range(1, 6)} <= {path.name for path in tmp_path.iterdir()}
    assert "weight" in Path("report.html").read_text()


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("emflow experiments table")])
def test_tables_are_printed(line, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(line)[1:]) == 0
    assert "EMFlow" in capsys.readouterr().out


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("emflow experiments run")])
def test_experiments_start(line, monkeypatch):
    """The real ones take hours: what the command would run is enough."""
    asked = []
    monkeypatch.setattr(experiments, "run", lambda *names, **options: asked.append(names) or experiments.Report())
    assert main(shlex.split(line)[1:]) == 0
    assert [name for name, _ in asked] == [shlex.split(line)[3]]


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("README.md", "table1"),
        ("docs/method.md", "accuracy"),
        ("docs/paper.md", "congeniality"),
        ("docs/paper.md", "table2"),
        ("docs/paper.md", "table3"),
    ],
)
def test_tables_in_pages_are_those_of_the_results(page, name, tmp_path):
    """To bring one up to date: emflow experiments table NAME --into PAGE."""
    copy = tmp_path / "page.md"
    copy.write_bytes((ROOT / page).read_bytes())
    insert(copy, name, table(name, ROOT / "results", "markdown"))
    assert copy.read_text() == (ROOT / page).read_text()


def test_every_shell_line_is_tested():
    """Those of the command line, but for experiments, all run above."""
    assert all(line.startswith(("emflow ", "make ", "pip install ")) for line in SHELL)
    experiments = [line for line in SHELL if line.startswith("emflow experiments")]
    assert all(line.split()[2] in ("table", "run") for line in experiments)


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("make ")])
def test_make_targets_exist(line):
    target = shlex.split(line, comments=True)[1]
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pictures_and_links_exist():
    text = (ROOT / "README.md").read_text()
    local = [link for link in re.findall(r"\]\((\S+?)\)", text) if "://" not in link]
    assert local
    for link in local:
        assert (ROOT / link).is_file(), link


def test_module_starts_as_a_program():
    done = subprocess.run([sys.executable, "-m", "emflow", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("emflow ")
