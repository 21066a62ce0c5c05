"""Is a delivery clipped and noised as promised, and is the epsilon the right one?"""

import math

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from kasync import rules
from kasync.live.flower import KAsync
from kasync.live.privacy import Privacy


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
    assert spent[-1] == privacy.epsilon(strategy.run.federation.most_deliveries())
    assert not np.allclose(result.arrays["w"].numpy(), 1.0)


def test_a_client_can_noise_its_model_before_it_sends_it():
    start = {"w": torch.zeros(2, 3), "b": torch.zeros(2), "batches": torch.tensor(4)}
    trained = {"w": torch.full((2, 3), 3.0), "b": torch.full((2,), 3.0), "batches": torch.tensor(9)}
    sent = seeded(max_norm=1.0, noise_multiplier=1e-9).noised_model(start, trained)
    assert torch.cat([sent["w"].flatten(), sent["b"]]).norm() == pytest.approx(1.0)
    torch.testing.assert_close(sent["w"], torch.full((2, 3), 1 / math.sqrt(8)))
    assert sent["batches"] == 4


@pytest.mark.parametrize("wrong", [{"max_norm": 0.0}, {"noise_multiplier": 0.0}, {"delta": 1.0}, {"delta": 0.0}])
def test_impossible_privacy_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Privacy(**{"max_norm": 1.0, "noise_multiplier": 1.0, **wrong})
