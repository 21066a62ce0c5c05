"""Properties of the server's loop under arbitrary orders of events, by a stateful machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kasync import Rule, rules
from kasync.live.deliveries import Delivery, Failure, Garbage
from kasync.live.journal import Journal
from kasync.live.loop import GIVEN_UP, Federation, Order
from kasync.live.terms import Terms
from kasync.timelines.timeline import inconsistency

NODES = st.integers(0, 6)
NAN = float("nan")
USELESS = [
    Delivery(torch.tensor([NAN, 0.0])),
    Delivery(torch.tensor([float("inf"), 0.0])),
    Delivery(torch.zeros(3)),
    Delivery(torch.zeros(2, dtype=torch.int64)),
    Delivery(torch.full((2,), 1e9)),
    Delivery(torch.zeros(2), examples=0.0),
    Delivery(torch.zeros(2), examples=5e-324),  # more than none, and no number that a rule would divide by
    Delivery(torch.zeros(2), loss=NAN),
    Garbage("nonsense"),
]


class AnyOrder(RuleBasedStateMachine):
    """Clients join, leave, deliver, repeat themselves, answer late, send garbage or nothing."""

    journalled = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.here: set[int] = set()
        self.out: list[Order] = []  # work that is out, as the clients see it
        self.answered: list[Order] = []
        self.stamps = 0  # every honest delivery carries a number of its own
        self.accepted: list[int] = []
        self.used: list[int] = []
        self.folder = tempfile.TemporaryDirectory()

    @initialize(
        k=st.integers(1, 4),
        shortage=st.sampled_from(["adapt", "wait"]),
        least=st.none() | st.integers(1, 3),
        grace=st.sampled_from([0.0, 5.0]),
        every=st.sampled_from([1, 3]),
    )
    def begin(self, k: int, shortage: str, least: int | None, grace: float, every: int) -> None:
        self.every = every
        self.terms = Terms(
            k=k,
            shortage=shortage,
            least=least,
            brings="gradients",
            timeout=10.0,
            rest=1.0,
            longest_rest=4.0,
            offences=2,
            max_norm=1e8,
            min_k=1,
            grace=grace,
        )
        self.federation = self.founded()

    def founded(self) -> Federation:
        journal = Journal(Path(self.folder.name) / "state", {"run": "test"}, self.every) if self.journalled else None
        return Federation(self.made(), torch.zeros(2), self.terms, journal, now=self.now)

    def made(self) -> Rule:
        return rules.kasync_sgd(1.0)

    @rule(node=NODES)
    def join(self, node: int) -> None:
        self.here.add(node)
        self.federation.present(self.here, self.now)

    @rule(node=NODES)
    def leave(self, node: int) -> None:
        self.here.discard(node)
        self.federation.present(self.here, self.now)

    @rule()
    def dispatch(self) -> None:
        orders = self.federation.dispatch(self.now)
        self.out += orders
        for order in orders:
            assert order.version == self.federation.version
            assert order.node in self.here
        assert len({order.node for order in orders}) == len(orders)

    @rule(seconds=st.floats(0.1, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = {order.ticket for order in self.federation.expire(self.now)}
        for order in self.out:
            assert (order.ticket in overdue) <= (order.deadline <= self.now)

    def answer(self, order: Order) -> str:
        self.stamps += 1
        brought = Delivery(torch.tensor([float(self.stamps), 1.0]), loss=1.0, examples=2.0)
        ended = self.federation.collect(order.ticket, order.node, brought, self.now)
        if ended == "accepted":
            self.accepted.append(self.stamps)
        return ended

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def deliver(self, data) -> None:
        order = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        late = order.ticket not in self.federation.orders
        assert self.answer(order) == ("late" if late else "accepted")
        self.answered.append(order)

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def answer_again(self, data) -> None:
        order = data.draw(st.sampled_from(self.answered))
        assert self.answer(order) in ("duplicate", "late")

    @precondition(lambda self: self.out)
    @rule(data=st.data(), brought=st.sampled_from(USELESS))
    def send_garbage(self, data, brought) -> None:
        order = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        ended = self.federation.collect(order.ticket, order.node, brought, self.now)
        assert ended in ("refused", "late")
        self.answered.append(order)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def fail(self, data) -> None:
        order = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        ended = self.federation.collect(order.ticket, order.node, Failure("crashed"), self.now)
        assert ended in ("failed", "late")
        self.answered.append(order)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def answer_for_somebody_else(self, data) -> None:
        order = data.draw(st.sampled_from(self.out))
        brought = Delivery(torch.ones(2))
        assert self.federation.collect(order.ticket, order.node + 100, brought, self.now) in ("unknown", "late")

    @rule(ticket=st.integers(10_000, 20_000) | st.integers(-5, -1) | st.sampled_from(["x", None, 1.5]))
    def answer_what_nobody_asked(self, ticket) -> None:
        assert self.federation.collect(ticket, 0, Delivery(torch.ones(2)), self.now) == "unknown"

    @rule()
    def step(self) -> None:
        before = self.federation.server.params
        k, waiting = self.needed(), len(self.federation.waiting)
        update = self.federation.step(self.now)
        assert (update is not None) == (waiting >= k)
        if update is not None:
            self.note(update, before)

    def needed(self) -> int:
        """Fewer than k only when the shortage has lasted long enough, and never fewer than are able."""
        federation = self.federation
        able, k = federation.roster.able(), self.terms.k
        federation._watch(self.now, able)
        found = federation.needed(self.now)
        lasted = federation.short_since is not None and self.now >= federation.short_since + self.terms.grace
        assert found == (max(able, 1) if able < k and lasted and self.terms.shortage == "adapt" else k)
        return found

    def note(self, update, before) -> None:
        rows = torch.stack([each.row for each in update.used])
        assert len(rows) == self.terms.k or self.terms.shortage == "adapt"
        assert all(stale >= 0 for stale in update.staleness)
        assert len({each.client for each in update.used}) == len(update.used)
        self.used += [int(row[0]) for row in rows]
        self.check_model(update, rows, before)

    def check_model(self, update, rows, before) -> None:
        torch.testing.assert_close(self.federation.server.params, before - rows.mean(0), rtol=1e-5, atol=1e-4)

    @invariant()
    def every_accepted_delivery_is_used_once_or_waits(self) -> None:
        if not hasattr(self, "federation"):
            return
        waiting = [int(each.row[0]) for each in self.federation.waiting]
        assert sorted(self.used + waiting) == self.accepted
        tally = self.federation.tally
        assert tally.get("accepted", 0) == len(self.accepted)
        assert tally.get("used", 0) == len(self.used)

    @invariant()
    def a_version_is_kept_only_while_somebody_works_on_it(self) -> None:
        if not hasattr(self, "federation"):
            return
        federation = self.federation
        worked_on = {order.version for order in federation.orders.values()}
        assert set(federation.versions) == set(federation.holders) == worked_on
        tickets = {client.ticket for client in federation.roster if client.ticket is not None}
        assert tickets == set(federation.orders) == set().union(*federation.holders.values())

    @invariant()
    def memory_is_bounded_by_the_clients_there_ever_were(self) -> None:
        if not hasattr(self, "federation"):
            return
        federation, clients = self.federation, len(self.federation.roster)
        assert len({each.client for each in federation.waiting}) == len(federation.waiting) <= clients
        assert len(federation.versions) <= len(federation.orders) <= clients
        assert len(federation.given_up) <= GIVEN_UP
        files = {path.name for path in Path(self.folder.name).iterdir()}
        kept = {name for name in files if name.endswith(".waiting")}
        extra = federation.updates % self.every * self.terms.k  # used since the last save
        assert len(kept) == (len(federation.waiting) + extra if self.journalled else 0)
        assert files - kept <= {"state", "state.lock", "state.lock.flock", "state.steps"}

    def teardown(self) -> None:
        """Whatever happened, k honest clients bring the run on."""
        if hasattr(self, "federation"):
            fresh = list(range(50, 50 + max(self.terms.k, self.terms.least or 0)))
            self.federation.present(fresh, self.now)
            self.now += 20.0
            self.federation.expire(self.now)
            orders = [order for order in self.federation.dispatch(self.now) if order.node in fresh]
            assert len(orders) == len(fresh)
            for order in orders:
                assert self.answer(order) == "accepted"
            before = self.federation.server.params
            update = self.federation.step(self.now)
            assert update is not None
            self.note(update, before)
            assert len(update.used) == self.terms.k
            timeline = self.federation.step_log.timeline(len(self.federation.roster), "test")
            assert inconsistency(timeline) == ""
        self.folder.cleanup()


class AnyOrderWithDeaths(AnyOrder):
    """The same, and the server is killed now and then."""

    journalled = True

    @rule()
    def die_and_resume(self) -> None:
        version, params = self.federation.version, self.federation.server.params
        self.federation = self.founded()
        while self.federation.version < version:  # made since the last save, and made again from what is on disk
            assert self.federation.step(self.now) is not None
        assert self.federation.version == version
        assert torch.equal(self.federation.server.params, params)
        self.out, self.answered = [], []
        self.federation.present(self.here, self.now)


class AnyOrderWithTables(AnyOrderWithDeaths):
    """The same, and the rule remembers the newest delivery of each of two clients at first, of more as they come."""

    def made(self) -> Rule:
        self.newest: dict[int, float] = getattr(self, "newest", {})  # client number -> its last stamp
        return rules.ace(1.0, clients=2)

    def check_model(self, update, rows, before) -> None:
        self.newest |= {each.client: float(row[0]) for each, row in zip(update.used, rows, strict=True)}
        memory = self.federation.server.memory
        table = next(value for name, value in memory.items() if name.endswith(".latest"))
        assert {number: float(table[number][0]) for number in self.newest} == self.newest
        mean = sum(self.newest.values()) / len(self.newest)
        torch.testing.assert_close(
            float(self.federation.server.params[0]), float(before[0]) - mean, rtol=1e-5, atol=1e-3
        )

    @invariant()
    def everybody_who_is_there_has_a_place_of_its_own(self) -> None:
        if not hasattr(self, "federation"):
            return
        roster = self.federation.roster
        assert all(client.number is not None for client in roster if client.present and not client.aside)
        assert {number: client.number for number, client in roster.seats.items()} == {n: n for n in roster.seats}
        assert roster.room == self.federation.rule.clients >= roster.population


def test_of_the_work_that_was_given_up_only_the_last_is_remembered(monkeypatch):
    monkeypatch.setattr("kasync.live.loop.GIVEN_UP", 3)
    terms = Terms(k=1, brings="gradients", timeout=1.0, rest=0.0, longest_rest=0.0)
    federation = Federation(rules.kasync_sgd(1.0), torch.zeros(2), terms)
    federation.present([0], 0.0)
    orders = []
    for now in range(0, 20, 2):
        orders += federation.dispatch(float(now))
        federation.expire(now + 1.0)
    assert len(orders) == 10
    ends = [federation.collect(order.ticket, order.node, Delivery(torch.ones(2)), 20.0) for order in orders]
    assert ends == ["duplicate"] * 7 + ["late"] * 3
    assert federation.tally.get("accepted", 0) == 0


def test_versions_in_a_folder_give_the_same_model_and_leave_with_the_work_on_them(tmp_path):
    def ran(versions: str | Path) -> tuple[torch.Tensor, list[int]]:
        """Six clients, in turn, each on a version of its own; the files in use after every step."""
        terms = Terms(k=1, min_k=1, versions=versions)
        federation, draw = Federation(rules.fedasync(0.5), torch.zeros(5000), terms), torch.Generator().manual_seed(0)
        orders, files = {}, []
        for now in range(12):
            federation.present(range(min(now + 1, 6)), float(now))
            orders |= {order.client: order for order in federation.dispatch(float(now))}
            order = orders.pop(5 if now == 5 else 0 if now < 5 else now - 6)
            values = torch.randn(5000, generator=draw)
            assert federation.collect(order.ticket, order.node, Delivery(values), float(now)) == "accepted"
            assert federation.step(float(now)) is not None
            maps = Path("/proc/self/maps").read_text().splitlines()
            files.append(len({line.split()[4] for line in maps if f"{tmp_path}/kasync-version-" in line}))
        return federation.server.params, files

    wanted, none = ran("memory")
    found, files = ran(tmp_path)
    assert torch.equal(found, wanted)
    assert set(none) == {0}
    assert files == [0, 1, 2, 3, 4, *[5] * 7]  # twelve were written
    assert list(tmp_path.iterdir()) == []


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestAnyOrderWithTables = AnyOrderWithTables.TestCase
TestAnyOrderWithTables.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestAnyOrderWithDeaths = AnyOrderWithDeaths.TestCase
TestAnyOrderWithDeaths.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
