"""A GPU gives the numbers that the CPU gives; run with pytest, or as a plain script."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

from small_worlds import CLIENTS, SETTINGS, Residual, make_rule, mlp, pictures, same_records, shares, vectors

from kasync import Gradient, Local, LocalSGD, faults, models, rules, server_gradient, simulate, timelines, together
from kasync.data.federated import from_arrays
from kasync.timelines import durations
from kasync.work import captured as steps

try:
    import pytest
except ImportError:
    pytest = None

STEPS = 50
BOUND = 1e-4
TIMELINE = timelines.uniform(CLIENTS, 3, STEPS, seed=7)
CLOCKS = {
    "async": timelines.clock(CLIENTS, 3, STEPS, durations.exponential(1.0), 5),
    "sync": timelines.clock(CLIENTS, 3, STEPS, durations.exponential(1.0), 5, "sync"),
    "rounds": timelines.once_per_round(CLIENTS, 3, STEPS, 5),
}


def run(device, name, timeline=TIMELINE, model=None, data=None, work=None, **options):
    """The records and the simulation of one rule on one device."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model, data = model or mlp(), data or vectors()
    rule = make_rule(name, model, data, lambda *given: server_gradient(*given, device=device))
    simulation = simulate(model, data, rule, timeline, work or Gradient(4), device=device, **options)
    return list(simulation), simulation


def agree(name, bound=BOUND, make=None, **options):
    """CPU and GPU end at the same parameters."""
    ends = []
    for device in ("cpu", "cuda"):
        model = make() if make else mlp()
        records, simulation = run(device, name, model=model, **options)
        assert len(records) == simulation.timeline.steps
        ends.append((records, simulation.params.cpu()))
    (told, cpu), (retold, gpu) = ends
    difference = float((cpu - gpu).abs().max())
    assert difference < bound, f"{name}: CPU and GPU differ by {difference:.2g}"
    assert max(abs(a.loss - b.loss) for a, b in zip(told, retold, strict=True)) < 10 * bound
    assert [a.dropped for a in told] == [b.dropped for b in retold]
    return difference


def holds_of(name):
    return ["versions"] if name == "fedasync" else ["gradients", "versions"]


def every_rule(name):
    for hold in holds_of(name):
        agree(name, hold=hold)


def every_timeline(kind):
    for name in ("wkafl", "ca2fl"):
        for hold in ("gradients", "versions"):
            agree(name, timeline=CLOCKS[kind], hold=hold)


def every_semantics(staleness):
    for hold in ("gradients", "versions"):
        agree("wkafl", staleness=staleness, hold=hold)


def local_steps():
    for name in ("kasync_sgd", "fedasync"):
        for hold in holds_of(name):
            agree(name, work=LocalSGD(3, 0.05, 4), hold=hold)


def lenet():
    for hold in ("gradients", "versions"):
        agree(
            "wkafl",
            make=models.lenet,
            data=pictures(),
            timeline=timelines.uniform(6, 2, STEPS, seed=2),
            work=Gradient(3),
            hold=hold,
        )


def any_model():
    for hold in ("gradients", "versions"):
        agree("kasync_sgd", make=Residual, hold=hold)
        agree("kasync_sgd", make=Residual, hold=hold, work=LocalSGD(2, 0.05, 4))


class Dropping(nn.Module):
    """A model that draws, twice in a pass."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = models.mlp(6, (16,), 16, 1), models.mlp(16, (8,), 4, 2)

    def forward(self, x):
        x = functional.dropout(self.inner(x), 0.3, self.training)
        return self.outer(functional.dropout(x, 0.2, self.training))


class Deciding(nn.Module):
    """A model that looks at its numbers in Python, which no graph can do."""

    def __init__(self):
        super().__init__()
        self.one, self.other = models.mlp(6, (8,), 4, 1), models.mlp(6, (8,), 4, 2)

    def forward(self, x):
        return self.one(x) if x.mean() > 0 else self.other(x)


class Alternating(Deciding):
    """A model that does something else in every call: a graph would repeat the one that was captured."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return self.one(x) if self.calls % 2 else self.other(x)


def texts():
    """Tokens of clients with 1 to 6 lines."""
    draw = np.random.default_rng(3)
    lines = draw.integers(0, 20, (50, 9))
    owned = shares(draw, 6, 40, 6)
    x, y = lines[:, :-1], lines[:, 1:]
    return from_arrays(x[10:], y[10:], x[:10], y[:10], owned, classes=20)


