"""Every model of the gallery trains in the simulator, and a run repeats to the bit."""

import numpy as np
import pytest
import torch
from torch import nn

import kasync
from kasync import data, models, rules, timelines

RNG = np.random.default_rng(0)
CLIENTS = 4
OWNERS = np.arange(40) % CLIENTS
TIMELINE = timelines.clock(CLIENTS, k=2, steps=3, durations=timelines.durations.exponential(mean=1.0))
SGD = kasync.LocalSGD(steps=2, lr=0.05, batch_size=4)
ADAM = kasync.Local(batch_size=4, epochs=1, lr=1e-3, optimizer=torch.optim.AdamW)


def pictures(channels: int = 3, size: int = 32) -> data.FederatedData:
    pixels = RNG.integers(0, 256, (40, channels, size, size), dtype=np.uint8)
    return data.from_arrays(pixels, RNG.integers(0, 3, 40), owners=OWNERS, classes=3, test_fraction=0.2)


def texts(predict: str = "each") -> data.FederatedData:
    return data.from_texts({n: "to be or not to be " * (9 + n) for n in range(CLIENTS)}, length=8, predict=predict)


class Judge(nn.Module):
    """Two inputs by name, one number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.see, self.read, self.out = nn.Linear(5, 8), nn.Embedding(7, 8), nn.Linear(8, 1)

    def forward(self, view: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.see(view) + self.read(word).mean(1)))


def two_inputs() -> data.FederatedData:
    inputs = {"view": RNG.normal(size=(40, 5)), "word": RNG.integers(0, 7, (40, 3))}
    return data.from_arrays(inputs, RNG.normal(size=40), owners=OWNERS, test_fraction=0.2)


def marks() -> data.FederatedData:
    return data.from_arrays(RNG.normal(size=(40, 5)), RNG.random((40, 3)) > 0.5, owners=OWNERS, test_fraction=0.2)


def encoder() -> tuple[nn.Module, data.FederatedData]:
    """A small encoder of transformers with dropout, two adapters in each layer and a head that is trained whole."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=30, num_labels=3, **sizes))
    ids = RNG.integers(0, 30, (40, 6))
    inputs = {"input_ids": ids, "attention_mask": (ids > 3).astype(np.int64) | (np.arange(6) == 0)}
    clients = data.from_arrays(inputs, ids[:, 0] % 3, owners=OWNERS, test_fraction=0.2)
    return kasync.lora(model, 2, ("query", "value"), trainable="classifier"), clients


GALLERY = {
    "mlp": lambda: (models.mlp(3 * 32 * 32, 16, 3), pictures(), SGD, {}),
    "lenet": lambda: (models.lenet(classes=3), pictures(), kasync.Gradient(4), {}),
    "emnist_cnn": lambda: (models.emnist_cnn(3), pictures(1, 28), kasync.Gradient(4), {}),
    "fedbuff_cnn": lambda: (models.fedbuff_cnn(3), pictures(), SGD, {}),
    "resnet8": lambda: (models.resnet8(3), pictures(), kasync.Gradient(4), {}),
    "resnet8, batch norm averaged": lambda: (models.resnet8(3, "batch"), pictures(), SGD, {"buffers": "average"}),
    "resnet8, batch norm of each client": lambda: (models.resnet8(3, "batch"), pictures(), SGD, {"buffers": "local"}),
    "vit": lambda: (models.vit(16, 2, 2, 8, 3), pictures(), ADAM, {}),
    "lstm, each token": lambda: (models.lstm(texts().classes, 8), texts(), SGD, {}),
    "lstm, the last token": lambda: (models.lstm(texts().classes, 8, last=True), texts("last"), ADAM, {}),
    "gpt": lambda: (models.gpt(2, 16, 2, 8, texts().classes), texts(), ADAM, {}),
    "word_bag": lambda: (models.word_bag(texts().classes, texts().classes), texts("last"), kasync.Gradient(4), {}),
    "an encoder with adapters": lambda: (*encoder(), ADAM, {}),
    "two inputs": lambda: (Judge(), two_inputs(), SGD, {}),
    "several marks": lambda: (models.mlp(5, 8, 3), marks(), SGD, {}),
}


@pytest.mark.parametrize("name", GALLERY)
def test_a_model_of_the_gallery_trains_and_repeats_to_the_bit(name):
    model, clients, work, settings = GALLERY[name]()
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def trained() -> tuple[torch.Tensor, list[float]]:
        run = kasync.simulate(model, clients, rules.fedbuff(lr=0.5), TIMELINE, work, evaluate_every=1, **settings)
        losses = [record.test_loss for record in run]
        return run.params.clone(), losses

    (params, losses), (again, same) = trained(), trained()
    assert torch.equal(params, again)
    assert losses == same
    assert np.isfinite(losses).all()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert params.numel() == sum(parameter.numel() for parameter in trainable)
    assert not torch.equal(params, nn.utils.parameters_to_vector(trainable))  # it has moved
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", GALLERY)
def test_a_run_of_the_gallery_goes_on_from_its_checkpoint_and_not_from_another_models(name, tmp_path):
    model, clients, work, settings = GALLERY[name]()
    settings["evaluate_every"] = 1
    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 0.0}

    def begun(**more):
        return kasync.simulate(model, clients, rules.fedbuff(lr=0.5), TIMELINE, work, **settings, **more)

    whole, broken = begun(), begun(**kept)
    expected = [(record.step, record.test_loss) for record in whole]
    next(iter(broken))  # and no further
    resumed = begun(**kept)
    assert [(record.step, record.test_loss) for record in resumed] == expected
    assert torch.equal(resumed.params, whole.params)
    with torch.no_grad():
        next(parameter for parameter in model.parameters() if parameter.requires_grad).add_(1e-3)
    with pytest.raises(ValueError, match="checkpoint"):
        begun(**kept)


def test_what_a_model_learned_is_taken_out_of_a_run_with_adapters():
    model, clients = encoder()
    run = kasync.simulate(model, clients, rules.fedbuff(lr=1.0), TIMELINE, ADAM, evaluate_every=3)
    *_, last = run
    run.load_into(model)
    merged = kasync.merge_lora(model).eval()
    inputs = {name: torch.from_numpy(column) for name, column in clients.test.inputs.items()}
    with torch.no_grad():
        right = (merged(**inputs).logits.argmax(1) == torch.from_numpy(clients.test.labels)).float().mean()
    assert right.item() == pytest.approx(last.accuracy)


def test_the_clients_own_rows_are_judged_client_by_client():
    clients = data.from_arrays(RNG.normal(size=(60, 5)), np.arange(60) % 3, owners=np.arange(60) % 4, test_fraction=0.2)
    held = clients.held_out(0.3)
    model = models.mlp(5, 8, 3)
    run = kasync.simulate(model, held, rules.fedbuff(lr=1.0), TIMELINE, SGD, evaluate_every=3)
    for _ in run:
        pass
    run.load_into(model)
    found = run.per_client()
    assert found.clients.tolist() == [0, 1, 2, 3]
    for client, accuracy in zip(found.clients, found.accuracy, strict=True):
        rows = held.tests_of(client)
        with torch.no_grad():
            outputs = model(torch.from_numpy(held.train.inputs[rows])).argmax(1).numpy()
        assert accuracy == pytest.approx((outputs == held.train.labels[rows]).mean())
    with pytest.raises(ValueError, match="held_out"):
        kasync.simulate(model, clients, rules.fedbuff(lr=1.0), TIMELINE, SGD).per_client()
