"""The tests keep a cache of their own, and no test reads the data of the person who runs it unless it says so."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def _real_folders() -> list[Path]:
    named = [Path(place) for place in os.environ.get("KASYNC_DATA", "").split(os.pathsep) if place]
    return [
        place
        for place in (*named, REPOSITORY.parent / "shared" / "data", REPOSITORY / "shared" / "data")
        if place.is_dir()
    ]


REAL = _real_folders()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def no_data_of_the_person(shared_cache, monkeypatch):
    monkeypatch.setenv("KASYNC_CACHE", str(shared_cache))
    monkeypatch.delenv("KASYNC_DATA", raising=False)


@pytest.fixture
def own_cache(no_data_of_the_person, tmp_path_factory, monkeypatch):
    """A cache that no other test has written to."""
    folder = tmp_path_factory.mktemp("own")
    monkeypatch.setenv("KASYNC_CACHE", str(folder))
    return folder


@pytest.fixture
def real(monkeypatch):
    """Lets a test load the real files, where a person has them."""
    if not REAL:
        pytest.skip("no folder of real data: set KASYNC_DATA")
    monkeypatch.setenv("KASYNC_DATA", os.pathsep.join(map(str, REAL)))
