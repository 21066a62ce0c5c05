"""Who works, who is waited for and who is the same client again: shortages, ends, keys, places and selection."""

from __future__ import annotations

import logging

import fake_grid  # noqa: F401 (writes who writes messages)
import numpy as np
import pytest
import torch

from kasync import rules
from kasync.errors import UserError
from kasync.live.deliveries import Delivery, Failure
from kasync.live.journal import Journal
from kasync.live.loop import Federation, Order
from kasync.live.terms import Terms
from kasync.timelines.timeline import inconsistency


def founded(rule=None, **terms) -> Federation:
    settings = {"k": 2, "brings": "gradients", "rest": 0.0, "longest_rest": 0.0, **terms}
    return Federation(rule or rules.kasync_sgd(1.0), torch.zeros(2), Terms(**settings))


def bring(federation: Federation, order: Order, now: float = 0.0, value: float = 1.0, **more) -> str:
    return federation.collect(order.ticket, order.node, Delivery(torch.full((2,), value), 1.0, **more), now)


def order_of(federation: Federation, node: object) -> Order:
    return next(order for order in federation.orders.values() if order.node == node)


def test_an_empty_list_of_nodes_does_not_make_an_update_of_one_delivery():
    federation = founded(k=5)
    federation.present(range(5), 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, 0), 1.0)
    federation.present([], 2.0)  # the SuperLink was asked at a bad moment
    assert federation.step(2.0) is None
    assert federation.step(61.0) is None
    federation.present(range(5), 61.5)
    for now in (62.0, 200.0):
        assert federation.step(now) is None  # four others can still deliver
    federation.present([], 201.0)
    federation.step(201.0)
    assert federation.step(300.0) is None  # one is fewer than half of five, however long it lasts


def test_a_shortage_that_lasts_makes_steps_of_fewer_but_not_fewer_than_min_k():
    federation = founded(k=5, min_k=2, grace=10.0)
    federation.present(range(5), 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, 0), 1.0)
    bring(federation, order_of(federation, 1), 1.0)
    federation.present([], 2.0)
    assert federation.step(2.0) is None
    assert federation.step(11.9) is None
    update = federation.step(12.0)
    assert update is not None
    assert len(update.used) == 2


@pytest.mark.parametrize("rule", [rules.krum(1.0, byzantine=1), rules.geometric_median(1.0)], ids=lambda r: r.name)
def test_a_rule_that_looks_for_a_majority_waits_for_all_k(rule):
    federation = founded(rule, k=4, grace=0.0)
    federation.present(range(4), 0.0)
    federation.dispatch(0.0)
    for node in range(3):
        bring(federation, order_of(federation, node))
    federation.present([], 1.0)
    for now in (1.0, 1000.0):
        assert federation.step(now) is None
    with pytest.raises(UserError, match=f"min_k = 2 is less than k = 4, but {rule.name} looks for a majority"):
        founded(rule, k=4, min_k=2)


def test_more_deliveries_than_nodes_are_waited_for_aloud(caplog):
    federation = founded(k=10)
    with caplog.at_level(logging.INFO, "kasync.live"):
        federation.present(range(4), 0.0)
        for now in range(0, 70, 5):
            assert federation.dispatch(float(now)) == []
    said = [line for line in caplog.messages if "waiting for nodes" in line]
    assert said == ["waiting for nodes: 4 of 10"] * 3  # at once and every half a minute


def test_clients_that_never_answer_are_named_every_half_a_minute_until_one_does(caplog):
    federation = founded(k=2)
    federation.present(range(3), 0.0)
    first, *_ = federation.dispatch(0.0)
    with caplog.at_level(logging.INFO, "kasync.live"):
        for now in range(5, 70, 5):
            federation.step(float(now))
        bring(federation, first)
        federation.step(400.0)
    said = [line for line in caplog.messages if "no answer" in line]
    assert said == ["no answer yet from 3 clients at work; each has 3600 s"] * 2


