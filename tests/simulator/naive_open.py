"""The simplest program for open workloads: deep copies, plain PyTorch, one client after the other.

It shares with the simulator the draw of the batches, the numbers that seed a model's chance, and the rule.
"""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy

import numpy as np
import torch
from naive import models_taken
from torch import Tensor, nn

from kasync import Arrivals, Custom, Gradient, ServerState
from kasync.counter import Stream, bits
from kasync.data.federated import scaled
from kasync.work.batches import Batches


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def vector(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in trained(model)]).clone()


class Seeded:
    """Seeds PyTorch before every call of a training model."""

    def __init__(self, model, seed, client, visit):
        self.calls = 0

        def before(module, given):
            if module.training:
                torch.manual_seed(int(bits(seed, Stream.CHANCE, client, visit, self.calls)) >> 1)
                self.calls += 1

        self.handle = model.register_forward_pre_hook(before)

    def remove(self):
        self.handle.remove()


def rows_of(columns, rows):
    if isinstance(columns, dict):
        return {name: torch.from_numpy(column[rows]) for name, column in columns.items()}
    return torch.from_numpy(columns[rows])


def mean_of(loss, model, inputs, labels, scale):
    """The mean loss of a batch, by a loss of outputs and labels."""
    outputs = model(**scaled(inputs, scale)) if isinstance(inputs, dict) else model(scaled(inputs, scale))
    return loss(outputs["logits"] if isinstance(outputs, dict) else outputs, labels).mean()


def simulate_openly(model, data, rule, timeline, work, *, loss, seed=0, buffers="average", changed=()):
    """The server's parameters and buffers after every step, and the extras it sends at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = torch.random.get_rng_state()
    try:
        return _every_step(model, data, rule, timeline, work, loss, seed, buffers, changed)
    finally:
        torch.random.set_rng_state(before)
        torch.set_num_threads(threads)


def _every_step(model, data, rule, timeline, work, loss, seed, buffers, changed):
    batches = Batches.of(data, work, seed)
    server_model = deepcopy(model)
    server = ServerState.initial(vector(model))
    rule = rule.shaped(parameter.shape for parameter in trained(model))
    sent = {name: value.clone() for name, value in work.sends(model).items()}
    own = {client: (deepcopy(model), dict(sent)) for client in range(timeline.population)}
    kept = defaultdict(dict)  # client -> what its work keeps
    own_buffers = {}  # client -> its buffers, where they are local
    done = defaultdict(int)  # client -> mini-batches so far
    taken = models_taken(timeline)
    story = []
    for step in range(timeline.steps):
        for client in taken[step]:
            own[client] = (deepcopy(server_model), dict(sent))
        rows, losses, sizes, brought_buffers, brought_extras = [], [], [], [], []
        for place, client in enumerate(timeline.clients[step].tolist()):
            mine, received = own[client]
            start, visit = vector(mine), int(timeline.visits[step, place])
            if buffers == "local" and client in own_buffers:
                mine.load_state_dict(mine.state_dict() | own_buffers[client])
            mine.train()
            if buffers == "frozen":
                for module in mine.modules():
                    if isinstance(module, nn.modules.batchnorm._BatchNorm):
                        module.eval()
            steps = None if getattr(timeline, "local_steps", None) is None else int(timeline.local_steps[step, place])
            drawn = batches.visit(client, visit, steps)
            seeded = Seeded(mine, seed, client, visit)
            row, value, extras = _work(mine, data, work, loss, drawn, kept, client, visit, done[client], received)
            seeded.remove()
            done[client] += len(drawn)
            row = row if isinstance(work, Gradient) else start - vector(mine)
            told = {name: buffer.clone() for name, buffer in mine.named_buffers() if name in changed}
            own_buffers[client] = told
            rows.append(row)
            losses.append(value)
            sizes.append(float(batches.used(np.array([client]))[0]))
            brought_buffers.append(told)
            brought_extras.append(extras)
        ages = (step - timeline.versions[step]).tolist()
        arrivals = Arrivals(torch.stack(rows), ages, losses, sizes, timeline.clients[step].tolist())
        server, _ = rule(server, arrivals)
        nn.utils.vector_to_parameters(server.params.clone(), trained(server_model))
        if buffers != "frozen" and changed:
            means = {name: torch.stack([b[name].double() for b in brought_buffers]).mean(0) for name in changed}
            state = server_model.state_dict()
            for name, mean in means.items():
                whole = not state[name].is_floating_point()
                state[name].copy_(mean.round() if whole else mean)
        if brought_extras[0]:
            sent = work.merge(
                sent, {name: torch.stack([e[name] for e in brought_extras]) for name in brought_extras[0]}
            )
        story.append(server.params)
    state = {name: buffer.clone() for name, buffer in server_model.named_buffers() if name in changed}
    return story, state, sent


def _work(model, data, work, loss, drawn, kept, client, visit, before, received):
    """What one client does; returns its gradient (for Gradient), its mean loss and its extras."""
    batches = [
        (
            rows_of(data.train.inputs, rows),
            None if data.train.labels is None else torch.from_numpy(data.train.labels[rows]),
        )
        for rows in drawn
    ]
    if isinstance(work, Gradient):
        value = mean_of(loss, model, *batches[0], data.scale)
        model.zero_grad()
        value.backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(model)]
        return torch.cat([grad.reshape(-1) for grad in grads]).clone(), float(value.detach()), {}
    if isinstance(work, Custom):
        from kasync import Client

        told = Client(
            client, visit, before, lambda m, b: mean_of(loss, m, b["inputs"], b["labels"], data.scale),
            dict(kept[client]), received,
        )  # fmt: skip
        named = [{"inputs": x, "labels": y} for x, y in batches]
        value = work.train(model, named, told)
        kept[client] = told.state
        return None, float(value), told.extras
    start = vector(model) if work.proximal else None
    optimizer = work.made(trained(model))
    rate = optimizer.param_groups[0]["lr"]
    if work.keep and "optimizer" in kept[client]:
        optimizer.load_state_dict(kept[client]["optimizer"])
    values = []
    for number, (inputs, labels) in enumerate(batches):
        if work.schedule is not None:
            optimizer.param_groups[0]["lr"] = rate * work.schedule(before + number)
        optimizer.zero_grad()
        value = mean_of(loss, model, inputs, labels, data.scale)
        value.backward()
        if work.proximal:
            place = 0
            for parameter in trained(model):
                count = parameter.numel()
                parameter.grad.add_(
                    parameter.detach() - start[place : place + count].view_as(parameter), alpha=work.proximal
                )
                place += count
        if work.clip is not None:
            nn.utils.clip_grad_norm_(trained(model), work.clip)
        optimizer.step()
        values.append(float(value.detach()))
    if work.keep:
        kept[client]["optimizer"] = deepcopy(optimizer.state_dict())
    return None, sum(values) / len(values), {}
