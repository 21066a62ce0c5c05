"""Are the networks the paper's, and do they come from their seed alone?"""

import numpy as np
import pytest
import torch
from torch import nn

from kasync import models
from kasync.data import Dataset, Samples, names
from kasync.errors import UserError

SHAPES = {"emnist_cnn": (1, 28, 28), "lenet": (3, 32, 32), "celeba_cnn": (3, 84, 84), "mlp": (60,), "logistic": (60,)}
FAST = (nn.Sequential, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (models.emnist_cnn(10), 582_026),
        (models.emnist_cnn(62), 608_702),
        (models.lenet(), 62_006),
        (models.celeba_cnn(), 10 * 3 * 16 + 10 + 16000 * 100 + 100 + 100 * 2 + 2),
        (models.mlp(60, (32, 16), 5), 60 * 32 + 32 + 32 * 16 + 16 + 16 * 5 + 5),
        (models.mlp(60, 32, 5), 60 * 32 + 32 + 32 * 5 + 5),
        (models.logistic(60, 5), 60 * 5 + 5),
    ],
)
def test_the_parameters_are_as_many_as_the_paper_counts(model, count):
    assert parameters(model) == count


def test_the_dense_layer_of_celeba_sees_sixteen_thousand_values():
    flat = models.celeba_cnn()[:4](torch.zeros(1, 3, 84, 84))
    assert flat.shape == (1, 16_000)


@pytest.mark.parametrize("name", models.names())
def test_every_model_gives_a_row_of_logits_and_uses_only_what_the_fast_path_knows(name):
    model = models.build(name, SHAPES[name], seed=1, classes=7)
    assert model(torch.rand(3, *SHAPES[name])).shape == (3, 7)
    assert all(type(layer) in FAST for layer in model.modules())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


@pytest.mark.parametrize("name", models.names())
def test_a_seed_fixes_the_weights_and_no_global_generator_moves(name):
    before = torch.get_rng_state()
    one, again, other = (models.build(name, SHAPES[name], seed, classes=4) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for weight, same, different in zip(one.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, same)
        assert not torch.equal(weight, different)


def test_weights_are_spread_as_pytorch_spreads_them():
    torch.manual_seed(0)
    for ours in (layer for layer in models.emnist_cnn(10) if isinstance(layer, nn.Conv2d | nn.Linear)):
        theirs = nn.Conv2d(ours.in_channels, ours.out_channels, 5) if isinstance(ours, nn.Conv2d) else None
        theirs = theirs or nn.Linear(ours.in_features, ours.out_features)
        assert ours.weight.std().item() == pytest.approx(theirs.weight.std().item(), rel=0.1)
        assert ours.weight.abs().max().item() == pytest.approx(theirs.weight.abs().max().item(), rel=0.05)
        assert ours.bias.abs().max() <= ours.weight[0].numel() ** -0.5


def test_a_data_set_says_its_own_shape_and_classes():
    samples = Samples(np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2, np.int64))
    assert parameters(models.build("emnist_cnn", Dataset("d", samples, samples, 62, "by hand"))) == 608_702


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("digits", "emnist_cnn"),
        ("mnist", "emnist_cnn"),
        ("emnist-mnist", "emnist_cnn"),
        ("emnist-byclass", "emnist_cnn"),
        ("femnist", "emnist_cnn"),
        ("cifar10", "lenet"),
        ("celeba", "celeba_cnn"),
        ("synthetic", "logistic"),
    ],
)
def test_each_data_set_has_its_network(name, default):
    assert models.default_for(name) == default


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: models.build("lenett", (3, 32, 32), classes=10), "did you mean 'lenet'"),
        (lambda: models.build("lenet", (1, 28, 28), classes=10), r"takes inputs of shape \(3, 32, 32\)"),
        (lambda: models.build("mlp", (60,)), "classes is not given"),
        (lambda: models.default_for("cifar"), "did you mean 'cifar10'"),
        (lambda: models.emnist_cnn(0), "classes is 0"),
        (lambda: models.mlp(10, (5, 0)), "hidden is 0"),
        (lambda: models.logistic(0), "inputs is 0"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_no_data_set_of_the_catalogue_is_without_a_network():
    assert {models.default_for(name) for name in names()} <= set(models.names())
