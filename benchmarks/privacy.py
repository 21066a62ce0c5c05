"""What an epsilon costs in accuracy: the live loop with noise per delivery and on the sum, on the embedded digits.

    python benchmarks/privacy.py          the table of docs/flower.md; five seeds

Two hundred clients with 20 real digits each (any labels), logistic regression, one local epoch, 50 deliveries to an
update, 60 updates; who delivers next is drawn at random, so that clients take part unevenly. The epsilon is that of
the client that spent most, at delta = 1e-3 (below one in the number of clients).
"""

import statistics

import numpy as np
import torch

from kasync import LocalSGD, models, rules
from kasync.data import federate, load, partition
from kasync.data.federated import scaled
from kasync.live.clients import clients_of
from kasync.live.loop import Federation
from kasync.live.privacy import Privacy
from kasync.live.terms import Terms
from kasync.work.loop import flat_parameters

CLIENTS, K, UPDATES, SEEDS, DELTA, NORM = 200, 50, 60, 5, 1e-3, 0.3
SETTINGS = [None, *((noise, size) for size in (0.7, 1.5, 3.0, 6.0) for noise in ("sum", "delivery"))]


def run(privacy: Privacy | None, seed: int) -> tuple[float, float]:
    """Accuracy at the end, and the epsilon spent."""
    digits = load("digits")
    data = federate(digits, partition.iid()(digits, CLIENTS, seed))
    torch.manual_seed(seed)
    model = models.logistic(784, classes=10)
    clients = clients_of(model, data, LocalSGD(2, 0.3, 10), seed=seed)
    terms = Terms(k=K, brings="gradients", shortage="wait")
    federation = Federation(rules.fedbuff(1.0), flat_parameters(model).clone(), terms, privacy=privacy)
    draw, visits = np.random.default_rng(seed), np.zeros(CLIENTS, int)
    federation.present(range(CLIENTS), 0.0)
    while federation.updates < UPDATES:
        federation.dispatch(0.0)
        order = list(federation.orders.values())[draw.integers(len(federation.orders))]
        brought = clients[order.client](federation.params_of(order.version), int(visits[order.client]))
        visits[order.client] += 1
        assert federation.collect(order.ticket, order.node, brought, 0.0) == "accepted"
        federation.step(0.0)
    torch.nn.utils.vector_to_parameters(federation.server.params, model.parameters())
    held_out = digits.test
    with torch.no_grad():
        found = model(scaled(torch.from_numpy(held_out.inputs.copy()), "unit")).argmax(1)
    accuracy = float((found == torch.from_numpy(held_out.labels.copy())).float().mean())
    return accuracy, 0.0 if privacy is None else federation.epsilon()


def main() -> None:
    torch.set_num_threads(1)
    print("| noise | multiplier | epsilon, at most | accuracy, mean (least to most) |\n|---|---|---|---|")
    for setting in SETTINGS:
        found = []
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(seed)
            privacy = None if setting is None else Privacy(NORM, setting[1], DELTA, setting[0], generator)
            found.append(run(privacy, seed))
        accuracies, epsilons = zip(*found, strict=True)
        about = "none | | |" if setting is None else f"per {setting[0]} | {setting[1]:g} | {max(epsilons):.1f} |"
        spread = f"{min(accuracies):.3f} to {max(accuracies):.3f}"
        print(f"| {about} {statistics.mean(accuracies):.3f} ({spread}) |", flush=True)


if __name__ == "__main__":
    main()
