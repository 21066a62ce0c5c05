"""Estimates of the theorems' constants along a run, each with how it was made.

Everything here works on two functions and a sequence of parameter vectors [D]: `client_gradient(params, client)`, the
full gradient of one client's objective, and `batch_gradient(params, client, draw)`, a mini-batch gradient, where draw =
0, 1, 2 ... names independent batches. `ModelTask` makes both from a PyTorch model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kasync.errors import UserError
from kasync.theory.theorems import Floats

if TYPE_CHECKING:
    import torch

    Batch = tuple[torch.Tensor, torch.Tensor]


Gradient = Callable[[Floats], Floats]  # params [D] -> [D]
ClientGradient = Callable[[Floats, int], Floats]  # params [D], client -> [D]
BatchGradient = Callable[[Floats, int, int], Floats]  # params [D], client, draw -> [D]
HessianVector = Callable[[Floats, int, Floats], Floats]  # params [D], client, vector [D] -> [D]


@dataclass(frozen=True)
class Estimate:
    """One constant, and how it was measured."""

    value: float
    how: str

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.how})"


@dataclass(frozen=True)
class Measured:
    """The constants of Assumptions 1 to 3 along a run; pass their values to `StageOne`."""

    smoothness: Estimate
    gradient_noise: Estimate
    noise_growth: Estimate
    heterogeneity: Estimate


def measure_constants(
    client_gradient: ClientGradient,
    batch_gradient: BatchGradient,
    points: Sequence[Floats],
    clients: Sequence[int],
    batch_size: int,
    draws: int = 32,
    gradient: Gradient | None = None,
    hessian_vector: HessianVector | None = None,
) -> Measured:
    """L, sigma_c, M_c and G at the given points of a run and for the given clients.

    Cost for each point and client: about 40 full gradients for L, half of that as Hessian-vector products if they are
    given, and `draws` mini-batch gradients.
    """
    noise, growth = gradient_noise(client_gradient, batch_gradient, points, clients, batch_size, draws)
    return Measured(
        smoothness=smoothness_by_power(client_gradient, points, clients, hessian_vector=hessian_vector),
        gradient_noise=noise,
        noise_growth=growth,
        heterogeneity=heterogeneity(client_gradient, points, clients, gradient),
    )


def smoothness_by_power(
    client_gradient: ClientGradient,
    points: Sequence[Floats],
    clients: Sequence[int],
    hessian_vector: HessianVector | None = None,
    iterations: int = 20,
    seed: int = 0,
) -> Estimate:
    """L as the largest |eigenvalue| of a client's Hessian at the points, by power iteration from a random vector."""
    _some(points=points, clients=clients)
    product = hessian_vector or _by_differences(client_gradient)
    start = np.random.default_rng(seed).standard_normal(len(points[0]))
    largest = max(
        _largest_eigenvalue(product, np.asarray(point, dtype=np.float64), client, start, iterations)
        for point in points
        for client in clients
    )
    source = "Hessian-vector products" if hessian_vector else "Hessian-vector products by central differences"
    how = f"largest |eigenvalue| over {_places(points, clients)}, {iterations} power iterations on {source}"
    return Estimate(largest, how)


def smoothness_by_secants(
    client_gradient: ClientGradient, points: Sequence[Floats], clients: Sequence[int]
) -> Estimate:
    """L as the largest |grad F_i(v) - grad F_i(w)| / |v - w| over neighbouring points: cheap, never above the true."""
    _some(points=points, clients=clients)
    slopes = [
        float(np.linalg.norm(client_gradient(new, client) - client_gradient(old, client)) / np.linalg.norm(new - old))
        for old, new in pairwise(points)
        for client in clients
        if np.any(new != old)
    ]
    if not slopes:
        raise UserError(f"secants need two different points of a run; {len(points)} given, so pass more of them.")
    return Estimate(max(slopes), f"largest of {len(slopes)} secants between neighbouring points, a lower bound of L")