def test_when_everybody_was_set_aside_the_run_ends_and_says_why():
    federation = founded(offences=1, grace=20.0)
    federation.present(range(2), 0.0)
    for order in federation.dispatch(0.0):
        bring(federation, order, value=float("nan"))
    federation.step(1.0)
    assert federation.stuck(1.0) is None
    federation.step(22.0)
    assert "every client that is there was set aside after 1 unusable deliveries" in federation.stuck(22.0)
    assert "a value that is not finite" in federation.stuck(22.0)
    federation.present([0, 1, 2], 23.0)  # a new one is hope
    federation.step(23.0)
    assert federation.stuck(50.0) is None


def test_a_shortage_ends_the_run_where_it_was_told_to_give_up():
    federation = founded(k=3, give_up=100.0)
    federation.present(range(3), 0.0)
    federation.dispatch(0.0)
    federation.present([0], 5.0)
    federation.step(5.0)
    assert federation.stuck(104.0) is None
    assert "for 100 s fewer than" in federation.stuck(106.0)


def test_a_client_that_is_silent_is_given_up_after_ten_times_its_usual_time_and_then_given_more():
    federation = founded(k=1, grace=5.0, timeout=3600.0)
    federation.present([0, 1], 0.0)
    first, _ = federation.dispatch(0.0)
    bring(federation, first, 2.0)  # others' two seconds are all that is known
    assert federation.step(2.0) is not None
    (again,) = federation.dispatch(2.0)
    assert again.deadline == 2.0 + 20.0
    assert order_of(federation, 1).deadline == 3600.0  # nothing was known when it was asked, and by now it is
    assert federation.expire(19.9) == []
    assert [order.node for order in federation.expire(20.0)] == [1]  # ten times what the other took
    assert [order.node for order in federation.expire(23.0)] == [0]
    federation.present([0], 23.0)
    (again,) = federation.dispatch(23.0)
    assert again.deadline == 23.0 + 40.0
    bring(federation, again, 50.0)
    assert federation.step(50.0) is not None
    (again,) = federation.dispatch(50.0)
    assert again.deadline == 50.0 + 270.0  # it may well take 27 s


def test_a_deadline_is_a_promise_whatever_is_usual():
    federation = founded(k=1, deadline=7.0)
    federation.present([0], 0.0)
    (order,) = federation.dispatch(0.0)
    assert order.deadline == 7.0
    federation.expire(7.0)
    assert bring(federation, order, 8.0) == "late"


def test_one_that_starts_again_under_another_name_is_the_same_client_by_its_key():
    federation = founded(rules.ca2fl(1.0, clients=2), k=1)
    federation.present(["a", "b"], 0.0)
    federation.dispatch(0.0)
    for node, key in (("a", "first"), ("b", "second")):
        assert bring(federation, order_of(federation, node), key=key) == "accepted"
        federation.step(0.0)
    for restart in range(20):
        node = f"a{restart}"
        federation.present([node, "b"], 1.0 + restart)
        federation.dispatch(1.0 + restart)
        assert bring(federation, order_of(federation, node), 1.0 + restart, key="first") == "accepted"
        update = federation.step(1.0 + restart)
        assert [each.client for each in update.used] == [0]
    assert len(federation.roster) == 2
    assert federation.roster.by_key["first"].used == 21


def test_without_a_key_it_takes_the_place_of_one_that_left_and_nobody_is_locked_out():
    federation = founded(rules.ca2fl(1.0, clients=2), k=1, tables="fixed")
    federation.present(["a", "b"], 0.0)
    federation.present(["b", "c"], 10.0)
    assert {client.node: client.number for client in federation.roster} == {"a": None, "b": 1, "c": 0}
    federation.present(["b", "c", "d"], 20.0)  # a third while two are there
    assert federation.roster.by_node["d"].number is None
    assert {order.node for order in federation.dispatch(20.0)} == {"b", "c"}
    federation.present(["b", "d"], 30.0)
    assert federation.dispatch(30.0) == []  # c's work is out, so its place is not free
    federation.collect(order_of(federation, "c").ticket, "c", Failure("gone"), 40.0)
    federation.present(["b", "d"], 40.0)
    assert [order.node for order in federation.dispatch(40.0)] == ["d"]


