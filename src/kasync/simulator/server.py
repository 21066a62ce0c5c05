"""Where does a server's own gradient come from? From a few samples that it holds itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kasync.data.dataset import Samples
from kasync.data.federated import FederatedData, scaled
from kasync.work.clients import default_loss
from kasync.work.general import General, check
from kasync.work.layers import Chain, Loss


def server_gradient(
    model: nn.Module, data: FederatedData, samples: Samples, loss: Loss | None = None, device: str = "cpu"
) -> Callable[[Tensor], Tensor]:
    """A function of the parameters [D]: the gradient [D] of the mean loss of these samples.

    zeno, fltrust and aflguard take it; `data.server_sample(count, classes)` draws samples for it.
    """
    check(model)
    machine = Chain.of(model) or General.of(model)
    inputs = torch.from_numpy(samples.inputs.copy()).to(device)
    labels = torch.from_numpy(samples.labels.copy()).to(device)
    share = torch.full((len(labels),), 1.0 / len(labels), device=device)
    formula = loss or default_loss(data)

    def gradient(params: Tensor) -> Tensor:
        out = torch.empty(1, len(params), device=params.device, dtype=params.dtype)
        with torch.no_grad():
            machine.gradients(params, scaled(inputs, data.scale), labels, share, formula, out)
        return out[0]

    return gradient
