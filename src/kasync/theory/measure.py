"""Estimates of the theorems' constants along a run, each saying how it was made.

Everything here works on two functions and a sequence of parameter vectors [D]: `client_gradient(params, client)`, the
full gradient of one client's objective, and `batch_gradient(params, client, draw)`, a mini-batch gradient, where draw =
0, 1, 2 ... names independent batches. `kasync.theory.tasks` makes both from a PyTorch model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kasync.errors import UserError
from kasync.theory.constants import Floats
from kasync.theory.envelope import upper_line

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
