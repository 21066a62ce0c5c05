"""A very long run in which nothing may grow or drift: 200,000 steps, 10,000 clients, every fault at once.

python tests/reliability/soak.py            both soaks, whole
python tests/reliability/soak.py 20000      shorter
"""

from __future__ import annotations

import logging
import random
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kasync import Gradient, faults, models, rules, simulate, timelines
from kasync.data.federated import FederatedData, from_arrays
from kasync.faults.draws import chances
from kasync.live.deliveries import Delivery, Failure
from kasync.live.loop import Federation, Order
from kasync.live.terms import Terms
from kasync.simulator import Record
from kasync.timelines import Timeline

STEPS, CLIENTS, K = 200_000, 10_000, 4
LIVE_CLIENTS = 200  # a live loop looks at every client at every step
WARM_UP = 0.1  # of the steps
RETURNING = faults.LeaveAndReturn(0.05, chance=0.3, away=50)
ARRIVALS = (faults.Leave(0.02, chance=0.05), RETURNING, faults.Stall(0.1, delay=500), faults.DeliverTwice(0.05))
DELIVERIES = (
    *(faults.SendNaN(0.02), faults.SendInfinity(0.02), faults.SendHuge(0.02), faults.SendZero(0.02)),
    *(faults.FlipSign(0.05), faults.AddNoise(0.02), faults.FlipLabels(0.02)),
)


@dataclass(frozen=True)
class Figures:
    """What a soak found."""

    what: str
    steps: int
    seconds: float
    warm: float  # MiB resident after the warm-up
    end: float  # MiB resident at the end, less what the run is told to keep
    most: float  # MiB, the most after the warm-up
    compared: int  # deliveries whose staleness was computed again
    drifted: int  # of them, how many were reported otherwise
    dropped: int  # deliveries that were refused

    @property
    def growth(self) -> float:
        return self.end / self.warm - 1

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.steps:,} steps in {self.seconds:.0f} s; resident {self.warm:.1f} MiB after the "
            f"warm-up, {self.end:.1f} at the end ({self.growth:+.2%}), {self.most:.1f} at most; {self.compared:,} "
            f"stalenesses computed again, {self.drifted} differ; {self.dropped:,} deliveries dropped"
        )


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def world(clients: int) -> FederatedData:
    """Each client has a few of 2,000 points [4] in three classes."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 2_000)
    inputs = (draw.normal(size=(3, 4))[labels] + draw.normal(size=(2_000, 4))).astype(np.float32)
    shares = np.split(draw.integers(0, 1_900, 3 * clients), clients)
    return from_arrays(inputs[100:], labels[100:], inputs[:100], labels[:100], shares)


def arrivals(steps: int, clients: int) -> Timeline:
    """So many steps, after clients have left, returned, stalled and sent things twice."""
    longer = timelines.uniform(clients, K, steps + steps // 5 + 100, seed=1)
    return faults.inject(longer, ARRIVALS, seed=1).head(steps)


def simulated(steps: int = STEPS, clients: int = CLIENTS) -> Figures:
    """The simulator, with a robust rule."""
    began = time.monotonic()
    timeline = arrivals(steps, clients)
    judge = Judge(timeline)
    simulation = simulate(
        models.mlp(4, (), 3),
        world(clients),
        rules.wkafl(0.05),
        timeline,
        Gradient(2),
        seed=1,
        evaluate_every=steps // 20,
        faults=DELIVERIES,
    )
    dropped, warm, most = 0, 0.0, 0.0
    for record in simulation:
        judge.look(record)
        dropped += record.dropped
        if record.step == int(WARM_UP * steps):
            warm = resident()
        elif warm and record.step % 500 == 0:
            most = max(most, resident())
    assert bool(torch.isfinite(simulation.params).all())
    seconds = time.monotonic() - began
    return Figures("simulator", steps, seconds, warm, resident(), most, judge.compared, judge.drifted, dropped)


class Judge:
    """Staleness from scratch: which version does each client hold, going by the records alone?

    A client takes the newest model when it delivers; what it sends twice is what it had sent. A client that leaves and
    returns takes a newer model while nobody looks, so its staleness can only be bounded.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.copies = timeline.copies
        self.returning = chances(RETURNING, timeline.population, 1) > 0  # [clients]
        self.holds = np.zeros(timeline.population, dtype=np.int64)
        self.sent = np.zeros(timeline.population, dtype=np.int64)  # the version of each client's last delivery
        self.compared = self.drifted = 0

    def look(self, record: Record) -> None:
        step = record.step - 1
        for slot, (client, told) in enumerate(zip(record.clients.tolist(), record.staleness.tolist(), strict=True)):
            if self.copies is None or not self.copies[step, slot]:
                self.sent[client] = step - told if self.returning[client] else self.holds[client]
            self.compared += 1
            self.drifted += int(step - self.sent[client] != told or not 0 <= told <= step - self.least(client))
            self.holds[client] = step + 1

    def least(self, client: int) -> int:
        """The oldest version that a delivery of this client can be of."""
        return min(int(self.holds[client]), int(self.sent[client]))


