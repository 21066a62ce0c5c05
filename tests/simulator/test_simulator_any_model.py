"""A model that no chain knows gives through torch.func the gradients of autograd."""

import pytest
import torch
from agreement import agree
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import flat, gradient_of
from small_worlds import CLASSES, CLIENTS, FEATURES, Residual, finished, vectors
from torch import nn
from torch.nn import functional

from kasync import Gradient, LocalSGD, rules, timelines
from kasync.errors import UserError
from kasync.work.layers import Chain
from kasync.work.trial import refuse_empty
from kasync.work.vmap import Vectorised

TIMELINE = timelines.uniform(CLIENTS, 3, 60, seed=7)


class Tied(nn.Module):
    """The same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.outer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


UNKNOWN = {
    "residual": Residual,
    "tied": Tied,
    "tanh": lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)),
    "group norm": lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)),
}


def per_sample(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("kind", UNKNOWN)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_client_gets_the_gradient_that_autograd_gives(kind, data):
    n, m, shared = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)), data.draw(st.booleans())
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    model = UNKNOWN[kind]().double()
    at = flat(model) + 0.1 * torch.randn(n, len(flat(model)), generator=generator, dtype=torch.float64)  # [n, D]
    at = at[:1].expand(n, -1) if shared else at
    x = torch.randn(n * m, FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (n * m,), generator=generator)
    out = torch.full((n, at.shape[1]), torch.nan, dtype=torch.float64)
    weights = torch.full((n * m,), 1 / m, dtype=torch.float64)
    losses = Vectorised.of(model).gradients(at[0] if shared else at, x, labels, weights, per_sample, out)
    for client in range(n):
        nn.utils.vector_to_parameters(at[client].clone(), model.parameters())
        mine = slice(client * m, (client + 1) * m)
        expected, loss = gradient_of(model, x[mine], labels[mine], functional.cross_entropy)
        torch.testing.assert_close(out[client], expected)
        assert losses[client].item() == pytest.approx(loss)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_no_chain_is_read_from_layers_it_does_not_know(kind):
    assert Chain.of(UNKNOWN[kind]()) is None


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 1, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(2),
        nn.LeakyReLU(),
        nn.Conv1d(2, 2, 1),
    ],
    ids=repr,
)
def test_no_chain_is_read_from_a_geometry_it_does_not_know(layer):
    assert Chain.of(nn.Sequential(nn.Conv2d(2, 2, 1), layer)) is None


def test_a_model_without_parameters_is_refused():
    with pytest.raises(UserError, match="no parameters"):
        refuse_empty(nn.ReLU())
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(UserError, match="every parameter of the model is frozen"):
        refuse_empty(frozen)


@pytest.mark.parametrize("work", [Gradient(4), LocalSGD(2, 0.05, 4)], ids=["gradient", "local steps"])
@pytest.mark.parametrize("name", ["kasync_sgd", "wkafl"])
def test_a_model_of_unknown_layers_gives_what_the_naive_simulator_gives(name, work):
    agree(Residual(), vectors(), name, TIMELINE, work)


def test_clients_side_by_side_do_not_disturb_each_other_in_a_model_of_unknown_layers():
    runs = [finished(Residual(), vectors(), rules.kasync_sgd(0.05), TIMELINE)[1].params for _ in range(4)]
    assert all(torch.equal(run, runs[0]) for run in runs)


def test_a_layer_used_twice_in_a_sequence_is_trained_as_one():
    layer = nn.Linear(FEATURES, FEATURES)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(FEATURES, CLASSES))
    agree(model, vectors(), "kasync_sgd", TIMELINE.head(20), Gradient(4))


def test_two_layers_that_share_a_weight_are_trained_as_one():
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))
    model[2].weight = model[0].weight
    agree(model, vectors(), "kasync_sgd", TIMELINE.head(20), Gradient(4))


def test_frozen_parameters_stay_as_they_are_and_do_not_travel():
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, CLASSES))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    _, simulation = finished(model, vectors(), rules.kasync_sgd(0.05), TIMELINE.head(5))
    assert len(simulation.params) == sum(each.numel() for each in model[2].parameters())
    assert not torch.equal(simulation.load_into(model)[2].weight, simulation.run.clients.new_bench().params[0])
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_which_copies_would_lose_is_refused(hook):
    model = nn.Linear(2, 2)
    getattr(model.weight, hook)(lambda value: None)
    with pytest.raises(UserError, match="parameter weight has a hook"):
        refuse_empty(model)
