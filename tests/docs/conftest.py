"""The pages' code runs in a folder of its own, with a cache of its own, on few threads."""

import sys
from pathlib import Path

import pytest

for folder in ("live", "data"):  # fake_grid: a Flower grid in memory; official_files: small files of each format
    sys.path.append(str(Path(__file__).parents[1] / folder))


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Path:
    """A results folder: the demo, twenty steps long."""
    from kasync.experiments import experiment, grid

    out, one = tmp_path_factory.mktemp("demo") / "results", experiment.read(experiment.DEMO)
    assert not grid.carry_out(grid.Plan([(one, one.cells(overrides={"steps": 20}))]), out).failed
    return out


@pytest.fixture
def reader(tmp_path, tmp_path_factory, monkeypatch) -> Path:
    """The folder in which a reader tries what a page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KASYNC_CACHE", str(tmp_path_factory.getbasetemp() / "docs-cache"))
    monkeypatch.delenv("KASYNC_DATA", raising=False)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path
