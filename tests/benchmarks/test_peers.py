"""The comparison with other libraries: its table, and kasync's own part of it."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def peers():
    before, modules = list(sys.path), set(sys.modules)
    spec = importlib.util.spec_from_file_location("peers_benchmark", BENCHMARKS / "peers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    for name in set(sys.modules) - modules & {"running", "quiet", "task", "peers_benchmark"}:
        del sys.modules[name]


def turn(peers, rate, bare, name="a", clients=100, others=0.0, thrift=1.0, bare_thrift=1.0):
    return peers.Turn(clients, 0, name, 100, rate, bare, thrift, bare_thrift, others)


def test_a_ratio_is_to_the_bare_loop_of_the_same_turn(peers):
    slow, fast = turn(peers, 50.0, 25.0), turn(peers, 100.0, 50.0)  # the machine was twice as fast
    assert slow.ratio == fast.ratio == 2.0


def test_the_table_takes_medians_of_the_ratios_not_the_ratio_of_the_medians(peers):
    turns = [turn(peers, 10.0, 10.0), turn(peers, 30.0, 10.0), turn(peers, 20.0, 2.0)]  # ratios 1, 3, 10
    (row,) = peers.table(turns)
    assert (row.quiet_turns, row.per_second, row.ratio) == (3, 20.0, 3.0)
    assert (row.ratio_from, row.ratio_to) == (2.0, 6.5)


def test_a_turn_while_others_work_counts_by_processor_time_only(peers):
    turns = [turn(peers, 10.0, 10.0, thrift=4.0), turn(peers, 1.0, 10.0, others=1.5, thrift=6.0)]
    (row,) = peers.table(turns, busy=0.3)
    assert (row.quiet_turns, row.ratio) == (1, 1.0)
    assert (row.turns, row.processor_ratio) == (2, 5.0)


def test_contestants_and_numbers_of_clients_are_not_mixed(peers):
    turns = [turn(peers, 10.0, 10.0), turn(peers, 40.0, 10.0, name="b"), turn(peers, 80.0, 10.0, clients=1000)]
    found = [(row.clients, row.name, row.ratio) for row in peers.table(turns)]
    assert found == [(100, "a", 1.0), (100, "b", 4.0), (1000, "a", 8.0)]


def test_processor_time_counts_the_children_too():
    sys.path.insert(0, str(BENCHMARKS / "peers"))
    from running import processor_seconds

    sys.path.remove(str(BENCHMARKS / "peers"))
    if not Path("/proc/self/stat").exists():
        pytest.skip("there is no /proc here to read processor times from")
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1"; true', sys.executable, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    shell.stdout.readline()
    assert 0.25 < processor_seconds(shell.pid) < 2.0
    shell.communicate(b"\n")


def test_who_cannot_run_is_named_with_the_reason_and_the_others_go_on(peers, tmp_path):
    facts = []
    broken = peers.Contestant("broken", "there_is_no_such_file.py")
    turns = list(peers.race([broken], 20, 1, 0.05, tmp_path, facts))
    assert not turns
    assert "does not run" in facts[-1]["problem"]
    assert "there_is_no_such_file.py" in facts[-1]["problem"]


def test_kasync_and_the_bare_loop_take_turns_and_it_is_written_down(tmp_path):
    command = [sys.executable, BENCHMARKS / "peers.py", "--only", "kasync", "--clients", "20", "--repetitions", "1"]
    terms = ["--seconds", "0.05", "--patience", "0", "--out", tmp_path / "out"]
    done = subprocess.run([*command, *terms], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = read(tmp_path / "out" / "table.csv")
    assert (row["clients"], row["name"], row["turns"]) == ("20", "kasync", "1")
    (only,) = read(tmp_path / "out" / "turns.csv")
    assert int(only["updates"]) % 10 == 0
    expected = float(only["per_processor_second"]) / float(only["bare_per_processor_second"])
    assert float(row["processor_ratio"]) == pytest.approx(expected, rel=0.01)
    assert [told["name"] for told in read(tmp_path / "out" / "contestants.csv")] == ["bare loop", "kasync"]


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
