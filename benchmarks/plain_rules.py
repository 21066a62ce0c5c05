"""What would a careful PyTorch user write for each rule, on the matrix [K, D] of gradients, formula by formula?

Every function takes the parameters [D], what the rule remembers (a dictionary it may write to) and the delivery, and
returns the new parameters. Settings are those of SETTINGS in benchmarks/rules.py.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LR = 0.005


@dataclass(frozen=True)
class Given:
    """One delivery of K clients."""

    gradients: Tensor  # [K, D]
    staleness: Tensor  # [K]
    losses: Tensor  # [K]
    sizes: Tensor  # [K]
    clients: Tensor  # [K]
    server_gradient: Tensor  # [D]
    everyone: int


def wkafl(params: Tensor, memory: dict, given: Given) -> Tensor:
    gradients = given.gradients + 0.1 * memory.get("momentum", torch.zeros_like(params))
    gradients = gradients * (100.0 / gradients.norm(dim=1)).clamp(max=1.0)[:, None]
    shares = (math.e / 2) ** -(given.staleness - given.staleness.min())
    estimate = (shares / shares.sum()) @ gradients
    similarities = F.cosine_similarity(gradients, estimate[None], dim=1)
    weights = torch.where(similarities >= 0.3, torch.exp(10.0 * similarities), 0.0)
    if given.losses.mean() <= 0.1:
        memory["stage"] = 2
    if memory.get("stage") == 2:
        gradients = gradients * (10.0 * estimate.norm() / gradients.norm(dim=1)).clamp(max=1.0)[:, None]
    memory["momentum"] = estimate
    direction = (weights / weights.sum()) @ gradients if weights.sum() > 0 else estimate
    return params - LR / (0.1 * given.staleness.min() + 1.0) * direction


def kasync_sgd(params: Tensor, memory: dict, given: Given) -> Tensor:
    return params - LR * given.gradients.mean(0)


def twafl(params: Tensor, memory: dict, given: Given) -> Tensor:
    weights = given.sizes * (math.e / 2) ** -(given.staleness - given.staleness.min())
    return params - LR * ((weights / weights.sum()) @ given.gradients)


def sasgd(params: Tensor, memory: dict, given: Given) -> Tensor:
    return params - LR * ((1.0 / given.staleness.clamp(min=1.0)) @ given.gradients) / len(given.staleness)


def gsgm(params: Tensor, memory: dict, given: Given) -> Tensor:
    k = len(given.staleness)
    corrected = given.gradients + 0.5 * memory.get("mean", torch.zeros_like(params))
    memory["sum"] = memory.get("sum", torch.zeros_like(params)) + corrected.sum(0)
    memory["count"] = memory.get("count", 0) + k
    if memory["count"] + k > given.everyone:
        memory["mean"] = memory["sum"] / memory["count"]
        memory["sum"], memory["count"] = torch.zeros_like(params), 0
    return params - LR * corrected.mean(0)


def zeno(params: Tensor, memory: dict, given: Given) -> Tensor:
    own = given.server_gradient
    gradients = given.gradients * (own.norm() / given.gradients.norm(dim=1))[:, None]
    kept = 0.1 * (gradients @ own) - 0.02 * gradients.square().sum(1) >= -0.1 * 0.1
    return params - LR * (kept.float() @ gradients) / kept.sum().clamp(min=1)


def fedasync(params: Tensor, memory: dict, given: Given) -> Tensor:
    mixing = 0.6 * (1.0 + given.staleness) ** -0.5
    models = params - given.gradients
    return params + (mixing[:, None] * (models - params)).mean(0)


def fedbuff(params: Tensor, memory: dict, given: Given) -> Tensor:
    return params - LR * ((1.0 + given.staleness) ** -0.5 @ given.gradients) / len(given.staleness)


def ca2fl(params: Tensor, memory: dict, given: Given) -> Tensor:
    if not memory:
        memory |= {"last": params.new_zeros(given.everyone, len(params)), "mean": torch.zeros_like(params)}
    news = given.gradients - memory["last"][given.clients]
    direction = memory["mean"] + news.mean(0)
    memory["mean"] = memory["mean"] + news.sum(0) / given.everyone
    memory["last"][given.clients] = given.gradients
    return params - LR * direction


def ace(params: Tensor, memory: dict, given: Given) -> Tensor:
    if not memory:
        seen = torch.zeros(given.everyone, dtype=torch.bool)
        memory |= {"last": params.new_zeros(given.everyone, len(params)), "sum": torch.zeros_like(params), "seen": seen}
    memory["sum"] = memory["sum"] + (given.gradients - memory["last"][given.clients]).sum(0)
    memory["last"][given.clients] = given.gradients
    memory["seen"][given.clients] = True
    return params - LR * memory["sum"] / memory["seen"].sum()


def fadas(params: Tensor, memory: dict, given: Given) -> Tensor:
    direction, zero = given.gradients.mean(0), torch.zeros_like(params)
    memory["mean"] = 0.9 * memory.get("mean", zero) + 0.1 * direction
    memory["square"] = 0.99 * memory.get("square", zero) + 0.01 * direction.square()
    memory["top"] = torch.maximum(memory.get("top", zero), memory["square"])
    oldest = given.staleness.max().item()
    lr = LR if oldest <= 1.0 else min(LR, 1.0 / oldest)
    return params - lr * memory["mean"] / (memory["top"].sqrt() + 1e-8)


def ringmaster(params: Tensor, memory: dict, given: Given) -> Tensor:
    fresh = (given.staleness < 30).float()
    return params - LR * (fresh @ given.gradients) / fresh.sum().clamp(min=1)


def ringleader(params: Tensor, memory: dict, given: Given) -> Tensor:
    """As long as a round gathers: the mean of every client's gradients, nothing applied until everybody delivered."""
    if not memory:
        memory |= {"means": params.new_zeros(given.everyone, len(params)), "counts": torch.zeros(given.everyone)}
        memory["now"] = torch.zeros_like(params)
    memory["counts"][given.clients] += 1
    old = memory["means"][given.clients]
    change = (given.gradients - old) / memory["counts"][given.clients][:, None]
    memory["means"][given.clients] = old + change
    memory["now"] = memory["now"] + change.sum(0) / given.everyone
    return params - LR * memory["now"] if (memory["counts"] > 0).all() else params


