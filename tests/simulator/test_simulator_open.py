"""Every kind of model and of local work, on every backend that takes it, gives what the simplest program gives."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from naive_open import simulate_openly
from small_worlds import CLASSES, CLIENTS, FEATURES, Residual, mlp, same_records, vectors
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kasync import Custom, Gradient, Local, LocalSGD, data, faults, rules, simulate, timelines
from kasync.errors import UserError
from kasync.work import trial
from kasync.work.objective import binary_cross_entropy, cross_entropy, squared_error

TIMELINE = timelines.uniform(CLIENTS, 3, 25, seed=7)
TOKENS, LENGTH = 11, 5


def seeded(build):
    torch.manual_seed(3)
    return build()


class Words(nn.Module):
    """Tokens through an embedding and a recurrent layer, a next token at every place."""

    def __init__(self, layer=nn.LSTM):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 4)
        self.layer = layer(4, 6, 2, batch_first=True)
        self.out = nn.Linear(6, TOKENS)

    def forward(self, tokens):
        return self.out(self.layer(self.embedding(tokens))[0])


class Attention(nn.Module):
    """A transformer layer with dropout."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.out = nn.Linear(8, TOKENS)

    def forward(self, tokens):
        return self.out(self.layer(self.embedding(tokens)))


class Two(nn.Module):
    """Two named inputs, one of them tokens; a branch on a value; named outputs; tied weights."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 4)
        self.numbers = nn.Linear(FEATURES, 4)
        self.inner = nn.Linear(4, 4)
        self.again = self.inner
        self.out = nn.Linear(4, CLASSES)

    def forward(self, tokens, numbers):
        hidden = self.tokens(tokens).mean(1) + self.numbers(numbers)
        if hidden.sum() > 0:
            hidden = torch.tanh(hidden)
        return {"logits": self.out(self.again(torch.relu(self.inner(hidden))))}


class Frozen(nn.Module):
    """Most of it is frozen."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(FEATURES, 8).requires_grad_(False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def normalised():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def dropping():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, CLASSES))


def texts(dtype=np.int64):
    draw = np.random.default_rng(0)
    lines = draw.integers(0, TOKENS, (90, LENGTH + 1))
    x, y = lines[:, :-1].astype(dtype), lines[:, 1:].astype(np.int64)
    y[::7, -1] = -100  # a label that does not count
    parts = [draw.choice(80, draw.integers(3, 8), replace=False) for _ in range(CLIENTS)]
    return data.from_arrays(x[:80], y[:80], x[80:], y[80:], parts, classes=TOKENS)


def several():
    draw = np.random.default_rng(1)
    columns = {"tokens": draw.integers(0, TOKENS, (90, 3)), "numbers": draw.normal(size=(90, FEATURES))}
    labels = draw.integers(0, CLASSES, 90)
    parts = [draw.choice(80, draw.integers(3, 8), replace=False) for _ in range(CLIENTS)]
    first, last = ({name: column[rows] for name, column in columns.items()} for rows in (slice(80), slice(80, 90)))
    return data.from_arrays(first, labels[:80], last, labels[80:], parts, classes=CLASSES)


def marks():
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(90, FEATURES)).astype(np.float32), draw.random((90, CLASSES)) < 0.4
    return data.from_arrays(x[:80], y[:80], x[80:], y[80:], np.array_split(np.arange(80), CLIENTS))


def numbers():
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(90, FEATURES)).astype(np.float32), draw.normal(size=(90, CLASSES)).astype(np.float32)
    return data.from_arrays(x[:80], y[:80], x[80:], y[80:], np.array_split(np.arange(80), CLIENTS))


def pairs():
    """Clients of 8 or 12 samples, so that no mini-batch has one sample only: batch norm needs two."""
    made = vectors()
    x, y = made.train.inputs, made.train.labels
    draw = np.random.default_rng(5)
    parts = [draw.choice(len(x), 8 + 4 * draw.integers(2), replace=False) for _ in range(CLIENTS)]
    return data.from_arrays(x, y, made.test.inputs, made.test.labels, parts, classes=CLASSES)


MODELS = {  # model, data, loss, buffers that training changes
    "chain": (mlp, pairs, cross_entropy, ()),
    "residual": (Residual, pairs, cross_entropy, ()),
    "lstm": (Words, texts, cross_entropy, ()),
    "gru": (partial(Words, nn.GRU), texts, cross_entropy, ()),
    "attention without dropout": (partial(Attention, 0.0), texts, cross_entropy, ()),
    "attention with dropout": (Attention, texts, cross_entropy, ()),
    "two inputs": (Two, several, cross_entropy, ()),
    "frozen": (Frozen, pairs, cross_entropy, ()),
    "batch norm": (normalised, pairs, cross_entropy, ("1.running_mean", "1.running_var", "1.num_batches_tracked")),
    "dropout": (dropping, pairs, cross_entropy, ()),
    "multi-label": (mlp, marks, binary_cross_entropy, ()),
    "several numbers": (mlp, numbers, squared_error, ()),
}


