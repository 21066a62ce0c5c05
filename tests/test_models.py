"""The networks are those of their papers, and come from their seed alone."""

import numpy as np
import pytest
import torch
from torch import nn

from kasync import models
from kasync.data import Dataset, Samples, names
from kasync.errors import UserError

CIFAR = (3, 32, 32)
SHAPES = {
    "celeba_cnn": (3, 84, 84),
    "emnist_cnn": (1, 28, 28),
    "fedast_cnn": CIFAR,
    "fedbuff_cnn": CIFAR,
    "femnist_cnn": (1, 28, 28),
    "lenet": CIFAR,
    "logistic": (60,),
    "mlp": (60,),
    "resnet18": CIFAR,
    "resnet18_batch": CIFAR,
    "resnet8": CIFAR,
    "resnet8_batch": CIFAR,
    "vit": CIFAR,
}
CHAINS = ("celeba_cnn", "emnist_cnn", "fedast_cnn", "femnist_cnn", "lenet", "logistic", "mlp")
TOKENS = ("gpt", "lstm", "word_bag")
FAST = (nn.Sequential, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear)


def built(name: str, seed: int) -> nn.Module:
    if name in TOKENS:
        return models.build(name, tokens(last=name == "word_bag"), seed)
    return models.build(name, SHAPES[name], seed, classes=7)


def tokens(last: bool, words: int = 30) -> Dataset:
    """Nine texts of six tokens, and what is to be predicted: a class of four, or the token after each."""
    ids = np.arange(9 * 6).reshape(9, 6) % words
    samples = Samples(ids, ids[:, 0] % 4 if last else (ids + 1) % words)
    return Dataset("texts", samples, samples, 4 if last else words, "made")


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
        (models.femnist_cnn(), 6_603_710),
        (models.fedast_cnn(), 797_962),
        (models.fedbuff_cnn(), 31_594),
        (models.fedbuff_cnn(2), 29_282),
        (models.resnet8(), 78_042),
        (models.resnet18(), 11_173_962),
        (models.resnet18(norm="batch"), 11_173_962),
        (models.lstm(80, 256, last=True), 80 * 8 + 4 * 256 * (8 + 3 * 256 + 4) + 257 * 80),
        (models.gpt(3, 64, 4, 32, 80), 3 * (12 * 64**2 + 13 * 64) + (2 * 80 + 32 + 2) * 64),
        (models.vit(), 6 * (12 * 192**2 + 13 * 192) + (48 + 1 + 64 + 2) * 192 + 193 * 10),
        (models.word_bag(100, 4), 100 * 64 + 65 * 4),
    ],
)
def test_the_parameters_are_as_many_as_the_paper_counts(model, count):
    assert parameters(model) == count


def test_the_dense_layer_of_celeba_sees_sixteen_thousand_values():
    flat = models.celeba_cnn()[:4](torch.zeros(1, 3, 84, 84))
    assert flat.shape == (1, 16_000)


def test_every_model_is_tested_here():
    assert {*SHAPES, *TOKENS} == set(models.names())


@pytest.mark.parametrize("name", SHAPES)
def test_every_model_for_pictures_and_vectors_gives_a_row_of_finite_logits(name):
    model = built(name, seed=1)
    outputs = model(torch.rand(3, *SHAPES[name]))
    assert outputs.shape == (3, 7)
    assert outputs.isfinite().all()
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
    if name in CHAINS:
        assert all(type(layer) in FAST for layer in model.modules())


@pytest.mark.parametrize("name", TOKENS)
def test_every_model_for_tokens_gives_what_the_labels_ask_for(name):
    outputs = built(name, seed=1)(torch.from_numpy(tokens(last=True).train.inputs[:3]))
    assert outputs.shape == ((3, 4) if name == "word_bag" else (3, 6, 30))
    assert models.build("lstm", tokens(last=True))(torch.zeros(3, 6, dtype=torch.int64)).shape == (3, 4)


