"""Made data: LEAF's synthetic(alpha, beta), and a mixture of Gaussians.

synthetic(alpha, beta): clients whose models differ by alpha and whose inputs differ by beta.

Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), section 5.1. Client c draws u ~ N(0, alpha) and
B ~ N(0, beta), both read as standard deviations as in the authors' program; a model W, b ~ N(u, 1) and a centre
v ~ N(B, 1); inputs x ~ N(v, diag(j^-1.2)) and labels argmax(x W + b). The number of samples is 50 plus a log-normal.
"""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import numpy as np

from kasync.data.dataset import Dataset, Samples, every_fifth
from kasync.errors import UserError

FEWEST = 50
LOG_MEAN, LOG_DEVIATION = 4.0, 2.0


def load(
    places: Sequence[Path] = (),
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    seed: int = 0,
    classes: int = 10,
    dimension: int = 60,
) -> Dataset:
    """Made, not read: `groups` is the client; a client's samples depend on the seed and its number only."""
    for setting, value, least in (("clients", clients, 1), ("classes", classes, 2), ("dimension", dimension, 1)):
        if value != int(value) or value < least:
            raise UserError(f"{setting} is {value!r}: give a whole number of at least {least}.")
    for setting, spread in (("alpha", alpha), ("beta", beta)):
        if not isfinite(spread) or spread < 0:
            raise UserError(f"{setting} is {spread!r}: give a finite number of at least 0.")
    if seed != int(seed) or seed < 0:
        raise UserError(f"seed is {seed!r}: give a whole number of at least 0.")
    drawn = [_client(np.random.default_rng([seed, c]), alpha, beta, classes, dimension) for c in range(clients)]
    groups = np.repeat(np.arange(clients, dtype=np.int64), [len(labels) for _, labels in drawn])  # [N]
    everything = Samples(np.concatenate([x for x, _ in drawn]), np.concatenate([y for _, y in drawn]), groups)
    test = every_fifth(groups)
    source = f"synthetic({alpha:g}, {beta:g}), {clients} clients, seed {seed}"
    return Dataset("synthetic", everything.subset(~test), everything.subset(test), classes, source)


def load_mixture(
    places: Sequence[Path] = (),
    components: int = 32,
    classes: int = 4,
    dimension: int = 512,
    deviation: float = 0.5,
    distance: float = 0.2,
    samples: int = 20_000,
    seed: int = 0,
) -> Dataset:
    """A mixture of Gaussians, several to a class; `groups` is the component, every fifth sample is for testing.

    x ~ N(c, deviation^2), the centres c ~ N(0, distance^2). As large as the toy of asynchronous DiLoCo (Liu et al.,
    2024), whose program draws its centres in another way.
    """
    for setting, value, least in (
        ("components", components, 1),
        ("classes", classes, 2),
        ("dimension", dimension, 1),
        ("samples", samples, 5 * components),
    ):
        if value != int(value) or value < least:
            raise UserError(f"{setting} is {value!r}: give a whole number of at least {least}.")
    for setting, spread in (("deviation", deviation), ("distance", distance)):
        if not isfinite(spread) or spread <= 0:
            raise UserError(f"{setting} is {spread!r}: give a finite number above 0.")
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, distance, (components, dimension))
    groups = np.arange(samples, dtype=np.int64) % components
    inputs = (centres[groups] + deviation * rng.standard_normal((samples, dimension))).astype(np.float32)
    everything = Samples(inputs, groups % classes, groups)
    test = every_fifth(groups)
    source = f"{components} Gaussians in {dimension} dimensions, seed {seed}"
    return Dataset("mixture", everything.subset(~test), everything.subset(test), classes, source)


def _client(
    rng: np.random.Generator, alpha: float, beta: float, classes: int, dimension: int
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs float32 [n, F] and labels int64 [n] of one client."""
    count = FEWEST + int(rng.lognormal(LOG_MEAN, LOG_DEVIATION))
    mean_model, mean_input = rng.normal(0, alpha), rng.normal(0, beta)
    weights, bias = rng.normal(mean_model, 1, (dimension, classes)), rng.normal(mean_model, 1, classes)
    centre = rng.normal(mean_input, 1, dimension)  # [F]
    deviation = np.arange(1, dimension + 1) ** -0.6  # [F], the root of j^-1.2
    inputs = centre + deviation * rng.standard_normal((count, dimension))  # [n, F]
    return inputs.astype(np.float32), (inputs @ weights + bias).argmax(1).astype(np.int64)
