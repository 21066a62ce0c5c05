"""What cannot work is refused on the call, before any work, in one sentence that names it."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_worlds import CLASSES, CLIENTS, FEATURES, Residual, mlp, vectors
from torch import nn

from kasync import Gradient, Local, LocalSGD, models, rules, simulate, timelines
from kasync.data.federated import from_arrays
from kasync.errors import UserError
from kasync.timelines import Timeline

DATA = vectors()
TIMELINE = timelines.uniform(CLIENTS, 3, 10, seed=1)


class Pair(nn.Module):
    """A model with two outputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.layer(x), x


def hollow():
    """Data in which client 3 has no sample."""
    sizes = DATA.sizes.copy()
    kept = np.ones(len(DATA.indices), bool)
    kept[DATA.offsets[3] : DATA.offsets[4]] = False
    sizes[3] = 0
    return replace(DATA, indices=DATA.indices[kept], offsets=np.concatenate([[0], np.cumsum(sizes)]))


def untested():
    """Data without a test set."""
    x, y = DATA.train.inputs, DATA.train.labels
    return from_arrays(x, y, x[:0], y[:0], [np.arange(3)] * CLIENTS, classes=CLASSES)


def with_a_computed_weight():
    """A layer that holds a tensor made of its parameters, as the older weight norm of PyTorch does."""
    layer = nn.Linear(FEATURES, CLASSES)
    layer.computed = 2 * layer.weight
    return layer


def loss_of_pair(model, batch):
    return nn.functional.cross_entropy(model(batch["inputs"])[0], batch["labels"], reduction="none")


def shared_out(x, y):
    return from_arrays(x[:48], y[:48], x[48:], y[48:], np.arange(48).reshape(CLIENTS, 4))


def several_classes():
    draw = np.random.default_rng(0)
    return shared_out(draw.normal(size=(60, FEATURES)), draw.integers(0, 2, (60, 3)))


def bytes_as_tokens():
    draw = np.random.default_rng(0)
    return shared_out(draw.integers(0, 9, (60, 4)).astype(np.uint8), draw.integers(0, 2, 60))


def pictures(*shape):
    return shared_out(np.zeros((60, *shape), np.float32), np.arange(60) % 3)


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Sequential(nn.Linear(FEATURES, CLASSES)))


def recorded(clients, versions, population=CLIENTS):
    return Timeline(np.array(clients), np.array(versions), np.arange(1.0, len(clients) + 1), population)


