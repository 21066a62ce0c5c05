"""Folders, data and names that a page expects its reader to have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pages import name_of

SHORTER = {  # page -> what is read instead of what stands there
    "docs/data.md": {'"/my/data"': '"my-data"'},
    "docs/tutorial-gpt.md": {
        '"/my/data"': '"my-data"',
        "length=64": "length=16",
        "fewest=400": "fewest=2",
        "width=64": "width=16",
        "context=64": "context=16",
        "until = 30.0": "until = 6.0",
        "steps=20, lr": "steps=1, lr",
        "seeds=3": "seeds=1",
    },
    "docs/tutorial-lora.md": {'"/my/data"': '"my-data"', "steps = 40": "steps = 4"},
    "docs/flower.md": {"num_rounds=500": "num_rounds=3"},
    "docs/tutorial-fleet.md": {
        "until = 400.0": "until = 20.0",
        "range(3)": "range(1)",
        "num_rounds=500": "num_rounds=3",
    },
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


def _encoder(folder: Path, results: Path) -> dict[str, Any]:
    """A small encoder of transformers with its tokenizer, in the folder "minilm"."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "rain", "snow", "sun", "heat", "cats", "rockets"]
    place = folder / "minilm"
    place.mkdir()
    (place / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(place)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(place)
    return {}


def _tutorial_lora(folder: Path, results: Path) -> dict[str, Any]:
    """Messages of a few authors, and a small encoder."""
    import official_files

    authors = tuple(number for number in range(12) for _ in range(10))
    official_files.write_newsgroups(folder / "my-data" / "newsgroups", authors)
    return _encoder(folder, results) | {"folder": "minilm"}


def _tutorial_gpt(folder: Path, results: Path) -> dict[str, Any]:
    """Eight roles with lines of their own."""
    import official_files

    lines = ["To be, or not to be", "A rose is a rose", "Words, words, words", "The rest is silence"]
    roles = {f"ROLE {n}": lines[n % 4 :] * (9 + n) for n in range(8)}
    official_files.write_by_role(folder / "my-data" / "shakespeare", roles)
    return {}


def _report(folder: Path, results: Path) -> dict[str, Any]:
    """Results of real runs."""
    shutil.copytree(results, folder / "results")
    return {}


def _flower(folder: Path, results: Path, nodes: int = 12) -> dict[str, Any]:
    """A grid with nodes that answer at once, a model and a rule."""
    from fake_grid import FakeGrid
    from flwr.app import Message, MetricRecord, RecordDict

    from kasync import models, rules

    def answer(message: Message) -> list[Message]:
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 4})
        return [Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)]

    return {"grid": FakeGrid(range(1, nodes + 1), answer), "model": models.mlp(4, 2), "rule": rules.wkafl(1.0)}


def _tutorial_fleet(folder: Path, results: Path) -> dict[str, Any]:
    """A grid with as many nodes as the page has clients."""
    return {"grid": _flower(folder, results, nodes=60)["grid"]}


def _theory(folder: Path, results: Path) -> dict[str, Any]:
    """Squared gradient norms [J] of a run."""
    return {"norms": np.full(10_000, 0.05)}


PREPARED: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "docs/data.md": _data,
    "docs/flower.md": _flower,
    "docs/gallery.md": _encoder,
    "docs/report.md": _report,
    "docs/theory.md": _theory,
    "docs/tutorial-fleet.md": _tutorial_fleet,
    "docs/tutorial-gpt.md": _tutorial_gpt,
    "docs/tutorial-lora.md": _tutorial_lora,
}


def prepare(page: Path, folder: Path, results: Path) -> dict[str, Any]:
    """Put into the folder what the page's reader would have, and return the names the page takes for granted."""
    return PREPARED[name_of(page)](folder, results) if name_of(page) in PREPARED else {}