def delay_adaptive(params: Tensor, memory: dict, given: Given) -> Tensor:
    factors = (10.0 / given.staleness.clamp(min=1e-9)).clamp(max=1.0)
    return params - LR * (factors @ given.gradients) / len(given.staleness)


def krum(params: Tensor, memory: dict, given: Given) -> Tensor:
    k = len(given.gradients)
    distances = torch.cdist(given.gradients, given.gradients).square()  # [K, K]
    nearest = distances.sort(1).values[:, 1 : k - 2 - 2 + 1]
    return params - LR * given.gradients[nearest.sum(1).argmin()]


def geometric_median(params: Tensor, memory: dict, given: Given) -> Tensor:
    shares = given.sizes / given.sizes.sum()
    median = shares @ given.gradients
    for _ in range(16):
        weights = shares / (given.gradients - median).norm(dim=1).clamp(min=1e-6)
        median = (weights / weights.sum()) @ given.gradients
    return params - LR * median


def centered_clip(params: Tensor, memory: dict, given: Given) -> Tensor:
    center = memory.get("center", torch.zeros_like(params))
    apart = given.gradients - center
    factors = (100.0 / apart.norm(dim=1)).clamp(max=1.0)
    memory["center"] = center + factors @ apart / len(factors)
    return params - LR * memory["center"]


def fltrust(params: Tensor, memory: dict, given: Given) -> Tensor:
    own = given.server_gradient
    trust = F.cosine_similarity(given.gradients, own[None], dim=1).clamp(min=0.0)
    gradients = given.gradients * (own.norm() / given.gradients.norm(dim=1))[:, None]
    return params - LR * ((trust / trust.sum()) @ gradients)


def aflguard(params: Tensor, memory: dict, given: Given) -> Tensor:
    own = given.server_gradient
    near = ((given.gradients - own).norm(dim=1) <= 1.5 * own.norm()).float()
    return params - LR * (near @ given.gradients) / near.sum().clamp(min=1)
