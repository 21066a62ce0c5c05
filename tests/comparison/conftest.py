"""A task that takes a second: six clients on a plane with two classes."""

import numpy as np
import pytest
from planes import Plane, arrivals

from kasync import data


@pytest.fixture(scope="session")
def held():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(260, 4)).astype(np.float32)
    labels = (inputs @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 * rng.normal(size=260) > 0).astype(int)
    rows = [np.arange(c * 30, (c + 1) * 30) for c in range(6)]
    return data.from_arrays(inputs[:180], labels[:180], inputs[180:], labels[180:], parts=rows, name="plane")


@pytest.fixture
def task(held, tmp_path):
    """What every comparison here has in common."""
    return {"model": Plane, "data": held, "timeline": arrivals, "folder": tmp_path / "runs", "progress": False}
