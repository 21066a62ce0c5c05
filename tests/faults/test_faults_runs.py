"""A run with faults equals one deep copy per client, however it is held, stopped or computed."""

from itertools import islice

import numpy as np
import pytest
import torch
from agreement import agree
from plain_faults import Spoil, normal
from small_worlds import CLIENTS, SETTINGS, Residual, finished, make_rule, mlp, same_records, vectors

from kasync import Gradient, LocalSGD, faults, rules, simulate, timelines
from kasync.errors import UserError
from kasync.faults.deliveries import Damages, damaged, normals

TIMELINE = timelines.uniform(CLIENTS, 3, 40, seed=4)
ARRIVING = {
    "leave": faults.Leave(0.3, chance=0.3),
    "return": faults.LeaveAndReturn(0.4, away=7),
    "stall": faults.Stall(0.3, delay=6),
    "twice": faults.DeliverTwice(0.5),
}
SENDING = {
    "nan": faults.SendNaN(0.3, chance=0.5),
    "inf": faults.SendInfinity(0.3),
    "huge": faults.SendHuge(0.3, factor=7.0),
    "zero": faults.SendZero(0.3),
    "flip_sign": faults.FlipSign(0.3, factor=2.0),
    "noise": faults.AddNoise(0.3, chance=0.7, factor=3.0),
    "flip_labels": faults.FlipLabels(0.5, chance=0.7),
}
ALL = [*ARRIVING.values(), *(SENDING[kind] for kind in ("nan", "huge", "noise", "flip_labels"))]


def judged(wrong, rule="kasync_sgd", work=None, model=None, **options):
    """The simulator with faults agrees with the plain program, which is given the faulty timeline."""
    model, data = model or mlp(), vectors()
    seed = options.get("seed", 0)
    faulty = faults.inject(TIMELINE, wrong, seed)
    sending = [fault for fault in wrong if fault.kind in SENDING]
    spoil = Spoil(sending, CLIENTS, seed)
    agree(model, data, rule, faulty, work or Gradient(4), faults=sending, spoil=spoil, bound=2e-5, **options)


def test_every_kind_of_fault_is_tried_here():
    assert ARRIVING.keys() | SENDING.keys() == faults.KINDS.keys()
    assert {fault.kind: fault for fault in (ARRIVING | SENDING).values()} == ARRIVING | SENDING


@pytest.mark.parametrize("kind", [*ARRIVING, *SENDING])
def test_a_fault_does_what_one_deep_copy_per_client_does(kind):
    judged([(ARRIVING | SENDING)[kind]])


@pytest.mark.parametrize("rule", SETTINGS)
def test_every_rule_under_many_faults_does_what_one_deep_copy_per_client_does(rule):
    # Ringleader waits for everybody, so one that leaves stops it; AFLGuard would refuse nearly everything here.
    wrong = [fault for fault in ALL if (rule, fault.kind) != ("ringleader", "leave")]
    judged(wrong, rule, seed=5, more={"radius": 6.0} if rule == "aflguard" else None)


@pytest.mark.parametrize("semantics", ["published-code", "none"])
def test_other_semantics_of_staleness_have_the_same_faults(semantics):
    judged(ALL, staleness=semantics, seed=5)


def test_local_steps_and_any_model_have_the_same_faults():
    judged(ALL, work=LocalSGD(2, 0.05, 4), seed=5)
    judged(ALL, model=Residual(), seed=5)


@pytest.mark.parametrize("kind", [*ARRIVING, *SENDING])
def test_striking_in_simulate_is_striking_before(kind):
    wrong = (ARRIVING | SENDING)[kind]
    rule = rules.kasync_sgd(0.05)
    inside, _ = finished(mlp(), vectors(), rule, TIMELINE, faults=wrong, seed=2)
    faulty = faults.inject(TIMELINE, wrong, 2)
    before, _ = finished(mlp(), vectors(), rule, faulty, faults=wrong if kind in SENDING else None, seed=2)
    assert same_records(inside, before)
    clean, _ = finished(mlp(), vectors(), rule, TIMELINE, seed=2)
    assert not same_records(inside, clean)


def test_both_ways_of_holding_staleness_have_the_same_faults():
    told = [
        finished(mlp(), vectors(), rules.fedbuff(0.05), TIMELINE, faults=ALL, hold=h) for h in ("gradients", "versions")
    ]
    for a, b in zip(told[0][0], told[1][0], strict=True):
        assert (a.clients.tolist(), a.staleness.tolist(), a.dropped) == (
            b.clients.tolist(),
            b.staleness.tolist(),
            b.dropped,
        )
    assert (told[0][1].params - told[1][1].params).abs().max() < 1e-5


@pytest.mark.parametrize("hold", ["gradients", "versions"])
def test_a_run_with_faults_that_was_stopped_anywhere_equals_the_uninterrupted_one(hold, tmp_path):
    given = {"rule": make_rule("ca2fl", mlp(), vectors()), "timeline": TIMELINE, "work": Gradient(4), "hold": hold}
    given |= {"model": mlp(), "data": vectors(), "faults": ALL, "evaluate_every": 5}
    whole = simulate(**given)
    records = list(whole)
    for stop in range(3, len(records), 7):
        for record in simulate(**given, checkpoint=tmp_path / "run", checkpoint_every=0.0):
            if record.step == stop:
                break
    again = simulate(**given, checkpoint=tmp_path / "run", checkpoint_every=0.0)
    assert same_records(list(again), records)
    assert torch.equal(again.params, whole.params)


