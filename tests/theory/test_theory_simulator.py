"""The whole chain on a real task: simulate K-async SGD, measure its constants along the run, compare with Theorem 1."""

import numpy as np
import torch

from kasync.data import load
from kasync.data.federated import from_arrays, scaled
from kasync.models import logistic
from kasync.rules import kasync_sgd
from kasync.simulator.simulation import simulate
from kasync.theory import ModelTask, StageOne, measure_constants, theorem_one
from kasync.timelines import clock, durations
from kasync.work import Gradient

CLIENTS, K, STEPS, BATCH = 10, 3, 80, 8


def digits_by_label():
    """Clients with two labels each, 60 digits per client."""
    train = load("digits").train
    by_label = [np.flatnonzero(train.labels == label) for label in range(10)]
    parts = [
        np.concatenate([by_label[client % 10][:30], by_label[(client + 1) % 10][30:60]]) for client in range(CLIENTS)
    ]
    return from_arrays(train.inputs, train.labels, train.inputs[:100], train.labels[:100], parts)


def task_of(model, data):
    tensors = data.tensors()

    def samples(client):
        rows = tensors.indices[tensors.offsets[client] : tensors.offsets[client + 1]]
        return scaled(tensors.inputs[rows], data.scale), tensors.labels[rows]

    return ModelTask(model, torch.nn.functional.cross_entropy, samples, BATCH)


def test_a_simulated_run_on_digits_stays_under_theorem_one_with_its_measured_constants():
    data = digits_by_label()
    model = logistic(784)
    task = task_of(model, data)
    start = task.params()

    def gradient(params):
        return np.mean([task.client_gradient(params, client) for client in range(CLIENTS)], axis=0)

    timeline = clock(CLIENTS, K, STEPS, durations.log_normal(1.0, 0.5))
    rate, points = 0.003, [start]
    run = simulate(model, data, kasync_sgd(rate), timeline, Gradient(BATCH), evaluate_every=1)
    for _ in run:
        points.append(run.params.double().numpy())
    norms = np.array([np.square(gradient(point)).sum() for point in points[:-1]])

    along = [points[0], points[STEPS // 2], points[-1]]
    found = measure_constants(
        task.client_gradient, task.batch_gradient, along, range(CLIENTS), BATCH, 16, gradient, task.hessian_vector
    )
    constants = StageOne(
        smoothness=found.smoothness.value,
        gradient_noise=found.gradient_noise.value,
        noise_growth=found.noise_growth.value,
        heterogeneity=found.heterogeneity.value,
        batch_size=BATCH,
        k=K,
        steps=STEPS,
        max_staleness=int(timeline.staleness.max()),
        learning_rates=rate,
        initial_gap=float(np.mean([task.client_loss(start, client) for client in range(CLIENTS)])),  # F* is at least 0
    )
    bound = theorem_one(constants)
    assert bound.holds, str(bound)
    assert norms[-1] < norms[0]
    assert 1 < bound.looseness(norms) < 1000
