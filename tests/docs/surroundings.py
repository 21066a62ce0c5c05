"""What does a page take for granted? The folders, the data and the names that its reader would have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pages import name_of

SHORTER = {  # page -> what is read instead of what stands there
    "docs/data.md": {'"/my/data"': '"my-data"'},
    "docs/flower.md": {"num_rounds=500": "num_rounds=3"},
    "docs/ray.md": {"steps=500": "steps=3", "(digits, 8)": "(digits, 4)"},
}


def shortened(page: Path, code: str) -> str:
    """The code with folders that are there and runs that end soon."""
    for written, read in SHORTER.get(name_of(page), {}).items():
        code = code.replace(written, read)
    return code


def _data(folder: Path, results: Path) -> dict[str, Any]:
    """A folder with small files in CIFAR-10's official format."""
    import official_files

    official_files.write_cifar(folder / "my-data" / "cifar-10-batches-bin", official_files.cifar_batches(4))
    return {}


def _report(folder: Path, results: Path) -> dict[str, Any]:
    """Results of real runs."""
    shutil.copytree(results, folder / "results")
    return {}


def _flower(folder: Path, results: Path) -> dict[str, Any]:
    """A grid with twelve nodes that answer at once, a model and a rule."""
    from fake_grid import FakeGrid
    from flwr.app import Message, MetricRecord, RecordDict

    from kasync import models, rules

    def answer(message: Message) -> list[Message]:
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 4})
        return [Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)]

    return {"grid": FakeGrid(range(1, 13), answer), "model": models.mlp(4, 2), "rule": rules.wkafl(1.0)}


def _theory(folder: Path, results: Path) -> dict[str, Any]:
    """Squared gradient norms [J] of a run."""
    return {"norms": np.full(10_000, 0.05)}


PREPARED: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "docs/data.md": _data,
    "docs/flower.md": _flower,
    "docs/report.md": _report,
    "docs/theory.md": _theory,
}


def prepare(page: Path, folder: Path, results: Path) -> dict[str, Any]:
    """Put into the folder what the page's reader would have, and return the names the page takes for granted."""
    return PREPARED[name_of(page)](folder, results) if name_of(page) in PREPARED else {}
