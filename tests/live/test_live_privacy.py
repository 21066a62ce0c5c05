"""Clipping, noise and accounting of a private run."""

import math

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from kasync import Arrivals, ServerState, rules
from kasync.errors import UserError
from kasync.live.flower import KAsync
from kasync.live.loop import composed
from kasync.live.privacy import Privacy, spent
from kasync.live.terms import Terms


def seeded(**settings) -> Privacy:
    return Privacy(**settings, generator=torch.Generator().manual_seed(0))


def test_a_long_row_is_clipped_to_max_norm_and_a_short_one_is_not_stretched():
    privacy = seeded(max_norm=2.0, noise_multiplier=1e-9)
    torch.testing.assert_close(privacy.noised(torch.full((4,), 10.0)), torch.ones(4))
    torch.testing.assert_close(privacy.noised(torch.tensor([0.5, 0.0])), torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(privacy.noised(torch.zeros(3)), torch.zeros(3), atol=1e-6, rtol=0)


def test_the_noise_has_the_promised_size_and_differs_from_call_to_call():
    privacy = seeded(max_norm=3.0, noise_multiplier=0.5)
    one, other = privacy.noised(torch.zeros(100_000)), privacy.noised(torch.zeros(100_000))
    assert float(one.std()) == pytest.approx(1.5, rel=0.02)
    assert abs(float((one * other).mean())) < 0.05


def test_two_servers_without_a_seed_draw_different_noise():
    one, other = (Privacy(1.0, 1.0).noised(torch.zeros(8)) for _ in range(2))
    assert not torch.equal(one, other)


def exact_delta(noise_multiplier: float, deliveries: int, epsilon: float) -> float:
    """delta(epsilon) of n Gaussian mechanisms, which are one with noise / sqrt(n)   (Balle and Wang 2018, Theorem 8)"""

    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    sigma = noise_multiplier / math.sqrt(deliveries)
    half = 0.5 / sigma
    return normal(half - epsilon * sigma) - math.exp(epsilon) * normal(-half - epsilon * sigma)


@pytest.mark.parametrize(("noise", "deliveries"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_epsilon_is_that_of_the_gaussian_mechanism(noise, deliveries):
    privacy = Privacy(1.0, noise, delta=1e-5)
    assert exact_delta(noise, deliveries, privacy.epsilon(deliveries)) == pytest.approx(1e-5, rel=0.02)
    assert privacy.epsilon(0) == 0.0


def test_the_epsilon_spent_grows_with_the_busiest_client_and_is_reported():
    def answer(message: Message) -> list[Message]:
        content = {"arrays": ArrayRecord({"w": Array(np.ones(3, np.float32))})}
        return [Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)]

    privacy = seeded(max_norm=1.0, noise_multiplier=4.0)
    strategy = KAsync(rules.kasync_sgd(1.0), k=1, poll=0.002, privacy=privacy)
    result = strategy.start(FakeGrid([1, 2], answer), ArrayRecord({"w": Array(np.zeros(3, np.float32))}), 6)
    spent = [result.train_metrics_clientapp[n]["epsilon"] for n in range(1, 7)]
    assert spent == sorted(spent)
    assert spent[-1] == privacy.epsilon(max(client.used for client in strategy.run.federation))
    assert not np.allclose(result.arrays["w"].numpy(), 1.0)


def test_a_client_can_noise_its_model_before_it_sends_it():
    start = {"w": torch.zeros(2, 3), "b": torch.zeros(2), "batches": torch.tensor(4)}
    trained = {"w": torch.full((2, 3), 3.0), "b": torch.full((2,), 3.0), "batches": torch.tensor(9)}
    sent = seeded(max_norm=1.0, noise_multiplier=1e-9).noised_model(start, trained)
    assert torch.cat([sent["w"].flatten(), sent["b"]]).norm() == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(sent["w"], torch.full((2, 3), 1 / math.sqrt(8)), rtol=1e-5, atol=0)
    assert sent["batches"] == 4


@pytest.mark.parametrize("wrong", [{"max_norm": 0.0}, {"noise_multiplier": 0.0}, {"delta": 1.0}, {"delta": 0.0}])
def test_impossible_privacy_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Privacy(**{"max_norm": 1.0, "noise_multiplier": 1.0, **wrong})


def test_epsilon_agrees_with_an_accountant_of_somebody_else():
    accounting = pytest.importorskip("dp_accounting")
    for noise, uses in ((0.7, 3), (1.0, 1), (4.0, 500)):
        event = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(noise), uses)
        theirs = accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
        assert Privacy(1.0, noise).epsilon(uses) == pytest.approx(theirs, rel=2e-3)


def test_uses_with_different_noise_add_up():
    one, other = Privacy(1.0, 0.5), Privacy(1.0, 50.0)
    both = spent(20 * one.cost + 20 * other.cost, 1e-5)
    assert both >= one.epsilon(20) > 50.0
    assert other.epsilon(20) < 0.5


class Goal:
    """Clients that always bring the same model, far away."""

    def __init__(self, size: int = 2000, goal: float = 1000.0, key: str | None = None) -> None:
        self.size, self.goal, self.key = size, goal, key

    def __call__(self, message: Message) -> list[Message]:
        arrays = ArrayRecord({"w": Array(np.full(self.size, self.goal, np.float32))})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        if self.key is not None:
            content["kasync"] = ConfigRecord({"client-key": self.key})
        return [Message(content, reply_to=message)]

    def start(self) -> ArrayRecord:
        return ArrayRecord({"w": Array(np.zeros(self.size, np.float32))})


@pytest.mark.parametrize("noise", ["delivery", "sum"])
@pytest.mark.parametrize("rule", [rules.kasync_sgd(1.0), rules.fedbuff(1.0), rules.fadas(0.1)], ids=lambda r: r.name)
def test_noise_on_the_sum_is_smaller_by_the_root_of_k(noise, rule):
    k, clients = 16, Goal()
    privacy = seeded(max_norm=1e-6, noise_multiplier=1e6, noise=noise)  # the noise is all there is, of size 1
    strategy = KAsync(rule, k=k, poll=0.002, privacy=privacy)
    seen = []
    strategy.watch.on_update = lambda record: seen.append(strategy.run.federation.server.params.clone())
    strategy.start(FakeGrid(range(k), clients), clients.start(), 1)
    if rule.name == "fadas":
        assert float(seen[0].abs().max()) > 0.0
        return
    assert float(seen[0].std()) == pytest.approx(1 / k if noise == "sum" else 1 / math.sqrt(k), rel=0.1)


def test_noise_on_the_sum_covers_the_largest_weight():
    privacy = seeded(max_norm=1.0, noise_multiplier=1e6, noise="sum")
    rule = composed(rules.fedbuff(1.0), Terms(k=2, weigh="examples"), privacy)
    server = rule.prepared(ServerState.initial(torch.zeros(4000)))
    after, _ = rule(server, Arrivals(torch.zeros(2, 4000), [0, 0], None, [30, 10], [0, 1]))
    assert float(after.params.std()) == pytest.approx(0.75e6, rel=0.05)  # 30 of 40 examples count three quarters


@pytest.mark.parametrize("rule", [rules.wkafl(0.1), rules.ca2fl(0.1, clients=4), rules.krum(0.1, byzantine=1)])
def test_noise_on_the_sum_is_refused_for_rules_that_look_into_deliveries(rule):
    strategy = KAsync(rule, k=2, privacy=Privacy(1.0, 1.0, noise="sum"))
    with pytest.raises(UserError, match=f"noise = 'sum' needs .* but {rule.name} has"):
        strategy.start(FakeGrid(range(4), Goal(3)), Goal(3).start(), 1)


def test_a_run_with_other_noise_is_another_run(tmp_path):
    def run(noise: float, rounds: int):
        strategy = KAsync(
            rules.fedbuff(1.0),
            1,
            poll=0.002,
            checkpoint=tmp_path / "state",
            privacy=seeded(max_norm=1.0, noise_multiplier=noise),
        )
        return strategy.start(FakeGrid([1], Goal(3)), Goal(3).start(), rounds)

    run(0.5, 3)
    with pytest.raises(UserError, match="belongs to another run: its privacy is"):
        run(50.0, 6)
    again = run(0.5, 6)
    assert again.train_metrics_clientapp[6]["epsilon"] == Privacy(1.0, 0.5).epsilon(6)


def test_a_node_that_starts_again_under_another_name_goes_on_with_its_account():
    clients = Goal(3, key="hospital 7")
    grid = FakeGrid([1], clients)
    strategy = KAsync(rules.fedbuff(1.0), 1, poll=0.002, privacy=seeded(max_norm=1.0, noise_multiplier=2.0))

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number % 3 == 0 and number:
            grid.nodes = [100 + number]

    found = strategy.start(grid, clients.start(), 12, evaluate_fn=evaluate)
    assert len(strategy.run.federation.roster) == 1
    assert found.train_metrics_clientapp[12]["epsilon"] == Privacy(1.0, 2.0).epsilon(12)


def test_a_noised_model_has_no_negative_variance_which_a_server_would_refuse():
    start = torch.nn.BatchNorm1d(50).state_dict()
    sent = seeded(max_norm=1.0, noise_multiplier=4.0).noised_model(start, start)
    assert sent["running_mean"].min() < -1.0
    assert sent["running_var"].min() == 0.0


def test_a_model_of_half_precision_stays_one():
    start = {"w": torch.zeros(3, dtype=torch.float16), "v": torch.zeros(2, dtype=torch.float64)}
    sent = seeded(max_norm=1.0, noise_multiplier=0.1).noised_model(start, start)
    assert (sent["w"].dtype, sent["v"].dtype) == (torch.float16, torch.float64)