def test_tables_grow_with_the_clients_that_are_there_at_a_time_and_not_with_restarts(tmp_path):
    def founded_again(rule) -> Federation:
        return Federation(rule, torch.zeros(2), terms, Journal(tmp_path / rule.name, {}))

    terms = Terms(k=1, brings="gradients", rest=0.0, longest_rest=0.0)
    for rule in (rules.ca2fl(0.1, clients=2), rules.recall(0.02, clients=2).shaped([(2,)])):
        federation = founded_again(rule)
        for restart in range(5):  # each time under another name, in the same two places
            federation.present([f"a{restart}", "b"], float(restart))
        assert federation.roster.room == 2
        federation.present(["a4", "b", "c", "d", "e"], 10.0)
        assert {order.node for order in federation.dispatch(10.0)} == {"a4", "b", "c", "d", "e"}
        for place, node in enumerate(["a4", "b", "c", "d"]):
            bring(federation, order_of(federation, node), 11.0, value=place + 1.0)
            assert federation.step(11.0) is not None
        bring(federation, order_of(federation, "e"), 12.0, value=5.0)  # and then the server dies
        before = {client.node: client.number for client in federation.roster}
        again = founded_again(rule)
        assert {client.node: client.number for client in again.roster} == before
        assert [each.client for each in again.waiting] == [before["e"]]
        again.present(["a4", "b", "c", "d", "e"], 13.0)
        assert again.step(13.0) is not None
        (last,) = [value for name, value in again.server.memory.items() if name.endswith(".last")]
        rows = {node: float(last[before[node]][0]) for node in ("a4", "b", "c", "d", "e")}
        assert rows == {"a4": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}


def test_nobody_new_takes_the_place_of_one_who_is_back_in_the_same_moment():
    federation = founded(rules.ca2fl(1.0, clients=2), k=1, tables="fixed")
    federation.present(["a", "b"], 0.0)
    federation.present([], 1.0)
    federation.present(["new", "a", "b"], 2.0)
    assert {client.node: client.number for client in federation.roster} == {"a": 0, "b": 1, "new": None}


def test_a_delivery_that_waits_since_the_tables_grew_has_its_row_after_a_death(tmp_path):
    def founded_again() -> Federation:
        terms = Terms(k=2, brings="gradients")
        return Federation(rules.ace(1.0, clients=1), torch.zeros(2), terms, Journal(tmp_path / "state", {}))

    federation = founded_again()
    federation.present("abc", 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "c"), value=3.0)  # dies before anything of the growth was saved
    again = founded_again()
    again.present("abc", 1.0)
    again.dispatch(1.0)
    bring(again, order_of(again, "a"), value=1.0)
    assert again.step(1.0) is not None
    (latest,) = [value for name, value in again.server.memory.items() if name.endswith(".latest")]
    assert {node: float(latest[again.roster.by_node[node].number][0]) for node in "ac"} == {"a": 1.0, "c": 3.0}


def test_a_server_that_starts_again_does_not_wait_for_a_client_that_left_for_good(tmp_path):
    terms = Terms(k=3, min_k=2, grace=10.0, brings="gradients")

    def served() -> Federation:
        return Federation(rules.kasync_sgd(1.0), torch.zeros(2), terms, Journal(tmp_path / "state", {}))

    federation = served()
    federation.present(range(3), 0.0)
    for order in federation.dispatch(0.0):
        bring(federation, order)
    assert federation.step(0.0) is not None
    again = served()
    again.present(range(2), 0.0)
    for order in again.dispatch(0.0):
        bring(again, order)
    assert again.step(9.0) is None
    update = again.step(20.0)
    assert update is not None
    assert len(update.used) == 2


def test_a_rule_whose_rounds_are_of_everybody_does_not_grow():
    federation = founded(rules.ringleader(1.0, clients=2), k=1)
    federation.present(range(3), 0.0)
    assert [order.node for order in federation.dispatch(0.0)] == [0, 1]


def test_two_nodes_with_one_key_at_a_time_are_two_clients():
    federation = founded(k=1)
    federation.present(["a", "b"], 0.0)
    federation.dispatch(0.0)
    for node in ("a", "b"):
        bring(federation, order_of(federation, node), key="same")
        assert federation.step(0.0) is not None
    assert len(federation.roster) == 2


