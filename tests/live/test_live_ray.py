"""The Ray engine beside the simulator, with actors that die and clients that are slow."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from deliveries import LAYERS
from rule_cases import CASES
from scripted import Script

from kasync import Gradient, LocalSGD, models, rules, simulate, timelines
from kasync.data import federate, load, partition
from kasync.errors import UserError
from kasync.live.clients import clients_of
from kasync.live.deliveries import Delivery
from kasync.live.privacy import Privacy
from kasync.live.ray import Actor, RayFederation, WarmClients
from kasync.timelines import durations
from kasync.work.loop import flat_parameters

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")
CLIENTS = 6


@dataclass(frozen=True)
class ScriptedClient:
    """Delivers what the script says, when the gate says so; the gate is a file with the server's step."""

    number: int
    script: Script
    gate: Path

    def __call__(self, params: torch.Tensor, visit: int) -> Delivery:
        due = self.script.due(self.number, visit)
        while int(self.gate.read_text()) < due:
            time.sleep(0.003)
        values = torch.from_numpy(self.script.rows[self.number, visit])
        loss, size = self.script.losses[self.number, visit], self.script.sizes[self.number]
        return Delivery(values, float(loss), float(size))


class Breakable:
    """A client that dies when a file says so, raises when another does, and else brings ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, params: torch.Tensor, visit: int) -> Delivery:
        for name, harm in (("die", lambda: os._exit(1)), ("raise", lambda: 1 / 0)):
            if (self.folder / name).exists():
                (self.folder / name).unlink()
                harm()
        return Delivery(torch.ones_like(params), 1.0, 1.0)


@pytest.fixture(scope="module")
def cluster():
    worlds = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1] / "rules")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": worlds}},
    )
    yield
    ray.shutdown()


def rule_for(case: str) -> object:
    name, settings, _ = CASES[case]
    made = rules.RULES[name](**{**settings, **({"clients": CLIENTS} if "clients" in settings else {})})
    return made.shaped(LAYERS)


@pytest.fixture(scope="module")
def scripted(cluster, tmp_path_factory):
    gate = tmp_path_factory.mktemp("gate") / "step"
    gate.write_text("0")
    script = Script.drawn(clients=CLIENTS, steps=15)
    with WarmClients([ScriptedClient(number, script, gate) for number in range(CLIENTS)]) as clients:
        yield script, gate, clients


def write(gate: Path, step: int) -> None:
    aside = gate.with_suffix(".part")
    aside.write_text(str(step))
    aside.replace(gate)


@pytest.mark.parametrize("case", CASES)
def test_scripted_deliveries_give_the_parameters_that_the_simulator_gives(case, scripted):
    script, gate, clients = scripted
    write(gate, 0)
    federation = RayFederation(rule_for(case), script.start, 4, clients)
    for update in federation.run(script.timeline.steps):
        write(gate, update.number)
    wanted = script.simulated(rule_for(case)).params
    torch.testing.assert_close(federation.params, wanted, rtol=1e-6, atol=1e-6)
    had = federation.timeline()
    assert np.array_equal(np.sort(had.clients), np.sort(script.timeline.clients))
    ray.get([actor.ready.remote() for actor in clients.actors])  # nobody still works for this case


@pytest.mark.parametrize("work", [Gradient(8), LocalSGD(3, 0.1, 8)], ids=["gradients", "local steps"])
def test_the_simulator_replays_a_live_run_and_ends_with_its_parameters(work, cluster):
    digits = load("digits")
    data = federate(digits, partition.labels(3, size=(40, 60))(digits, 3))
    model = models.mlp(784, 8)
    slowness = durations.Exponential(0.02)
    with WarmClients(clients_of(model, data, work, seed=5), slowness=slowness) as clients:
        federation = RayFederation(rules.wkafl(0.1), flat_parameters(model), 2, clients)
        updates = list(federation.run(30))
    assert [update.number for update in updates] == list(range(1, 31))
    assert max(max(update.staleness) for update in updates) > 0
    simulation = simulate(model, data, rules.wkafl(0.1), federation.timeline(), work, seed=5)
    assert len(list(simulation)) == 30
    torch.testing.assert_close(simulation.params, federation.params, rtol=1e-5, atol=1e-6)


def test_an_actor_that_dies_is_restarted_and_one_that_raises_is_asked_again(cluster, tmp_path):
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    with WarmClients([Breakable(folder) for folder in folders]) as clients:
        federation = RayFederation(rules.kasync_sgd(1.0), torch.zeros(4), 2, clients, rest=0.1)
        for update in federation.run(2000):
            if update.number == 5:
                (folders[0] / "die").touch()
                (folders[1] / "raise").touch()
            if update.number > 5 and set(federation.federation.step_log.clients[-1]) == {0, 1}:
                break
        tally = federation.federation.tally
    assert tally["failed"] >= 2
    assert tally["used"] == 2 * federation.federation.updates
    torch.testing.assert_close(federation.params, torch.full((4,), -float(federation.federation.updates)))


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(cluster, tmp_path):
    with WarmClients([Breakable(tmp_path) for _ in range(3)]) as clients:
        for steps in (4, 9):
            federation = RayFederation(rules.kasync_sgd(1.0), torch.zeros(4), 2, clients, checkpoint=tmp_path / "state")
            assert [update.number for update in federation.run(steps)][-1] == steps
    assert torch.equal(federation.params, torch.full((4,), -9.0))
    assert len(federation.federation.step_log.clients) == 9


def test_more_deliveries_than_clients_are_refused(cluster, tmp_path):
    with WarmClients([Breakable(tmp_path)]) as clients, pytest.raises(ValueError, match="k = 2 is more than the 1 cli"):
        RayFederation(rules.kasync_sgd(1.0), torch.zeros(4), 2, clients)


def test_ks_of_every_kind_wait_for_whom_they_should(cluster, tmp_path):
    trace = timelines.durations.Constant(0.02)
    with WarmClients([Breakable(tmp_path) for _ in range(3)], slowness=trace) as clients:
        whole = list(RayFederation(rules.kasync_sgd(1.0), torch.zeros(4), 3, clients).run(5))
        fresh = list(RayFederation(rules.kasync_sgd(1.0), torch.zeros(4), 2, clients, max_staleness=0).run(5))
    assert all(update.staleness == (0, 0, 0) for update in whole)
    assert all(update.staleness == (0, 0) for update in fresh)


def test_a_death_before_the_first_save_leaves_every_row_with_the_actor_that_brought_it(cluster, tmp_path):
    class OnlyTheLast:
        def __init__(self, number: int) -> None:
            self.number = number

        def __call__(self, params: torch.Tensor, visit: int) -> Delivery:
            time.sleep(0.0 if self.number == 2 else 1.0)
            return Delivery(torch.nn.functional.one_hot(torch.tensor(self.number), 3).float(), 1.0, 1.0)

    rule = rules.ca2fl(1.0, clients=3)
    with WarmClients([OnlyTheLast(number) for number in range(3)]) as clients:
        first = RayFederation(rule, torch.zeros(3), 2, clients, checkpoint=tmp_path / "state")
        first.federation.present(range(3), 0.0)
        for order in first.federation.dispatch(0.0):
            if order.node == 2:  # the last actor is the first whose work was accepted, and then the server died
                first.federation.collect(order.ticket, 2, Delivery(torch.eye(3)[2], 1.0), 0.0)
        again = RayFederation(rule, torch.zeros(3), 2, clients, checkpoint=tmp_path / "state")
        assert [each.client for each in again.federation.waiting] == [2]
        assert [client.used + client.waiting for client in again.federation] == [0, 0, 1]
        list(again.run(4))
    table = again.federation.server.memory
    (last,) = [value for value in table.values() if value.dim() == 2]
    for number in {client for step in again.federation.step_log.clients for client in step}:
        assert torch.equal(last[number], torch.eye(3)[number])


def test_a_client_may_deliver_what_autograd_still_follows():
    weights = torch.ones(3, requires_grad=True)
    values, *_ = Actor(lambda params, visit: Delivery(2.0 * weights, 1.0, 1.0), 0, None, 0).work(np.zeros(3), 0)
    assert values.tolist() == [2.0, 2.0, 2.0]


class Prompt:
    """Actors in this process, in the place of Ray's: the newest work is done first."""

    def __init__(self, clients: int) -> None:
        self.actors, self.asked = [self] * clients, []
        self.work = self

    def __len__(self) -> int:
        return len(self.actors)

    def remote(self, params: np.ndarray, visit: int) -> object:
        self.asked.append(float(params[0]))
        return object()

    def put(self, value: object) -> object:
        return value

    def wait(self, answers: list[object], num_returns: int, **_: object) -> tuple[list[object], list[object]]:
        return answers[::-1][:num_returns], []

    def get(self, answer: object) -> tuple[np.ndarray, float, float]:
        return -np.ones(2, np.float32), 1.0, 1.0


