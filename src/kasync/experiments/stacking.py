"""Which runs of a grid can share their steps on a GPU, and how many at once?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from kasync.experiments.settings import Choice, RunSettings

ALONE = ("fedasync", "zeno", "fltrust", "aflguard", "none")  # rules that need more than what arrives
LANES = 2  # stacks side by side: while one opens or closes its folders, the other keeps the device busy


def stacks(runs: dict[str, RunSettings], most: int) -> Iterator[dict[str, RunSettings]]:
    """The runs in stacks of at most `most`, in the order they were asked for; a run alone is a stack of one."""
    groups: dict[str, dict[str, RunSettings]] = {}
    for name, settings in runs.items():
        groups.setdefault(_key(settings) or name, {})[name] = settings
    for group in groups.values():
        names = list(group)
        for start in range(0, len(names), most):
            yield {name: group[name] for name in names[start : start + most]}


def _key(settings: RunSettings) -> str | None:
    """Equal for runs that can be stacked: they differ in what arrives and in the learning rate, and in nothing else."""
    simple = settings.optimizer in ("none", "plain", "muon")
    plain = settings.work.kind == "gradient" and simple and settings.hold != "versions"
    if not plain or settings.rule.kind in ALONE or settings.faults:
        return None
    rule = Choice(settings.rule.kind, {n: v for n, v in settings.rule.settings.items() if n != "lr"})
    nothing = Choice("any")
    same = replace(
        settings, rule=rule, seed=0, staleness="true", validation=0.0, partition=nothing, arrivals=nothing, data={}
    )
    return json.dumps(same.table(), sort_keys=True, default=str)