def test_the_timeline_holds_although_a_client_came_back_before_its_old_name_was_gone():
    federation = founded(k=1)
    federation.present(["a"], 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "a"), key="same")
    federation.present(["a", "b"], 0.0)  # it has started again, and nobody has noticed yet
    federation.dispatch(0.0)
    for _ in range(2):
        assert federation.step(0.0) is not None
        federation.dispatch(0.0)
        bring(federation, order_of(federation, "b"), key="same")
    federation.present(["b"], 0.0)
    assert federation.step(0.0) is not None
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "b"), key="same")
    assert federation.step(0.0) is not None
    assert len(federation.roster) == 1
    timeline = federation.timeline()
    assert inconsistency(timeline) == ""
    assert timeline.clients.ravel().tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("examples", [5e-324, 0.0, -1.0, float("inf"), float("nan")])
def test_a_delivery_of_no_examples_is_refused_before_a_rule_skips_its_update(examples):
    federation = founded(k=1)
    for said, count in ((examples, 0), (1.0, 1)):
        federation.present(["a"], 0.0)
        federation.dispatch(0.0)
        bring(federation, order_of(federation, "a"), examples=said)
        federation.step(0.0)
        assert (federation.updates, federation.version) == (count, count)
    assert federation.tally["refused"] == 1


def test_work_on_a_version_before_its_last_delivery_is_not_taken_for_the_same_clients():
    federation = founded(k=1)
    federation.present(["a"], 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "a"), key="same")
    federation.present(["b"], 0.0)
    federation.dispatch(0.0)  # b works on the version before the one that a's delivery makes
    for _ in range(2):
        assert federation.step(0.0) is not None
        federation.dispatch(0.0)
        bring(federation, order_of(federation, "b"), key="same")
    assert federation.step(0.0) is not None
    assert inconsistency(federation.timeline()) == ""
    assert [(client.node, client.key, client.used) for client in federation.roster] == [("b", "same", 3)]


def test_a_client_that_changes_its_key_stays_who_it_was_and_takes_nobodys_place():
    federation = founded(k=1)
    federation.present(["a", "b"], 0.0)
    for number in range(20):
        federation.dispatch(0.0)
        bring(federation, order_of(federation, "a"), key=f"a{number}")
        federation.step(0.0)
    bring(federation, order_of(federation, "b"), key="b")
    federation.step(0.0)
    federation.present(["a"], 1.0)
    federation.dispatch(1.0)
    bring(federation, order_of(federation, "a"), key="b")
    assert [(client.node, client.key) for client in federation.roster] == [("a", "a0"), ("b", "b")]
    assert len(federation.roster.by_key) == 2  # nobody fills the memory with names


def test_offences_under_one_name_and_another_add_up():
    federation = founded(k=1, offences=2, rest=0.0)
    federation.present(["a", "b"], 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "a"), key="naughty")
    federation.step(0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "a"), value=float("inf"))
    federation.present(["c", "b"], 1.0)
    federation.dispatch(1.0)
    assert bring(federation, order_of(federation, "c"), 1.0, value=float("inf")) == "refused"
    assert not federation.roster.by_node["c"].aside  # one offence each, as far as anybody knows
    federation.dispatch(2.0)
    assert bring(federation, order_of(federation, "c"), 2.0, key="naughty") == "stale"
    assert federation.roster.by_node["c"].aside


def test_who_was_set_aside_stays_aside_under_a_new_name():
    federation = founded(k=1, offences=1)
    federation.present(["a", "b"], 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "a"), key="naughty")
    federation.step(0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "a"), value=float("inf"))
    federation.present(["c", "b"], 1.0)
    federation.dispatch(1.0)
    assert bring(federation, order_of(federation, "c"), 1.0, key="naughty") == "stale"
    assert federation.roster.by_node["c"].aside


