# Two commands set up everything they need on a fresh machine:
#   make train   train a small convolutional deep kernel machine on handwritten digits
#   make test    lint, check imports and types, and run the whole test suite
# For those who change or publish the package:
#   make hooks   let git run the quick checks before every commit
#   make dist    build the package, and try it in an empty environment

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_TEST := $(VENV)/.ready-test
READY_DEV := $(VENV)/.ready-dev
# An environment variable and not -c, so that it holds for build requirements too.
PINNED := PIP_CONSTRAINT="$(CURDIR)/constraints.txt"
INSTALL := $(PINNED) $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: train test lint imports types suite format hooks dist clean

train: $(READY)
	$(BIN)/convdkm train

test: lint imports types suite

lint: $(READY_TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

imports: $(READY_TEST)
	$(BIN)/lint-imports

types: $(READY_TEST)
	$(BIN)/mypy

suite: $(READY_TEST)
	$(BIN)/pytest -n 3 --dist worksteal

format: $(READY_TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(READY_DEV)
	$(BIN)/pre-commit install

dist: $(READY_DEV)
	rm -rf dist
	$(PINNED) $(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(PINNED) $(BIN)/python scripts/try_wheel.py dist/*.whl

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v < (3, 14) else "convdkm needs Python 3.10 to 3.13, but $(PYTHON) is %d.%d; try: make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)

$(READY): $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

$(READY_TEST): $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[test]'
	touch $(READY) $@

$(READY_DEV): $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch $(READY) $(READY_TEST) $@

clean:
	rm -rf $(VENV) dist .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
