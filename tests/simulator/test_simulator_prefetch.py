"""Work that was given out is done once, before it is needed, and never silently not at all."""

import random
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import CLIENTS, finished, mlp, vectors
from torch.nn.functional import cross_entropy

from kasync import Gradient, rules, simulate, timelines
from kasync.simulator.run import MOST, Prefetch

THREADS = [1, 2, 4]


class Diary:
    """Work that notes its slots when it is done, after a moment of random length."""

    def __init__(self):
        self.done, self.by, self.random = [], set(), random.Random(1)

    def piece(self, slots):
        def do():
            time.sleep(self.random.random() * 1e-3)
            self.done.extend(slots)
            self.by.add(threading.get_ident())

        return slots, do


@pytest.mark.parametrize("threads", THREADS)
@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=20), needed=st.data())
def test_what_is_needed_is_done_and_everything_is_done_once(threads, sizes, needed):
    diary, prefetch, first = Diary(), Prefetch.beside(threads), 0
    for size in sizes:
        prefetch.give(*diary.piece(list(range(first, first + size))))
        first += size
        wanted = needed.draw(st.sets(st.integers(0, first - 1), max_size=3))
        prefetch.need(wanted)
        assert wanted <= set(diary.done)
        assert len(prefetch.pieces) <= MOST + threads
    prefetch.finish()
    assert sorted(diary.done) == list(range(first))


def test_the_thread_that_gives_out_work_takes_part_in_it():
    diary, prefetch = Diary(), Prefetch.beside(2)
    for slot in range(20):
        prefetch.give(*diary.piece([slot]))
    prefetch.finish()
    assert threading.get_ident() in diary.by
    assert len(diary.by) == 2


def test_one_thread_does_everything_at_once_and_itself():
    diary, prefetch = Diary(), Prefetch.beside(1)
    prefetch.give(*diary.piece([3]))
    assert diary.done == [3]
    assert diary.by == {threading.get_ident()}


@pytest.mark.parametrize("wait", ["need", "finish"])
def test_an_error_in_another_thread_comes_out_where_its_work_is_waited_for(wait):
    began = threading.Event()

    def fail():
        began.set()
        raise ZeroDivisionError("in the work")

    prefetch = Prefetch.beside(2)
    prefetch.give([7], fail)
    assert began.wait(10)  # the other thread has it
    with pytest.raises(ZeroDivisionError, match="in the work"):
        prefetch.need([7]) if wait == "need" else prefetch.finish()


@pytest.mark.parametrize("threads", THREADS)
def test_a_loss_that_fails_in_the_middle_of_a_run_stops_the_run(threads):
    before, calls = torch.get_num_threads(), []

    def loss(outputs, labels):
        calls.append(len(outputs))
        if len(calls) > 20:
            raise ArithmeticError("enough")
        return cross_entropy(outputs, labels, reduction="none")

    torch.set_num_threads(threads)
    try:
        with pytest.raises(ArithmeticError, match="enough"):
            list(
                simulate(mlp(), vectors(), rules.kasync_sgd(0.05), timelines.uniform(CLIENTS, 3, 50, seed=1), loss=loss)
            )
    finally:
        torch.set_num_threads(before)


def test_clients_that_deliver_in_the_step_they_began_in_are_waited_for():
    everybody = timelines.uniform(4, 4, 30, seed=0)  # no staleness at all: every step needs the work just given out
    late = finished(mlp(), vectors(), rules.kasync_sgd(0.05), everybody, Gradient(4), hold="versions")[1].params
    early = finished(mlp(), vectors(), rules.kasync_sgd(0.05), everybody, Gradient(4), hold="gradients")[1].params
    torch.testing.assert_close(early, late, rtol=1e-5, atol=1e-6)
