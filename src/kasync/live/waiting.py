"""What is kept of a delivery until the step that uses it?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Waiting:
    """An accepted delivery."""

    client: int
    node: Hashable  # its name in the transport
    version: int  # the model it worked on
    row: Tensor  # [D] what the rule takes
    start: Tensor | None  # [D] the model it worked on, for rules that read it
    loss: float | None
    examples: float
    metrics: Mapping[str, Any]
