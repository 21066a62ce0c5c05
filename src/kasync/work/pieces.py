"""What does a client bring back: one gradient, or the difference that some local steps made?"""

from __future__ import annotations

from dataclasses import dataclass

from kasync import checks


@dataclass(frozen=True)
class Gradient:
    """The gradient of the mean loss of one mini-batch at the model the client received   (the paper)"""

    batch_size: int

    def __post_init__(self) -> None:
        checks.count("batch_size", self.batch_size)

    @property
    def batches(self) -> int:
        """Mini-batches drawn for one piece of work."""
        return 1


@dataclass(frozen=True)
class LocalSGD:
    """The received model minus the model after `steps` local steps of SGD   (FedAsync, FedBuff and practice)"""

    steps: int
    lr: float
    batch_size: int

    def __post_init__(self) -> None:
        checks.count("steps", self.steps)
        checks.above("lr", self.lr, 0.0)
        checks.finite("lr", self.lr)
        checks.count("batch_size", self.batch_size)

    @property
    def batches(self) -> int:
        """Mini-batches drawn for one piece of work."""
        return self.steps


Work = Gradient | LocalSGD
