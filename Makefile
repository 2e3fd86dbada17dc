# From a bare clone: `make demo`, `make test` and `make docs` need python3 and make, nothing else.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
READY := .venv/.ready
DOCS_READY := .venv/.docs-ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable

.PHONY: demo test lint check bench docs clean

demo: $(READY)
	$(BIN)/emflow demo

test: lint check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: $(READY)
	$(BIN)/python -m pytest

bench: $(READY)
	$(BIN)/python -m benchmarks

# The site, with its examples executed: open docs/_build/html/index.html. Examples that have not changed are not run again.
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -d docs/_build/doctrees docs docs/_build/html

# Made anew only when what is to be installed has changed. The constraints pin every version.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[dev]"
	touch $@

$(DOCS_READY): $(READY)
	$(INSTALL) ".[docs]"
	touch $@

clean:
	rm -rf .venv demo docs/_build docs/guide
