"""A real deployment: SuperLink, SuperNodes, TLS and authentication, with most things going wrong.

One federation, told once from its start to its end; each test looks at one thing that must be true of it.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, Processes, wait_for

from kasync import timelines
from kasync.live.journal import read_state

pytestmark = pytest.mark.slow
LATE, NAUGHTY, STRANGER = 3, 4, 5
SPOILT = '''

def spoilt(state, context):
    """A NaN at first, then a wrong shape."""
    if "fault" not in context.node_config:
        return state
    told = Path(str(context.node_config["fault"]))  # it outlives this process and this run
    name, value = next(iter(state.items()))
    broken = value[:1] if told.exists() else value * float("nan")
    told.touch()
    return {**state, name: broken}
'''


@dataclass(frozen=True)
class Story:
    """What was seen."""

    first: str  # what the run said that was killed
    second: str  # what the resumed run said
    at_kill: int  # the last update told before the ServerApp was killed
    step_log: dict[str, Any]
    waiting: int  # deliveries on disk that wait
    folder: Path
    stranger: subprocess.Popen[bytes]
    stranger_said: str
    trusted: tuple[bool, bool]  # with the federation's authority, without it
    victim: str  # what the killed SuperNode had said
    node_ids: dict[int, str]


def changed(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Story:
    folder = tmp_path_factory.mktemp("federation")
    with Processes(folder) as processes:
        world = Loopback(processes, nodes=6)
        changed(
            world.app / "digits_app" / "client_app.py",
            ("ArrayRecord(model.state_dict())", "ArrayRecord(spoilt(model.state_dict(), context))"),
            ("\n\n@app.evaluate()", f"{SPOILT}\n\n@app.evaluate()"),
            ("import torch\n", "from pathlib import Path\n\nimport torch\n"),
        )
        changed(world.app / "digits_app" / "server_app.py", ("        k=k,", "        k=k, offences=2, rest=0.2,"))
        node_ids = {number: world.register(number) for number in range(STRANGER)}
        nodes = {n: world.start_node(n, f"partition-id={n} num-partitions=4") for n in (0, 1, 2)}
        world.start_node(NAUGHTY, f"partition-id=0 num-partitions=4 fault='{folder / 'told'}'")
        stranger = world.start_node(STRANGER, "partition-id=1 num-partitions=4")
        settings = (
            "local-epochs=3 batch-size=16 labels-per-client=8 "
            f"checkpoint='{folder / 'state'}' timeline='{folder / 'timeline.npz'}' num-server-rounds="
        )
        world.start_run("first", f"{settings}1000")
        wait_for("the first update", lambda: world.updates("first") >= 1)
        processes.kill(processes.family(nodes[2]))
        world.start_node(LATE, "partition-id=3 num-partitions=4")
        at_death = world.updates("first")
        wait_for("an update after a SuperNode's death", lambda: world.updates("first") >= at_death + 1)
        wait_for("the late one's coming", lambda: f"({node_ids[LATE]}) is here" in processes.said("first"))
        at_kill = world.updates("first")
        processes.kill(processes.named("flwr-serverapp"))
        world.start_run("second", f"{settings}{at_kill + 4}")
        wait_for("the end", lambda: "final accuracy" in processes.said("second"))
        wait_for("the stranger's end", lambda: stranger.poll() is not None)
        saved = read_state(folder / "state")
        return Story(
            first=processes.said("first"),
            second=processes.said("second"),
            at_kill=at_kill,
            step_log={**saved["step_log"], "tally": saved["tally"]},
            waiting=len(saved["left"]),
            folder=folder,
            stranger=stranger,
            stranger_said=processes.said(f"supernode-{STRANGER}"),
            trusted=(world.trusted_by(world.keys / "ca.pem"), world.trusted_by(None)),
            victim=processes.said("supernode-2"),
            node_ids=node_ids,
        )


def test_it_learns_the_digits(story):
    (accuracy,) = re.findall(r"final accuracy: ([0-9.]+)", story.second)
    assert float(accuracy) > 0.7


def test_a_killed_supernode_does_not_stall_the_others(story):
    assert "Receiving: train message" in story.victim  # it was at work
    assert story.at_kill >= 2


def test_one_that_joins_late_takes_part(story):
    number = int(re.findall(rf"client (\d+) \({story.node_ids[LATE]}\)", story.first)[0])
    assert any(number in step for step in story.step_log["clients"])


def test_an_unregistered_one_is_refused(story):
    assert story.stranger.returncode != 0
    assert "Failed to activate SuperNode" in story.stranger_said
    seen = set(re.findall(r"client \d+ \((\d+)\) is here", story.first + story.second))
    assert seen <= set(story.node_ids.values())


def test_one_that_sends_nan_and_wrong_shapes_is_dropped_and_set_aside(story):
    said = story.first + story.second
    assert "is refused: it has a value that is not finite" in said
    assert re.search(r"is refused: its '[\w.]+' has shape", said)
    assert "it is set aside" in said
    number = int(re.findall(rf"client (\d+) \({story.node_ids[NAUGHTY]}\)", said)[0])
    assert not any(number in step for step in story.step_log["clients"])


def test_every_accepted_delivery_is_counted_once_although_the_server_was_killed(story):
    clients, versions = story.step_log["clients"], story.step_log["versions"]
    assert len(clients) == story.at_kill + 4
    (resumed,) = re.findall(r"resumed at update (\d+)", story.second)
    assert int(resumed) >= story.at_kill
    pairs = [pair for step in zip(clients, versions, strict=True) for pair in zip(*step, strict=True)]
    assert len(pairs) == len(set(pairs))
    tally = story.step_log["tally"]
    assert tally["used"] == len(pairs)
    assert tally["accepted"] == len(pairs) + story.waiting


def test_the_timeline_of_both_halves_is_written(story):
    timeline = timelines.load(story.folder / "timeline.npz")
    assert timeline.settings["steps"] == story.at_kill + 4


def test_the_superlink_shows_a_certificate_of_the_right_authority(story):
    assert story.trusted == (True, False)
