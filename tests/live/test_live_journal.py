"""The journal of a live run: whenever the server dies, every accepted delivery is counted exactly once."""

import contextlib
import itertools
import uuid
from pathlib import Path

import pytest
import torch

from kasync import rules
from kasync.checkpoint import Checkpoint
from kasync.errors import UserError
from kasync.live.deliveries import Delivery
from kasync.live.journal import Journal, Remote
from kasync.live.loop import Federation
from kasync.live.privacy import Privacy
from kasync.live.terms import Terms


class Died(BaseException):
    pass


def founded(path: Path, rule=None) -> Federation:
    journal = Journal(path, {"rule": "test"})
    return Federation(rule or rules.fedasync(0.5), torch.zeros(3), Terms(k=2, brings="gradients"), journal)


def live(federation: Federation, upto: int, seen: list[float]) -> None:
    """Three clients that bring numbers nobody else brings, until `upto` were brought."""
    federation.present([1, 2, 3], 0.0)
    while len(seen) < upto:
        for order in federation.dispatch(0.0):
            stamp = float(len(seen) + 1)
            brought = Delivery(torch.full((3,), stamp), loss=1.0)
            seen.append(stamp)  # it was sent; whether it was accepted is seen from what is on disk
            assert federation.collect(order.ticket, order.node, brought, 0.0) == "accepted"
        while federation.step(0.0):
            pass


