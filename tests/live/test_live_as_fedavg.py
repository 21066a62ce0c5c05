"""KAsync in the place of FedAvg: the same weights, the same buffers, the same calls of the same methods."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from torch import nn

from kasync import rules
from kasync.errors import UserError
from kasync.live.flower import KAsync

EXAMPLES = {1: 10, 2: 30, 3: 5, 4: 90}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def trained(message: Message, scale: float = 1.0) -> list[Message]:
    """A real ClientApp's work: some steps on the node's own samples, BatchNorm in training mode."""
    node = message.metadata.dst_node_id
    draw = torch.Generator().manual_seed(node)
    inputs = scale * (torch.randn(16, 1, 8, 8, generator=draw) * node + node)
    labels = torch.randint(0, 3, (16,), generator=draw)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=float(message.content["config"].get("lr", 0.05)))
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": EXAMPLES[node], "train_loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return [Message(content, reply_to=message)]


def start() -> ArrayRecord:
    return ArrayRecord(network().state_dict())


def test_with_everybody_and_nothing_stale_it_is_fedavg_weights_buffers_and_metrics():
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)
    wanted = fedavg.start(FakeGrid(EXAMPLES, trained), start(), num_rounds=4)
    kasync = KAsync(rules.fedbuff(lr=1.0), k=4, poll=0.002)
    found = kasync.start(FakeGrid(EXAMPLES, trained), start(), num_rounds=4)
    for name, array in wanted.arrays.items():
        near = 1.0 if name.endswith("num_batches_tracked") else 1e-5  # FedAvg's model cuts 11.99 batches off to 11
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), rtol=1e-4, atol=near, err_msg=name)
    assert found.arrays["1.num_batches_tracked"].dtype == "int64"
    for number, metrics in wanted.train_metrics_clientapp.items():
        assert found.train_metrics_clientapp[number]["train_loss"] == pytest.approx(metrics["train_loss"], rel=1e-4)


def test_without_a_key_every_delivery_counts_the_same():
    def answer(message: Message) -> list[Message]:
        (found,) = trained(message)
        found.content["metrics"] = MetricRecord({"train_loss": 1.0})
        return [found]

    goals = []
    for strategy, clients in (
        (KAsync(rules.fedbuff(1.0), k=4, poll=0.002, weighted_by_key=None), answer),
        (KAsync(rules.fedbuff(1.0), k=4, poll=0.002), equally),
    ):
        goals.append(strategy.start(FakeGrid(EXAMPLES, clients), start(), num_rounds=2).arrays)
    for name, array in goals[0].items():
        np.testing.assert_allclose(goals[1][name].numpy(), array.numpy(), rtol=1e-5, atol=1e-6)


def equally(message: Message) -> list[Message]:
    (found,) = trained(message)
    found.content["metrics"]["num-examples"] = 7
    return [found]


class Delayed(FakeGrid):
    """Node 4 answers only after the others have made a few updates."""

    def __init__(self) -> None:
        super().__init__(EXAMPLES, trained)
        self.due = lambda reply: reply.metadata.src_node_id != 4 or self.newest >= int(reply.metadata.group_id or 0) + 6


@pytest.mark.parametrize(
    "rule", [rules.wkafl(0.5), rules.fedbuff(3.0), rules.recall(0.05, clients=4)], ids=lambda rule: rule.name
)
def test_running_statistics_stay_averages_of_what_clients_have_seen(rule):
    variances = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = network().eval()
        model.load_state_dict(arrays.to_torch_state_dict())
        variances.append(float(model[1].running_var.min()))
        return MetricRecord({"finite": float(torch.isfinite(model(torch.ones(2, 1, 8, 8))).all())})

    strategy = KAsync(rule, k=2, poll=0.002)
    found = strategy.start(Delayed(), start(), num_rounds=24, evaluate_fn=evaluate)
    assert max(max(versions) for versions in strategy.run.federation.step_log.versions) > 0
    assert min(variances) > 0.0
    assert all(metrics["finite"] for metrics in found.evaluate_metrics_serverapp.values())
    assert found.arrays["1.num_batches_tracked"].numpy() > 0


def test_buffers_can_be_kept_and_named_and_the_log_says_what_happens(caplog):
    strategy = KAsync(rules.fedbuff(1.0), k=4, poll=0.002, buffers="keep", buffer_names=["1.*"])
    with caplog.at_level(logging.INFO, "kasync.live"):
        found = strategy.start(FakeGrid(EXAMPLES, trained), start(), num_rounds=2)
    for name, array in start().items():
        if name.startswith("1."):
            np.testing.assert_array_equal(found.arrays[name].numpy(), array.numpy())
        elif name != "0.bias":  # which has no gradient before a BatchNorm
            assert not np.array_equal(found.arrays[name].numpy(), array.numpy())
    assert "5 arrays are buffers and kept as they were sent" in caplog.text


def test_a_reply_without_the_count_that_it_is_weighted_by_is_refused_with_the_remedy(caplog):
    def answer(message: Message) -> list[Message]:
        (found,) = trained(message)
        if message.metadata.dst_node_id == 2:
            found.content["metrics"] = MetricRecord({"train_loss": 1.0})
        return [found]

    strategy = KAsync(rules.fedbuff(1.0), k=2, poll=0.002, offences=1)
    strategy.start(FakeGrid(EXAMPLES, answer), start(), num_rounds=2)
    assert strategy.run.federation.tally["refused"] == 1
    assert "reports no 'num-examples', by which deliveries are weighted" in caplog.text
    assert "weighted_by_key=None" in caplog.text


class Decaying(KAsync):
    """Flower's idiom for a learning rate that halves, and a count of what is called."""

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self.calls: Counter[str] = Counter()
        self.replies: list[int] = []

    def configure_train(self, server_round, arrays, config, grid):
        self.calls[f"configure {server_round}"] += 1
        config["lr"] = float(config["lr"]) * 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def configure_dispatch(self, server_round, content, node_id):
        self.calls["dispatch"] += 1
        return RecordDict({**content, "config": ConfigRecord({**content["config"], "node": node_id})})

    def aggregate_train(self, server_round, replies):
        found = list(replies)
        self.replies += [int(reply.metadata.src_node_id) for reply in found]
        assert all(reply.content["metrics"]["num-examples"] in EXAMPLES.values() for reply in found)
        self.calls["aggregate"] += 1
        arrays, metrics = super().aggregate_train(server_round, found)
        assert arrays is not None
        assert metrics is not None
        return arrays, metrics


