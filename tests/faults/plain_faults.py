"""The simplest program with faults: one client after the other, one number after the other."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import numpy as np
import torch

from kasync import counter, faults
from kasync.counter import Stream
from kasync.faults import Fault


def chance_of(fault: Fault, client: int, population: int, seed: int) -> float:
    """The chance that a piece of this client's work is hit."""
    if fault.clients is not None:
        if client not in fault.clients:
            return 0.0
        place = list(fault.clients).index(client)
        return fault.chance[place] if isinstance(fault.chance, tuple) else fault.chance
    drawn = {c: float(counter.uniforms(seed, Stream.FAULTY, c, fault.number)) for c in range(population)}
    faulty = sorted(drawn, key=drawn.get)[: math.floor(fault.share * population + 0.5)]
    return fault.chance if client in faulty else 0.0


def is_hit(fault: Fault, client: int, piece: int, population: int, seed: int) -> bool:
    drawn = float(counter.uniforms(seed, Stream.FAULTS, client, piece, fault.number))
    return drawn < chance_of(fault, client, population, seed)


def strike(timeline, given, seed=0):
    """Rows of (client, version, whether it is a copy) for each step, and the times of the steps.

    Every client follows its plan until it leaves; a heap brings the uploads into order; the server fills its steps.
    """
    k, end = timeline.k, timeline.steps * timeline.k
    plans = {client: [] for client in range(timeline.population)}
    for place, client in enumerate(timeline.clients.ravel().tolist()):
        version = int(timeline.versions.ravel()[place])
        went_on_at_once = version == timeline.previous_step.ravel()[place] + 1
        plans[client].append((place, None if went_on_at_once else version * k))
    heap = []
    for client, plan in plans.items():
        behind, returns = 0, 0
        for piece, (place, took) in enumerate(plan):
            hits = {f.kind: f for f in given if is_hit(f, client, piece, timeline.population, seed)}
            if place + behind < returns:
                continue
            if "leave" in hits:
                break
            if "return" in hits:
                returns = place + behind + hits["return"].away * k
                continue
            took = returns if took is None else max(took + behind, returns)
            behind += hits["stall"].delay * k if "stall" in hits else 0
            heapq.heappush(heap, (place + behind, False, client, took))
            if "twice" in hits:
                behind += hits["twice"].delay * k
                heapq.heappush(heap, (place + behind, True, client, took))
    steps, moments, queue = [[]], [], []
    version_of, step_of = {}, {}
    while heap and heap[0][0] < end:
        place, *upload = heapq.heappop(heap)
        queue.append(upload)
        while True:  # take the first in the queue that is not yet in this step
            here = [client for client, _, _ in steps[-1]]
            free = [number for number, (_, client, _) in enumerate(queue) if client not in here]
            if not free:
                break
            copy, client, took = queue.pop(free[0])
            newest_then = sum(moment < took for moment in moments)
            after_last = step_of[client] + 1 if client in step_of else 0
            version_of[client] = version_of[client] if copy else max(newest_then, after_last)
            step_of[client] = len(moments)
            steps[-1].append((client, version_of[client], copy))
            if len(steps[-1]) == k:
                moments.append(place)
                steps.append([])
    return steps[:-1], [float(timeline.times[moment // k]) for moment in moments]


class Spoil:
    """What is wrong with a row and with labels, decided by words."""

    def __init__(self, given, population, seed=0):
        self.given, self.population, self.seed = given, population, seed

    def _hits(self, client, visit):
        return [fault for fault in self.given if is_hit(fault, client, visit, self.population, self.seed)]

    def labels(self, data, client, visit):
        if not any(isinstance(fault, faults.FlipLabels) for fault in self._hits(client, visit)):
            return data
        wrong = np.array([data.classes - 1 - label for label in data.train.labels])
        return replace(data, train=replace(data.train, labels=wrong))

    def row(self, row, client, visit):
        for fault in self._hits(client, visit):
            match fault:
                case faults.SendNaN():
                    row = torch.full_like(row, torch.nan)
                case faults.SendInfinity():
                    row = torch.full_like(row, torch.inf)
                case faults.SendZero():
                    row = torch.zeros_like(row)
                case faults.SendHuge():
                    row = fault.factor * row
                case faults.FlipSign():
                    row = -fault.factor * row
                case faults.AddNoise():
                    key = int(counter.bits(self.seed, Stream.NOISE, client, visit))
                    normals = torch.tensor([normal(key, place) for place in range(len(row))])
                    row = row + fault.factor * row.norm() / math.sqrt(len(row)) * normals
        return row


def normal(key: int, place: int) -> float:
    """A standard normal number in Python's own integers."""
    word = (1 << 64) - 1
    z = (key + place * 0x9E3779B97F4A7C15) & word
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
    z ^= z >> 31
    u, other = ((z >> 40) + 0.5) / 2**24, ((z >> 8) & 0xFFFFFF) / 2**24
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * other)
