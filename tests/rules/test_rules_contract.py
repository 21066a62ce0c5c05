"""What every rule promises: no writes in place, any order, exact resume, kept types, finite results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from deliveries import LENGTH, deliver, generator, taken
from rule_cases import CASES, equal, every_rule, make, started
from torch import Tensor

from kasync import Arrivals, ServerState, parts, rules


def tensors(server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
    return server.state_dict() | {name: value for name, value in vars(arrivals).items() if isinstance(value, Tensor)}


def test_a_rule_missing_from_the_table_fails():
    assert {name for name, _, _ in CASES.values()} == set(rules.RULES)


@every_rule
def test_nothing_given_to_a_rule_is_changed(case):
    rule = make(case)
    server, arrivals = started(rule), deliver(generator(2))
    given = tensors(server, arrivals)
    before = {name: value.clone() for name, value in given.items()}
    rule(server, arrivals)
    for name, value in tensors(server, arrivals).items():
        assert value is given[name], name
        assert torch.equal(value, before[name]), name


@every_rule
def test_a_step_on_from_the_result_leaves_the_result_alone(case):
    """Nor does the next step write into what the last one returned."""
    rule, random = make(case), generator(2)
    middle, _ = rule(started(rule), deliver(random))
    before = {name: value.clone() for name, value in middle.state_dict().items()}
    rule(rule(middle, deliver(random))[0], deliver(random))
    equal(middle, ServerState.from_state_dict(before))


@every_rule
def test_the_order_of_arrivals_does_not_matter(case):
    rule, random = make(case), generator(3)
    one = other = started(rule)
    for _ in range(6):
        arrivals, order = deliver(random, 6), torch.randperm(6, generator=random)
        one, step = rule(one, arrivals)
        other, shuffled = rule(other, taken(arrivals, order))
        torch.testing.assert_close(shuffled.weights, step.weights[order], rtol=1e-9, atol=1e-12)
        if case == "fedfa":  # its queue has them in their order
            torch.testing.assert_close(one.params, other.params, rtol=1e-9, atol=1e-12)
        else:
            equal(one, other, rtol=1e-9, atol=1e-12)


@every_rule
def test_resuming_from_a_checkpoint_changes_nothing(case):
    rule, random = make(case), generator(4)
    deliveries = [deliver(random) for _ in range(8)]
    whole = resumed = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
    for arrivals in deliveries:
        whole, _ = rule(whole, arrivals)
        stored = {name: value.clone() for name, value in resumed.state_dict().items()}
        resumed, _ = make(case)(ServerState.from_state_dict(stored), arrivals)
    equal(whole, resumed)


@every_rule
def test_an_engine_that_owns_its_state_gets_the_same_numbers(case):
    rule, random = make(case), generator(5)
    pure = owned = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
    for _ in range(8):
        arrivals = deliver(random)
        pure, _ = rule(pure, arrivals)
        owned, _ = rule.advance(owned, arrivals)
    equal(pure, owned)


@pytest.mark.parametrize("case", [case for case in CASES if make(case).table_rows])
def test_an_engine_that_owns_its_state_copies_no_table(case):
    rule = make(case)
    server, _ = rule.advance(ServerState.initial(torch.zeros(LENGTH)), deliver(generator(1), dtype=torch.float32))
    after, _ = rule.advance(server, deliver(generator(2), dtype=torch.float32))
    tables = [name for name, value in server.memory.items() if value.dim() == 2]
    assert tables
    assert all(after.memory[name].data_ptr() == server.memory[name].data_ptr() for name in tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_rule
def test_the_type_of_the_parameters_is_kept(case, dtype):
    rule = make(case)
    first = rule.prepared(ServerState.initial(torch.zeros(LENGTH, dtype=dtype)))
    server, step = rule(started(rule, dtype=dtype), deliver(generator(2), dtype=dtype))
    assert server.params.dtype == dtype
    assert all(server.memory[name].dtype == value.dtype for name, value in first.memory.items())
    vectors = [value for value in first.memory.values() if value.shape[-1:] == (LENGTH,)]
    assert {value.dtype for value in vectors} <= {dtype, torch.float64}  # sums over all clients are in float64
    assert step.weights.dtype == step.lr.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_rule
def test_gradients_of_another_type_are_taken_as_the_parameters(case, dtype):
    rule, other = make(case), torch.float64 if dtype is torch.float32 else torch.float32
    server = started(rule, dtype=dtype)
    arrivals = deliver(generator(2), dtype=torch.float32)
    same, _ = rule(server, replace(arrivals, gradients=arrivals.gradients.to(dtype), starts=arrivals.starts.to(dtype)))
    cast, _ = rule(server, replace(arrivals, gradients=arrivals.gradients.to(other), starts=arrivals.starts.to(other)))
    equal(same, cast)


@every_rule
def test_plain_lists_serve_as_well_as_tensors(case):
    rule = make(case)
    server, arrivals = started(rule), deliver(generator(2))
    lists = {name: getattr(arrivals, name).tolist() for name in ("staleness", "losses", "batch_sizes", "clients")}
    equal(rule(server, replace(arrivals, gradients=list(arrivals.gradients), **lists))[0], rule(server, arrivals)[0])


def special(name: str, dtype: torch.dtype) -> Arrivals:
    row = torch.randn(LENGTH, generator=generator(6), dtype=torch.float64).to(dtype)
    rows = {
        "one arrival": row[None],
        "equal arrivals": row.expand(5, LENGTH).clone(),
        "opposite arrivals": torch.stack([row, -row]),
        "zero gradients": torch.zeros(4, LENGTH, dtype=dtype),
        "huge gradients": 1e15 * torch.stack([row, -row, row]),
        "tiny gradients": 1e-15 * torch.stack([row, -row, row]),
    }[name]
    k = len(rows)
    return Arrivals(rows, torch.zeros(k), torch.full((k,), 0.3), torch.ones(k), torch.arange(k), torch.zeros_like(rows))


@pytest.mark.parametrize(
    "name",
    ["one arrival", "equal arrivals", "opposite arrivals", "zero gradients", "huge gradients", "tiny gradients"],
)
@every_rule
def test_special_gradients_leave_everything_finite(case, name):
    rule = make(case)
    if rule.name == "dc_asgd" and name == "huge gradients":
        pytest.skip("its correction grows with the square of the gradient and with the distance gone")
    for dtype in (torch.float32, torch.float64):
        for server in (ServerState.initial(torch.zeros(LENGTH, dtype=dtype)), started(rule, dtype=dtype)):
            for _ in range(3):
                server, step = rule(server, special(name, dtype))
                assert all(bool(value.isfinite().all()) for value in server.state_dict().values())
                assert bool(step.weights.isfinite().all())
                assert not step.skipped


@every_rule
def test_equal_arrivals_count_as_one(case):
    rule = make(case)
    if any(part.needs_clients for part in rule.parts) or rule.name in ("gsgm", "fedfa"):
        pytest.skip("remembers who, or how many, delivered")
    server, five = started(rule), special("equal arrivals", torch.float64)
    one = taken(five, torch.tensor([0]))
    equal(rule(server, five)[0], rule(server, one)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("staleness", [100_000, 10**6, 10**9])
@every_rule
def test_a_staleness_of_a_hundred_thousand_is_still_finite(case, staleness):
    rule = make(case)
    server = started(rule, dtype=torch.float32)
    arrivals = deliver(generator(2), dtype=torch.float32)
    for ages in ([staleness] * 4, [0, 1, staleness, staleness]):
        after, step = rule(server, replace(arrivals, staleness=ages))
        assert all(bool(value.isfinite().all()) for value in after.state_dict().values())
        assert bool(step.weights.isfinite().all())


@every_rule
def test_a_rule_can_take_over_from_another(case):
    """A server that another rule has moved keeps its parameters and begins this rule's memory anew."""
    other = started(make("wkafl" if "gsgm" in case else "gsgm"))
    fresh = replace(other, memory={})
    arrivals = deliver(generator(2))
    taken_over, _ = make(case)(other, arrivals)
    torch.testing.assert_close(taken_over.params, make(case)(fresh, arrivals)[0].params, rtol=0, atol=0)


@every_rule
def test_every_step_counts(case):
    assert int(started(make(case), steps=5).step) == 5


@every_rule
def test_every_part_may_be_left_out(case):
    rule = make(case)
    for part in {type(part) for part in rule.parts}:
        less = rule.without(part)
        assert part not in {type(part) for part in less.parts}
        server, _ = less(started(less), deliver(generator(2)))
        assert bool(server.params.isfinite().all())


def test_leaving_out_a_part_that_is_not_there_names_those_that_are():
    with pytest.raises(ValueError, match=r"twafl has no part 'ClipNorms'.*WeighByStaleness"):
        rules.twafl(0.1).without(parts.ClipNorms)
    with pytest.raises(ValueError, match=r"kasync_sgd has no part 'ClipNorms'.*none"):
        rules.kasync_sgd(0.1).without(parts.ClipNorms)