OTHER = {
    "none": None,
    "another rate": faults.SendZero(0.5),
    "another chance": faults.SendZero(0.3, chance=0.9),
    "another kind": faults.FlipSign(0.3),
    "one more": [faults.SendZero(0.3), faults.FlipLabels(0.3)],
}


@pytest.mark.parametrize("other", OTHER)
def test_a_checkpoint_of_other_faults_is_refused(other, tmp_path):
    def begun(wrong):
        return simulate(
            mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, faults=wrong, checkpoint=tmp_path / "run",
            checkpoint_every=0.0, evaluate_every=5,
        )  # fmt: skip

    list(islice(begun(faults.SendZero(0.3)), 5))
    with pytest.raises(UserError, match="belongs to another run: its work is"):
        begun(OTHER[other])
    begun(faults.SendZero(0.3))


def test_a_checkpoint_of_a_timeline_without_faults_is_refused_for_one_with_them(tmp_path):
    given = {"checkpoint": tmp_path / "run", "checkpoint_every": 0.0, "evaluate_every": 5}
    list(islice(simulate(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, **given), 5))
    with pytest.raises(UserError, match="belongs to another run"):
        simulate(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, faults=faults.Stall(0.5), **given)


def test_a_run_without_faults_carries_nothing_of_them():
    simulation = simulate(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE)
    assert simulation.timeline is TIMELINE
    assert simulation.run.inputs.work_faults is None
    assert simulation.run.inputs.deliveries(0, 5).damage is None
    arriving = simulate(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, faults=faults.Stall(0.5))
    assert arriving.run.inputs.work_faults is None


def test_what_is_not_a_number_is_dropped_and_counted_and_the_rest_is_used():
    records, simulation = finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, faults=faults.SendNaN(0.5))
    clean, _ = finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE)
    dropped = sum(record.dropped for record in records)
    assert 0.3 < dropped / TIMELINE.clients.size < 0.7
    assert sum(record.dropped for record in clean) == 0
    assert simulation.params.isfinite().all()
    worse, _ = finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, faults=faults.SendNaN(0.9))
    assert any(record.skipped for record in worse)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("chance", [1.0, 0.4])
def test_as_many_deliveries_are_damaged_as_were_asked_for(share, chance):
    timeline = timelines.uniform(400, 20, 500, seed=1)
    damage = Damages.of((faults.FlipSign(share, chance),), 400, 1).drawn(timeline.clients, timeline.visits)
    assert (damage.times != 1).mean() == pytest.approx(share * chance, rel=0.1)
    assert len(np.unique(timeline.clients[damage.times != 1])) == round(share * 400)


def test_every_client_can_have_a_chance_of_its_own():
    timeline = timelines.uniform(10, 5, 2000, seed=1)
    wrong = faults.SendZero(clients=(2, 5, 7), chance=(0.1, 0.5, 0.9))
    zero = Damages.of((wrong,), 10, 1).drawn(timeline.clients, timeline.visits).times == 0
    rates = [zero[timeline.clients == client].mean() for client in range(10)]
    np.testing.assert_allclose(rates, [0, 0, 0.1, 0, 0, 0.5, 0, 0.9, 0, 0], atol=0.05)


def test_the_formula_of_a_captured_step_gives_the_bits_of_a_plain_one():
    wrong = tuple(fault for kind, fault in SENDING.items() if kind != "flip_labels")
    damage = Damages.of(wrong, CLIENTS, 3).drawn(TIMELINE.clients, TIMELINE.visits)
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    for step in range(TIMELINE.steps):
        here = {name: torch.from_numpy(array)[step] for name, array in damage.arrays().items()}
        torch.testing.assert_close(damaged(rows, here), damage.done_to(rows, step), rtol=0, atol=0, equal_nan=True)


def test_the_noise_is_normal_and_the_same_as_with_pythons_own_integers():
    keys = torch.tensor([5, -(2**60) - 3])
    drawn = normals(keys, 200_000)
    for row, key in enumerate(keys.tolist()):
        expected = [normal(key % 2**64, place) for place in range(200)]
        np.testing.assert_allclose(drawn[row, :200], expected, atol=2e-5)
    assert drawn.mean().abs() < 0.01
    assert drawn.std() == pytest.approx(1.0, abs=0.01)
    assert (drawn**4).mean() == pytest.approx(3.0, abs=0.1)
    assert (drawn[0] * drawn[1]).mean().abs() < 0.01
    assert (drawn[0, 1:] * drawn[0, :-1]).mean().abs() < 0.01


def test_nothing_is_written_into_the_rows_that_somebody_holds():
    damage = Damages.of((SENDING["noise"],), CLIENTS, 3).drawn(TIMELINE.clients, TIMELINE.visits)
    rows = torch.ones(3, 20)
    for step in range(TIMELINE.steps):
        damage.done_to(rows, step)
    assert torch.equal(rows, torch.ones(3, 20))
