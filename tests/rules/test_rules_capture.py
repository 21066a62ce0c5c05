"""No rule branches on a tensor's value in Python, so that a whole step can be captured in a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from deliveries import LENGTH, deliver, generator
from rule_cases import equal, every_rule, make
from torch.utils._python_dispatch import TorchDispatchMode

from kasync import Arrivals, Part, Rule, ServerState, Step, parts, rules, span

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::unique_dim"}


class NoPeeking(TorchDispatchMode):
    """Fails where the value of a tensor is asked for, or the shape of a result depends on one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split(".")[0]
        assert name not in READS, f"{name} reads a tensor's value"
        return func(*args, **kwargs or {})


@dataclass(frozen=True)
class Watched(Part):
    """A part that must not peek."""

    part: Part

    @property
    def needs_clients(self) -> bool:
        return self.part.needs_clients

    def memory(self, params):
        return self.part.memory(params)

    def basis(self, server: ServerState, arrivals: Arrivals):
        with NoPeeking():
            return self.part.basis(server, arrivals)

    def __call__(self, step: Step) -> Step:
        with NoPeeking():
            return self.part(step)

    def finish(self, step: Step) -> Step:
        with NoPeeking():
            return self.part.finish(step)


def watched(rule: Rule) -> Rule:
    return replace(rule, parts=tuple(Watched(part) for part in rule.parts))


@every_rule
def test_no_part_reads_the_value_of_a_tensor_where_nobody_may(case, monkeypatch):
    monkeypatch.setattr(span, "unreadable", lambda tensor: True)
    rule, random = watched(make(case)), generator(1)
    server = ServerState.initial(torch.zeros(LENGTH))
    for _ in range(6):
        server, _ = rule(server, deliver(random, dtype=torch.float32))
    assert int(server.step) == 6


@pytest.mark.parametrize("loss_threshold", [-1.0, 1e9])  # stage one for ever, stage two from the first step on
@pytest.mark.parametrize("threshold", [-1.0, 0.3, 1.0])  # all agree, some, none
def test_what_a_part_leaves_out_as_impossible_changes_no_bit(loss_threshold, threshold, monkeypatch):
    rule = rules.wkafl(0.1, ratio=0.5, loss_threshold=loss_threshold, threshold=threshold)

    def after_some_steps() -> ServerState:
        server, random = ServerState.initial(torch.ones(LENGTH)), generator(4)
        for _ in range(6):
            server, _ = rule(server, deliver(random, dtype=torch.float32))
        return server

    short = after_some_steps()
    for part in (parts.clipping, parts.selection):
        monkeypatch.setattr(part, "possible", lambda condition: True)
    equal(short, after_some_steps())


class PeekingPart(Part):
    def __call__(self, step: Step) -> Step:
        return step if step.lr > 0 else step.scaled(step.weights)


class IndexingPart(Part):
    def __call__(self, step: Step) -> Step:
        return replace(step, lr=step.lr * step.weights[step.stage - 1])  # a tensor of no dimension as an index is read


@pytest.mark.parametrize("part", [PeekingPart(), IndexingPart()])
def test_a_part_that_reads_the_value_of_a_tensor_is_noticed(part):
    with pytest.raises(AssertionError, match="reads a tensor's value"):
        watched(Rule("peeking", 0.1, (part,)))(
            ServerState.initial(torch.zeros(LENGTH)), deliver(generator(1), dtype=torch.float32)
        )


def on(arrivals: Arrivals, device: str) -> Arrivals:
    fields = {name: value.to(device) for name, value in vars(arrivals).items() if isinstance(value, torch.Tensor)}
    return replace(arrivals, **fields)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
@pytest.mark.parametrize("optimizer", [None, torch.optim.Adam])
@every_rule
def test_a_rule_on_a_gpu_stays_there_and_gives_the_numbers_of_the_cpu(case, optimizer):
    rule, random = make(case, optimizer=optimizer), generator(2)
    here = ServerState.initial(torch.ones(LENGTH, dtype=torch.float64))
    there = ServerState.initial(torch.ones(LENGTH, dtype=torch.float64, device="cuda"))
    for number in range(8):
        arrivals = deliver(random)
        if number == 5:
            arrivals = replace(arrivals, gradients=arrivals.gradients.index_fill(0, torch.tensor([1]), torch.nan))
        here, _ = rule(here, arrivals)
        there, step = rule(there, on(arrivals, "cuda"))
        assert int(step.dropped) == (number == 5)
    tolerance = 1e-7 if optimizer is None else 1e-3  # on a GPU Adam corrects its bias in float32
    for name, value in there.state_dict().items():
        assert value.is_cuda, name
        torch.testing.assert_close(value.cpu(), here.state_dict()[name], rtol=tolerance, atol=tolerance / 10)


@needs_cuda
@pytest.mark.parametrize("optimizer", [None, torch.optim.Adam])
@every_rule
def test_a_whole_step_can_be_captured_in_a_cuda_graph(case, optimizer):
    rule, random = make(case, optimizer=optimizer), generator(3)
    deliveries = [on(deliver(random), "cuda") for _ in range(6)]
    server = ServerState.initial(torch.ones(LENGTH, dtype=torch.float64, device="cuda"))
    for arrivals in deliveries[:3]:  # the first step makes the memory, and libraries are loaded
        server, _ = rule(server, arrivals)
    expected = server
    for arrivals in deliveries[3:]:
        expected, _ = rule(expected, arrivals)

    places = on(deliveries[3], "cuda")
    places = replace(places, **{name: value.clone() for name, value in vars(places).items()})
    state = {name: value.clone() for name, value in server.state_dict().items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        after, _ = rule(ServerState.from_state_dict(state), places)
        for name, value in after.state_dict().items():
            state[name].copy_(value)
    for arrivals in deliveries[3:]:
        for name, value in vars(arrivals).items():
            getattr(places, name).copy_(value)
        graph.replay()
    torch.cuda.synchronize()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12, msg=name)
