"""LoRA across authors: accuracy of the rules, bytes of a delivery, server memory, and how often weights are held.

    python benchmarks/lora.py --data DATA --encoder FOLDER                         accuracies, tuned alike
    python benchmarks/lora.py --data DATA --encoder FOLDER --held                  memory of the whole encoder

MiniLM-L6 (or any folder that transformers reads) on 20 Newsgroups by author. Adapters of rank 4 on queries and values
of the last `--layers` layers and a new head; the layers below stay as they are, so what they make of every message is
computed once and kept, which changes no number.
"""

from __future__ import annotations

import argparse
import copy
import gc
import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kasync
from kasync import data, rules, timelines

LENGTH, RANK, CLIENTS, K, CONCURRENCY = 32, 4, 272, 8, 32
TARGETS = ("query", "value")


class Classifier(nn.Module):
    """The last layers of an encoder on what the layers below give, the mean over tokens, and a head."""

    def __init__(self, layers: nn.ModuleList, width: int, classes: int) -> None:
        super().__init__()
        self.layers, self.head = layers, nn.Linear(width, classes)

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        seen = attention_mask[:, None, None, :].to(states.dtype)  # [N, 1, 1, T]
        for layer in self.layers:
            out = layer(states, (1 - seen) * torch.finfo(states.dtype).min)
            states = out[0] if isinstance(out, tuple) else out
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * mask).sum(1) / mask.sum(1))


class Whole(nn.Module):
    """The whole encoder, from tokens."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * mask).sum(1) / mask.sum(1))


def tokens_of(folder: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokens(messages: list[str]) -> dict[str, Any]:
        batch = tokenizer(messages, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np")
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    return tokens


def below(encoder: nn.Module, kept: int, tokens: dict[str, Any]) -> dict[str, Any]:
    """What the encoder without its last `kept` layers makes of these messages."""
    lower = copy.deepcopy(encoder)
    lower.encoder.layer = lower.encoder.layer[:-kept]
    lower.eval()
    states = []
    with torch.no_grad():
        for start in range(0, len(tokens["input_ids"]), 64):
            batch = {name: torch.from_numpy(rows[start : start + 64]) for name, rows in tokens.items()}
            states.append(lower(**batch).last_hidden_state)
    return {"states": torch.cat(states).numpy(), "attention_mask": tokens["attention_mask"]}


def peak() -> float:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fleet(steps: int, seed: int, mode: str = "async", k: int = K) -> timelines.Timeline:
    """Log-normal times for a piece of work; CONCURRENCY of the authors work at a time."""
    durations = timelines.durations.log_normal(median=1.0, spread=1.0)
    return timelines.clock(CLIENTS, k, steps, durations, seed, mode, concurrency=CONCURRENCY)


def adapted(model: nn.Module) -> nn.Module:
    return kasync.lora(model, rank=RANK, targets=TARGETS, trainable="head")


def held(folder: str, root: Path) -> None:
    """The whole encoder: what is planned, what the process grew by, and where the frozen weights lie."""
    from transformers import AutoModel

    news = data.load("newsgroups", root=root, tokenizer=tokens_of(folder))
    clients = data.federate(news, data.partition.natural()(news))
    torch.manual_seed(0)
    given = Whole(AutoModel.from_pretrained(folder), clients.classes)
    model = adapted(given)
    frozen = [each for each in model.parameters() if not each.requires_grad]
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    weights = sum(each.numel() * each.element_size() for each in frozen) / 2**20
    places = {each.data_ptr() for each in given.parameters()}
    print(f"{len(frozen)} frozen arrays, {weights:.1f} MiB; {sum(f.data_ptr() in places for f in frozen)} shared")
    gc.collect()
    before = peak()
    work = kasync.Local(batch_size=8, steps=1, lr=2e-3, optimizer=torch.optim.AdamW)
    run = kasync.simulate(model, clients, rules.ca2fl(lr=1.0, clients=CLIENTS), fleet(3, 0), work, evaluate_every=10**6)
    print(run.memory)
    for _ in run:
        pass
    grown = peak() - before
    largest = max(frozen, key=torch.numel)
    storages = {
        each.untyped_storage().data_ptr()
        for each in gc.get_objects()
        if isinstance(each, Tensor) and each.shape == largest.shape
    }
    print(f"{len(storages)} storage of the largest frozen array, {tuple(largest.shape)}, after the run")
    print(f"{trained} trained of {trained + sum(f.numel() for f in frozen)}: {4 * trained} bytes a delivery")
    print(f"24 deliveries, {len(clients.sizes)} clients: grew by {grown:.0f} MiB, {grown / weights:.2f} x the weights")


def accuracies(folder: str, root: Path, layers: int, steps: int, seeds: int, tries: int, out: Path) -> None:
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(folder)
    tokens = tokens_of(folder)
    news = data.load("newsgroups", root=root, tokenizer=lambda messages: below(encoder, layers, tokens(messages)))
    clients = data.federate(news, data.partition.natural()(news))
    last, width = encoder.encoder.layer[-layers:], encoder.config.hidden_size
    del encoder.encoder

    def start(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return adapted(Classifier(last, width, clients.classes))

    model = start(0)
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    print(
        f"{trained} numbers, {4 * trained} bytes a delivery; a row for each author {4 * trained * CLIENTS / 1e6:.1f} MB"
    )
    work = kasync.Local(batch_size=8, epochs=1, lr=2e-3, optimizer=torch.optim.AdamW)
    chosen: dict[str, Any] = {
        "FedBuff": ("fedbuff", {"lr": 1.0}),
        "K-async SGD": ("kasync_sgd", {"lr": 1.0}),
        "WKAFL": ("wkafl", {"lr": 1.0}),
        "CA2FL": ("ca2fl", {"lr": 1.0}),
        "ACE": ("ace", {"lr": 1.0}),
        "Recall": ("recall", {"lr": 0.02}),
    }
    found = kasync.compare(
        start,
        clients,
        chosen,
        lambda seed: fleet(steps, seed),
        seeds=seeds,
        work=work,
        tune=tries or None,
        evaluate_every=max(1, steps // 4),
        folder=out,
        name="lora",
        progress=False,
    )
    print(found)
    print(found.verdict)
    for row in found.tuned:
        if row["chosen"]:
            print("tuned", row["rule"], row["settings"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("lora-runs"))
    parser.add_argument("--held", action="store_true")
    given = parser.parse_args()
    if given.held:
        held(given.encoder, given.data)
    else:
        accuracies(given.encoder, given.data, given.layers, given.steps, given.seeds, given.tries, given.out)
