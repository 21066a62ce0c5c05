# make demo: install what the demo needs into .venv and run it.   make test: install everything and run all checks.
# make docs: build the documentation into site/.   make publish-docs: that of this version into the branch gh-pages.
# make dist: source archive and wheel into dist/.   make wheels: wheels for this system's Pythons (cibuildwheel).
# make soak: hours of use in minutes.   make fuzz: ten thousand corrupted inputs of each kind.   docs/reliability.md has both.
# make lock: write down the versions here.   make audit: ask a database of known faults about them (needs a network).
PYTHON ?= python3
BIN := .venv/bin
KERNEL := $(wildcard src/kasync/_kernel*.[ch])
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/kasync/__init__.py)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt

.PHONY: demo test check docs publish-docs dist wheels soak fuzz lock audit clean

demo: .venv/.demo
	$(BIN)/kasync demo

test: check
	$(BIN)/kasync results verify results
	$(BIN)/python -m pytest

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.docs
	$(BIN)/python docs/rule_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

publish-docs: .venv/.docs
	$(PIP) 'mike>=2.1'
	$(BIN)/python docs/rule_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) latest
	$(BIN)/mike set-default latest

dist: | .venv/bin/python
	rm -rf dist
	$(PIP) 'build>=1.2'
	$(BIN)/python -m build --outdir dist

wheels: | .venv/bin/python
	$(PIP) 'cibuildwheel>=3.2'
	$(BIN)/python -m cibuildwheel --output-dir dist

soak: .venv/.test
	$(BIN)/python -m pytest -m long -s tests/reliability tests/live tests/simulator

fuzz: .venv/.test
	$(BIN)/python tests/reliability/fuzzing.py 10000

lock: .venv/.test
	$(BIN)/python .ci/lock.py > requirements-dev.lock

audit: .venv/.audit
	$(BIN)/python .ci/audit.py requirements-dev.lock

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

.venv/.audit: | .venv/bin/python
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.7'
	touch $@

clean:
	rm -rf .venv build dist site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
