"""One run on the workers of a Ray cluster has the bits of one machine, within its memory, and says what is wrong."""

from __future__ import annotations

import importlib
import platform
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import test_simulator_open as worlds
import torch
from small_worlds import CLIENTS, Residual, make_rule, mlp, same_records, vectors

from kasync import Custom, Gradient, Local, LocalSGD, faults, rules, simulate, timelines
from kasync.errors import UserError

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

from kasync.simulator import ray as farm  # noqa: E402

TIMELINE = timelines.uniform(CLIENTS, 3, 20, seed=7)
SPREAD = {"engine": "ray", "workers": 2}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A Ray of this machine for all tests here; workers wait for their turn on four cores that it believes in."""
    farm.disconnect()
    farm.connect(None, 4)
    yield
    farm.disconnect()


def finished(*given, **options):
    simulation = simulate(*given, evaluate_every=5, **options)
    return list(simulation), simulation


def alike(*given, **options):
    """The same run here and on workers; the one on workers, after its bits were compared."""
    records, here = finished(*given, hold="versions", **options)
    told, there = finished(*given, **SPREAD, **options)
    assert same_records(told, records)
    assert torch.equal(there.params, here.params)
    ours, theirs = (one.run.carried.tensors() for one in (here, there))
    lasting = [name for name in ours if not name.startswith("version.")]
    assert all(torch.equal(theirs[name], ours[name]) for name in lasting)
    return there


@pytest.mark.parametrize(
    ("kind", "work", "options"),
    [
        ("attention with dropout", "Adam with a state that is kept", {}),
        ("batch norm", "local sgd", {"buffers": "local"}),
        ("batch norm", "scaffold", {"buffers": "average"}),
        ("frozen", "gradient", {}),
        ("two inputs", "one epoch of AdamW", {}),
    ],
)
def test_any_model_and_work_has_the_bits_of_one_machine(kind, work, options):
    build, make, loss, _ = worlds.MODELS[kind]
    alike(worlds.seeded(build), make(), rules.fedbuff(0.5), TIMELINE, worlds.WORKS[work], loss=loss, **options)


@pytest.mark.parametrize(("backend", "work"), [("chain", Gradient(4)), ("vmap", LocalSGD(2, 0.1, 4))])
def test_any_backend_works_inside_a_worker(backend, work):
    assert alike(mlp(), vectors(), rules.wkafl(0.05), TIMELINE, work, backend=backend).backend == backend


def test_a_rule_that_needs_the_versions_gets_them_from_the_object_store():
    model, data = Residual(), vectors()
    rule = make_rule("asyncfeded", model, data)
    assert rule.needs_starts
    alike(model, data, rule, TIMELINE, Local(4, steps=2, lr=0.05))


def test_faults_strike_the_same_and_what_comes_twice_begins_where_it_began_first():
    wrong = [faults.DeliverTwice(0.5, 0.5, delay=2), faults.FlipLabels(0.4), faults.FlipSign(0.3)]
    work = Local(4, steps=2, lr=0.05, optimizer=torch.optim.Adam, keep=True)
    settings = (Residual(), vectors(), rules.fedbuff(0.5), timelines.uniform(CLIENTS, 3, 40, seed=1), work)
    records, here = finished(*settings, hold="gradients", faults=wrong)
    told, there = finished(*settings, **SPREAD, faults=wrong)
    assert there.timeline.copies.any()
    assert same_records(told, records)
    assert torch.equal(there.params, here.params)


def test_one_worker_and_three_workers_make_the_same_bits_as_one_machine():
    settings = (Residual(), vectors(), rules.recall(0.001, clients=CLIENTS), TIMELINE, Local(4, epochs=1, lr=0.1))
    records, here = finished(*settings)  # it holds gradients
    assert here.memory.hold == "gradients"
    for workers, resources in ((1, {"num_cpus": 2}), (3, {"num_cpus": 1})):
        told, there = finished(*settings, engine="ray", workers=workers, resources_per_worker=resources)
        assert same_records(told, records)
        assert torch.equal(there.params, here.params)
        assert there.run.crew.made == TIMELINE.steps * TIMELINE.k  # nothing was done twice


def test_rows_and_versions_stay_within_what_was_said_and_the_urgent_come_first(monkeypatch):
    monkeypatch.setattr(farm, "CHEAP", 0)
    monkeypatch.setattr(farm, "REWARDING", 1)
    simulation = simulate(Residual(), vectors(), rules.fedbuff(0.5), TIMELINE, Local(4, steps=2, lr=0.1), **SPREAD)
    crew = simulation.run.crew
    assert simulation.memory.rows == 2 * TIMELINE.k + 4  # two workers with two tasks each
    sent, rows, versions = [], [], []
    first = crew._next

    def noted(count):
        pieces = first(count)
        sent.extend(pieces)
        rows.append(len(crew.slots))
        versions.append(len(crew.versions))
        assert not pieces or not crew.heap or max(pieces) < min(crew.heap)
        assert len({piece // TIMELINE.k > crew.current for piece in pieces}) <= 1  # nobody waits for later ones
        return pieces

    monkeypatch.setattr(crew, "_next", noted)
    list(simulation)
    assert max(rows) <= simulation.memory.rows
    assert max(versions) <= simulation.run.plan.versions + 1  # the last one goes when the next step begins
    assert sorted(sent) == list(range(TIMELINE.steps * TIMELINE.k))


def test_a_worker_does_the_most_urgent_of_all_that_it_was_given():
    settings = (Residual(), vectors(), rules.fedbuff(0.5), TIMELINE, Local(4, steps=2, lr=0.1))
    crew = simulate(*settings, **SPREAD).run.crew
    bench = farm.Bench(*ray.get(crew.spec), "cpu", 1)
    plain, done, begun, go_on = bench._one, [], threading.Event(), threading.Event()

    def noted(sent, client, *rest):
        done.append(client)
        begun.set()
        go_on.wait(60)
        return plain(sent, client, *rest)

    bench._one = noted
    start = {"params": torch.zeros(bench.length).numpy(), "beside": ({}, {})}
    with ThreadPoolExecutor(3) as tasks:
        answers = [tasks.submit(bench.work, [(5, 0, 0, 0, None, {}, 0), (9, 1, 0, 0, None, {}, 0)], [start])]
        assert begun.wait(60)
        for number, client in ((7, 2), (3, 3)):
            answers.append(tasks.submit(bench.work, [(number, client, 0, 0, None, {}, 0)], [start]))
        until = time.monotonic() + 60
        while bench.waiting.qsize() < 3 and time.monotonic() < until:
            time.sleep(0.01)
        go_on.set()
        assert [len(answer.result()[-1]) for answer in answers] == [2, 1, 1]
    assert done == [0, 3, 2, 1]


def test_a_run_goes_on_where_another_engine_was_killed(tmp_path):
    settings = (
        worlds.seeded(worlds.MODELS["batch norm"][0]), worlds.MODELS["batch norm"][1](), rules.fedbuff(0.5), TIMELINE,
        worlds.WORKS["scaffold"],
    )  # fmt: skip
    records, expected = finished(*settings, hold="versions")
    place = {"checkpoint": tmp_path / "run", "checkpoint_every": 0.0, "evaluate_every": 5}
    engines = [SPREAD, {"hold": "versions"}, SPREAD]
    for stop, engine in zip((5, 12), engines, strict=False):
        for record in simulate(*settings, **place, **engine):
            if record.step == stop:
                break
    resumed = simulate(*settings, **place, **engines[-1])
    assert resumed.done == 10  # the evaluation before
    assert same_records(list(resumed), records)
    assert torch.equal(resumed.params, expected.params)


def test_a_loop_that_was_left_goes_on_with_new_workers():
    settings = (Residual(), vectors(), rules.fedbuff(0.5), TIMELINE, Local(4, steps=2, lr=0.1))
    records, expected = finished(*settings)
    simulation = simulate(*settings, **SPREAD, evaluate_every=5)
    for record in simulation:
        if record.step == 7:
            break
    assert simulation.run.crew.workers == []
    assert same_records(list(simulation), records)
    assert torch.equal(simulation.params, expected.params)


class Unknown:
    """A function that no worker can make: its module is on this machine only."""

    def __call__(self, model, batches):
        return 0.0

    def __reduce__(self):
        return importlib.import_module, ("a_module_that_is_nowhere",)


def hungry(model, batches):
    raise MemoryError("so many samples at once")


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (Unknown(), r"a worker on node [\d.]+ \(\w{8}\) cannot start: ModuleNotFoundError: .*a_module_that_is_nowhere"),
        (hungry, r"a worker on node [\d.]+ \(\w{8}\) stopped: the work of client \d+ .*MemoryError: so many samples"),
    ],
)
def test_a_worker_that_cannot_work_says_so_in_one_sentence_with_its_node(loop, words):
    simulation = simulate(
        Residual(), vectors(), rules.fedbuff(0.5), TIMELINE, Custom(loop, 4, steps=1), engine="ray", workers=1
    )
    with pytest.raises(UserError, match=words) as found:
        list(simulation)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "spark"}, "unknown engine 'spark'"),
        ({"workers": 2}, "workers = 2 is for engine='ray'"),
        ({"engine": "ray", "workers": 0}, "workers = 0"),
        ({"engine": "ray", "workers": 9000}, "has room for"),
        ({"engine": "ray", "resources_per_worker": {"num_gpus": 1}}, "room for 0"),
        ({"engine": "ray", "resources_per_worker": {"num_cpus": "two"}}, "num_cpus = 'two'"),
        ({"engine": "ray", "hold": "gradients"}, "leave hold out"),
    ],
)
def test_what_cannot_work_is_refused_before_work_starts(options, words):
    with pytest.raises(UserError, match=words):
        simulate(Residual(), vectors(), rules.fedbuff(0.5), TIMELINE, **options)


def new_pages(model, batches):
    """Pages that the kernel gives while arrays of one megabyte are made and freed, as a mini-batch does."""

    def make():
        for _ in range(10):
            held = [torch.zeros(2**18) for _ in range(8)]
            del held

    make()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    make()
    return float(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory in ways of their own")
def test_a_worker_keeps_the_memory_of_one_mini_batch_for_the_next():
    farm.dismiss()  # a worker that has done other things may have learnt to
    work = Custom(new_pages, 4, steps=1)
    simulation = simulate(Residual(), vectors(), rules.fedbuff(0.5), TIMELINE, work, engine="ray", workers=1)
    assert max(record.loss for record in simulation) < 1_000  # 5,900 where memory goes back to the kernel


def test_without_the_engine_ray_is_not_imported():
    program = """
import sys, numpy as np, kasync
from kasync import data, models, rules, timelines
held = data.from_arrays(np.zeros((8, 3), np.float32), np.arange(8) % 2, parts=[[0, 1], [2, 3]], test_fraction=0.2)
list(kasync.simulate(models.mlp(3, 4, 2), held, rules.fedbuff(0.1), timelines.uniform(2, 1, 3, seed=0)))
assert "ray" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
