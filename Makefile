# make demo: install what the demo needs into .venv and run it.   make test: install everything and run all checks.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check clean

demo: .venv/.demo
	$(BIN)/kasync demo

test: check
	$(BIN)/python -m pytest

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml | .venv/bin/python
	$(PIP) --editable '.[demo]'
	touch $@

.venv/.test: pyproject.toml | .venv/bin/python
	$(PIP) --editable '.[test]'
	touch $@ .venv/.demo

clean:
	rm -rf .venv build dist site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