def test_each_update_is_configured_and_aggregated_once_however_often_the_grid_is_looked_at():
    rates: dict[str, set[float]] = {}

    def answer(message: Message) -> list[Message]:
        config = message.content["config"]
        rates.setdefault(message.metadata.group_id, set()).add(config["lr"])
        assert config["node"] == message.metadata.dst_node_id
        return trained(message)

    strategy = Decaying(rules.fedbuff(1.0), k=2, poll=0.002)
    grid = FakeGrid(EXAMPLES, answer)
    strategy.start(grid, start(), num_rounds=6, train_config=ConfigRecord({"lr": 0.1}))
    assert [strategy.calls[f"configure {n}"] for n in range(1, 7)] == [1] * 6
    assert strategy.calls["aggregate"] == 6
    assert strategy.calls["dispatch"] == len(grid.sent)
    assert len(strategy.replies) == 12
    assert len(rates) >= 3
    for version, found in rates.items():
        assert list(found) == [pytest.approx(0.1 * 0.5 ** (int(version) + 1))]


def test_other_arrays_than_its_own_are_refused():
    class Doubling(KAsync):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord({name: Array(np.asarray(2 * array.numpy())) for name, array in arrays.items()}), metrics

    with pytest.raises(UserError, match="aggregate_train returned other arrays"):
        Doubling(rules.fedbuff(1.0), k=2, poll=0.002).start(FakeGrid(EXAMPLES, trained), start(), num_rounds=2)


def test_fraction_evaluate_alone_asks_that_share_after_every_update():
    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "train":
            return trained(message)
        content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 3})})
        return [Message(content, reply_to=message)]

    grid = FakeGrid(EXAMPLES, answer)
    found = KAsync(rules.fedbuff(1.0), k=2, poll=0.002, fraction_evaluate=0.5).start(grid, start(), num_rounds=3)
    assert sorted(found.evaluate_metrics_clientapp) == [1, 2, 3]
    assert sum(message.metadata.message_type == "evaluate" for message in grid.sent) == 6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"fraction_train": 0.5}, "fraction_train is a setting of FedAvg .* concurrency= limits"),
        ({"min_train_nodes": 2}, "k= is how many deliveries"),
        ({"fraction_evaluate": 1.5}, "fraction_evaluate"),
        ({"min_k": 3}, "min_k = 3 is more than k = 2"),
        ({"concurrency": 1}, "concurrency = 1 is less than k = 2"),
        ({"select": "loudest"}, "unknown setting of select"),
        ({"buffers": "difference"}, "unknown setting of buffers"),
    ],
)
def test_a_setting_that_means_nothing_here_is_refused_with_what_to_do(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        KAsync(rules.fedbuff(1.0), k=2, **settings)


def test_flowers_wrappers_around_it_are_refused_by_name():
    wrapped = DifferentialPrivacyServerSideFixedClipping(KAsync(rules.fedbuff(1.0), k=2), 1.0, 1.0, 2)
    with pytest.raises(UserError, match=r"DifferentialPrivacyServerSideFixedClipping .* cannot hold it; .* privacy="):
        wrapped.start(FakeGrid(EXAMPLES, trained), start(), num_rounds=1)


@pytest.mark.parametrize(
    "name", ["LocalDpMod", "fixedclipping_mod", "adaptiveclipping_mod", "arrays_size_mod", "message_size_mod"]
)
def test_flowers_own_mods_of_a_client_app_work_with_it(name):
    from flwr.app import Context

    mods = pytest.importorskip("flwr.clientapp.mod")
    if not hasattr(mods, name):
        pytest.skip(f"this Flower has no {name} yet")
    mod = getattr(mods, name)
    if name == "LocalDpMod":
        mod = mod(clipping_norm=1.0, sensitivity=1.0, epsilon=1e6, delta=1e-5)

    def answer(message: Message) -> list[Message]:
        def app(message: Message, context: Context) -> Message:
            arrays = {"w": Array(message.content["arrays"]["w"].numpy() + np.float32(3.0))}
            content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        return [mod(message, None, app)]

    start = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    settings = ConfigRecord({"clipping_norm": 1.0})  # what Flower's wrappers tell the mods that clip
    found = KAsync(rules.fedbuff(1.0), k=2, poll=0.002).start(FakeGrid([1, 2, 3], answer), start, 4, 60, settings)
    moved = float(np.linalg.norm(found.arrays["w"].numpy()))
    steps = 3.0 * 5**0.5 if name.endswith("size_mod") else 1.0  # long each, or clipped to 1
    assert 3.0 * steps < moved < 4.1 * steps
    assert found.arrays["w"].dtype == "float32"
