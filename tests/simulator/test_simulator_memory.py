"""The memory of a run is known before it starts, and what does not fit is refused with the numbers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import CLIENTS, finished, mlp, vectors

from kasync import Custom, Gradient, Local, rules, simulate, timelines
from kasync.data import from_arrays
from kasync.errors import UserError
from kasync.simulator.memory import choose, size, spilling
from kasync.simulator.plan import STALENESS, Plan
from kasync.timelines import Dropouts, durations

TIMELINE = timelines.uniform(200, 10, 100, seed=4)
LENGTH = 10_000
AVAILABLE = "kasync.simulator.memory.available"
SIMULATION_CHOOSE = "kasync.simulator.simulation.choose"
ON_DISK = "kasync.simulator.memory.free_on_disk"


@st.composite
def any_timeline(draw):
    clients = draw(st.integers(1, 15))
    k, steps, seed = draw(st.integers(1, clients)), draw(st.integers(1, 30)), draw(st.integers(0, 99))
    kind = draw(st.sampled_from(["uniform", "rounds", "async", "sync", "gone"]))
    if kind == "uniform":
        return timelines.uniform(clients, k, steps, seed)
    if kind == "rounds":
        return timelines.once_per_round(clients, k, steps, seed)
    options = {"dropouts": Dropouts(0.1, durations.constant(2.0)), "lost": 0.2} if kind == "gone" else {}
    mode = "sync" if kind == "sync" else "async"
    return timelines.clock(clients, k, steps, durations.exponential(1.0), seed, mode, **options)


def kept_versions(plan):
    """At each step, the versions on which something is computed at this step or later, and which exist."""
    steps = plan.timeline.steps
    needed = [set(plan.computed_on[step].tolist()) for step in range(steps)]
    return [{version for later in needed[step:] for version in later if version <= step} for step in range(steps)]


def waiting_deliveries(plan):
    """At each step, the deliveries that are computed by then and not yet used before it."""
    begun, k = plan.computed_on.ravel().tolist(), plan.timeline.k
    return [{d for d, version in enumerate(begun) if version <= step <= d // k} for step in range(plan.timeline.steps)]


@settings(max_examples=60, deadline=None)
@given(timeline=any_timeline(), semantics=st.sampled_from(sorted(STALENESS)))
def test_rows_and_versions_are_what_a_plain_count_says(timeline, semantics):
    plan = Plan(timeline, semantics)
    kept = kept_versions(plan)
    everybody = len(set(timeline.clients.ravel().tolist()))
    waiting = waiting_deliveries(plan)
    most = max(map(len, waiting))
    assert plan.rows == (everybody if 1.2 * most >= everybody else most)
    for step, deliveries in enumerate(waiting):
        rows = plan.slots.ravel()[sorted(deliveries)]
        assert len(set(rows.tolist())) == len(rows), f"two deliveries wait in one row at step {step}"
    assert plan.versions == max(len(versions) for versions in kept)
    places = plan.version_slots
    for step, versions in enumerate(kept):
        used = [places[version] for version in versions]
        assert min(used) >= 0
        assert len(set(used)) == len(used), f"two versions share a place at step {step}"


@settings(max_examples=40, deadline=None)
@given(timeline=any_timeline(), semantics=st.sampled_from(sorted(STALENESS)))
def test_every_delivery_is_computed_once_on_a_model_that_exists(timeline, semantics):
    plan = Plan(timeline, semantics)
    assert sorted(plan.order.tolist()) == list(range(timeline.steps * timeline.k))
    done = 0
    for version in range(timeline.steps):
        clients, visits = plan.work_on(version)
        done += len(clients)
        expected = [
            (int(c), int(v))
            for step in range(timeline.steps)
            for c, v, on in zip(timeline.clients[step], timeline.visits[step], plan.computed_on[step], strict=True)
            if on == version
        ]
        assert sorted(zip(clients.tolist(), visits.tolist(), strict=True)) == sorted(expected)
    assert done == timeline.steps * timeline.k


def needed(kind, rule=None):
    return choose(Plan(TIMELINE), rule or rules.kasync_sgd(0.1), vectors(), LENGTH, kind, "cpu").total


def test_gradients_are_taken_when_they_fit_and_versions_when_only_these_do(monkeypatch):
    gradients, versions = needed("gradients"), needed("versions")
    assert versions < gradients
    plan, rule = Plan(TIMELINE), rules.kasync_sgd(0.1)
    monkeypatch.setattr(AVAILABLE, lambda device: 2 * gradients)
    assert choose(plan, rule, vectors(), LENGTH, "auto", "cpu").hold == "gradients"
    monkeypatch.setattr(AVAILABLE, lambda device: (gradients + versions) // 2)
    assert choose(plan, rule, vectors(), LENGTH, "auto", "cpu").hold == "versions"


@pytest.mark.parametrize("hold", ["auto", "gradients", "versions"])
def test_what_does_not_fit_is_refused_with_the_numbers_and_a_remedy(hold, monkeypatch):
    least = 2**20
    monkeypatch.setattr(AVAILABLE, lambda device: least)
    monkeypatch.setattr(ON_DISK, lambda: least)
    with pytest.raises(UserError, match="does not fit on cpu") as problem:
        choose(Plan(TIMELINE), rules.kasync_sgd(0.1), vectors(), LENGTH, hold, "cpu")
    text = str(problem.value)
    assert size(least) in text
    assert "\n" not in text
    assert "smaller model" in text
    rows = {"gradients": Plan(TIMELINE).rows + 1, "versions": Plan(TIMELINE).versions + 1}
    for kind in rows if hold == "auto" else [hold]:
        assert size(4 * LENGTH * rows[kind]) in text


def test_rows_go_to_disk_where_memory_is_short_and_the_numbers_are_the_same(monkeypatch):
    expected = finished(mlp(), vectors(), rules.wkafl(0.05), timelines.uniform(CLIENTS, 3, 20))[1]
    for hold in ("gradients", "versions"):
        monkeypatch.setattr(
            SIMULATION_CHOOSE, lambda *given, hold=hold: replace(choose(*given), place="disk", hold=hold)
        )
        held = finished(mlp(), vectors(), rules.wkafl(0.05), timelines.uniform(CLIENTS, 3, 20))[1]
        assert held.memory.place == "disk"
        assert str(held.memory).count("(disk)") == 1
        torch.testing.assert_close(held.params, expected.params)
    assert not list(spilling().glob("kasync-*.rows"))


def test_a_run_that_does_not_fit_is_refused_on_the_call(monkeypatch):
    monkeypatch.setattr(AVAILABLE, lambda device: 1000)
    with pytest.raises(UserError, match="does not fit"):
        simulate(mlp(), vectors(), rules.kasync_sgd(0.1), timelines.uniform(CLIENTS, 3, 5), Gradient(4))


def test_a_rule_that_reads_the_models_clients_started_from_keeps_versions():
    assert choose(Plan(TIMELINE), rules.fedasync(0.5), vectors(), LENGTH, "auto", "cpu").hold == "versions"
    with pytest.raises(UserError, match="fedasync needs: use hold='versions'"):
        choose(Plan(TIMELINE), rules.fedasync(0.5), vectors(), LENGTH, "gradients", "cpu")


def test_tables_of_a_rule_are_counted():
    rows = 201 + 2 * TIMELINE.k  # the table, and what is taken out of it and put into it in a step
    assert needed("gradients", rules.ca2fl(0.1, clients=200)) - needed("gradients") == rows * 4 * LENGTH


def test_a_word_that_is_no_way_to_hold_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'versions'"):
        needed("version")


def test_the_run_holds_what_was_foretold():
    for hold in ("gradients", "versions"):
        _, simulation = finished(mlp(), vectors(), rules.kasync_sgd(0.1), timelines.uniform(CLIENTS, 3, 20), hold=hold)
        held = simulation.run.store
        assert held.numel() * held.element_size() == simulation.memory.held
        assert simulation.memory.hold == hold


def test_the_first_step_s_work_is_part_of_what_is_foretold():
    """All clients begin on version 0, and vmap computes their rows at once, before any is stored."""
    many = timelines.uniform(600, 1, 2000, seed=0)
    first = len(Plan(many).work_on(0)[0])
    memory = choose(Plan(many), rules.kasync_sgd(0.1), vectors(), LENGTH, "gradients", "cpu", backend="vmap")
    assert first > 500
    assert memory.working >= 4 * LENGTH * min(first, biggest_block())


def biggest_block() -> int:
    """How many clients `Run.work` computes at once."""
    import inspect

    from kasync.simulator.run import Run

    return inspect.signature(Run.work).parameters["block"].default


def test_memory_is_printed_in_words_a_person_reads():
    told = choose(Plan(TIMELINE), rules.kasync_sgd(0.1), vectors(), LENGTH, "gradients", "cpu")
    assert "waiting gradients" in str(told)
    assert "model versions" in str(replace(told, hold="versions"))
    assert size(3 * 2**30) == "3.00 GiB"
    assert size(2**20) == "1.0 MiB"


NUMBERS = 4 * sum(parameter.numel() for parameter in mlp().parameters())  # bytes of a row


def loop_with_state(model, batches, client):
    client.state["mine"] = torch.zeros(1000, dtype=torch.float64)
    client.extras["change"] = torch.zeros(50)
    torch.rand(3)
    return 0.0


@pytest.mark.parametrize("hold", ["gradients", "versions"])
@pytest.mark.parametrize(
    ("work", "kept", "brought"),
    [
        (Local(4, steps=1, lr=0.1, optimizer=torch.optim.Adam, keep=True), 2 * NUMBERS, 0),
        (Local(4, steps=1, lr=0.1, optimizer=torch.optim.Adam), 0, 0),
        (Custom(loop_with_state, 4, steps=2), 8000, 200),
    ],
)
def test_what_clients_keep_and_bring_beside_their_rows_is_foretold(work, kept, brought, hold):
    timeline = timelines.uniform(CLIENTS, 3, 20, seed=4)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    simulation = simulate(mlp(), vectors(), rules.kasync_sgd(0.1), timeline, work, hold=hold)
    assert torch.equal(torch.rand(1), expected)  # the trial leaves the user's generator alone
    rows = simulation.run.plan.rows if hold == "gradients" else simulation.run.plan.versions
    clients = len(set(timeline.clients.ravel().tolist()))
    assert simulation.memory.beside == kept * clients + brought * (rows + 1)
    list(simulation)
    held = simulation.run.carried.clients.values()
    taken = sum(value.numel() * value.element_size() for state in held for value in state.values())
    counters = 4 * len(held) if kept == 2 * NUMBERS else 0  # Adam's step
    assert taken == kept * clients + counters
    told = str(simulation.memory)
    assert ("kept by clients" in told) == (simulation.memory.beside > 0)


def test_what_metrics_read_and_an_evaluation_takes_is_foretold():
    timeline = timelines.uniform(CLIENTS, 3, 20, seed=4)
    plain, judged = (
        simulate(mlp(), vectors(), rules.kasync_sgd(0.1), timeline, Gradient(4), metrics=metrics)
        for metrics in (None, {"first": lambda outputs, labels: outputs[:, 0].mean()})
    )
    assert judged.memory.beside - plain.memory.beside == 2 * 30 * 4 * 4  # 30 samples to test on, four scores each
    tokens = torch.nn.Sequential(torch.nn.Embedding(5000, 4), torch.nn.Linear(4, 5000))  # large outputs
    rows = torch.arange(60 * 32).view(60, 32) % 5000
    held = from_arrays(rows, rows, owners=torch.arange(60) % CLIENTS, test_fraction=0.5, classes=5000)
    simulation = simulate(tokens, held, rules.kasync_sgd(0.1), timeline, Gradient(1))
    clients = simulation.run.clients
    sample = clients.new_bench().try_on(clients.data.inputs, clients.data.labels, torch.arange(1))
    assert sample > 32 * 5000 * 4
    assert 1 < clients.room.samples < 250
    assert simulation.memory.piece >= clients.room.samples * sample
    list(simulation)
