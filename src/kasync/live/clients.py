"""The simulator's clients as live ones: each alone with its own samples, drawing the same batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kasync.data.federated import FederatedData
from kasync.live.deliveries import Delivery
from kasync.work import Work
from kasync.work.batches import Batches
from kasync.work.clients import Clients
from kasync.work.loop import Sent
from kasync.work.objective import Objective
from kasync.work.trial import refuse_empty, tried


@dataclass(frozen=True, eq=False)
class DataClient:
    """Client `number` with its samples; what it draws is a function of (seed, number, visit), as in the simulator."""

    number: int
    model: nn.Module
    data: FederatedData  # this client's samples alone
    work: Work
    seed: int

    @cached_property
    def machine(self) -> Clients:
        objective = Objective.of(self.data, None)
        traits = tried(self.model, self.data.tensors("cpu"), objective)
        draw = self.batches.visit
        made = Clients.of(
            self.model, self.data, self.work, objective, "cpu", draw, traits=traits, seed=self.seed, threads=1
        )
        return replace(made, pool=None)

    @cached_property
    def batches(self) -> Batches:
        offsets = np.zeros(self.number + 2, np.int64)  # its samples are the only ones there are
        offsets[-1] = len(self.data.indices)
        return Batches(self.data.indices, offsets, self.work, self.seed)

    def __getstate__(self) -> dict[str, Any]:
        """What travels: the machine is built where it is used."""
        return {name: value for name, value in self.__dict__.items() if name not in ("machine", "batches")}

    def __call__(self, params: Tensor, visit: int) -> Delivery:
        """The gradient, or start minus trained model."""
        out = torch.empty(1, len(params))
        size = float(self.batches.used(np.array([self.number]))[0])
        with torch.no_grad():
            if self.machine.alone:
                before = visit * int(self.work.batches(np.array([len(self.data.indices)]))[0])
                loss = self.machine.visit(Sent(params), self.number, visit, before, None, {}, out[0]).loss
            else:
                samples, weights = self.batches.draw(np.array([self.number]), np.array([visit]))
                loss = self.machine.compute(params, torch.from_numpy(samples), torch.from_numpy(weights), out)
        return Delivery(out[0], float(loss), size)


def clients_of(model: nn.Module, data: FederatedData, work: Work, seed: int = 0) -> list[DataClient]:
    """A client for each part of the data, with its own samples only."""
    refuse_empty(model)
    made = []
    for number in range(data.clients):
        mine = data.of(number)
        own = replace(
            data,
            train=data.train.subset(mine),
            test=data.test.subset(np.arange(2)),
            indices=np.arange(len(mine)),
            offsets=np.array([0, len(mine)]),
        )
        made.append(DataClient(number, model, own, work, seed))
    return made