def plain_loop(model, batches, client):
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05, momentum=0.5)
    total = 0.0
    for batch in batches:
        optimizer.zero_grad()
        loss = client.loss(model, batch)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / len(batches)


def scaffold(model, batches, client):
    """Karimireddy et al. 2020, option II: control variates kept by clients, their change delivered."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    params = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in params]
    mine = [client.state.get(name, torch.zeros_like(p)) for name, p in zip(names, params, strict=True)]
    theirs = [client.sent[name] for name in names]
    losses = []
    for batch in batches:
        loss = client.loss(model, batch)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, grad, c_i, c in zip(params, grads, mine, theirs, strict=True):
                p -= 0.05 * (grad - c_i + c)
        losses.append(float(loss.detach()))
    for name, p, first, c_i, c in zip(names, params, start, mine, theirs, strict=True):
        fresh = c_i - c + (first - p.detach()) / (len(batches) * 0.05)
        client.extras[name] = fresh - c_i
        client.state[name] = fresh
    return sum(losses) / len(losses)


def zeros_for(model):
    return {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}


def average_of(sent, extras):
    return {name: value + extras[name].sum(0) / CLIENTS for name, value in sent.items()}


def halving(step):
    return 0.5 ** (step / 4)


WORKS = {
    "gradient": Gradient(4),
    "local sgd": LocalSGD(2, 0.05, 4),
    "one epoch of AdamW": Local(3, epochs=1, lr=0.01, optimizer=torch.optim.AdamW, weight_decay=0.01),
    "momentum, proximal, clip": Local(4, steps=3, lr=0.05, momentum=0.9, proximal=0.1, clip=0.7),
    "a schedule over a client's life": Local(4, steps=2, lr=0.05, schedule=halving),
    "Adam with a state that is kept": Local(4, steps=2, lr=0.01, optimizer=torch.optim.Adam, keep=True),
    "an optimiser that reads layers": Local(4, steps=2, lr=0.01, optimizer=torch.optim.Adafactor),
    "a loop of the user's": Custom(plain_loop, 4, epochs=2),
    "scaffold": Custom(scaffold, 4, steps=2, sends=zeros_for, merge=average_of),
}


def both(kind, work, timeline=TIMELINE, **options):
    """The simulation, finished, and the story of the simplest program."""
    build, make, loss, changed = MODELS[kind]
    model, made = seeded(build), make()
    rule = rules.fedbuff(0.5)
    naive = {name: value for name, value in options.items() if name in ("seed", "buffers")}
    expected = simulate_openly(model, made, rule, timeline, work, loss=loss, changed=changed, **naive)
    simulation = simulate(model, made, rule, timeline, work, **options)
    records = list(simulation)
    return simulation, records, expected


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "two inputs"])
def test_every_model_and_work_gives_what_the_simplest_program_gives(kind, work):
    simulation, _, (story, buffers, sent) = both(kind, WORKS[work], seed=2)
    torch.testing.assert_close(simulation.params, story[-1], atol=2e-5, rtol=1e-4)
    for name, value in buffers.items():
        torch.testing.assert_close(simulation.run.carried.statistics[name], value, atol=1e-5, rtol=1e-4)
    for name, value in sent.items():
        torch.testing.assert_close(simulation.run.carried.extras[name], value, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("work", ["gradient", "one epoch of AdamW"])
def test_several_inputs_go_in_by_name_and_named_outputs_come_out(work):
    simulation, _, (story, _, _) = both("two inputs", WORKS[work])
    torch.testing.assert_close(simulation.params, story[-1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("buffers", ["average", "local", "frozen"])
@pytest.mark.parametrize("work", ["gradient", "local sgd"])
def test_statistics_are_averaged_kept_by_each_client_or_left_alone(buffers, work):
    simulation, _, (story, held, _) = both("batch norm", WORKS[work], buffers=buffers)
    torch.testing.assert_close(simulation.params, story[-1], atol=2e-5, rtol=1e-4)
    for name, value in held.items():
        torch.testing.assert_close(simulation.run.carried.statistics[name], value, atol=1e-5, rtol=1e-4)
    assert (simulation.run.carried.statistics["1.running_var"] > 0).all()


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_a_loop_that_returns_no_loss_delivers_the_statistics_it_trained(buffers):
    def loop(model, batches, client):
        loss = plain_loop(model, batches, client)
        return loss if client.sent else None

    rng, owners = np.random.default_rng(0), np.arange(60) % 6
    clients = data.from_arrays(rng.normal(3, 2, (60, 4)), rng.integers(0, 2, 60), owners=owners, test_fraction=0.2)

    def statistics(sends):
        work = Custom(loop, batch_size=8, steps=3, sends=sends)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        run = simulate(model, clients, rules.fedbuff(1.0), timelines.uniform(6, 3, 6), work, buffers=buffers)
        assert len(list(run)) == 6
        kept = {
            f"{client}.{name}": each for client, own in run.run.carried.clients.items() for name, each in own.items()
        }
        return run.run.carried.statistics | kept

    torch.manual_seed(0)
    silent = statistics(None)
    torch.manual_seed(0)
    telling = statistics(lambda model: {"loss": torch.ones(())})
    assert len(silent) > 2
    assert silent.keys() == telling.keys()
    assert all(torch.equal(value, telling[name]) for name, value in silent.items())


@pytest.mark.parametrize("left", ["in evaluation mode", "frozen"])
def test_a_loop_that_leaves_the_model_otherwise_finds_it_again_as_it_was(left):
    seen = []

    def loop(model, batches, client):
        seen.append(model.training and all(p.requires_grad for p in model.parameters()))
        loss = plain_loop(model, batches, client)
        if left == "frozen":
            model[0].requires_grad_(False)
        else:
            model.eval()
        return loss

    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    run = simulate(model, vectors(), rules.fedbuff(1.0), timelines.uniform(CLIENTS, 3, 6), Custom(loop, 8, steps=2))
    assert len(list(run)) == 6
    assert all(seen)
    assert len(seen) > 18


def fedbn(model, batches, client):
    """Li et al. 2021: what belongs to batch norm stays at the client and is delivered unchanged."""
    own = {name: p for name, p in model.named_parameters() if name.startswith("1.")}
    received = {name: p.detach().clone() for name, p in own.items()}
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(client.state.get(name, p))
    loss = plain_loop(model, batches, client)
    with torch.no_grad():
        for name, p in own.items():
            client.state[name] = p.detach().clone()
            p.copy_(received[name])
    return loss


@pytest.mark.parametrize("hold", ["gradients", "versions"])
def test_fedbn_is_a_training_loop_with_state_at_the_client(hold):
    work = Custom(fedbn, 4, steps=2)
    build, make, loss, changed = MODELS["batch norm"]
    story, _, _ = simulate_openly(
        seeded(build), make(), rules.fedbuff(0.5), TIMELINE, work, loss=loss, changed=changed, buffers="local"
    )
    simulation = simulate(seeded(build), make(), rules.fedbuff(0.5), TIMELINE, work, buffers="local", hold=hold)
    list(simulation)
    torch.testing.assert_close(simulation.params, story[-1], atol=2e-5, rtol=1e-4)
    trained, first = simulation.state_dict(), seeded(build).state_dict()
    assert torch.equal(trained["1.weight"], first["1.weight"])
    assert not torch.equal(trained["0.weight"], first["0.weight"])
    kept = [state["1.weight"] for state in simulation.run.carried.clients.values()]
    assert len({tuple(weight.tolist()) for weight in kept}) == len(kept) > 1


def test_neither_the_size_of_groups_nor_what_is_prefetched_changes_a_bit(monkeypatch):
    build, make, _, _ = MODELS["attention with dropout"]
    timeline, work = TIMELINE.head(12), WORKS["Adam with a state that is kept"]

    def run():
        simulation = simulate(seeded(build), make(), rules.fedbuff(0.5), timeline, work)
        return list(simulation), simulation.params

    records, params = run()
    for most, block, pieces in ((1, 1, 0), (3, 2, 1), (50, 1000, 30)):
        monkeypatch.setattr("kasync.work.clients.MOST", most)
        monkeypatch.setattr("kasync.simulator.run.BLOCK", block)
        monkeypatch.setattr("kasync.simulator.run.MOST", pieces)
        told, again = run()
        assert torch.equal(again, params)
        assert same_records(told, records)


BACKENDS = [
    ("chain", "gradient", ["chain", "vmap", "loop"]),
    ("chain", "local sgd", ["chain", "vmap", "loop"]),
    ("residual", "gradient", ["vmap", "loop"]),
    ("frozen", "local sgd", ["vmap", "loop"]),
    ("multi-label", "gradient", ["chain", "vmap", "loop"]),
    ("chain", "one epoch of AdamW", ["chain", "loop"]),
    ("chain", "momentum, proximal, clip", ["chain", "loop"]),
    ("chain", "a schedule over a client's life", ["chain", "loop"]),
    ("chain", "Adam with a state that is kept", ["chain", "loop"]),
    ("several numbers", "an optimiser that reads layers", ["chain", "loop"]),
]


@pytest.mark.parametrize(("kind", "work", "backends"), BACKENDS)
@pytest.mark.parametrize("hold", ["gradients", "versions"])
def test_every_backend_gives_the_same(kind, work, backends, hold):
    story = both(kind, WORKS[work])[2][0]
    for backend in backends:
        simulation, _, _ = both(kind, WORKS[work], backend=backend, hold=hold)
        assert simulation.backend == backend
        torch.testing.assert_close(simulation.params, story[-1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["lstm", "attention with dropout", "batch norm", "dropout"])
@pytest.mark.parametrize("hold", ["gradients", "versions"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_on_any_number_of_threads_and_either_way_of_holding(kind, hold, threads):
    expected, records, _ = both(kind, WORKS["local sgd"])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again, told, _ = both(kind, WORKS["local sgd"], hold=hold)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(again.params, expected.params)
    assert same_records(told, records)


@pytest.mark.parametrize("kind", ["attention with dropout", "batch norm"])
@pytest.mark.parametrize("work", ["Adam with a state that is kept", "scaffold", "gradient"])
@pytest.mark.parametrize("hold", ["gradients", "versions"])
def test_a_run_that_is_stopped_continues_to_the_same_bits(kind, work, hold, tmp_path):
    build, make, _, _ = MODELS[kind]
    place = {"evaluate_every": 5, "checkpoint_every": 0.0, "hold": hold}

    def run(checkpoint=None):
        return simulate(
            seeded(build), make(), rules.fedbuff(0.5), TIMELINE, WORKS[work], checkpoint=checkpoint, **place
        )

    expected = run()
    records = list(expected)
    for stop in (5, 13, 20):
        for record in run(tmp_path / "run"):
            if record.step == stop:
                break
    resumed = run(tmp_path / "run")
    assert same_records(list(resumed), records)
    assert torch.equal(resumed.params, expected.params)
    for name, value in expected.run.carried.tensors().items():
        if not name.startswith(("version.", "waiting.")):
            assert torch.equal(resumed.run.carried.tensors()[name], value), name


def test_chance_leaves_the_generator_of_the_user_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(simulate(seeded(dropping), pairs(), rules.fedbuff(0.5), TIMELINE.head(5), WORKS["local sgd"]))
    torch.manual_seed(5)
    simulation = simulate(seeded_quietly(dropping), pairs(), rules.fedbuff(0.5), TIMELINE.head(5), WORKS["local sgd"])
    list(simulation)
    assert torch.equal(torch.rand(3), expected)


def seeded_quietly(build):
    with torch.random.fork_rng():
        return seeded(build)


def test_dropout_has_another_mask_in_every_step_and_for_every_client_and_seed():
    masks = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            mask = functional.dropout(torch.ones(64), 0.5, self.training)
            masks.append(tuple(mask.tolist()) if self.training else None)
            return self.layer(x) * mask[:CLASSES]

    timeline = timelines.uniform(4, 2, 5, seed=1)
    for seed in (0, 1):
        list(simulate(Watched(), pairs(), rules.fedbuff(0.1), timeline, LocalSGD(2, 0.05, 4), seed=seed))
    drawn = [mask for mask in masks if mask is not None]
    assert len(drawn) - len(set(drawn)) <= 4  # the trials before the runs draw from the user's generator


class Noisy(nn.Module):
    """Draws noise in training, from its own generator, numpy or PyTorch."""

    def __init__(self, source):
        super().__init__()
        self.layer, self.source = nn.Linear(FEATURES, CLASSES), source
        self.own = torch.Generator() if source == "its own" else None

    def forward(self, x):
        if self.source == "numpy":
            return self.layer(x) + float(np.random.random())  # noqa: NPY002 - what a user may do
        if self.source == "evaluation":
            return self.layer(x) + torch.rand(())
        return self.layer(x) + torch.rand((), generator=self.own) * self.training


def noisy_loop(model, batches, client):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches:
        optimizer.zero_grad()
        client.loss(model, batch | {"inputs": batch["inputs"] + torch.randn(FEATURES)}).backward()
        optimizer.step()


def mixed_up(model, batch):
    share, order = random.betavariate(0.4, 0.4), torch.randperm(len(batch["labels"]))
    outputs = model(share * batch["inputs"] + (1 - share) * batch["inputs"][order])
    first = functional.cross_entropy(outputs, batch["labels"], reduction="none")
    return share * first + (1 - share) * functional.cross_entropy(outputs, batch["labels"][order], reduction="none")


class Sometimes(nn.Module):
    """Draws one way for the two samples that a model is tried on, and another way too for more."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        x = functional.dropout(x, 0.3, self.training)
        return self.layer(x) + (torch.rand(()) if self.training and len(x) > 2 else 0.0)


