"""Results that every test of the report may read: made once, never written to."""

from pathlib import Path

import pytest
import small_results

from kasync.report import results as reading


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A results folder with a table, a motivation figure and Appendix D, two seeds each."""
    out = tmp_path_factory.mktemp("small") / "results"
    small_results.make(out, small_results.staleness(), semantics=("true", "published-code"))
    small_results.make(out, small_results.motivation())
    return small_results.make(out, small_results.appendix())


@pytest.fixture(scope="session")
def experiments(small) -> dict[str, reading.Findings]:
    return {experiment.name: experiment for experiment in reading.read(small).experiments}