@pytest.mark.parametrize("operation", ["save", "unlink"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 14))
def test_death_around_any_write_loses_nothing_that_was_accepted_and_counts_nothing_twice(
    operation, after, number, tmp_path, monkeypatch
):
    path = tmp_path / "state"
    owner = Checkpoint if operation == "save" else Path
    real, calls = getattr(owner, operation), []

    def deadly(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == number and not after:
            raise Died
        result = real(self, *args, **kwargs)
        if len(calls) == number:
            raise Died
        return result

    federation, seen = founded(path), []
    monkeypatch.setattr(owner, operation, deadly)
    with contextlib.suppress(Died):
        live(federation, 12, seen)
    monkeypatch.undo()

    again = founded(path)
    on_disk = [float(each.row[0]) for each in again.waiting]
    assert len(set(on_disk)) == len(on_disk)
    assert again.tally.get("accepted", 0) == again.tally.get("used", 0) + len(again.waiting)
    used = again.tally.get("used", 0)
    assert used == 2 * again.updates
    certain = len(seen) - 1  # all but the one that was being written
    assert used + len(on_disk) >= certain
    assert set(on_disk).isdisjoint(range(1, used + 1))  # in this world deliveries are used in the order they came
    live(again, 20, seen)
    assert again.tally["accepted"] == again.tally["used"] + len(again.waiting)


def test_a_resumed_server_makes_the_steps_that_an_unbroken_one_makes(tmp_path):
    unbroken, broken = founded(tmp_path / "one", rules.wkafl(0.1)), founded(tmp_path / "two", rules.wkafl(0.1))
    ours, theirs = [], []
    live(unbroken, 30, ours)
    for upto in (7, 8, 9, 15, 23, 30):
        live(broken, upto, theirs)
        broken = founded(tmp_path / "two", rules.wkafl(0.1))
    assert broken.updates == unbroken.updates
    for name, value in unbroken.server.state_dict().items():
        assert torch.equal(value, broken.server.state_dict()[name]), name


def every_tenth(path: Path, k: int = 2) -> Federation:
    journal = Journal(path, {"rule": "test"}, every=10)
    federation = Federation(rules.kasync_sgd(1.0), torch.zeros(3), Terms(k=k, brings="gradients"), journal)
    federation.present([1, 2, 3], 0.0)
    return federation


def bring(federation: Federation, *stamps: float) -> None:
    """Deliveries of the clients, one by one, each followed by the step that it makes."""
    for stamp in stamps:
        federation.dispatch(0.0)
        order = min(federation.orders.values(), key=lambda order: order.ticket)
        brought = Delivery(torch.full((3,), float(stamp)))
        assert federation.collect(order.ticket, order.node, brought, 0.0) == "accepted"
        federation.step(0.0)


def test_what_is_accepted_while_updates_are_made_again_takes_nobodys_place_on_disk(tmp_path):
    bring(every_tenth(tmp_path / "state"), 1, 2, 3, 4, 5)
    again = every_tenth(tmp_path / "state")
    while again.step(0.0):
        pass
    assert (again.updates, [float(each.row[0]) for each in again.waiting]) == (2, [5.0])
    bring(again, 6)
    third = every_tenth(tmp_path / "state")  # a second death before the first save
    assert [float(each.row[0]) for each in third.waiting] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_with_another_k_the_updates_before_the_death_are_made_again_as_they_were(tmp_path):
    unbroken = every_tenth(tmp_path / "one")
    bring(unbroken, *range(1, 8))
    bring(every_tenth(tmp_path / "two"), *range(1, 8))
    again = every_tenth(tmp_path / "two", k=3)
    while update := again.step(0.0):
        assert len(update.used) == 2
        assert min(update.staleness) >= 0
        again = every_tenth(tmp_path / "two", k=3)  # and dies after each of them
    assert again.updates == unbroken.updates == 3
    assert torch.equal(again.server.params, unbroken.server.params)
    bring(again, 8, 9, 10, 11, 12)
    assert [len(step) for step in again.step_log.clients] == [2, 2, 2, 3, 3]
    assert again.tally["accepted"] == again.tally["used"] + len(again.waiting) == 12


def test_the_journal_of_another_run_is_refused(tmp_path):
    live(founded(tmp_path / "state"), 6, [])
    with pytest.raises(UserError, match="belongs to another run"):
        Federation(rules.fedasync(0.5), torch.zeros(3), Terms(k=2), Journal(tmp_path / "state", {"rule": "x"}))


def test_who_was_set_aside_stays_aside_and_numbers_stay_the_same(tmp_path):
    federation = founded(tmp_path / "state")
    federation.present([10, 20, 30], 0.0)
    for _ in range(3):
        federation.dispatch(1000.0)
        (order,) = [order for order in federation.orders.values() if order.node == 20]
        federation.collect(order.ticket, 20, Delivery(torch.full((3,), torch.nan)), 0.0)
    live_ones = [order for order in list(federation.orders.values()) if order.node != 20]
    for order in live_ones:
        federation.collect(order.ticket, order.node, Delivery(torch.ones(3)), 0.0)
    assert federation.step(0.0) is not None
    again = founded(tmp_path / "state")
    again.present([30, 20, 10], 0.0)
    assert {client.node: (client.number, client.aside) for client in again.roster} == {
        10: (0, False),
        20: (1, True),
        30: (2, False),
    }


@pytest.mark.parametrize("where", ["memory://bucket/run/state", "file://"])
def test_a_checkpoint_at_an_address_of_fsspec_is_gone_on_with(where, tmp_path):
    address = where if where.startswith("memory") else f"file://{tmp_path / 'far' / 'state'}"

    def federation() -> Federation:
        journal = Journal(address, {"rule": "test"})
        return Federation(rules.wkafl(0.1), torch.zeros(3), Terms(k=2, brings="gradients"), journal)

    unbroken, seen, ours = founded(tmp_path / "one", rules.wkafl(0.1)), [], []
    live(unbroken, 20, ours)
    for upto in (5, 8, 13, 20):
        live(federation(), upto, seen)
    again = federation()
    assert again.updates == unbroken.updates
    assert torch.equal(again.server.params, unbroken.server.params)
    assert again.step_log.clients == unbroken.step_log.clients
    with pytest.raises(UserError, match="belongs to another run"):
        Federation(rules.wkafl(0.1), torch.zeros(3), Terms(k=2), Journal(address, {"rule": "x"}))


def test_a_text_at_an_address_grows_by_its_last_object_and_is_cut_where_a_dead_server_wrote_on(monkeypatch):
    monkeypatch.setattr("kasync.live.journal.SEGMENT", 100)
    address, written = f"memory://texts/{uuid.uuid4()}/state", []
    remote = Remote(address, {})
    remote.ready()
    real = type(remote.system).pipe_file

    def counted(self, path, value, **more):
        written.append(len(value))
        return real(self, path, value, **more)

    monkeypatch.setattr(type(remote.system), "pipe_file", counted)
    whole = ""
    for number in range(60):
        line = f"{number:>6}|"
        remote.append("steps", line, len(whole))
        whole += line
    remote.append("steps", "x" * 350, len(whole))
    whole += "x" * 350
    assert remote.text("steps", None) == whole
    assert max(written) <= 100
    for cut in (420, 400, 100, 30, 0):
        again = Remote(address, {})
        again.append("steps", "and on", cut)
        assert again.text("steps", None) == whole[:cut] + "and on"
        again.append("steps", "!", cut + 6)
        assert Remote(address, {}).text("steps", cut + 7) == whole[:cut] + "and on!"
    with pytest.raises(UserError, match="is shorter than its checkpoint says"):
        remote.text("steps", 10_000)


def test_an_address_that_nobody_can_reach_is_refused():
    with pytest.raises(UserError, match="is no place that fsspec can reach"):
        Journal("nowhere-at-all://bucket/state", {})


def test_the_log_of_steps_grows_by_a_line_for_each_update_and_is_not_written_again(tmp_path):
    federation = founded(tmp_path / "state")
    sizes = []
    for upto in range(2, 60, 2):
        live(federation, upto, list(range(upto - 2)))
        sizes.append((tmp_path / "state.steps").stat().st_size)
    grown = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(grown) < 2 * min(grown)
    assert (tmp_path / "state").stat().st_size < 4000  # nothing in it grows with the updates


@pytest.mark.parametrize("after", [False, True], ids=["before the rule", "after it"])
def test_an_update_that_was_broken_off_by_ctrl_c_is_made_again_from_the_same_deliveries(after, tmp_path, monkeypatch):
    def broken_off(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    federation = every_tenth(tmp_path / "state")
    bring(federation, 1, 2, 3)
    owner, name = (Federation, "_average_buffers") if after else (type(federation.rule), "advance")
    monkeypatch.setattr(owner, name, broken_off)
    with pytest.raises(KeyboardInterrupt):
        bring(federation, 4)
    federation.close(0.0)
    monkeypatch.undo()
    again = every_tenth(tmp_path / "state")
    while again.step(0.0):
        pass
    assert (again.updates, again.tally["used"], again.waiting) == (2, 4, [])
    assert float(again.server.params[0]) == -5.0


def test_deliveries_whose_state_was_deleted_are_refused_by_name(tmp_path):
    bring(every_tenth(tmp_path / "state"), *range(1, 24))
    (tmp_path / "state").unlink()
    with pytest.raises(UserError, match=r"deleted without them: delete .*state\.\*\.waiting too"):
        every_tenth(tmp_path / "state")
    for left in tmp_path.glob("state.*.waiting"):
        left.unlink()
    assert every_tenth(tmp_path / "state").waiting == []


def test_a_file_by_its_address_is_the_file_and_written_whole_or_not_at_all(tmp_path):
    bring(every_tenth(tmp_path / "state"), *range(1, 22))
    again = Federation(
        rules.kasync_sgd(1.0),
        torch.zeros(3),
        Terms(k=2, brings="gradients"),
        Journal(f"file://{tmp_path}/state", {"rule": "test"}),
    )
    assert again.updates == 10
    assert [float(each.row[0]) for each in again.waiting] == [21.0]


def test_a_log_of_steps_that_was_cut_off_is_refused(tmp_path):
    live(founded(tmp_path / "state"), 12, [])
    (tmp_path / "state.steps").write_text("")
    with pytest.raises(UserError, match="is shorter than its checkpoint says"):
        founded(tmp_path / "state")


def test_with_noise_on_the_sum_every_update_is_saved(tmp_path):
    journal = Journal(tmp_path / "state", {}, every=5)
    with pytest.raises(UserError, match="checkpoint_every = 5 with noise = 'sum'"):
        Federation(rules.fedbuff(1.0), torch.zeros(3), Terms(k=2), journal, Privacy(1.0, 1.0, noise="sum"))