@pytest.mark.parametrize("restart", ["update", "arrival"])
def test_concurrency_limits_who_works_at_a_time(restart):
    federation = founded(k=2, concurrency=3, restart=restart)
    federation.present(range(10), 0.0)
    orders = federation.dispatch(0.0)
    assert len(orders) == 3
    bring(federation, orders[0])
    assert len(federation.dispatch(0.0)) == (1 if restart == "arrival" else 0)
    bring(federation, orders[1])
    assert federation.step(0.0) is not None
    federation.dispatch(0.0)
    assert len(federation.orders) == 3


def test_what_becomes_too_stale_while_it_waits_is_not_used_and_its_client_is_asked_again(tmp_path):
    rule, terms = rules.kasync_sgd(1.0), Terms(k=2, brings="gradients", max_staleness=0)
    federation = Federation(rule, torch.zeros(2), terms, Journal(tmp_path / "state", {}))
    federation.present(range(3), 0.0)
    for order in federation.dispatch(0.0):
        assert bring(federation, order) == "accepted"
    assert federation.step(0.0) is not None
    assert federation.step(0.0) is None
    assert federation.tally == {"joined": 3, "accepted": 2, "used": 2, "stale": 1}
    again = Federation(rule, torch.zeros(2), terms, Journal(tmp_path / "state", {}))
    assert again.waiting == []
    assert again.tally == federation.tally
    assert [order.client for order in federation.dispatch(0.0)] == [0, 1, 2]
    for order in list(federation.orders.values()):
        bring(federation, order)
    update = federation.step(0.0)
    assert update is not None
    assert update.staleness == (0, 0)
    assert len(federation.pool.free) == len(federation.pool.table)


def heard(select, rounds: int = 12) -> list[int]:
    federation = founded(k=1, concurrency=1, select=select)
    federation.present(range(4), 0.0)
    found = []
    for _ in range(rounds):
        (order,) = federation.dispatch(0.0)
        found.append(order.client)
        bring(federation, order)
        assert federation.step(0.0) is not None
    return found


def test_selection_is_uniform_in_turn_by_who_is_least_heard_or_a_function():
    assert heard("in_turn") == [0, 1, 2, 3] * 3
    assert sorted(heard("least_heard")) == sorted([0, 1, 2, 3] * 3)
    assert set(heard("uniform", 60)) == {0, 1, 2, 3}
    assert heard(lambda idle: sorted(idle, key=lambda client: -client.number)) == [3] * 12


def test_the_table_says_who_is_slow_stale_and_refused_and_why():
    federation = founded(k=2, offences=None)
    federation.present(["fast", "slow", "bad"], 0.0)
    federation.dispatch(0.0)
    bring(federation, order_of(federation, "bad"), 1.0, value=float("nan"))
    for now in (1.0, 2.0, 3.0):
        bring(federation, order_of(federation, "fast"), now)
        if now == 3.0:
            bring(federation, order_of(federation, "slow"), now)
        federation.dispatch(now)
        federation.step(now)
        federation.dispatch(now)
        if now < 3.0:
            bring(federation, order_of(federation, "bad"), now, value=7.0)
            federation.step(now)
            federation.dispatch(now)
    rows = {row["node"]: row for row in federation.table(10.0)}
    assert (rows["slow"]["seconds"], rows["slow"]["used"]) == (3.0, 1)
    assert rows["slow"]["staleness"] > rows["fast"]["staleness"]
    assert (rows["bad"]["refused"], rows["bad"]["why"]) == (1, "it has a value that is not finite")
    assert rows["slow"]["seen"] == 7.0
    assert sum(row["influence"] for row in rows.values()) == pytest.approx(1.0, abs=1e-3)


def test_the_mod_for_client_apps_says_who_the_node_is_by_its_config():
    from types import SimpleNamespace

    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    from kasync.live.flower import client_key
    from kasync.live.flower_messages import Layout, Reader

    arrays = {"w": np.ones(2, np.float32)}

    def app(message, context):
        held = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return Message(RecordDict({"arrays": held, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    asked = Message(RecordDict(), dst_node_id=5, message_type="train")
    for config, key in (({"client-key": "ward 7"}, "ward 7"), ({}, None)):
        reply = client_key(asked, SimpleNamespace(node_config=config), app)
        assert Reader(Layout.of(arrays), "num-examples").read(reply).key == key
