"""Two federations whose constants are known exactly, and the K-async SGD with momentum that the theorems are about."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np


@dataclass(frozen=True)
class Quadratic:
    """Strongly convex: F_i(w) = (w - c_i)' A (w - c_i) / 2 with one diagonal A, so L and G are the same everywhere."""

    curvature: np.ndarray  # [D], the diagonal of A
    centres: np.ndarray  # [clients, D]
    noise: float  # sigma_c
    growth: float  # M_c

    @property
    def clients(self):
        return len(self.centres)

    @property
    def smoothness(self):
        return self.curvature.max()

    @property
    def heterogeneity(self):
        return np.linalg.norm(self.curvature * (self.centres - self.centres.mean(0)), axis=1).max()

    def gradient(self, w):
        return self.curvature * (w - self.centres.mean(0))

    def client_gradient(self, w, client):
        return self.curvature * (w - self.centres[client])

    def gap(self, w):
        return 0.5 * (self.curvature * np.square(w - self.centres.mean(0))).sum(-1)


@dataclass(frozen=True)
class Cosines:
    """Smooth, not convex: F_i(w) = a sum_d (1 - cos w_d) + b_i . w with sum_i b_i = 0, so L = a and G = max |b_i|."""

    height: float  # a
    tilts: np.ndarray  # [clients, D], columns sum to 0
    noise: float
    growth: float

    @property
    def clients(self):
        return len(self.tilts)

    @property
    def smoothness(self):
        return self.height

    @property
    def heterogeneity(self):
        return np.linalg.norm(self.tilts, axis=1).max()

    def gradient(self, w):
        return self.height * np.sin(w)

    def client_gradient(self, w, client):
        return self.height * np.sin(w) + self.tilts[client]

    def gap(self, w):
        return self.height * (1 - np.cos(w)).sum(-1)


def batch_gradient(problem, w, client, batch_size, rng):
    """A mini-batch gradient with E|g - grad F_i|^2 = sigma_c^2/m + (M_c/m) |grad F_i|^2 exactly; w is [..., D]."""
    exact = problem.client_gradient(w, client)
    stretch = rng.standard_normal(exact.shape[:-1])[..., None] * np.sqrt(problem.growth / batch_size)
    shake = rng.standard_normal(exact.shape) * problem.noise / np.sqrt(batch_size * exact.shape[-1])
    return exact * (1 + stretch) + shake


def quadratic(seed=0, clients=12, dimension=6, spread=0.3, noise=1.0, growth=0.5):
    rng = np.random.default_rng(seed)
    return Quadratic(
        curvature=np.linspace(0.2, 2.0, dimension),
        centres=spread * rng.standard_normal((clients, dimension)),
        noise=noise,
        growth=growth,
    )


def cosines(seed=0, clients=12, dimension=6, spread=0.2, noise=1.0, growth=0.5):
    tilts = spread * np.random.default_rng(seed).standard_normal((clients, dimension))
    return Cosines(height=1.5, tilts=tilts - tilts.mean(0), noise=noise, growth=growth)


def arrivals(clients, k, steps, seed=0):
    """Who delivers [J, k] and from which version [J, k], when every piece of work takes an exponential time."""
    rng = np.random.default_rng(seed)
    speed = np.exp(0.5 * rng.standard_normal(clients))
    queue = []
    for client in range(clients):
        heappush(queue, (speed[client] * rng.exponential(), client, 0))
    who, versions = np.empty((steps, k), int), np.empty((steps, k), int)
    for step in range(steps):
        for slot in range(k):
            now, who[step, slot], versions[step, slot] = heappop(queue)
        for client in who[step]:
            heappush(queue, (now + speed[client] * rng.exponential(), int(client), step + 1))
    return who, versions


def stage_one_run(problem, timeline, start, rate, momentum, batch_size, weights, runs, seed=0):
    """|grad F(w_j)|^2 averaged over independent runs [J]: the left side's expectation. weights [J, k]."""
    rng = np.random.default_rng(seed)
    who, versions = timeline
    models = np.empty((len(who) + 1, runs, len(start)))
    models[0] = start
    carried = np.zeros((runs, len(start)))
    for step in range(len(who)):
        gathered = sum(
            weight * batch_gradient(problem, models[version], client, batch_size, rng)
            for weight, client, version in zip(weights[step], who[step], versions[step], strict=True)
        )
        carried = momentum * carried + gathered
        models[step + 1] = models[step] - rate * carried
    return np.square(problem.gradient(models[:-1])).sum(-1).mean(1)


def stage_two_run(problem, timeline, start, rate, momentum, batch_size, clip_ratio, seed=0):
    """One run as Theorem 2 describes it: |grad F(w_j)|^2 [J], and what each step combined.

    The estimate weighs the k gradients by freshness, those that point away get no weight, the others are clipped.
    """
    rng = np.random.default_rng(seed)
    who, versions = timeline
    models, steps = [start], []
    carried = np.zeros_like(start)
    for step in range(len(who)):
        pairs = zip(who[step], versions[step], strict=True)
        rows = np.stack([batch_gradient(problem, models[v], client, batch_size, rng) for client, v in pairs])
        fresh = (np.e / 2) ** -(step - versions[step].astype(float))
        estimate = fresh @ rows / fresh.sum()
        lengths = np.linalg.norm(rows, axis=1)
        cosines = rows @ estimate / (lengths * np.linalg.norm(estimate))
        weights = np.where(cosines >= 0.1, np.exp(cosines), 0.0)
        weights = weights / weights.sum()
        rows = rows * np.minimum(1, clip_ratio * np.linalg.norm(estimate) / lengths)[:, None]
        steps.append((weights, rows, estimate, problem.gradient(models[-1])))
        carried = momentum * carried + weights @ rows
        models.append(models[-1] - rate * carried)
    return np.square(problem.gradient(np.stack(models[:-1]))).sum(-1), steps
