"""Ways of local training that differ in speed only: in place or by a gradient, all arrays at once or each, fused."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import flat
from small_worlds import CLIENTS, Residual, finished, mlp, vectors
from test_simulator_layers import chains, per_sample
from torch import nn

from kasync import Gradient, Local, LocalSGD, data, rules, simulate, timelines
from kasync.work.layers import Chain

TIMELINE = timelines.uniform(CLIENTS, 3, 15, seed=7)


@settings(max_examples=40, deadline=None)
@given(made=chains(), m=st.integers(1, 4), seed=st.integers(0, 1000))
def test_a_step_of_a_chain_in_place_is_a_step_of_sgd(made, m, seed):
    model, shape = made
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (m,), generator=generator)
    if not model(x).isfinite().all():  # a dilated window may lie on padding alone
        return
    params = flat(model).detach().clone()
    chain = Chain.of(model)
    loss = chain.step(
        chain.held(params),
        x,
        labels,
        torch.full((m,), 1 / m).double(),
        per_sample,
        0.3,
        torch.empty(1, len(params)).double(),
    )
    expected = per_sample(model(x), labels).mean()
    expected.backward()
    torch.testing.assert_close(loss[0], expected.detach())
    torch.optim.SGD(model.parameters(), lr=0.3).step()
    torch.testing.assert_close(params, flat(model).detach())


class Unused(nn.Module):
    """An array that gets no gradient, and one whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(7, 5, sparse=True), nn.Linear(5, 3)
        self.idle = nn.Parameter(torch.ones(4))

    def forward(self, tokens):
        return self.out(self.words(tokens).mean(1))


def sentences():
    draw = np.random.default_rng(0)
    return data.from_arrays(
        draw.integers(0, 7, (60, 4)), draw.integers(0, 3, 60), owners=np.arange(60) % CLIENTS, test_fraction=0.2
    )


LOCAL = [
    Local(4, steps=3, lr=0.05, momentum=0.9),
    Local(3, epochs=2, lr=0.01, optimizer=torch.optim.AdamW),
    Local(4, steps=2, lr=0.01, optimizer=torch.optim.Adam, keep=True),
    Local(4, steps=2, lr=0.01, optimizer=torch.optim.Adagrad),
    Local(4, steps=2, lr=0.05, clip=0.1, proximal=0.2),
]


@pytest.mark.parametrize("work", LOCAL, ids=str)
@pytest.mark.parametrize("kind", ["residual", "unused"])
def test_all_arrays_at_once_or_each_alone_take_the_same_steps(work, kind, monkeypatch):
    ends = []
    for short in (0, 2**40):
        monkeypatch.setattr(sys.modules["kasync.work.loop"], "SHORT", short)
        model, held = (Residual(), vectors()) if kind == "residual" else (Unused(), sentences())
        ends.append(finished(model, held, rules.fedbuff(0.5), TIMELINE, work)[1].params)
    torch.testing.assert_close(*ends, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_fused_step_is_taken_unless_another_is_asked_for(optimizer):
    array = [nn.Parameter(torch.zeros(3))]
    assert Local(4, steps=1, lr=0.1, optimizer=optimizer).made(array).defaults["fused"]
    for way in ("fused", "foreach"):
        asked = Local(4, steps=1, lr=0.1, optimizer=optimizer, **{way: way == "foreach"})
        assert not asked.made(array).defaults["fused"]
    asked, fused = (
        finished(
            Residual(), vectors(), rules.fedbuff(0.5), TIMELINE, Local(4, steps=3, lr=0.02, optimizer=optimizer, **way)
        )
        for way in ({"fused": False}, {})
    )
    torch.testing.assert_close(asked[1].params, fused[1].params, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("work", [LocalSGD(2, 0.05, 4), Gradient(4)], ids=["local steps", "gradient"])
@pytest.mark.parametrize("hold", ["gradients", "versions"])
def test_a_chain_that_runs_out_of_memory_is_computed_in_halves(work, hold, monkeypatch):
    _, expected = finished(mlp(), vectors(), rules.fedbuff(0.5), TIMELINE, work, hold=hold)
    failures, method = [], "gradients" if isinstance(work, Gradient) else "step"
    whole = getattr(Chain, method)

    def narrow(self, params, x, *given):
        if len(x) > 8 and method == "gradients":
            failures.append(len(x))
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return whole(self, params, x, *given)

    monkeypatch.setattr(Chain, method, narrow)
    simulation = simulate(mlp(), vectors(), rules.fedbuff(0.5), TIMELINE, work, hold=hold, backend="chain")
    list(simulation)
    assert bool(failures) == (isinstance(work, Gradient) and hold == "gradients")  # others compute one client at a time
    torch.testing.assert_close(simulation.params, expected.params)


@pytest.mark.parametrize("model", [mlp, Residual])
def test_an_evaluation_that_runs_out_of_memory_is_made_in_halves(model, monkeypatch):
    records, expected = finished(model(), vectors(), rules.fedbuff(0.5), TIMELINE, metrics={"first": first_output})
    simulation = simulate(
        model(), vectors(), rules.fedbuff(0.5), TIMELINE, Gradient(4), metrics={"first": first_output}
    )
    clients = simulation.run.clients
    whole, seen = type(clients).losses, []

    def narrow(self, sent, inputs, labels):
        seen.append(len(inputs))
        if len(inputs) > 8:
            raise torch.OutOfMemoryError("out of memory")
        return whole(self, sent, inputs, labels)

    monkeypatch.setattr(type(clients), "losses", narrow)
    again = list(simulation)
    assert max(seen) == 30
    assert clients.room.samples <= 8
    assert again[-1].accuracy == records[-1].accuracy
    assert again[-1].test_loss == pytest.approx(records[-1].test_loss)
    assert again[-1].metrics["first"] == pytest.approx(records[-1].metrics["first"])
    assert torch.equal(simulation.params, expected.params)


def first_output(outputs, labels):
    assert len(outputs) == len(labels)
    return outputs[:, 0].double().mean()