def test_a_token_sees_those_before_it_and_none_after():
    for model in (models.gpt(2, 16, 2, 8, 11, seed=3), models.lstm(11)):
        one, other = torch.arange(8)[None], torch.tensor([[0, 1, 2, 3, 4, 10, 9, 8]])
        with torch.no_grad():
            differ = (model(one) - model(other)).abs().sum(-1)[0]  # [T]
        assert (differ[:5] < 1e-6).all()
        assert (differ[5:] > 1e-6).all()


def test_attention_is_its_formula():
    module = models.gpt(1, 8, 2, 5, 7, seed=1).blocks[0].attention
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    q, k, v = (x @ module.queries_keys_values.weight.T).chunk(3, -1)
    expected = torch.empty(2, 5, 8)
    for text in range(2):
        for head in (slice(0, 4), slice(4, 8)):
            for t in range(5):
                seen = k[text, : t + 1, head] @ q[text, t, head] / 2  # sqrt(4) is 2
                expected[text, t, head] = seen.softmax(0) @ v[text, : t + 1, head]
    torch.testing.assert_close(module(x), expected @ module.project.weight.T + module.project.bias)


def test_a_gpt_continues_a_text_the_same_way_twice():
    model = models.gpt(1, 16, 2, 4, 9)
    start = torch.tensor([[1, 2], [3, 4]])
    one = model.continued(start, 6, seed=5)
    assert torch.equal(one, model.continued(start, 6, seed=5))
    assert one.shape == (2, 8)
    assert torch.equal(one[:, :2], start)
    greedy = model.continued(start, 1, temperature=0)
    assert torch.equal(greedy[:, 2], model(start)[:, -1].argmax(-1))


def test_padding_does_not_count_in_a_bag_of_words():
    model = models.word_bag(9, 3)
    torch.testing.assert_close(model(torch.tensor([[4, 5]])), model(torch.tensor([[0, 5, 0, 4, 0]])))
    assert model(torch.zeros(1, 3, dtype=torch.int64)).isfinite().all()


def test_the_norm_of_fedbuff_is_one_and_batch_norm_keeps_statistics():
    assert len({id(layer) for layer in models.fedbuff_cnn() if isinstance(layer, nn.GroupNorm)}) == 1
    batch = models.resnet8(norm="batch")
    batch(torch.rand(4, 3, 32, 32))
    assert batch[1].num_batches_tracked == 1
    assert not list(models.resnet8().buffers())


@pytest.mark.parametrize("name", models.names())
def test_a_seed_fixes_the_weights_and_no_global_generator_moves(name):
    before = torch.get_rng_state()
    one, again, other = (built(name, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for weight, same, different in zip(one.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, same)
        drawn = (
            weight.dim() > 1 and weight.min() < weight.max()
        )  # norms, and the biases of some, are drawn from nothing
        assert not (drawn and torch.equal(weight, different))
    assert not torch.equal(
        nn.utils.parameters_to_vector(one.parameters()), nn.utils.parameters_to_vector(other.parameters())
    )
    for weight, same in zip(one.buffers(), again.buffers(), strict=True):
        assert torch.equal(weight, same)


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
        (lambda: models.resnet8(norm="bacth"), "did you mean 'batch'"),
        (lambda: models.gpt(width=10, heads=4), "heads is 4, which does not divide the width 10"),
        (lambda: models.vit(patch=5), "patch is 5, which does not divide the size 32"),
        (lambda: models.lstm(0), "vocabulary is 0"),
        (lambda: models.gpt(1, 8, 2, 4, 9)(torch.zeros(1, 5, dtype=torch.int64)), "5 tokens exceed the context of 4"),
        (lambda: models.build("gpt", tokens(last=True)), "'gpt' predicts the token after each one"),
        (lambda: models.build("lstm", (3, 32, 32), classes=9), r"takes tokens \[N, T\]"),
        (lambda: models.build("vit", (3, 30, 30), classes=9), "takes square pictures in patches of 4x4"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_no_data_set_of_the_catalogue_is_without_a_network():
    assert {models.default_for(name) for name in names()} <= set(models.names())
