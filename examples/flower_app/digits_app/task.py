"""The app's task: its model, each client's samples, training and evaluation."""

import torch
from torch.nn.functional import cross_entropy

from kasync import models
from kasync.data import federate, load, partition
from kasync.data.federated import scaled


def network() -> torch.nn.Module:
    return models.mlp(784, 64, classes=10)


def samples(client: int, clients: int, labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [N, 1, 28, 28] and labels [N] of one client: Algorithm 4, a few labels each."""
    digits = load("digits")
    data = federate(digits, partition.labels(labels, size=(400, 600))(digits, clients))
    mine = data.of(client)
    return scaled(torch.from_numpy(data.train.inputs[mine]), "unit"), torch.from_numpy(data.train.labels[mine])


def train(model: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor], epochs: int, lr: float, size: int) -> float:
    """A few epochs of SGD; the mean loss of the last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        losses = []
        for batch in torch.randperm(len(data[1])).split(size):
            loss = cross_entropy(model(data[0][batch]), data[1][batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(model: torch.nn.Module) -> dict[str, float]:
    """Loss and accuracy on the 1,000 test digits."""
    held_out = load("digits").test
    with torch.no_grad():
        outputs = model(scaled(torch.from_numpy(held_out.inputs.copy()), "unit"))
    labels = torch.from_numpy(held_out.labels.copy())
    right = (outputs.argmax(1) == labels).float().mean()
    return {"loss": cross_entropy(outputs, labels).item(), "accuracy": right.item()}