def heterogeneity(
    client_gradient: ClientGradient,
    points: Sequence[Floats],
    clients: Sequence[int],
    gradient: Gradient | None = None,
) -> Estimate:
    """G as the largest |grad F - grad F_i|; grad F is the mean over the given clients unless `gradient` is given."""
    _some(points=points, clients=clients)
    distances = []
    for point in points:
        rows = np.stack([client_gradient(point, client) for client in clients])  # [clients, D]
        centre = rows.mean(axis=0) if gradient is None else gradient(point)
        distances.append(np.linalg.norm(rows - centre, axis=1))
    measured = np.stack(distances)  # [points, clients]
    typical = float(np.sqrt(np.square(measured).mean()))
    centre_of = "their mean" if gradient is None else "the given gradient of F"
    how = f"largest distance of a client's full gradient from {centre_of} over {_places(points, clients)}"
    return Estimate(float(measured.max()), f"{how}; root mean square {typical:.4g}")


def gradient_noise(
    client_gradient: ClientGradient,
    batch_gradient: BatchGradient,
    points: Sequence[Floats],
    clients: Sequence[int],
    batch_size: int,
    draws: int = 32,
) -> tuple[Estimate, Estimate]:
    """(sigma_c, M_c): a line sigma_c^2 + M_c |grad F_i|^2 just above m times the measured variances."""
    _some(points=points, clients=clients)
    if draws < 1 or batch_size < 1:
        raise UserError(f"draws={draws} and batch_size={batch_size}: both must be at least 1.")
    norms, variances = [], []
    for point in points:
        for client in clients:
            exact = client_gradient(point, client)  # [D]
            misses = [np.square(batch_gradient(point, client, draw) - exact).sum() for draw in range(draws)]
            norms.append(float(np.square(exact).sum()))
            variances.append(batch_size * float(np.mean(misses)))
    floor, growth = upper_line(np.array(norms), np.array(variances))
    how = f"upper line through variances of {draws} batches of {batch_size} at {_places(points, clients)}"
    return Estimate(float(np.sqrt(floor)), how), Estimate(growth, how)


def _by_differences(client_gradient: ClientGradient) -> HessianVector:
    """Hessian times vector from two gradients, (g(w + h v) - g(w - h v)) / 2h, with h near the cube root of epsilon."""

    def product(params: Floats, client: int, vector: Floats) -> Floats:
        reach = 6e-6 * (1 + np.linalg.norm(params)) / np.linalg.norm(vector)
        ahead = client_gradient(params + reach * vector, client)
        return (ahead - client_gradient(params - reach * vector, client)) / (2 * reach)

    return product


def _largest_eigenvalue(product: HessianVector, params: Floats, client: int, start: Floats, iterations: int) -> float:
    """|H v| for the unit vector v that repeated multiplication by H ends at; never above the true value."""
    vector, length = start / np.linalg.norm(start), 0.0
    for _ in range(iterations):
        image = product(params, client, vector)
        length = float(np.linalg.norm(image))
        if length == 0.0:
            return 0.0
        vector = image / length
    return length


def _places(points: Sequence[Floats], clients: Sequence[int]) -> str:
    return f"{len(points)} points and {len(clients)} clients"


def _some(**given: Sequence) -> None:
    for name, values in given.items():
        if len(values) == 0:
            raise UserError(f"{name} is empty; pass at least one to measure at.")


class StepLike(Protocol):
    """What is asked of a step; `Selection` has it from vectors, a run that keeps inner products has it without."""

    @property
    def spread(self) -> float: ...  # sum_i p_i |estimate - g_i|^2

    @property
    def squared_length(self) -> float: ...  # |estimate|^2

    @property
    def ratio(self) -> float: ...  # the longest g_i with a weight, in lengths of the estimate

    @property
    def error(self) -> float: ...  # |estimate - grad F|