REFUSED = {  # what is changed, and what the sentence must contain
    "too few clients in the data": ({"timeline": timelines.uniform(CLIENTS + 1, 3, 10)}, "13 clients.*12"),
    "a client without samples": ({"data": hollow()}, "no sample"),
    "an unknown hold": ({"hold": "gradient"}, "did you mean 'gradients'"),
    "an unknown staleness": ({"staleness": "published_code"}, "did you mean 'published-code'"),
    "evaluate_every of 0": ({"evaluate_every": 0}, "evaluate_every = 0"),
    "half an evaluate_every": ({"evaluate_every": 2.5}, "evaluate_every = 2.5"),
    "a GPU that is not there": ({"device": "cuda"}, "0 CUDA GPUs"),
    "an unknown way with buffers": ({"buffers": "averaged"}, "did you mean 'average'"),
    "an unknown precision": ({"precision": "bf16"}, "precision 'bf16'"),
    "an unknown backend": ({"backend": "loops"}, "did you mean 'loop'"),
    "a chain that is none": ({"model": Residual(), "backend": "chain"}, "backend = 'chain' does not take this run"),
    "a loss that fails": ({"loss": lambda outputs, labels: outputs[:, 17]}, "loss fails"),
    "a model that returns a pair": ({"model": Pair()}, "returns a tuple.*logits"),
    "five outputs for one number": (
        {"model": models.mlp(FEATURES, (8,), 5), "data": vectors(classes=1)},
        r"outputs of shape \(5,\) for labels of shape \(\)",
    ),
    "a model without parameters": ({"model": nn.Flatten()}, "no parameters"),
    "a model that is a function": ({"model": lambda x: x}, "model is a function"),
    "a layer without its shape": ({"model": nn.LazyLinear(CLASSES)}, "weight has no shape yet"),
    "a model that cannot be copied": (
        {"model": with_a_computed_weight()},
        "cannot be copied",
    ),
    "arrays as data": ({"data": DATA.train.inputs}, "data is a ndarray: make federated data"),
    "a list as timeline": ({"timeline": [[0, 1]]}, "timeline is a list"),
    "metrics without names": ({"metrics": [len]}, "metrics: give a dict"),
    "a metric that is a number": ({"metrics": {"f1": 1.0}}, "metrics: give a dict"),
    "a metric of outputs that are not there": (
        {"model": Pair(), "loss": loss_of_pair, "metrics": {"f1": len}},
        r"metrics = \['f1'\].*no tensor of outputs",
    ),
    "a checkpoint that is a number": ({"checkpoint": 3}, "checkpoint = 3"),
    "a loss with its first parameter misnamed": (
        {"loss": lambda net, batch: net(batch).sum(1)},
        "call its first parameter 'model'",
    ),
    "an optimiser that does not take the model": (
        {"work": Local(4, steps=1, lr=0.1, optimizer=torch.optim.Muon)},
        "does not take the model's parameters",
    ),
    "batch norm where a client has one sample": (
        {"model": nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES))},
        r"fails on a mini-batch of one sample.*3 clients have, client 0 first",
    ),
    "several classes for outputs that are one": (
        {"model": nn.Linear(FEATURES, 3), "data": several_classes()},
        "pass the labels as bool",
    ),
    "bytes that are tokens": (
        {"model": nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2)), "data": bytes_as_tokens()},
        "scale='none'",
    ),
    "pictures with their channels last": ({"model": models.lenet(), "data": pictures(32, 32, 3)}, "transpose"),
    "pictures without channels": ({"model": models.emnist_cnn(), "data": pictures(28, 28)}, r"inputs\[:, None\]"),
    "a scripted model": ({"model": scripted()}, "scripted or traced"),
    "gradients held for fedasync": ({"rule": rules.fedasync(0.5), "hold": "gradients"}, "hold='versions'"),
    "a device that does not exist": ({"device": "gpu"}, "gpu"),
    "a rule by its name": ({"rule": "wkafl"}, "rule"),
    "a rule that was not called": ({"rule": rules.wkafl}, "rule"),
    "work that is a number": ({"work": 8}, "work"),
    "a loss that is averaged already": ({"loss": nn.CrossEntropyLoss()}, "loss.*none"),
    "a seed that is a word": ({"seed": "zero"}, "seed"),
    "a negative checkpoint_every": ({"checkpoint_every": -1.0}, "checkpoint_every"),
    "a model with too few outputs": ({"model": models.mlp(FEATURES, (8,), CLASSES - 1)}, str(CLASSES)),
    "a model for other inputs": ({"model": models.mlp(FEATURES + 1, (8,), CLASSES)}, "model"),
    "a rule for fewer clients": ({"rule": rules.ca2fl(0.1, clients=CLIENTS - 1)}, "11"),
    "data without a test set": ({"data": untested()}, "test"),
    "a recorded timeline with overlapping work": ({"timeline": recorded([[0], [0]], [[0], [0]])}, "timeline"),
    "a recorded timeline from the future": ({"timeline": recorded([[0], [1]], [[1], [1]])}, "timeline"),
    "a recorded timeline with a client twice": ({"timeline": recorded([[0, 0]], [[0, 0]])}, "timeline"),
    "a recorded timeline with unknown clients": ({"timeline": recorded([[0], [12]], [[0], [0]])}, "timeline"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_on_the_call_in_one_sentence(case):
    changed, words = REFUSED[case]
    given = {"model": mlp(), "data": DATA, "rule": rules.kasync_sgd(0.1), "timeline": TIMELINE, "work": Gradient(4)}
    with pytest.raises(ValueError, match=f"(?s){words}") as problem:
        simulate(**given | changed)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gradient(0), "batch_size = 0"),
        (lambda: Gradient(2.5), "batch_size = 2.5"),
        (lambda: LocalSGD(0, 0.1, 4), "steps = 0"),
        (lambda: LocalSGD(1, 0.0, 4), "lr = 0"),
        (lambda: LocalSGD(1, float("nan"), 4), "lr = nan"),
        (lambda: LocalSGD(1, float("inf"), 4), "lr = inf"),
        (lambda: LocalSGD(1, 0.1, -1), "batch_size = -1"),
        (lambda: Local(4, steps=1, lr=0.1, optimizer=torch.optim.LBFGS), "LBFGS evaluates the loss several times"),
        (lambda: Local(4, steps=1, lr=0.1, optimizer=torch.optim.SparseAdam), "SparseAdam cannot be used"),
        (lambda: Local(4, steps=1, lr=0.1, optimizer="adam"), "optimizer = 'adam': give a class"),
        (lambda: Local(4, steps=1, lr=0.1, optimizer=torch.optim.SGD, momentom=0.9), "momentom"),
        (lambda: timelines.uniform(3, 4, 5), "k = 4 is more than clients = 3"),
        (lambda: timelines.uniform(3, 0, 5), "k is 0"),
        (lambda: rules.build("wkaf", lr=0.1), "did you mean 'wkafl'"),
        (lambda: rules.build("wkafl", lr=0.1, sharpnes=3), "did you mean 'sharpness'"),
    ],
)
def test_impossible_settings_are_refused_where_they_are_given(make, words):
    with pytest.raises(ValueError, match=words) as problem:
        make()
    assert "\n" not in str(problem.value)


def test_clients_without_samples_are_no_matter_when_they_never_deliver():
    present = recorded([[0, 1], [2, 4]], [[0, 0], [0, 0]])
    assert len(list(simulate(mlp(), hollow(), rules.kasync_sgd(0.1), present, Gradient(4)))) == 2


def test_there_is_no_latest_record_before_the_first_step():
    simulation = simulate(mlp(), DATA, rules.fedbuff(0.1), timelines.uniform(CLIENTS, 3, 5), Gradient(4))
    with pytest.raises(UserError, match="no step was made yet"):
        simulation.latest  # noqa: B018
    next(iter(simulation))
    assert simulation.latest.step == 1
