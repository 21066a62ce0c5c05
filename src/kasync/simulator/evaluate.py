"""How good a model is: on the test set, by metrics of the user's, and client by client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.data.federated import FederatedData, scaled
from kasync.errors import UserError
from kasync.work.clients import Clients, forget
from kasync.work.loop import Sent
from kasync.work.objective import Inputs, columns, copied, correct, taken
from kasync.work.stacks import StackedChain
from kasync.work.trial import first_line, out_of_memory

SIZES = {"cpu": 250, "cuda": 5000}  # samples at once
BYTES = {"cpu": 2**27, "cuda": 2**32}  # that the forward pass of so many may take
STACKED = 20_000  # samples at once for a stack of runs, all runs' together


@dataclass(frozen=True)
class Evaluation:
    """What one look at the model says."""

    accuracy: float  # NaN where no label is a class
    loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class PerClient:
    """Accuracy and loss of the model on every client's own rows, and how far clients differ."""

    clients: NDArray[np.int64]  # [n] those that have rows
    accuracy: NDArray[np.float64]  # [n]
    loss: NDArray[np.float64]  # [n]
    samples: NDArray[np.int64]  # [n]

    @property
    def mean(self) -> float:
        """Of the clients' accuracies, each client counting the same."""
        return float(self.accuracy.mean())

    @property
    def worst_tenth(self) -> float:
        """Mean accuracy of the tenth of the clients that the model serves worst."""
        return float(np.sort(self.accuracy)[: max(1, len(self.accuracy) // 10)].mean())

    @property
    def spread(self) -> float:
        """Standard deviation of the clients' accuracies."""
        return float(self.accuracy.std())

    def __repr__(self) -> str:
        told = f"mean {self.mean:.4f}, worst tenth {self.worst_tenth:.4f}, spread {self.spread:.4f}"
        return f"PerClient({len(self.clients)} clients: {told})"


def at_once(device: torch.device, sample: int) -> int:
    """Test samples at once, of a model whose forward pass takes so many bytes for each; free memory plays no part."""
    most = SIZES.get(device.type, 1000)
    return max(1, min(most, BYTES.get(device.type, 2**27) // max(1, sample)))


def evaluate(clients: Clients, sent: Sent) -> Evaluation:
    """Accuracy, mean loss and the user's metrics on the whole test set."""
    data, objective = clients.data, clients.objective
    told, outputs = scored(clients, sent, data.test_inputs, data.test_labels, keep=bool(objective.metrics))
    accuracy, loss = _share_right(told[:, 0]), float(told.mean(0)[1])
    metrics = {}
    for name, metric in objective.metrics.items():
        batch = columns(data.test_inputs, data.test_labels)
        wanted = data.test_labels.clone() if data.test_labels is not None else batch
        metrics[name] = _measured(name, metric, outputs, wanted)
    return Evaluation(accuracy, loss, metrics)


def _share_right(right: Tensor) -> float:
    """The mean over the samples [N] that have something to be right about; NaN where there is none."""
    return float(right[~right.isnan()].mean())


def _measured(name: str, metric: Callable[..., Any], outputs: Tensor | None, wanted: Any) -> float:
    """A metric of the user's, which gives one number."""
    try:
        return float(metric(outputs, wanted))
    except Exception as problem:
        if out_of_memory(problem):
            raise
        shape = None if outputs is None else tuple(outputs.shape)
        raise UserError(
            f"metrics[{name!r}] fails on the test set's outputs {shape} ({first_line(problem)}): give a function of "
            "outputs and labels that returns one number."
        ) from problem


def scored(
    clients: Clients, sent: Sent, inputs: Inputs, labels: Tensor | None, keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """[N, 2] whether each sample is right (NaN for regression) and its loss; and all outputs, where they are kept."""
    first = inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))
    size = clients.room.samples or SIZES.get(first.device.type, 1000)

    def part(start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        try:
            return one(slice(start, stop))
        except Exception as problem:
            if not out_of_memory(problem) or stop - start < 2:
                raise
        middle = (start + stop) // 2
        clients.room.samples = middle - start  # from now on
        forget(first.device)
        left, right = part(start, middle), part(middle, stop)
        kept = None if left[1] is None or right[1] is None else torch.cat([left[1], right[1]])
        return torch.cat([left[0], right[0]]), kept

    def one(rows: slice) -> tuple[Tensor, Tensor | None]:
        wanted = None if labels is None else labels[rows]
        with torch.no_grad():
            given = None if wanted is None else wanted.clone()
            outputs, losses = clients.losses(sent, copied(inputs, rows), given)
            if outputs is None and clients.answers and (keep or clients.objective.classes):
                outputs = clients.outputs(sent, copied(inputs, rows))
            count = len(first[rows])
            losses = losses.double().expand(count) if losses.dim() == 0 else losses.double()
            right = losses.new_full((count,), torch.nan)
            if outputs is not None:
                right = correct(outputs, wanted, clients.objective.classes)
            return torch.stack([right, losses], dim=1), outputs if keep else None

    starts = range(0, len(first), size)
    parts = clients.side_by_side(lambda start: part(start, min(start + size, len(first))), starts)
    outputs = torch.cat([kept for _, kept in parts]) if keep else None  # type: ignore[misc]
    return torch.cat([told for told, _ in parts]), outputs


def evaluate_stack(machine: StackedChain, clients: Clients, params: Tensor) -> Tensor:
    """[R, 2] accuracy and loss for R sets of parameters [R, D] on one test set, which is read once for all of them."""
    inputs, labels = clients.data.test_inputs, clients.data.test_labels
    assert isinstance(inputs, Tensor)
    runs, objective = len(params), clients.objective
    size = max(1, STACKED // runs)
    total = torch.zeros(runs, 2, dtype=torch.float64, device=params.device)
    counted = torch.zeros(runs, dtype=torch.int64, device=params.device)  # samples with something to be right about
    for start in range(0, len(labels), size):
        wanted = labels[start : start + size].repeat(runs, *[1] * (labels.dim() - 1))
        outputs = machine.outputs(params, scaled(inputs[start : start + size], objective.scale))
        losses = objective.loss(outputs, wanted).double()
        right = correct(outputs, wanted, objective.classes)
        total += torch.stack([right.nan_to_num(0.0), losses], dim=1).view(runs, -1, 2).sum(1)
        counted += (~right.isnan()).view(runs, -1).sum(1)
    return torch.stack([total[:, 0] / counted, total[:, 1] / len(labels)], dim=1)


def per_client(clients: Clients, sent: Sent, data: FederatedData, rows: str, chosen: Sequence[int] | None) -> PerClient:
    """Evaluate on every client's own rows of the training set: those held out for it, or those it trains on."""
    if rows not in ("held-out", "train"):
        raise UserError(f"rows = {rows!r}: use 'held-out' (rows of a client's own that it never trains on) or 'train'.")
    held = getattr(data, "client_test", None)
    if rows == "held-out" and held is None:
        raise UserError(
            "the data hold out no rows of the clients' own: call data.held_out(0.1) before, or rows='train'."
        )
    indices, offsets = (data.indices, data.offsets) if rows == "train" else held  # type: ignore[misc]
    sizes = np.diff(offsets)
    wrong = [c for c in chosen or () if not (isinstance(c, Integral) and 0 <= c < len(sizes))]
    if wrong:
        raise UserError(f"clients holds {wrong[0]!r}: name clients by whole numbers from 0 to {len(sizes) - 1}.")
    numbers = np.flatnonzero(sizes) if chosen is None else np.array([c for c in chosen if sizes[c]], dtype=np.int64)
    if not len(numbers):
        raise UserError(f"none of the clients has {rows} rows: name others, or leave clients out.")
    wanted = np.concatenate([indices[offsets[c] : offsets[c + 1]] for c in numbers] or [np.empty(0, np.int64)])
    inputs, labels = clients.data.inputs, clients.data.labels
    places = torch.from_numpy(wanted.astype(np.int64)).to(sent.params.device)
    told, _ = scored(clients, sent, taken(inputs, places), None if labels is None else labels[places])
    bounds = np.concatenate([[0], np.cumsum(sizes[numbers])])
    parts = [told.cpu()[a:b] for a, b in pairwise(bounds)]
    accuracy = np.array([_share_right(part[:, 0]) for part in parts])
    return PerClient(numbers, accuracy, np.array([part.numpy().mean(0)[1] for part in parts]), sizes[numbers])
