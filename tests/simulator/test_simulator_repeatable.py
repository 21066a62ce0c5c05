"""A run is the same bit for bit on any number of threads, however often it is evaluated or cut."""

import sys

import pytest
import torch
from small_worlds import CLIENTS, finished, make_rule, mlp, pictures, same_records, vectors

from kasync import Gradient, LocalSGD, models, rules, simulate, timelines
from kasync.work.captured import REPEATABLE

TIMELINE = timelines.uniform(CLIENTS, 3, 50, seed=1)
HOLDS = ["gradients", "versions"]


@pytest.fixture
def threads():
    """A function that sets the number of threads; afterwards there are as many as before."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def on(threads, count, *run, **options):
    threads(count)
    return finished(*run, **options)


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("work", [Gradient(4), LocalSGD(2, 0.05, 4)], ids=["gradient", "local steps"])
def test_one_thread_and_two_give_the_same_bits(threads, hold, work):
    run = (mlp(), vectors(), make_rule("wkafl", mlp(), vectors()), TIMELINE, work)
    one, two, three = (on(threads, count, *run, hold=hold) for count in (1, 2, 3))
    assert torch.equal(one[1].params, two[1].params)
    assert torch.equal(one[1].params, three[1].params)
    assert same_records(one[0], two[0])


@pytest.mark.parametrize("k", [2, 4, 12])
def test_a_product_of_few_rows_rounds_differently_and_still_threads_give_the_same_bits(threads, k):
    run = (models.mlp(6, 64, 4), vectors(), rules.kasync_sgd(0.05), timelines.uniform(CLIENTS, k, 20, seed=1))
    ends = [on(threads, count, *run, Gradient(1), hold="gradients")[1].params for count in (1, 2, 3, 5)]
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("hold", HOLDS)
def test_one_thread_and_two_give_the_same_bits_on_lenet(threads, hold):
    run = (models.lenet(), pictures(), rules.kasync_sgd(0.05), timelines.uniform(6, 4, 8, seed=1))
    one, two = (on(threads, count, *run, hold=hold) for count in (1, 2))
    assert torch.equal(one[1].params, two[1].params)


def test_a_run_leaves_the_number_of_threads_as_it_was(threads):
    threads(2)
    finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE.head(5))
    assert torch.get_num_threads() == 2
    for _ in simulate(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE.head(5)):
        assert torch.get_num_threads() == 2
        break
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("hold", HOLDS)
def test_neither_evaluations_nor_pieces_change_the_numbers(hold, monkeypatch):
    run = (mlp(), vectors(), make_rule("wkafl", mlp(), vectors()), TIMELINE)
    whole, expected = finished(*run, hold=hold, evaluate_every=50)
    for every in (1, 7, 49, 1000):
        records, simulation = finished(*run, hold=hold, evaluate_every=every)
        assert torch.equal(simulation.params, expected.params), every
        assert [r.loss for r in records] == [r.loss for r in whole]
        evaluated = [r.step for r in records if r.accuracy is not None]
        assert evaluated == [*range(every, TIMELINE.steps, every), TIMELINE.steps]
    monkeypatch.setattr(sys.modules["kasync.simulator.plan"], "CHUNK", 3)
    assert torch.equal(finished(*run, hold=hold)[1].params, expected.params)


def test_the_same_run_twice_gives_the_same_bits_and_does_not_touch_the_global_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    runs = [finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE)[1].params for _ in range(2)]
    assert torch.equal(*runs)
    assert torch.equal(torch.get_rng_state(), before)


def test_looping_again_tells_the_same_story_and_a_break_loses_nothing():
    simulation = simulate(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, Gradient(4), evaluate_every=10)
    for record in simulation:
        if record.step == 13:
            break
    records = list(simulation)
    assert same_records(records, finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, evaluate_every=10)[0])
    assert same_records(list(simulation), records)


def test_two_runs_at_once_do_not_disturb_each_other():
    def make(seed):
        rule = rules.kasync_sgd(0.05)
        return simulate(mlp(), vectors(), rule, TIMELINE, Gradient(4), seed=seed, evaluate_every=5)

    alone = [list(make(seed)) for seed in (0, 1)]
    together = list(zip(make(0), make(1), strict=True))
    assert same_records([a for a, _ in together], alone[0])
    assert same_records([b for _, b in together], alone[1])


def test_convolutions_on_a_gpu_are_told_to_repeat_until_the_last_piece_of_work_is_done():
    assert not torch.backends.cudnn.deterministic
    with REPEATABLE:
        with REPEATABLE:
            assert torch.backends.cudnn.deterministic
        assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.deterministic
