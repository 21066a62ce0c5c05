# make demo: install what the demo needs into .venv and run it.   make test: install everything and run all checks.
# make docs: build the documentation into site/.
PYTHON ?= python3
BIN := .venv/bin
KERNEL := $(wildcard src/kasync/_kernel*.[ch])
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check docs clean

demo: .venv/.demo
	$(BIN)/kasync demo

test: check
	$(BIN)/python -m pytest

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.docs
	$(BIN)/python docs/rule_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml $(KERNEL) | .venv/bin/python
	$(PIP) --editable '.[demo]'
	touch $@

.venv/.test: pyproject.toml $(KERNEL) | .venv/bin/python
	$(PIP) --editable '.[test]'
	touch $@ .venv/.demo .venv/.docs

.venv/.docs: pyproject.toml | .venv/bin/python
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv build dist site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
