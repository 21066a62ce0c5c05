"""Which runs can be made as one stack?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kasync.errors import UserError
from kasync.optimizers import AMSGrad, Muon, Plain
from kasync.simulator.simulation import Simulation
from kasync.simulator.stack import Stack
from kasync.work import Gradient
from kasync.work.layers import Chain


def together(simulations: Sequence[Simulation]) -> Iterator[int]:
    """Make all these runs at once; yields the steps done so far. Afterwards each simulation tells its records.

    They must be `alike`. A stack keeps no checkpoint: what is interrupted begins anew.
    """
    for one in simulations:
        if alike(one) is None or alike(one) != alike(simulations[0]):
            raise UserError(f"the run of {one.run.rule.name} cannot be stacked with the others: make it by itself.")
    stack = Stack(simulations)
    try:
        for start, stop in stack.pieces():
            stack.steps(start, stop)
            yield stop
    finally:
        stack.let_go()


def alike(simulation: Simulation) -> Any:
    """What must be equal for runs to be stacked; None for a run that has to be made by itself."""
    run = simulation.run
    shape = run.inputs.early and isinstance(run.clients.model, Chain) and isinstance(run.clients.work, Gradient)
    optimizer = run.rule.optimizer
    kind, options = getattr(optimizer, "func", optimizer), getattr(optimizer, "keywords", {})
    simple = kind in (None, AMSGrad, Muon, Plain)
    if not (shape and simple) or simulation.done or run.rule.needs_starts or run.inputs.spoilers is not None:
        return None
    work, data, timeline = run.clients.work, run.clients.data, simulation.timeline
    return (
        (run.device, timeline.k, timeline.steps, simulation.evaluate_every, simulation.classes),
        (run.clients.model, run.clients.scale, getattr(run.clients.loss, "__code__", run.clients.loss)),
        (work, data.inputs.dtype, data.inputs.shape[1:]),
        (kind, str(options), replace(run.rule, lr=0.0, optimizer=None)),
    )
