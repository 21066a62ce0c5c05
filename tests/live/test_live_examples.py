"""A delivery counts by its number of examples once, whatever the rule, and for rules that believe nobody not at all."""

from __future__ import annotations

import logging

import pytest
import torch
from deliveries import LENGTH
from rule_cases import CASES, every_rule, make

from kasync import rules
from kasync.live.deliveries import Delivery
from kasync.live.loop import BELIEVE_NOBODY, KEEP_A_MEAN, Federation
from kasync.live.terms import Terms

ALIKE = {case for case in CASES if any(isinstance(part, KEEP_A_MEAN + BELIEVE_NOBODY) for part in make(case).parts)}
MEASURED = "recall, measured"  # what arrives also decides how far its memories are trusted
PRINTED = "twafl as printed"  # its weights do not sum to one, so that the step is longer, too


def moved(case: str, examples: tuple[float, float], nudge: torch.Tensor | None = None) -> torch.Tensor:
    """[D] the model after five updates; in the last both clients bring the same, but for the nudge [2, D]."""
    federation = Federation(
        make(case), torch.ones(LENGTH, dtype=torch.float64), Terms(k=2, brings="gradients", weigh="examples")
    )
    federation.present((0, 1), 0.0)
    random = torch.Generator().manual_seed(3)
    for update in range(5):
        rows = torch.randn(1, LENGTH, generator=random, dtype=torch.float64).expand(2, -1)
        if update < 4:
            rows = rows + 0.3 * torch.randn(2, LENGTH, generator=random, dtype=torch.float64)
        elif nudge is not None:
            rows = rows + nudge
        for order in federation.dispatch(float(update)):
            delivery = Delivery(rows[order.client].clone(), 1.0, examples[order.client])
            assert federation.collect(order.ticket, order.node, delivery, float(update)) == "accepted"
        assert federation.step(float(update)) is not None
    return federation.server.params


@every_rule
def test_nine_times_the_examples_move_the_model_nine_times_as_much(case):
    if case in ALIKE:
        torch.testing.assert_close(moved(case, (1.0, 1e9)), moved(case, (1.0, 1.0)), rtol=0, atol=0)
        return
    nudge = 1e-5 * torch.randn(LENGTH, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    still, nothing = moved(case, (1.0, 9.0)), torch.zeros_like(nudge)
    first, second = (
        (moved(case, (1.0, 9.0), torch.stack(pair)) - still).norm() for pair in ((nudge, nothing), (nothing, nudge))
    )
    near = 0.25 if case == MEASURED else 0.01
    assert float(second / first) == pytest.approx(9.0, rel=near)


def test_a_client_that_says_it_has_a_billion_examples_does_not_own_the_median():
    federation = Federation(rules.geometric_median(1.0), torch.zeros(2), Terms(k=5, weigh="examples"))
    federation.present(range(5), 0.0)
    for order in federation.dispatch(0.0):
        lies = order.client == 4
        trained = torch.full((2,), -100.0) if lies else torch.ones(2) + 0.01 * order.client
        federation.collect(order.ticket, order.node, Delivery(trained, 1.0, 1e9 if lies else 10.0), 0.0)
    federation.step(0.0)
    torch.testing.assert_close(federation.server.params, torch.ones(2), rtol=0, atol=0.05)


def test_the_log_says_which_rules_count_every_client_the_same(caplog):
    with caplog.at_level(logging.INFO, "kasync.live"):
        Federation(rules.krum(1.0, byzantine=0), torch.zeros(2), Terms(k=3, weigh="examples"))
        Federation(rules.fedbuff(1.0), torch.zeros(2), Terms(k=3, weigh="examples"))
    assert caplog.messages == ["krum counts every client the same, whatever its number of examples (PickCentral)"]