def live(steps: int = STEPS, clients: int = LIVE_CLIENTS) -> Figures:
    """The live loop: clients that come and go, answer late, twice, for others, with garbage or not at all."""
    logging.getLogger("kasync.live").setLevel(logging.CRITICAL)
    began, draw = time.monotonic(), random.Random(0)
    terms = Terms(k=K, brings="gradients", timeout=50.0, rest=1.0, longest_rest=8.0, offences=None, max_norm=1e6)
    federation = Federation(rules.kasync_sgd(0.01), torch.zeros(12), terms)
    versions: dict[int, int] = {}  # ticket -> the version that was handed out, as the clients know it
    out: list[Order] = []
    answered: list[Order] = []
    now, warm, most, kept, compared, drifted = 0.0, 0.0, 0.0, 0, 0, 0
    here = set(range(clients))
    while federation.updates < steps:
        now += 1.0
        if int(now) % 50 == 0:
            here ^= {draw.randrange(clients)}
        federation.present(here, now)
        for order in federation.dispatch(now):
            out.append(order)
            versions[order.ticket] = federation.version
        draw.shuffle(out)
        for order in [out.pop() for _ in range(min(len(out), 2 * K))]:
            waiting = len(federation.waiting)
            for brought in answer(draw):
                federation.collect(order.ticket, order.node, brought, now)
            if len(federation.waiting) > waiting:
                drifted += federation.waiting[-1].version != versions[order.ticket]
            versions.pop(order.ticket)
            answered.append(order)
        if draw.random() < 0.2:
            twice = draw.choice(answered)
            federation.collect(twice.ticket, twice.node, next(iter(answer(draw)), Failure("again")), now)
        answered = answered[-1000:]
        federation.expire(now)
        while federation.updates < steps and (update := federation.step(now)) is not None:
            compared += len(update.used)
            told = [federation.updates - 1 - each.version for each in update.used]
            drifted += sum(mine != theirs for mine, theirs in zip(told, update.staleness, strict=True))
            if federation.updates == int(WARM_UP * steps):
                warm, kept = resident(), step_log_bytes(federation)
            elif warm and federation.updates % 5000 == 0:
                most = max(most, resident() - (step_log_bytes(federation) - kept) / 2**20)
        assert len(federation.versions) <= len(here) + clients
    end = resident() - (step_log_bytes(federation) - kept) / 2**20
    dropped = sum(federation.tally.get(ended, 0) for ended in ("refused", "duplicate", "late", "failed", "expired"))
    assert federation.tally["accepted"] == federation.tally["used"] + len(federation.waiting)
    seconds = time.monotonic() - began
    return Figures("live loop", federation.updates, seconds, warm, end, max(most, end), compared, drifted, dropped)


def answer(draw: random.Random) -> Iterator[Delivery | Failure]:
    """What comes back of one piece of work; nothing, one thing or two."""
    chance = draw.random()
    if chance < 0.05:
        return  # silence, until the time is over
    good = Delivery(torch.tensor([draw.gauss(0, 1)] * 12), loss=1.0)
    if chance < 0.08:
        yield Failure("crashed")
    elif chance < 0.11:
        yield Delivery(torch.full((12,), float("nan")))
    elif chance < 0.13:
        yield Delivery(torch.zeros(3))
    else:
        yield good
        if chance < 0.2:
            yield good


def step_log_bytes(federation: Federation) -> int:
    """What the log of steps takes, which is the timeline at the end."""
    step_log = federation.step_log
    lists: Iterable[list] = (step_log.clients, step_log.versions, step_log.times)
    whole = sum(sys.getsizeof(each) for each in lists) + sum(map(sys.getsizeof, step_log.times))
    rows = sum(map(sys.getsizeof, step_log.clients)) + sum(map(sys.getsizeof, step_log.versions))
    return whole + rows + sum(sys.getsizeof(each) for row in step_log.versions for each in row if each > 256)


def main(steps: int) -> int:
    found = [simulated(steps), live(steps)]
    for figures in found:
        print(figures, flush=True)
    return int(any(figures.drifted or figures.growth >= 0.01 for figures in found))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS))
