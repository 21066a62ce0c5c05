"""Every kind of timeline is replayed as the naive simulator replays it, with every meaning of staleness."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from agreement import agree
from naive import flat, gradient_of
from small_worlds import CLIENTS, finished, mlp, vectors
from torch.nn import functional

from kasync import Gradient, rules, simulate, timelines
from kasync.timelines import Dropouts, Repeating, durations
from kasync.work.batches import Batches

K = 3
STEPS = 25
SLOW_AND_FAST = durations.log_normal(1.0, 1.0)


def by_clock(time, mode="async", **options):
    return timelines.clock(CLIENTS, K, STEPS, time, 5, mode, allow_short=True, **options)


KINDS = {
    "uniform": timelines.uniform(CLIENTS, K, STEPS, seed=5),
    "async, constant": by_clock(durations.constant(1.5)),
    "async, exponential": by_clock(durations.exponential(2.0), speeds=SLOW_AND_FAST),
    "async, shifted exponential": by_clock(durations.shifted_exponential(1.0, 0.5)),
    "async, pareto": by_clock(durations.pareto(1.0, 1.2)),
    "async, trace": by_clock(durations.trace({0: [1.0, 2.0], 1: [0.5], 2: [3.0, 1.0, 1.0]})),
    "sync": by_clock(SLOW_AND_FAST, "sync"),
    "full": by_clock(SLOW_AND_FAST, "full"),
    "sync, lost uploads": by_clock(durations.exponential(1.0), "sync", lost=0.3),
    "lost uploads": by_clock(durations.exponential(1.0), lost=0.3),
    "absences": by_clock(durations.exponential(1.0), dropouts=Dropouts(0.2, durations.exponential(4.0))),
    "gone for good": by_clock(durations.exponential(1.0), dropouts=Dropouts(0.05)),
    "windows": by_clock(durations.exponential(1.0), availability=Repeating(9.0, 20.0)),
    "once per round": timelines.once_per_round(CLIENTS, K, STEPS, 5),
    "once per round, left over": timelines.once_per_round(CLIENTS, 5, STEPS, 5),
    "once per round by the clock": timelines.once_per_round(CLIENTS, K, STEPS, 5, durations.exponential(1.0)),
    "everybody at once": timelines.uniform(CLIENTS, CLIENTS, 20, seed=5),
    "one at a time": timelines.uniform(CLIENTS, 1, STEPS, seed=5),
    "one step": timelines.uniform(CLIENTS, K, 1, seed=5),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["wkafl", "ca2fl"])
def test_every_timeline_gives_what_the_naive_simulator_gives(kind, name):
    agree(mlp(), vectors(), name, KINDS[kind], Gradient(4))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "round" in kind])
def test_gsgm_on_its_own_timelines_gives_what_the_naive_simulator_gives(kind):
    agree(mlp(), vectors(), "gsgm", KINDS[kind], Gradient(4))


@pytest.mark.parametrize("staleness", ["published-code", "none"])
@pytest.mark.parametrize("kind", ["uniform", "async, exponential", "lost uploads", "sync", "once per round"])
def test_other_meanings_of_staleness_give_what_the_naive_simulator_gives(kind, staleness):
    agree(mlp(), vectors(), "wkafl", KINDS[kind], Gradient(4), staleness=staleness)


@pytest.mark.parametrize("staleness", ["published-code", "none"])
def test_mixed_models_start_where_the_meaning_of_staleness_says(staleness):
    agree(mlp(), vectors(), "fedasync", KINDS["uniform"], Gradient(4), staleness=staleness)


def each_step(staleness, timeline, lr=0.1):
    """The parameters before every step and after the last, the records, and the gradient applied at each step."""
    simulation = simulate(
        mlp(), vectors(), rules.kasync_sgd(lr), timeline, Gradient(4), staleness=staleness, evaluate_every=1
    )
    params, records = [flat(mlp())], []
    for record in simulation:
        params.append(simulation.params.clone())
        records.append(record)
    return params, records, [(before - after) / lr for before, after in pairwise(params)]


def gradient_at(params, client, visit):
    """By autograd, of the batch the client draws at this visit."""
    data = vectors()
    model = mlp()
    torch.nn.utils.vector_to_parameters(params.clone(), model.parameters())
    samples, weights = Batches.of(data, Gradient(4), 0).draw(np.array([client]), np.array([visit]))
    chosen = samples[0, 0][weights[0, 0] > 0]
    inputs, labels = torch.from_numpy(data.train.inputs[chosen]), torch.from_numpy(data.train.labels[chosen])
    return gradient_of(model, inputs, labels, functional.cross_entropy)[0]


def test_in_the_published_code_a_client_s_second_gradient_is_computed_on_the_newest_model_though_it_counts_as_stale():
    timeline = timelines.uniform(4, 1, 30, seed=3)
    params, records, applied = each_step("published-code", timeline)
    visits = timeline.visits[:, 0]
    seen = 0
    for step, client in enumerate(timeline.clients[:, 0].tolist()):
        version = step if visits[step] else int(timeline.versions[step, 0])
        expected = gradient_at(params[version], client, int(visits[step]))
        torch.testing.assert_close(applied[step], expected, atol=2e-5, rtol=1e-3)
        assert records[step].staleness[0] == timeline.staleness[step, 0]
        seen += bool(visits[step]) and timeline.staleness[step, 0] > 1
    assert seen > 3, "some second deliveries must be stale, or nothing is shown"


def test_a_stale_client_trains_on_the_model_it_pulled():
    timeline = timelines.uniform(4, 1, 30, seed=3)
    params, _, applied = each_step("true", timeline)
    for step, client in enumerate(timeline.clients[:, 0].tolist()):
        expected = gradient_at(params[int(timeline.versions[step, 0])], client, int(timeline.visits[step, 0]))
        torch.testing.assert_close(applied[step], expected, atol=2e-5, rtol=1e-3)


def test_without_staleness_every_record_is_fresh():
    records, _ = finished(mlp(), vectors(), rules.kasync_sgd(0.05), KINDS["uniform"].head(10), staleness="none")
    assert all((record.staleness == 0).all() for record in records)
