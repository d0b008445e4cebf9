# Two commands set up everything they need on a fresh machine:
#   make train   train a small convolutional deep kernel machine on handwritten digits
#   make test    lint, type check and run the whole test suite

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_TEST := $(VENV)/.ready-test
# An environment variable and not -c, so that it holds for build requirements too.
INSTALL := PIP_CONSTRAINT="$(CURDIR)/constraints.txt" $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: train test lint types suite format clean

train: $(READY)
	$(BIN)/convdkm train

test: lint types suite

lint: $(READY_TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY_TEST)
	$(BIN)/mypy

suite: $(READY_TEST)
	$(BIN)/pytest -n 2

format: $(READY_TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v < (3, 14) else "convdkm needs Python 3.10 to 3.13, but $(PYTHON) is %d.%d; try: make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)

$(READY): $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

$(READY_TEST): $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[test]'
	touch $(READY) $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
