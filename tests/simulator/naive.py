"""The naive simulator: one deep copy of the model for each client, one gradient after the other.

It shares with the simulator only the draw of the batches and the rule, which it calls purely.
"""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kasync import Arrivals, LocalSGD, ServerState
from kasync.data.federated import FederatedData, scaled
from kasync.work.batches import Batches


@dataclass
class Told:
    """What the naive run can say about each step."""

    params: list[Tensor] = field(default_factory=list)  # [D] each, after the step
    losses: list[float] = field(default_factory=list)
    staleness: list[list[int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    accuracy: float | None = None
    test_loss: float = 0.0


def mean_loss(data: FederatedData):
    """The mean loss of a batch: cross-entropy, or the squared error of the only output."""
    if data.classes:
        return functional.cross_entropy
    return lambda outputs, labels: functional.mse_loss(outputs[:, 0], labels)


def flat(model: nn.Module) -> Tensor:
    """[D] a copy of all parameters."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).clone()


def gradient_of(model: nn.Module, inputs: Tensor, labels: Tensor, loss) -> tuple[Tensor, float]:
    """[D] the gradient by autograd, and the loss."""
    model.zero_grad()
    value = loss(model(inputs), labels)
    value.backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]), float(value.detach())


def own_gradient(model: nn.Module, data: FederatedData, samples, loss=None):
    """A server gradient as a function of the parameters [D], by autograd on a copy of the model."""
    inputs = scaled(torch.from_numpy(samples.inputs.copy()), data.scale)
    labels = torch.from_numpy(samples.labels.copy())

    def gradient(params: Tensor) -> Tensor:
        copy = deepcopy(model)
        nn.utils.vector_to_parameters(params.clone(), copy.parameters())
        return gradient_of(copy, inputs, labels, loss or mean_loss(data))[0]

    return gradient


def simulate_naively(model, data, rule, timeline, work, **options) -> Told:
    """Every step of the timeline on one thread: with numbers so few, threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return every_step(model, data, rule, timeline, work, **options)
    finally:
        torch.set_num_threads(threads)


def every_step(model, data, rule, timeline, work, *, seed=0, staleness="true", loss=None, spoil=None) -> Told:
    """The loop, as a person would write it on a first afternoon; `spoil` has faults in labels and rows."""
    batches = Batches.of(data, work, seed)
    formula = loss or mean_loss(data)
    server_model = deepcopy(model)
    server = ServerState.initial(flat(model))
    rule = rule.shaped(parameter.shape for parameter in model.parameters())
    own = {client: deepcopy(model) for client in range(timeline.population)}  # the model each client works on
    visits, brought = defaultdict(int), {}
    taken = models_taken(timeline)
    told = Told()
    for step in range(timeline.steps):
        for client in taken[step]:
            if own[client] is not server_model:
                own[client].load_state_dict(server_model.state_dict())
        rows, losses, starts, sizes = [], [], [], []
        for slot, client in enumerate(timeline.clients[step].tolist()):
            if timeline.copies is not None and timeline.copies[step, slot]:
                for column, value in zip((rows, losses, starts, sizes), brought[client], strict=True):
                    column.append(value)
                continue
            if staleness == "none":
                own[client] = server_model
            starts.append(flat(own[client]))
            samples, weights = batches.draw(np.array([client]), np.array([visits[client]]))
            drawn = [row[share > 0] for row, share in zip(samples[0], weights[0], strict=True)]
            seen = data if spoil is None else spoil.labels(data, client, visits[client])
            row, value = bring(own[client], seen, drawn, work, formula)
            rows.append(row if spoil is None else spoil.row(row, client, visits[client]))
            losses.append(value)
            sizes.append(float(len(drawn[0])))
            brought[client] = rows[-1], losses[-1], starts[-1], sizes[-1]
            visits[client] += 1
            if staleness == "published-code":
                own[client] = server_model  # the fault of the authors' code: from now on the server's own parameters
        ages = (step - timeline.versions[step]).tolist() if staleness != "none" else [0] * timeline.k
        arrivals = Arrivals(
            torch.stack(rows), ages, losses, sizes, timeline.clients[step].tolist(), torch.stack(starts)
        )
        server, done = rule(server, arrivals)
        nn.utils.vector_to_parameters(server.params.clone(), server_model.parameters())
        sound = [value for value, usable in zip(losses, done.usable.tolist(), strict=True) if usable]
        told.params.append(server.params)
        told.losses.append(sum(sound) / max(len(sound), 1))
        told.staleness.append(ages)
        told.dropped.append(int(done.dropped))
    inputs = scaled(torch.from_numpy(data.test.inputs.copy()), data.scale)
    labels = torch.from_numpy(data.test.labels.copy())
    with torch.no_grad():
        outputs = server_model(inputs)
        told.test_loss = float(formula(outputs, labels))
        told.accuracy = float((outputs.argmax(1) == labels).float().mean()) if data.classes else None
    return told


def models_taken(timeline) -> dict[int, list[int]]:
    """step -> the clients that take the server's model just before it, to deliver work on it later."""
    taken = defaultdict(list)
    for step in range(timeline.steps):
        for client, version in zip(timeline.clients[step].tolist(), timeline.versions[step].tolist(), strict=True):
            taken[version].append(client)
    return taken


def bring(model: nn.Module, data: FederatedData, drawn, work, formula) -> tuple[Tensor, float]:
    """[D] what one client brings: a gradient, or its start minus its model after local steps; and the mean loss."""
    batches = [
        (
            scaled(torch.from_numpy(data.train.inputs[chosen]), data.scale),
            torch.from_numpy(np.asarray(data.train.labels[chosen])),
        )
        for chosen in drawn
    ]
    if not isinstance(work, LocalSGD):
        return gradient_of(model, *batches[0], formula)
    start, losses, model = flat(model), [], deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    for inputs, labels in batches:
        optimizer.zero_grad()
        value = formula(model(inputs), labels)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return start - flat(model), sum(losses) / len(losses)