OPEN = {
    "lstm": (partial(models.lstm, vocabulary=20, width=8, layers=2), texts),
    "gpt": (partial(models.gpt, layers=2, width=16, heads=2, context=8, vocabulary=20), texts),
    "resnet8": (models.resnet8, pictures),
    "batch norm": (partial(models.resnet8, norm="batch"), pictures),
    "dropout": (Dropping, vectors),
}
WORKS = {
    "gradient": Gradient(3),
    "local sgd": LocalSGD(3, 0.02, 3),
    "an epoch of AdamW": Local(2, epochs=1, lr=1e-3, optimizer=torch.optim.AdamW, keep=True),
    "Adafactor": Local(3, steps=2, lr=1e-3, optimizer=torch.optim.Adafactor, clip=1.0, proximal=0.1),
}


def looped(name, work, hold, device="cuda", **options):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    build, make = OPEN[name]
    torch.manual_seed(0)
    timeline = timelines.uniform(6, 2, STEPS, seed=2)
    simulation = simulate(
        build(), make(), rules.fedbuff(0.3), timeline, WORKS[work], device=device, hold=hold, backend="loop", **options
    )
    return list(simulation), simulation


def benches(simulation):
    return [lane.bench for lane in simulation.run.clients.lanes.lanes if lane.bench is not None]


def open_model(name, work):
    """CPU and GPU agree (they draw other dropout), the GPU gives the same bits twice, and its passes were captured."""
    ends = []
    for hold in ("gradients", "versions"):
        first, simulation = looped(name, work, hold)
        again, other = looped(name, work, hold)
        assert same_records(first, again), "the same run twice has other records"
        assert torch.equal(simulation.params, other.params), "the same run twice has other bits"
        assert len(benches(simulation)) > 1, "pieces did not take turns on streams"
        assert all(bench.steps.passes and not bench.steps.hopeless for bench in benches(simulation)), "not captured"
        ends.append(simulation.params.cpu())
    bound = 2e-3 if name in ("resnet8", "batch norm") else 5e-4
    assert (ends[0] - ends[1]).abs().max() < bound
    if name != "dropout":
        _, cpu = looped(name, work, "gradients", "cpu")
        difference = float((cpu.params - ends[0]).abs().max())
        assert difference < bound, f"CPU and GPU differ by {difference:.2g}"


def captured_or_not(name, work):
    """What is captured gives what is computed plainly, dropout included."""
    _, captured = looped(name, work, "gradients")
    seen, steps.WARM_UP = steps.WARM_UP, 10**9
    try:
        _, plain = looped(name, work, "gradients")
    finally:
        steps.WARM_UP = seen
    assert not any(bench.steps.passes for bench in benches(plain))
    difference = float((captured.params - plain.params).abs().max())
    assert difference < 1e-4, f"captured and plain passes differ by {difference:.2g}"


def never_captured(build):
    """Models that decide in Python are computed plainly, and give what a CPU gives."""
    OPEN["deciding"] = (build, vectors)
    try:
        _, simulation = looped("deciding", "gradient", "gradients")
        assert not any(bench.steps.passes for bench in benches(simulation))
        if build is Deciding:
            _, cpu = looped("deciding", "gradient", "gradients", "cpu")
            assert (cpu.params - simulation.params.cpu()).abs().max() < 1e-3
    finally:
        del OPEN["deciding"]


def resumed_open(name, work):
    """Given up in the middle and begun again, bit for bit."""
    whole, expected = looped(name, work, "gradients", evaluate_every=5)
    with tempfile.TemporaryDirectory() as folder:
        build, make = OPEN[name]
        options = {
            "device": "cuda", "evaluate_every": 5, "checkpoint": Path(folder) / "run", "checkpoint_every": 0.0,
            "hold": "gradients", "backend": "loop",
        }  # fmt: skip

        def simulation():
            torch.manual_seed(0)
            timeline = timelines.uniform(6, 2, STEPS, seed=2)
            return simulate(build(), make(), rules.fedbuff(0.3), timeline, WORKS[work], **options)

        for record in simulation():
            if record.step == 23:
                break
        again = simulation()
        assert same_records(list(again), whole)
        assert torch.equal(again.params, expected.params)


def faulty(kind):
    wrong = faults.build(kind, share=0.3, **({"factor": 3.0} if kind == "huge" else {}))
    for hold in ("gradients", "versions"):
        agree("kasync_sgd", faults=wrong, hold=hold)


def every_fault_at_once():
    wrong = [
        faults.build(kind, share=0.2)
        for kind in ("return", "stall", "twice", "nan", "flip_sign", "noise", "flip_labels")
    ]
    for hold in ("gradients", "versions"):
        agree("wkafl", faults=wrong, hold=hold)
        agree("ca2fl", faults=wrong, hold=hold)


def evaluations_change_nothing():
    ends = [run("cuda", "wkafl", evaluate_every=every)[1].params.cpu() for every in (1, 7, 50)]
    assert all(torch.equal(end, ends[0]) for end in ends), "evaluate_every changes the numbers"