class Recomputed(nn.Module):
    """Draws its mask again on the way back."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def dropped(self, x):
        return functional.dropout(torch.tanh(self.inner(x)), 0.5, self.training)

    def forward(self, x):
        return self.outer(checkpoint(self.dropped, x, use_reentrant=False))


DRAWING = {
    "a generator of the model's own": {"model": Noisy("its own")},
    "numpy": {"model": Noisy("numpy")},
    "evaluation too": {"model": Noisy("evaluation")},
    "masks that are drawn again": {"model": Recomputed()},
    "a training loop": {"work": Custom(noisy_loop, 4, steps=2)},
    "a training loop of a model with dropout": {"work": Custom(noisy_loop, 4, steps=2), "model": dropping()},
    "a loss": {"loss": mixed_up},
    "a loss, one gradient": {"loss": mixed_up, "work": Gradient(4)},
}


@pytest.mark.parametrize("case", DRAWING)
def test_whoever_draws_random_numbers_draws_the_same_again(case):
    given = {"model": seeded(mlp), "work": LocalSGD(2, 0.05, 4)} | DRAWING[case]
    states = torch.get_rng_state(), random.getstate()
    found = []
    before = torch.get_num_threads()
    try:
        for threads, hold in ((1, "gradients"), (3, "gradients"), (2, "versions"), (3, "gradients")):
            torch.set_num_threads(threads)
            run = simulate(data=pairs(), rule=rules.fedbuff(0.5), timeline=TIMELINE.head(8), hold=hold, **given)
            records = list(run)
            found.append((run.params, records[-1].test_loss, records[-1].loss))
    finally:
        torch.set_num_threads(before)
    for params, *losses in found[1:]:
        assert torch.equal(params, found[0][0])
        assert losses == list(found[0][1:])
    assert torch.equal(states[0], torch.get_rng_state()), "the user's own generators are left alone"
    assert states[1] == random.getstate()


@pytest.mark.parametrize("kind", ["attention with dropout", "dropout", "sometimes"])
def test_a_generator_of_each_thread_gives_the_numbers_of_the_shared_one(kind, monkeypatch):
    build, make, loss, _ = MODELS.get(kind) or (Sometimes, pairs, cross_entropy, ())
    before, states, found = torch.get_num_threads(), torch.get_rng_state(), []
    try:
        for threads, private in ((1, False), (1, True), (3, True)):
            torch.set_num_threads(threads)
            monkeypatch.setattr(trial, "PRIVATE", 0 if private else 10**9)
            run = simulate(seeded_quietly(build), make(), rules.fedbuff(0.5), TIMELINE.head(8), Gradient(4), loss=loss)
            assert run.run.clients.draws is not private
            list(run)
            found.append(run.params)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(params, found[0]) for params in found[1:])
    assert torch.equal(states, torch.get_rng_state()), "the user's own generator is left alone"


@pytest.mark.parametrize(
    ("model", "ways"),
    [
        (Recomputed(), (False, True)),
        (Noisy("its own"), (False, False)),
        (Noisy("evaluation"), (False, False)),  # which draws with an operation that takes no generator
        (dropping(), (True, False)),
    ],
)
def test_a_model_keeps_the_shared_generator_where_its_own_would_not_do(model, ways, monkeypatch):
    monkeypatch.setattr(trial, "PRIVATE", 0)
    assert trial.ways_of_drawing(model, lambda tried: tried(torch.ones(2, FEATURES)).sum()) == ways


class Overwriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        x += 1
        return self.layer(x)


def shifted_in_place(outputs, labels):
    return functional.cross_entropy(outputs, labels.add_(1).remainder_(CLASSES), reduction="none")


def shifted(outputs, labels):
    return functional.cross_entropy(outputs, (labels + 1) % CLASSES, reduction="none")


def test_what_a_model_or_a_loss_writes_into_its_batch_changes_nobodys_samples():
    held, clean, model = pairs(), pairs(), seeded(Overwriting)
    plain = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    plain[0].load_state_dict(model.layer.state_dict())
    with torch.no_grad():
        plain[0].bias += plain[0].weight.sum(1)  # the same function
    timeline, found = TIMELINE.head(1), []
    for each, loss in ((model, shifted_in_place), (plain, shifted), (model, shifted_in_place)):
        *_, last = simulate(each, held, rules.fedbuff(1e-9), timeline, Gradient(4), loss=loss, evaluate_every=1)
        found.append((last.loss, last.test_loss, last.accuracy))
    for name in ("train", "test"):
        np.testing.assert_array_equal(getattr(held, name).inputs, getattr(clean, name).inputs)
        np.testing.assert_array_equal(getattr(held, name).labels, getattr(clean, name).labels)
    assert found[0] == found[2]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


class Pictures(nn.Module):
    """Convolutions that are no chain; `rigid` relies on the order of pictures in memory."""

    def __init__(self, rigid):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2)
        )
        self.out, self.rigid = nn.Linear(72, CLASSES), rigid

    def forward(self, x):
        x = self.layers(x)
        return self.out(x.view(len(x), -1) if self.rigid else x.flatten(1))


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_pictures_lie_in_the_order_that_is_fast_where_the_model_takes_it(kind):
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 255, (90, 3, 8, 8)).astype(kind) / (1 if kind is np.uint8 else 255)
    pixels, classes = pixels.astype(kind), draw.integers(0, CLASSES, 90)
    held = data.from_arrays(pixels, classes, pixels[:9], classes[:9], np.array_split(np.arange(90), CLIENTS))
    found = []
    for rigid in (False, True):
        model = seeded(partial(Pictures, rigid))
        run = simulate(model, held, rules.fedbuff(0.5), TIMELINE.head(8), LocalSGD(2, 0.05, 4))
        *_, last = run
        assert run.backend == "loop"
        assert run.run.clients.bench.channels_last is not rigid
        found.append((run.params, last.test_loss))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4)


def leaves_text(model, batches, client):
    client.state["note"] = "x"


def delivers_at_times(model, batches, client):
    if client.number % 2:
        client.extras["more"] = torch.ones(2)


LEFT = {
    "a vector as loss": (lambda model, batches: torch.ones(3), r"returns a tensor \[3\]: return its mean loss"),
    "a dict as loss": (lambda model, batches: {"loss": 1.0}, "returns a dict: return its mean loss"),
    "text as state": (leaves_text, r"client\.state\['note'\] is a str"),
    "extras at times": (delivers_at_times, "deliver the same names and shapes always"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_a_training_loop_must_not_leave_is_said_in_one_sentence(case):
    loop, words = LEFT[case]
    with pytest.raises(UserError, match=words) as problem:
        list(simulate(mlp(), pairs(), rules.fedbuff(0.5), TIMELINE.head(8), Custom(loop, 4, steps=1)))
    assert "\n" not in str(problem.value)


def test_clients_that_do_different_numbers_of_steps_are_honoured():
    steps = np.random.default_rng(0).integers(1, 5, (TIMELINE.steps, TIMELINE.k)).astype(np.int32)
    timeline = timelines.uniform(CLIENTS, 3, 25, seed=7)
    object.__setattr__(timeline, "local_steps", steps)
    simulation, _, (story, _, _) = both("lstm", WORKS["a schedule over a client's life"], timeline)
    torch.testing.assert_close(simulation.params, story[-1], atol=2e-5, rtol=1e-4)
    with pytest.raises(UserError, match="Gradient takes none"):
        simulate(seeded(Words), texts(), rules.fedbuff(0.5), timeline, Gradient(4))


def test_a_loss_of_model_and_batch_may_be_anything():
    def loss(model, batch):
        outputs = model(batch["inputs"])
        return functional.cross_entropy(outputs, batch["labels"]) + 0.01 * sum(
            p.square().sum() for p in model.parameters()
        )

    def per_sample(model, batch):
        return loss(model, batch).expand(len(batch["labels"]))

    runs = [simulate(mlp(), pairs(), rules.fedbuff(0.5), TIMELINE, Gradient(4), loss=one) for one in (loss, per_sample)]
    for run in runs:
        list(run)
    assert runs[0].backend == "loop"
    torch.testing.assert_close(runs[0].params, runs[1].params)
    plain = simulate(mlp(), pairs(), rules.fedbuff(0.5), TIMELINE, Gradient(4))
    list(plain)
    assert not torch.allclose(plain.params, runs[0].params, atol=1e-4)
    assert runs[0].latest.accuracy is not None


def test_a_loss_may_read_outputs_that_no_accuracy_is_made_of():
    """Pairs, a single score for two classes, whole numbers as marks: the accuracy is left out, and nothing fails."""

    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    def of_pair(model, batch):
        return functional.cross_entropy(model(batch["inputs"])[0], batch["labels"], reduction="none")

    def of_marks(outputs, labels):
        entropy = functional.binary_cross_entropy_with_logits
        return entropy(outputs.view(len(labels), -1), labels.view(len(labels), -1).float(), reduction="none").mean(1)

    made, one = marks(), pairs()
    thirds, tests = np.array_split(np.arange(80), CLIENTS), made.test.labels.astype(int)
    whole = data.from_arrays(made.train.inputs, made.train.labels.astype(int), made.test.inputs, tests, thirds)
    x, y = one.train.inputs[:80], one.train.labels[:80]
    two = data.from_arrays(x, y % 2, one.test.inputs, one.test.labels % 2, thirds)
    for model, held, loss in [
        (Pair(FEATURES, CLASSES), pairs(), of_pair),
        (nn.Linear(FEATURES, CLASSES), whole, of_marks),
        (nn.Linear(FEATURES, 1), two, of_marks),
    ]:
        *_, last = simulate(model, held, rules.fedbuff(0.5), TIMELINE, Gradient(4), loss=loss)
        assert last.accuracy is None
        assert np.isfinite(last.test_loss)


def test_classes_may_lie_on_the_second_axis_as_pytorch_has_them():
    """A small segmentation: [N, C, H, W] against [N, H, W] is the same run as [N, H, W, C]."""

    class Last(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x).permute(0, 2, 3, 1)

    draw = np.random.default_rng(3)
    x, y = draw.random((60, 2, 6, 5)), draw.integers(0, 3, (60, 6, 5))
    held = data.from_arrays(x[:48], y[:48], x[48:], y[48:], np.arange(48).reshape(12, 4), classes=3)
    runs = []
    for wrap in (lambda inner: inner, Last):
        model = wrap(seeded(partial(nn.Conv2d, 2, 3, 3, padding=1)))
        run = simulate(model, held, rules.fedbuff(0.5), TIMELINE, Gradient(4), backend="loop")
        runs.append((list(run)[-1], run.params))
    torch.testing.assert_close(runs[0][1], runs[1][1])
    assert runs[0][0].accuracy == runs[1][0].accuracy > 0
    assert runs[0][0].test_loss == pytest.approx(runs[1][0].test_loss)


@pytest.mark.parametrize("work", ["gradient", "one epoch of AdamW"])
def test_an_embedding_with_sparse_gradients_trains_like_a_dense_one(work):
    def network(sparse):
        return nn.Sequential(nn.Embedding(TOKENS, 4, sparse=sparse), nn.Linear(4, TOKENS))

    runs = [
        simulate(seeded(partial(network, sparse)), texts(), rules.fedbuff(0.5), TIMELINE, WORKS[work], backend="loop")
        for sparse in (True, False)
    ]
    for run in runs:
        list(run)
    torch.testing.assert_close(runs[0].params, runs[1].params)


@pytest.mark.parametrize("metric", [lambda outputs, labels: 1 / 0, lambda outputs, labels: outputs])
def test_a_metric_that_fails_is_named(metric):
    with pytest.raises(UserError, match=r"metrics\['share'\] fails on the test set's outputs \(30, 4\)"):
        list(simulate(mlp(), pairs(), rules.fedbuff(0.5), TIMELINE, Gradient(4), metrics={"share": metric}))


def test_metrics_of_the_user_stand_in_the_records():
    def error(outputs, labels):
        return (outputs.argmax(1) != labels).double().mean()

    simulation = simulate(
        mlp(), pairs(), rules.fedbuff(0.5), TIMELINE, Gradient(4), metrics={"error": error}, evaluate_every=10
    )
    seen = [record for record in simulation if record.accuracy is not None]
    assert len(seen) == 3
    assert all(record.metrics["error"] == pytest.approx(1 - record.accuracy) for record in seen)


def test_the_parameters_in_the_loop_are_those_of_the_record():
    expected = both("lstm", WORKS["gradient"])[2][0]
    build, make, _, _ = MODELS["lstm"]
    simulation = simulate(seeded(build), make(), rules.fedbuff(0.5), TIMELINE, WORKS["gradient"])
    for record in simulation:
        assert simulation.done == record.step
        torch.testing.assert_close(simulation.params, expected[record.step - 1], atol=2e-5, rtol=1e-4)


def test_every_client_is_judged_on_rows_held_out_for_it():
    held = pairs().held_out(0.3)
    simulation = simulate(mlp(), held, rules.fedbuff(0.5), TIMELINE, Gradient(4))
    list(simulation)
    found = simulation.per_client()
    model = simulation.load_into(mlp())
    for client, accuracy in zip(found.clients.tolist(), found.accuracy.tolist(), strict=True):
        rows = held.tests_of(client)
        right = model(torch.from_numpy(held.train.inputs[rows])).argmax(1).numpy() == held.train.labels[rows]
        assert accuracy == pytest.approx(right.mean())
    assert found.worst_tenth <= found.mean
    with pytest.raises(UserError, match="held_out"):
        simulate(mlp(), pairs(), rules.fedbuff(0.5), TIMELINE, Gradient(4)).per_client()


def test_a_model_goes_out_with_names_and_comes_in_again():
    simulation = simulate(seeded(normalised), pairs(), rules.fedbuff(0.5), TIMELINE, WORKS["local sgd"])
    list(simulation)
    fresh = normalised()
    fresh.load_state_dict(simulation.state_dict())
    assert torch.equal(fresh[1].running_mean, simulation.run.carried.statistics["1.running_mean"])
    again = simulate(fresh, pairs(), rules.fedbuff(0.5), TIMELINE, WORKS["local sgd"])
    assert torch.equal(again.params, simulation.params)


def test_half_precision_is_used_in_the_clients_work_and_never_in_the_rule():
    seen = set()

    class Watched(nn.Linear):
        def forward(self, x):
            outputs = super().forward(x)
            seen.add(outputs.dtype)
            return outputs

    simulation = simulate(
        Watched(FEATURES, CLASSES), pairs(), rules.fedbuff(0.5), TIMELINE.head(5), Gradient(4), precision="bfloat16"
    )
    list(simulation)
    assert seen == {torch.bfloat16}
    assert simulation.params.dtype == torch.float32


@pytest.mark.parametrize("client", [0, 1])  # one that is tried before the start, and one that is not
def test_work_that_fails_is_named_with_its_client(client):
    class Careful(nn.Linear):
        def forward(self, x):
            if x.max() > 5:
                raise ValueError("too large")
            return super().forward(x)

    inputs = np.ones((4, FEATURES), np.float32)
    inputs[2 * client] = 9.0
    one = data.from_arrays(inputs, [0, 1, 2, 3], np.ones((2, FEATURES), np.float32), [0, 1], [[0, 1], [2, 3]])
    timeline = timelines.Timeline(np.array([[0], [1]]), np.array([[0], [0]]), np.array([1.0, 2.0]), 2)
    words = rf"the work of client {client} on its visit 0 failed with .* samples \(ValueError: too large\)"
    with pytest.raises(UserError, match=words):
        list(simulate(Careful(FEATURES, CLASSES), one, rules.fedbuff(0.5), timeline, Gradient(4), backend="loop"))


def test_work_that_runs_out_of_memory_is_done_again_alone():
    failures = []

    def loop(model, batches, client):
        if client.visit and not failures:
            failures.append(client.number)
            raise torch.OutOfMemoryError("out of memory")
        return plain_loop(model, batches, client)

    expected = both("lstm", Custom(plain_loop, 4, steps=2))[1]
    build, make, _, _ = MODELS["lstm"]
    simulation = simulate(seeded(build), make(), rules.fedbuff(0.5), TIMELINE, Custom(loop, 4, steps=2))
    most = simulation.run.clients.room.most
    assert same_records(list(simulation), expected)
    assert failures
    assert simulation.run.clients.room.most == max(1, most - 1)


IDENTITIES = [
    lambda: {"loss": scaled_loss(0.5)},
    lambda: {"loss": partial(functional.cross_entropy, reduction="none", label_smoothing=0.9)},
    lambda: {"model": nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))},
    lambda: {"work": Local(4, steps=2, lr=0.05, momentum=0.9)},
    lambda: {"precision": "bfloat16"},
    lambda: {"metrics": {"share": lambda outputs, labels: outputs.mean()}},
    lambda: {"backend": "loop"},
    lambda: {"buffers": "frozen"},
    lambda: {"seed": 1},
]


def scaled_loss(scale):
    return lambda outputs, labels: scale * functional.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("change", range(len(IDENTITIES)))
def test_a_checkpoint_of_another_run_is_refused(change, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    given = {"model": model, "loss": scaled_loss(1.0), "work": LocalSGD(2, 0.05, 4)}
    given["metrics"] = {"share": lambda outputs, labels: outputs.sum()}
    settings = {"data": pairs(), "rule": rules.fedbuff(0.5), "timeline": TIMELINE, "checkpoint_every": 0.0}
    list(simulate(**given, **settings, checkpoint=tmp_path / "run"))
    other = IDENTITIES[change]()
    if "model" in other:
        other["model"].load_state_dict(model.state_dict())
    with pytest.raises(UserError, match="belongs to another run"):
        simulate(**given | other, **settings, checkpoint=tmp_path / "run")


def test_what_comes_twice_begins_with_what_its_client_kept_the_first_time():
    work = Local(4, steps=2, lr=0.05, optimizer=torch.optim.Adam, keep=True)
    timeline, twice = timelines.uniform(CLIENTS, 3, 40, seed=1), faults.DeliverTwice(0.5, 0.5, delay=2)
    found = {}
    for hold in ("gradients", "versions"):
        run = simulate(seeded(mlp), vectors(), rules.fedbuff(0.5), timeline, work, hold=hold, faults=twice)
        records = list(run)
        found[hold] = run.params, records
        assert run.timeline.copies.any()
    assert torch.equal(found["gradients"][0], found["versions"][0])
    assert same_records(*(records for _, records in found.values()))


def test_samples_without_any_label_that_counts_are_no_part_of_the_accuracy():
    class Right(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, tokens):  # [N, T] -> [N, T, 2]
            return functional.one_hot(tokens, 2) * 9.0 + self.weight

    tokens = np.arange(24).reshape(12, 2) % 2
    labels = np.where(np.arange(12)[:, None] % 3 == 0, -100, tokens)
    given = {"test_inputs": tokens, "test_labels": labels, "owners": np.arange(12) % 2}
    split = data.from_arrays(tokens, labels, **given).held_out(0.5)
    run = simulate(Right(), split, rules.kasync_sgd(0.0), timelines.uniform(2, 1, 1))
    assert next(iter(run)).accuracy == 1.0
    assert run.per_client().mean == 1.0
    alone = data.from_arrays(
        tokens[:, 0], labels[:, 0], **given | {"test_inputs": tokens[:, 0], "test_labels": labels[:, 0]}
    )
    assert next(iter(simulate(Right(), alone, rules.kasync_sgd(0.0), timelines.uniform(2, 1, 1)))).accuracy == 1.0


@pytest.mark.parametrize("clients", [[99], [-1], [0.0], []])
def test_clients_that_there_are_not_cannot_be_judged(clients):
    run = simulate(mlp(), vectors().held_out(0.2), rules.kasync_sgd(0.1), timelines.uniform(CLIENTS, 3, 1))
    with pytest.raises(UserError, match="clients"):
        run.per_client(clients=clients)


def test_parameters_are_not_put_into_a_model_of_another_kind():
    run = simulate(mlp(), vectors(), rules.kasync_sgd(0.1), timelines.uniform(CLIENTS, 3, 1))
    with pytest.raises(UserError, match="load into a model of the same kind"):
        run.load_into(nn.Linear(FEATURES, CLASSES))
