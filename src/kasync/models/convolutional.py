"""Networks for pictures and vectors: the papers' chains of convolutions and dense layers, and residual networks.

Every output is a row of logits. A chain of Conv2d, ReLU, MaxPool2d, Flatten and Linear has a fast path of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from kasync.errors import unknown
from kasync.models.seeded import positive, seeded

GROUPS = 2  # of channels that are normalised together, as Reddi et al. ("Adaptive Federated Optimization", 2021) do


def emnist_cnn(classes: int = 10, seed: int = 0) -> nn.Sequential:
    """The paper's EMNIST network for 1x28x28: 582,026 parameters with 10 classes, 608,702 with 62."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 32, 5),  # [B, 32, 24, 24]; no padding, else the parameters do not add up to 582,026
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 32, 12, 12]
            nn.Conv2d(32, 64, 5),  # [B, 64, 8, 8]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 64, 4, 4]
            nn.Flatten(),  # [B, 1024]
            *_dense(1024, 512, positive("classes", classes)),
        ),
        seed,
    )


def femnist_cnn(classes: int = 62, seed: int = 0) -> nn.Sequential:
    """LEAF's FEMNIST network for 1x28x28 (Caldas et al., 2018), convolutions padded: 6,603,710 parameters."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),  # [B, 32, 28, 28]
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),  # [B, 64, 14, 14]
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),  # [B, 3136]
            *_dense(3136, 2048, positive("classes", classes)),
        ),
        seed,
    )


def lenet(seed: int = 0, classes: int = 10) -> nn.Sequential:
    """LeNet with ReLU for 3x32x32, as the paper trains on CIFAR-10: 62,006 parameters."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 5),  # [B, 6, 28, 28]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 6, 14, 14]
            nn.Conv2d(6, 16, 5),  # [B, 16, 10, 10]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 16, 5, 5]
            nn.Flatten(),  # [B, 400]
            *_dense(400, 120, 84, positive("classes", classes)),
        ),
        seed,
    )


def fedast_cnn(classes: int = 10, seed: int = 0) -> nn.Sequential:
    """FedAST's network for CIFAR-10, 3x32x32 (Askin et al., 2024; before it FedDyn's): 797,962 parameters."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 64, 5),  # [B, 64, 28, 28]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 64, 14, 14]
            nn.Conv2d(64, 64, 5),  # [B, 64, 10, 10]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 64, 5, 5]
            nn.Flatten(),  # [B, 1600]
            *_dense(1600, 384, 192, positive("classes", classes)),
        ),
        seed,
    )


def celeba_cnn(seed: int = 0, classes: int = 2) -> nn.Sequential:
    """The paper's CelebA network for 3x84x84: 1,600,792 parameters, 16,000 values after the pool."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 10, 4),  # [B, 10, 81, 81]; no padding: only then the pool leaves 10 * 40 * 40 = 16,000 values
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 10, 40, 40]
            nn.Flatten(),  # [B, 16000]
            *_dense(16000, 100, positive("classes", classes)),
        ),
        seed,
    )


def fedbuff_cnn(classes: int = 10, seed: int = 0) -> nn.Sequential:
    """FedBuff's network for 3x32x32 (FLSim's): four convolutions that share one norm; 31,594 parameters.

    A convolution pads by two and a channel is normalised by itself: 32 groups of one channel each.
    """

    def layers() -> nn.Sequential:
        norm = nn.GroupNorm(32, 32)
        stages = [
            (nn.Conv2d(channels, 32, 3, padding=2), norm, nn.ReLU(), nn.MaxPool2d(2)) for channels in (3, 32, 32, 32)
        ]  # [B, 32, 17, 17], [B, 32, 9, 9], [B, 32, 5, 5], [B, 32, 3, 3]
        return nn.Sequential(*(layer for stage in stages for layer in stage), nn.Flatten(), nn.Linear(288, classes))

    positive("classes", classes)
    return seeded(layers, seed)


def mlp(inputs: int, hidden: int | Sequence[int] = 64, classes: int = 10, seed: int = 0) -> nn.Sequential:
    """Dense layers with ReLU between them; `hidden` is one width or several; images are flattened first."""
    hidden_widths = [hidden] if isinstance(hidden, int) else list(hidden)
    widths = [positive("inputs", inputs), *(positive("hidden", width) for width in hidden_widths)]
    positive("classes", classes)
    return seeded(lambda: nn.Sequential(nn.Flatten(), *_dense(*widths, classes)), seed)


def logistic(inputs: int, classes: int = 10, seed: int = 0) -> nn.Sequential:
    """Multinomial logistic regression: one dense layer; images are flattened first."""
    return mlp(inputs, (), classes, seed)


class Residual(nn.Module):
    """x + two convolutions of x, each with its norm; where shapes change, x passes a convolution of size 1."""

    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = norm(after), norm(after)
        same = before == after and stride == 1
        self.short = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(inner)) + self.short(x))


def resnet8(classes: int = 10, norm: str = "group", seed: int = 0) -> nn.Sequential:
    """ResNet-8 for 3x32x32 (He et al., 2016, section 4.2 with n = 1): 78,042 parameters; norm is "group" or "batch"."""
    return _resnet((16, 32, 64), 1, classes, norm, seed)


def resnet18(classes: int = 10, norm: str = "group", seed: int = 0) -> nn.Sequential:
    """ResNet-18 for 3x32x32, its first convolution 3x3 and no pool after it: 11,173,962 parameters."""
    return _resnet((64, 128, 256, 512), 2, classes, norm, seed)


def _resnet(widths: Sequence[int], blocks: int, classes: int, norm: str, seed: int) -> nn.Sequential:
    """A stage of residual blocks for each width, all but the first halving the picture; then the mean of all places."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "group": lambda channels: nn.GroupNorm(GROUPS, channels),
        "batch": nn.BatchNorm2d,
    }
    if norm not in norms:
        raise unknown("norm", norm, norms)
    positive("classes", classes)

    def layers() -> nn.Sequential:
        stages, before = [], widths[0]
        for number, width in enumerate(widths):
            for block in range(blocks):
                stages.append(Residual(before, width, 2 if number and not block else 1, norms[norm]))
                before = width
        first = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
        return nn.Sequential(first, norms[norm](widths[0]), nn.ReLU(), *stages, *end)

    return seeded(layers, seed)


def _dense(*widths: int) -> list[nn.Module]:
    """Dense layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]
