"""The documentation site, without building it: what rots when code and pages move. `make docs` does the rest."""

import re
import tempfile
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
import pytest

import emflow

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
PAGES = {path.stem: path for path in DOCS.iterdir() if path.suffix in (".md", ".rst")}
PAGES |= {f"guide/{path.stem}": path for path in EXAMPLES.glob("*.py")}  # where their output goes
TEXT = {name: path.read_text() for name, path in PAGES.items()}
DOCUMENTED = re.findall(r"^\.\. (?:auto\w+|data):: (\S+)", TEXT["api"], re.MULTILINE)


def test_every_page_is_in_the_navigation():
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", TEXT["index"], re.MULTILINE | re.DOTALL)
    entries = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert sorted(entries) == sorted({"Start <self>", *PAGES} - {"index"})


def links(name):
    """Pages, files and pictures of the site that a page refers to, as paths from docs/."""
    text, here = TEXT[name], Path(name).parent
    if PAGES[name].suffix == ".md":
        targets = [target.split("#")[0] for target in re.findall(r"\]\(([^\s)]+)\)", text) if "://" not in target]
    else:
        targets = re.findall(r":doc:`(?:[^`<]*<)?([^`>]+)>?`", text)
    return [Path(target[1:]) if target.startswith("/") else here / target for target in targets if target]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    for link in links(name):
        assert (DOCS / link).is_file() or str(link.with_suffix("")) in PAGES, link


def test_links_are_found():
    assert {Path("guide/tutorial.rst"), Path("method.md")} <= set(links("index"))
    assert Path("guide/multiple_imputation") in links("guide/tutorial")
    assert Path("paper") in links("guide/images")


@pytest.mark.parametrize(("name", "count"), [("index", 3), ("compare", 1)])
def test_what_is_taken_from_the_readme_is_there(name, count):
    readme = (DOCS.parent / "README.md").read_text()
    parts = re.findall(r'\{include\} \.\./README\.md\n:start-after: "(.+)"\n:end-before: "(.+)"', TEXT[name])
    assert len(parts) == count
    for start, end in parts:
        assert end in readme.split(start, 1)[1], (start, end)


@pytest.mark.parametrize("name", emflow.__all__)
def test_public_names_are_documented(name):
    module = getattr(getattr(emflow, name), "__module__", "emflow")
    assert f"emflow.{name}" in DOCUMENTED or module in DOCUMENTED


@pytest.mark.parametrize("name", ["plot", "report", "missingness", "metrics", "baselines", "datasets", "errors"])
def test_public_modules_are_documented(name):
    assert f"emflow.{name}" in DOCUMENTED


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_is_documented_exists(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(emflow, attribute) if module == "emflow" and attribute in emflow.__all__ else import_module(name)


def test_the_tutorial_runs(tmp_path, monkeypatch):
    """With fewer steps of training than on the page."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mpl.use("Agg")
    page = TEXT["guide/tutorial"]
    assert page.count('"random_state": 0,') == 1
    session = {}
    exec(
        compile(page.replace('"random_state": 0,', '"random_state": 0, "refine_steps": 10,'), "tutorial", "exec"),
        session,
    )
    mpl.pyplot.close("all")
    assert session["imputer"].history_["refine"][-1]["step"] == 10
    assert not session["filled"].isna().any(axis=None)
    assert session["model"].is_file()