def the_same_twice():
    runs = [run("cuda", "wkafl") for _ in range(2)]
    assert torch.equal(runs[0][1].params, runs[1][1].params)
    assert same_records(runs[0][0], runs[1][0])


def resumed(name):
    """A run that is given up after 23 steps and begun again equals the uninterrupted one, bit for bit."""
    whole, expected = run("cuda", name, evaluate_every=5)
    with tempfile.TemporaryDirectory() as folder:
        options = {"device": "cuda", "evaluate_every": 5, "checkpoint": Path(folder) / "run", "checkpoint_every": 0.0}
        rule = make_rule(name, mlp(), vectors(), lambda *given: server_gradient(*given, device="cuda"))
        for record in simulate(mlp(), vectors(), rule, TIMELINE, Gradient(4), **options):
            if record.step == 23:
                break
        again = simulate(mlp(), vectors(), rule, TIMELINE, Gradient(4), **options)
        assert same_records(list(again), whole)
        assert torch.equal(again.params, expected.params)


def stacked(tf32):
    """A stack of runs gives what each gives alone; with TF32 nearly so, and the parameters stay unrounded."""
    for make, data, batch in ((mlp, vectors(), 4), (models.lenet, pictures(), 3)):
        worlds = [(lr, seed) for lr in (0.02, 0.05) for seed in (0, 1)]

        def simulation(lr, seed, device, make=make, data=data, batch=batch):
            timeline, work = timelines.uniform(6, 2, STEPS, seed), Gradient(batch)
            return simulate(make(), data, rules.kasync_sgd(lr), timeline, work, device=device, hold="gradients")

        alone = [simulation(*world, "cpu") for world in worlds]
        for one in alone:
            list(one)
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        stack = [simulation(*world, "cuda") for world in worlds]
        list(together(stack))
        torch.set_float32_matmul_precision("highest")
        for one, other in zip(alone, stack, strict=True):
            params = other.params.cpu()
            assert (one.params - params).abs().max() < (0.02 if tf32 else 1e-3), (one.params - params).abs().max()
            last_bits = params.view(torch.int32) & 0x1FFF  # of which TF32 has none
            assert (last_bits != 0).float().mean() > 0.9


def the_model_stays_where_it_was():
    model = mlp()
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    run("cuda", "kasync_sgd", model=model)
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert after.device.type == "cpu", "the model that was given has moved to the GPU"
    assert torch.equal(after, before)


CHECKS = {
    **{f"rule {name}": (every_rule, name) for name in SETTINGS},
    **{f"timeline {kind}": (every_timeline, kind) for kind in CLOCKS},
    **{f"staleness {kind}": (every_semantics, kind) for kind in ("published-code", "none")},
    **{f"resumed {name}": (resumed, name) for name in ("wkafl", "ca2fl", "fadas", "fedasync", "gsgm", "zeno")},
    **{f"fault {kind}": (faulty, kind) for kind in faults.KINDS},
    "every fault at once": (every_fault_at_once,),
    **{f"{name}, {work}": (open_model, name, work) for name in OPEN for work in WORKS},
    "captured or not, gpt": (captured_or_not, "gpt", "an epoch of AdamW"),
    "captured or not, dropout": (captured_or_not, "dropout", "local sgd"),
    "captured or not, batch norm": (captured_or_not, "batch norm", "gradient"),
    "a model that decides by its numbers": (never_captured, Deciding),
    "a model that counts its calls": (never_captured, Alternating),
    "resumed gpt": (resumed_open, "gpt", "an epoch of AdamW"),
    "resumed dropout": (resumed_open, "dropout", "gradient"),
    "local steps": (local_steps,),
    "lenet": (lenet,),
    "any model": (any_model,),
    "evaluations change nothing": (evaluations_change_nothing,),
    "the same twice": (the_same_twice,),
    "stacked": (stacked, False),
    "stacked with tf32": (stacked, True),
    "the model stays where it was": (the_model_stays_where_it_was,),
}

if pytest is not None:

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
    @pytest.mark.parametrize("check", CHECKS)
    def test_a_gpu_gives_what_the_cpu_gives(check):
        function, *given = CHECKS[check]
        function(*given)


if __name__ == "__main__":
    failed = 0
    for title, (function, *given) in CHECKS.items():
        if len(sys.argv) > 1 and not any(word in title for word in sys.argv[1:]):
            continue
        try:
            function(*given)
            print(f"ok      {title}", flush=True)
        except Exception as problem:
            failed += 1
            print(f"FAILED  {title}: {type(problem).__name__}: {problem}", flush=True)
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} agree")
    sys.exit(failed > 0)