def test_updates_are_made_again_before_anybody_is_given_work(tmp_path, monkeypatch):
    def ran(steps: int) -> list[float]:
        prompt = Prompt(4)
        monkeypatch.setattr("kasync.live.ray.ray", prompt)
        federation = RayFederation(
            rules.kasync_sgd(1.0), torch.zeros(2), 2, prompt, checkpoint=tmp_path / "state", checkpoint_every=100
        )
        monkeypatch.setattr(federation.federation, "close", lambda now: None)  # it was killed
        assert len(list(federation.run(steps))) == steps
        return prompt.asked

    assert min(ran(6)) == 0.0
    assert min(ran(8)) >= 6.0


@pytest.mark.parametrize(
    ("rule", "settings", "what"),
    [
        (rules.kasync_sgd(0.5), {}, "rule"),
        (rules.kasync_sgd(1.0), {"brings": "models"}, "terms"),
        (rules.kasync_sgd(1.0), {"privacy": Privacy(1.0, 1.0)}, "privacy"),
    ],
    ids=["rate", "terms", "privacy"],
)
def test_a_run_with_another_rate_or_privacy_is_not_resumed(rule, settings, what, cluster, tmp_path):
    with WarmClients([Breakable(tmp_path) for _ in range(2)]) as clients:
        list(RayFederation(rules.kasync_sgd(1.0), torch.zeros(4), 2, clients, checkpoint=tmp_path / "state").run(2))
        with pytest.raises(UserError, match=f"belongs to another run: its {what} is"):
            RayFederation(rule, torch.zeros(4), 2, clients, checkpoint=tmp_path / "state", **settings)
