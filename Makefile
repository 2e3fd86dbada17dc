# From a bare clone: `make demo` and `make test` need python3 and make, nothing else.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint check bench clean

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

# Made anew only when what is to be installed has changed. The constraints pin every version.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv demo