@dataclass(frozen=True)
class Selection:
    """What one step of stage two combined: weights [k], clipped gradients [k, D], the estimate [D], grad F [D]."""

    weights: Floats
    gradients: Floats
    estimate: Floats
    gradient: Floats

    @property
    def spread(self) -> float:
        """sum_i p_i |estimate - g_i|^2."""
        return float(self.weights @ np.square(self.gradients - self.estimate).sum(axis=-1))

    @property
    def squared_length(self) -> float:
        """|estimate|^2."""
        return float(np.square(self.estimate).sum())

    @property
    def ratio(self) -> float:
        """The longest gradient with a weight, in lengths of the estimate."""
        used = np.linalg.norm(self.gradients[self.weights > 0], axis=-1)
        length = float(np.linalg.norm(self.estimate))
        return float(used.max() / length) if length > 0 else float(np.inf if used.max() > 0 else 0.0)

    @property
    def error(self) -> float:
        """|estimate - grad F|."""
        return float(np.linalg.norm(self.estimate - self.gradient))


@dataclass(frozen=True)
class MeasuredStageTwo:
    """The constants of Equations (assumpTwo1) and (assumpTwo2) along a run; pass their values to `StageTwo`."""

    estimate_error: Estimate
    spread: Estimate
    spread_growth: Estimate
    clip_ratio: Estimate


def measure_stage_two(selections: Sequence[StepLike], spread_growth: float | None = None) -> MeasuredStageTwo:
    """The constants that hold on every given step; Theorem 2 then holds for that very run, without expectations.

    (sigma_e^2, M_e) is a line just above the spreads. V_j >= 0 needs a small M_e, so `spread_growth` may fix it
    and leave the rest to sigma_e.
    """
    if not selections:
        raise UserError("selections is empty; pass the steps of a run in stage two.")
    spreads = np.array([step.spread for step in selections])
    lengths = np.array([step.squared_length for step in selections])
    how = f"upper line through the spreads of {len(selections)} steps"
    if spread_growth is None:
        floor, growth = upper_line(lengths, spreads)
    else:
        growth = spread_growth
        floor = max(0.0, float((spreads - growth * lengths).max()))
        how = f"{how}, with M_e fixed at {growth:.4g}"
    largest = f"largest of {len(selections)} steps"
    return MeasuredStageTwo(
        estimate_error=Estimate(max(step.error for step in selections), f"{largest}: |estimate - grad F|"),
        spread=Estimate(float(np.sqrt(floor)), how),
        spread_growth=Estimate(growth, how),
        clip_ratio=Estimate(max(step.ratio for step in selections), f"{largest}: |g_i| / |estimate|"),
    )


def upper_line(x: Floats, y: Floats) -> tuple[float, float]:
    """(a, b), both >= 0, with a + b x_n >= y_n for all n, and equal for at least one.

    The line of least squared relative error is lifted by the smallest factor that puts it above every point. Relative,
    since the y of a run span many orders of magnitude and each carries its own few percent of sampling error: a line
    through the outermost points would take that error at a large x for a large a.
    """
    x, y = np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel()
    if x.size == 0 or x.shape != y.shape:
        raise UserError(f"upper_line got {x.size} and {y.size} measurements; give at least one of each, in pairs.")
    if not (np.all(x >= 0) and np.all(y >= 0)):
        raise UserError("upper_line got a negative or missing squared norm or variance; all must be at least 0.")
    far, top = float(x.max()), float(y.max())
    if top == 0 or far <= 1e-200 * top:  # norms that vanish beside the variances say nothing of a slope
        return top, 0.0
    start, slope = _lifted_line(x / far, y / top)
    return top * start, top / far * slope


def _lifted_line(x: Floats, y: Floats) -> tuple[float, float]:
    """The line above points in the unit square."""
    scale = np.maximum(y, 1e-6)  # a point at 0 would outweigh all others
    start, slope = _best_line(x / scale, 1 / scale, y / scale)
    heights = start + slope * x
    if np.any(heights < 1e-9 * y):  # a ray through the origin is not stretched above a point at x = 0 but raised
        return float((y - slope * x).max()), slope
    lift = float(np.max(y[y > 0] / heights[y > 0]))
    return lift * start, lift * slope


