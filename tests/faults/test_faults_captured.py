"""The body of a captured step, played by hand on a CPU, has the faults of a plain one."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from small_worlds import CLIENTS, make_rule, mlp, vectors

from kasync import faults, simulate, timelines
from kasync.simulator import graph
from kasync.simulator.run import Prefetch, Run

TIMELINE = timelines.uniform(CLIENTS, 3, 60, seed=4)
WRONG = {kind: [faults.build(kind, share=0.3)] for kind in faults.KINDS if kind != "huge"}
WRONG |= {"huge": [faults.SendHuge(0.3, factor=5.0)], "none": [], "all": [fault for [fault] in WRONG.values()]}


class Lazy:
    """A stream that does nothing until somebody waits for it: the latest that a device could be."""

    def __init__(self):
        self.waiting = []

    def synchronize(self):
        pass

    def wait_stream(self, other):
        while other.waiting:
            other.waiting.pop()()


class Played(graph.CapturedRun):
    """A captured run whose graphs are its body, called again."""

    def _capture(self, chunk):
        kept = {name: value.clone() for name, value in self.tensors().items()}
        super()._capture(chunk)  # without a device nothing is recorded: the body runs once, and is undone here
        for name, value in self.tensors().items():
            value.copy_(kept[name])
        self.buffers.number.zero_()
        self.played = set()
        self.graphs = {apart: SimpleNamespace(replay=partial(self._play, apart)) for apart in self.graphs}

    def _play(self, apart):
        self.played.add(apart)
        self.apart = apart
        self._body(self.buffers, apart)

    def _begin(self, buffers):
        if getattr(self, "apart", False):
            self.beside.waiting.append(partial(super()._begin, buffers))
        else:
            super()._begin(buffers)


@pytest.fixture
def without_device(monkeypatch):
    monkeypatch.setattr(graph, "own_stream", Lazy)
    monkeypatch.setattr(graph, "side_stream", Lazy)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", lambda *given, **named: nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())


@pytest.mark.parametrize("hold", ["gradients", "versions"])
@pytest.mark.parametrize("kind", WRONG)
def test_a_captured_step_has_the_faults_of_a_plain_one(kind, hold, without_device):
    rule = make_rule("ca2fl", mlp(), vectors())
    plain = simulate(mlp(), vectors(), rule, TIMELINE, faults=WRONG[kind], hold=hold, seed=3, evaluate_every=7)
    told = list(plain)
    again = simulate(mlp(), vectors(), rule, TIMELINE, faults=WRONG[kind], hold=hold, seed=3, evaluate_every=7)
    run = again.run
    again.run = Run.begin.__func__(Played, run.plan, run.inputs, run.clients, rule, run.server.params)
    again.run.prefetch = Prefetch(None)  # as where a device does the work
    retold = list(again)
    assert again.run.played == ({False, True} if hold == "gradients" else {False})
    assert [record.dropped for record in retold] == [record.dropped for record in told]
    torch.testing.assert_close(again.params, plain.params, atol=1e-6, rtol=0)
