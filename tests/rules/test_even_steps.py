"""Even steps move every layer equally far in all its directions."""

from functools import partial

import pytest
import torch
from deliveries import LAYERS, LENGTH, deliver, generator
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_remembering import evened

from kasync import Arrivals, ServerState, optimizers, rules
from kasync.core import Rule
from kasync.errors import UserError
from kasync.live.loop import Federation
from kasync.live.terms import Terms
from kasync.optimizers import Muon

few = settings(max_examples=25, deadline=None)


def moved(direction, layers, **settings):
    """[D] what one step of length one makes of a direction."""
    rule = Rule("follow", 1.0, (), optimizer=partial(Muon, **settings))
    rule = rule if layers is None else rule.shaped(layers)
    return -rule(ServerState.initial(torch.zeros_like(direction)), deliver_only(direction))[0].params


def deliver_only(direction):
    return Arrivals(direction[None], torch.zeros(1))


@few
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(2, 8),
    columns=st.integers(2, 8),
    spread=st.sampled_from([1.0, 10.0, 100.0]),
)
def test_the_directions_of_a_matrix_all_move_by_about_one(seed, rows, columns, spread):
    left, _, right = torch.linalg.svd(torch.randn(rows, columns, generator=generator(seed), dtype=torch.float64), False)
    values = torch.logspace(0, -1, min(rows, columns), base=spread, dtype=torch.float64)
    matrix = left * values @ right
    after = moved(matrix.flatten(), ((rows, columns),)).view(rows, columns)
    turned = left.mT @ after @ right.mT
    assert float(turned.diagonal().min()) > 0.5
    assert float(turned.diagonal().max()) < 1.3
    torch.testing.assert_close(turned, turned.diagonal().diag(), atol=1e-9, rtol=0)  # nothing is turned


@few
@given(seed=st.integers(0, 10**6))
def test_layers_are_evened_each_by_itself_as_their_singular_values_say(seed):
    direction = torch.randn(LENGTH, generator=generator(seed), dtype=torch.float64)
    torch.testing.assert_close(moved(direction, LAYERS), evened(direction, LAYERS))


def test_a_vector_and_a_model_of_unknown_layers_move_by_one():
    direction = torch.arange(1.0, 6.0, dtype=torch.float64)
    for layers in (((5,),), None):
        torch.testing.assert_close(moved(direction, layers), direction / direction.norm())


def test_what_does_not_move_stays_and_an_empty_array_is_no_obstacle():
    direction = torch.zeros(6, dtype=torch.float64)
    assert moved(direction, ((2, 3), (0,), (0, 3))).tolist() == [0.0] * 6


def test_momentum_follows_the_mean_of_the_directions():
    rule = Rule("follow", 1.0, (), optimizer=partial(Muon, momentum=0.75)).shaped(((2,),))
    server, directions = ServerState.initial(torch.zeros(2, dtype=torch.float64)), ([1.0, 0.0], [0.0, 1.0])
    for direction in directions:
        before = server.params
        server, _ = rule(server, deliver_only(torch.tensor(direction, dtype=torch.float64)))
    torch.testing.assert_close(before - server.params, torch.tensor([3.0, 4.0], dtype=torch.float64) / 5.0)


def test_layers_of_another_model_are_refused():
    with pytest.raises(ValueError, match="layers hold 7 parameters and params 24"):
        rules.recall(0.1, 3).shaped([(7,)])(
            ServerState.initial(torch.zeros(LENGTH)), deliver(generator(0), 2, clients=3)
        )


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_a_momentum_that_never_moves_is_refused(momentum):
    with pytest.raises(ValueError, match="momentum = "):
        rules.recall(0.1, 3, momentum=momentum)


def test_a_live_federation_refuses_a_rule_that_does_not_know_the_layers():
    with pytest.raises(UserError, match=r"recall moves a model layer by layer: .*rule.shaped"):
        Federation(rules.recall(0.1, 3), torch.zeros(LENGTH), Terms(k=2))
    Federation(rules.recall(0.1, 3).shaped(LAYERS), torch.zeros(LENGTH), Terms(k=2))


def test_the_products_of_an_even_step_are_not_rounded_whatever_clients_may_do(monkeypatch):
    seen, even = [], optimizers._even
    monkeypatch.setattr(
        optimizers, "_even", lambda matrix: (seen.append(torch.get_float32_matmul_precision()), even(matrix))[1]
    )
    torch.set_float32_matmul_precision("high")
    try:
        moved(torch.ones(LENGTH), LAYERS)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(seen) >= len(LAYERS)
    assert set(seen) == {"highest"}
