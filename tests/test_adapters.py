"""Adapters compute their formula, leave the model that was given alone, and can be merged."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import kasync
from kasync import models
from kasync.errors import UserError


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def moved(model: nn.Module, seed: int = 1) -> nn.Module:
    """Its adapters as after some training: `up` is 0 at first."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                parameter.normal_(generator=generator)
    return model


def test_an_adapter_is_its_formula_forwards_and_backwards():
    chain = models.mlp(6, (5,), 3, seed=2)
    adapted = moved(kasync.lora(chain, rank=2, targets="1", alpha=3.0))
    x, weight, bias = torch.randn(4, 6), chain[1].weight.detach(), chain[1].bias.detach()
    up, down = adapted[1].up, adapted[1].down
    hidden = x @ (weight + 3.0 / 2 * up @ down).T + bias
    torch.testing.assert_close(adapted[1](x), hidden)
    torch.testing.assert_close(adapted(x), torch.relu(hidden) @ chain[3].weight.T + chain[3].bias)
    with torch.no_grad():
        torch.testing.assert_close(adapted[1].weight, weight + 1.5 * up @ down)

    g = torch.randn(4, 5)  # the gradient of the layer's output
    got = torch.autograd.grad(adapted[1](x), [up, down], g)
    torch.testing.assert_close(got[0], 1.5 * g.T @ (x @ down.T))
    torch.testing.assert_close(got[1], 1.5 * (g @ up).T @ x)


def test_at_first_nothing_changes_and_only_the_adapters_and_the_head_are_trainable():
    model = models.gpt(2, 16, 2, 8, 11, seed=4)
    before = copy.deepcopy(model.state_dict())
    adapted = kasync.lora(model, 2, ("queries_keys_values", "attention.project"), trainable="head", seed=7)
    tokens = torch.arange(8)[None]
    assert torch.equal(model(tokens), adapted(tokens))
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    layers = ("queries_keys_values", "project")
    assert trained == {
        f"blocks.{block}.attention.{layer}.{side}" for block in (0, 1) for layer in layers for side in ("up", "down")
    } | {"head.weight"}
    assert all(parameter.requires_grad for parameter in model.parameters())
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        functional.cross_entropy(adapted(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(adapted.head.weight, model.head.weight)


def test_frozen_weights_are_in_memory_once():
    model = models.mlp(6, (5, 4), 3)
    one, two = kasync.lora(model, 2, "3"), kasync.lora(model, 1, "1")
    assert one[3].base.weight.data_ptr() == model[3].weight.data_ptr() == two[3].weight.data_ptr()
    assert one[5].weight.data_ptr() == model[5].weight.data_ptr()


def test_a_seed_fixes_the_adapters_and_no_global_generator_moves():
    model, before = models.mlp(6, (5,), 3), torch.get_rng_state()
    one, same, other = (kasync.lora(model, 2, "1", seed=seed)[1].down for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_merging_gives_an_ordinary_model_of_the_same_function():
    model = models.gpt(2, 16, 2, 8, 11, seed=4)
    adapted = moved(kasync.lora(model, 3, "*.queries_keys_values"))
    merged = kasync.merge_lora(adapted)
    assert merged.state_dict().keys() == model.state_dict().keys()
    assert all(parameter.requires_grad for parameter in merged.parameters())
    tokens = torch.arange(8)[None]
    torch.testing.assert_close(merged(tokens), adapted(tokens))
    assert not torch.allclose(merged(tokens), model(tokens))
    merged.load_state_dict(model.state_dict())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("target", ["linear1", "out_proj"])
def test_layers_whose_weights_are_read_and_not_called_are_adapted_too(target, training):
    """PyTorch's encoder reads out_proj.weight always, and linear1.weight on its fast path."""
    model = encoder().train(training)
    adapted = moved(kasync.lora(model, 2, target))
    merged = kasync.merge_lora(adapted).train(training)
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        torch.testing.assert_close(adapted(x), merged(x))
        assert not torch.allclose(adapted(x), model(x), atol=1e-3)
    adapted(x).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in adapted.parameters() if p.requires_grad)
    assert all(p.grad is None for p in adapted.parameters() if not p.requires_grad)


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"tokens": nn.Embedding(9, 4), "inner": nn.Linear(4, 4), "head": nn.Linear(4, 9, bias=False)})
    model["head"].weight = model["tokens"].weight
    adapted = kasync.lora(model, 2, "inner", trainable="head")
    assert adapted["head"].weight is adapted["tokens"].weight
    assert adapted["head"].weight.requires_grad
    assert adapted["head"].weight.data_ptr() != model["head"].weight.data_ptr()


def test_an_encoder_of_transformers_is_adapted_by_the_names_it_uses():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    adapted = moved(kasync.lora(model, 4, ("query", "value"), trainable="classifier"))
    batch = {"input_ids": torch.arange(12).reshape(2, 6), "attention_mask": torch.ones(2, 6, dtype=torch.int64)}
    with torch.no_grad():
        merged = kasync.merge_lora(adapted)
        torch.testing.assert_close(adapted(**batch).logits, merged(**batch).logits)
        assert not torch.allclose(adapted(**batch).logits, model(**batch).logits)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert trained == 2 * 2 * 4 * (16 + 16) + 3 * 16 + 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"targets": "querie"}, "unknown target 'querie': did you mean 'query'"),
        ({"targets": ("query", "valu")}, "did you mean 'value'"),
        ({"targets": "norm"}, "target 'norm' is no nn.Linear but LayerNorm: choose from query, value, head"),
        ({"targets": ()}, "targets is empty: name dense layers, query, value"),
        ({"trainable": "haed"}, "unknown trainable module 'haed': did you mean 'head'"),
        ({"trainable": "query"}, "trainable 'query' holds a target"),
        ({"rank": 0}, "rank is 0"),
        ({"rank": 2.5}, "rank is 2.5"),
        ({"rank": 5}, "rank is 5, but query has 8 inputs and 4 outputs: lower it"),
        ({"alpha": 0}, "alpha is 0"),
        ({"model": nn.Conv2d(1, 1, 1)}, r"Conv2d has no nn\.Linear layer"),
        ({"model": nn.Linear(2, 2), "targets": "*"}, "the model is a single nn.Linear"),
    ],
)
def test_what_cannot_be_adapted_is_refused_in_a_sentence(settings, sentence):
    layers = {"query": nn.Linear(8, 4), "value": nn.Linear(8, 8), "norm": nn.LayerNorm(8), "head": nn.Linear(8, 2)}
    with pytest.raises(UserError, match=sentence):
        kasync.lora(**{"model": nn.ModuleDict(layers), "rank": 2, **settings})


def test_adapters_are_neither_put_twice_nor_merged_without_any():
    with pytest.raises(UserError, match="adapters already: merge_lora"):
        kasync.lora(kasync.lora(models.mlp(6, (5,), 3), 2, "1"), 2, "3")
    with pytest.raises(UserError, match="no adapters to merge"):
        kasync.merge_lora(models.mlp(6, (5,), 3))