def _best_line(slopes: Floats, starts: Floats, target: Floats) -> tuple[float, float]:
    """(a, b) >= 0 with the least sum (a starts + b slopes - target)^2: inside, or on one of the two axes."""
    flat = float(starts @ target / (starts @ starts)), 0.0
    ray = 0.0, float(slopes @ target / (slopes @ slopes))
    columns = np.stack((starts, slopes), axis=1)  # [n, 2]
    inside, _, rank, _ = np.linalg.lstsq(columns / np.linalg.norm(columns, axis=0), target, rcond=1e-9)
    if rank == 2 and (inside >= 0).all():
        start, slope = inside / np.linalg.norm(columns, axis=0)
        return float(start), float(slope)
    return min(flat, ray, key=lambda line: float(np.square(columns @ line - target).sum()))


@dataclass(frozen=True)
class ModelTask:
    """A model, a mean loss, and `samples(client)` -> (inputs [n, ...], labels [n]); vectors follow named_parameters."""

    model: torch.nn.Module
    loss: Callable[[Any, Any], Any]
    samples: Callable[[int], Batch]
    batch_size: int
    seed: int = 0

    def params(self) -> Floats:
        """The model's own parameters as one vector [D]."""
        rows = [value.detach().reshape(-1).double().cpu().numpy() for value in self.model.parameters()]
        return np.concatenate(rows)

    def client_loss(self, params: Floats, client: int) -> float:
        """The mean loss over all samples of the client: F_i, whose mean at the start is an initial gap if F* >= 0."""
        with _torch().no_grad():
            return float(self._loss(self._split(params), *self.samples(client)))

    def client_gradient(self, params: Floats, client: int) -> Floats:
        """The gradient of the mean loss over all samples of the client [D]."""
        return self._gradient(params, *self.samples(client))

    def batch_gradient(self, params: Floats, client: int, draw: int) -> Floats:
        """The gradient over `batch_size` samples drawn with replacement, a function of (seed, client, draw) [D]."""
        inputs, labels = self.samples(client)
        picks = np.random.default_rng((self.seed, client, draw)).integers(len(labels), size=self.batch_size)
        rows = inputs.new_tensor(picks, dtype=_torch().int64)
        return self._gradient(params, inputs[rows], labels[rows])

    def hessian_vector(self, params: Floats, client: int, vector: Floats) -> Floats:
        """The Hessian of the client's mean loss times the vector, by automatic differentiation [D]."""
        torch = _torch()
        inputs, labels = self.samples(client)
        values = [value.requires_grad_() for value in self._split(params)]
        firsts = torch.autograd.grad(self._loss(values, inputs, labels), values, create_graph=True)
        along = sum((first * part).sum() for first, part in zip(firsts, self._split(vector), strict=True))
        if not along.requires_grad:  # a loss linear in its parameters has no second derivative to follow
            return np.zeros_like(params)
        return _joined(torch.autograd.grad(along, values, materialize_grads=True))

    def _gradient(self, params: Floats, inputs: torch.Tensor, labels: torch.Tensor) -> Floats:
        values = [value.requires_grad_() for value in self._split(params)]
        return _joined(_torch().autograd.grad(self._loss(values, inputs, labels), values))

    def _loss(self, values: list[torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        names = [name for name, _ in self.model.named_parameters()]
        outputs = _torch().func.functional_call(self.model, dict(zip(names, values, strict=True)), (inputs,))
        return self.loss(outputs, labels)

    def _split(self, flat: Floats) -> list[torch.Tensor]:
        """The vector [D] as tensors of the parameters' shapes, dtype and device."""
        own = list(self.model.parameters())
        whole = _torch().as_tensor(flat, dtype=own[0].dtype, device=own[0].device)
        parts = whole.split([value.numel() for value in own])
        return [part.reshape(value.shape).clone() for part, value in zip(parts, own, strict=True)]


def _joined(parts: Any) -> Floats:
    return np.concatenate([part.detach().reshape(-1).double().cpu().numpy() for part in parts])


def _torch() -> Any:
    import torch

    return torch
