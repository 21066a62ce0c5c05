"""The inputs that are fuzzed: settings, timelines, checkpoints, traces, data sets, Flower's replies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_data import Datasets
from fuzz_replies import Replies
from fuzz_settings import Settings, Traces
from fuzz_stored import Checkpoints, Timelines

TARGETS: dict[str, Callable[[Path], Any]] = {
    "settings": Settings,
    "timelines": Timelines,
    "checkpoints": Checkpoints,
    "traces": Traces,
    "data sets": Datasets,
    "replies": Replies,
}
