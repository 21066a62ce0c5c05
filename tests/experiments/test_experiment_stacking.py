"""Which runs of a grid are stacked; a stack leaves the same folders as single runs."""

import pytest

from kasync import lock
from kasync.experiments import experiment as catalogue
from kasync.experiments import grid
from kasync.experiments.grid import stacks
from kasync.experiments.runner import Stopped, described, run, run_together
from kasync.experiments.settings import RunSettings
from kasync.files import read_json

SMALL = {"dataset": "digits", "model": "mlp", "clients": 20, "k": 4, "steps": 30, "evaluate_every": 10}


def settings(**changes):
    table = {**SMALL, "rule": {"kind": "wkafl", "lr": 0.05}, "work": {"kind": "gradient", "batch_size": 4}, **changes}
    return RunSettings.of(table).resolved()


def sizes(runs, most=100):
    return [len(stack) for stack in stacks({run.name: described(run) for run in runs}, most)]


def test_runs_that_differ_in_seed_rate_partition_arrivals_or_semantics_are_stacked():
    ways = [
        {},
        {"seed": 1},
        {"rule": {"kind": "wkafl", "lr": 0.1}},
        {"staleness": "published-code"},
        {"partition": {"kind": "labels", "per_client": 2}},
        {"arrivals": {"kind": "clock", "durations": {"kind": "exponential", "mean": 1.0}}},
    ]
    assert sizes(settings(**way) for way in ways) == [6]


@pytest.mark.parametrize(
    "way",
    [
        {"k": 5},
        {"steps": 20},
        {"rule": {"kind": "wkafl", "lr": 0.05, "momentum": 0.5}},
        {"rule": {"kind": "sasgd", "lr": 0.05}},
        {"schedule": "linear"},
        {"model": "logistic"},
    ],
)
def test_runs_that_differ_in_anything_else_are_not(way):
    assert sizes([settings(), settings(seed=1), settings(**way)]) == [2, 1]


@pytest.mark.parametrize(
    "way", [{"optimizer": "adam"}, {"work": {"kind": "local_sgd", "steps": 2, "lr": 0.1, "batch_size": 4}}]
)
def test_what_a_stack_cannot_do_is_made_run_by_run(way):
    assert sizes([settings(**way), settings(seed=1, **way)]) == [1, 1]


COMPARED = [(name, each.label) for name in ("recall", "recall_ablation") for each in catalogue.load(name).rules]


@pytest.mark.parametrize(("experiment", "rule"), COMPARED)
def test_every_rule_that_is_compared_can_be_stacked_over_arrivals_partitions_and_rates(tmp_path, experiment, rule):
    plan = grid.plan([experiment], seeds=1, rules=[rule], overrides={"steps": 4, "clients": 40})
    runs = [(cell.settings, tmp_path / cell.settings.name) for cell in plan.cells]
    assert [len(stack) for stack in stacks({each.name: described(each) for each, _ in runs}, 100)] == [len(runs)]
    assert {summary["stacked"] for summary in run_together(runs)} == {len(runs)}


def test_no_stack_is_larger_than_asked_and_no_run_is_lost():
    plan = grid.plan(["staleness"], scale="quick", staleness="both")
    wanted = {cell.settings.name: described(cell.settings) for cell in plan.cells}
    made = list(stacks(wanted, 3))
    assert max(map(len, made)) == 3
    assert sorted(name for stack in made for name in stack) == sorted(wanted)


def test_a_stack_leaves_the_folders_that_single_runs_leave(tmp_path):
    runs = [settings(seed=seed) for seed in (0, 1, 2)]
    alone = [run(each, tmp_path / "alone" / each.name) for each in runs]
    for share in (1.0, 1e-9):  # all at once, or one by one where there is no room for two
        out = tmp_path / str(share)
        heard = set()
        found = run_together(
            [(each, out / each.name) for each in runs], lambda f, _, add=heard.add: add(f.name), share=share
        )
        assert {each.name for each in runs} == heard
        assert [each["stacked"] for each in found] == ([3, 3, 3] if share == 1.0 else [1, 1, 1])
        for each, single, stacked in zip(runs, alone, found, strict=True):
            folder = out / each.name
            assert stacked == read_json(folder / "summary.json")
            assert stacked["final_accuracy"] == pytest.approx(single["final_accuracy"], abs=0.005)
            assert {path.name for path in folder.iterdir()} == {
                path.name for path in (tmp_path / "alone" / each.name).iterdir()
            }


def test_a_run_that_cannot_be_made_does_not_take_its_stack_with_it(tmp_path, monkeypatch):
    plan = grid.plan(["staleness"], scale="quick", seeds=2, rules=["wkafl"], overrides={"steps": 20})
    monkeypatch.setattr(grid, "stacks", lambda runs, most: stacks(runs, 100))
    held = plan.cells[0].settings.name
    (tmp_path / "runs" / held).mkdir(parents=True)
    with lock.held(tmp_path / "runs" / held):
        outcome = grid.carry_out(plan, tmp_path)
    assert [name for name, _ in outcome.failed] == [held]
    assert "is in use" in outcome.failed[0][1]
    assert outcome.made == len(plan.settings) - 1


def test_a_stack_that_is_stopped_can_be_made_again(tmp_path):
    runs = [(each, tmp_path / each.name) for each in (settings(), settings(seed=1))]
    with pytest.raises(Stopped):
        run_together(runs, stop=lambda: True)
    assert not any((folder / "summary.json").exists() for _, folder in runs)
    assert len(run_together(runs)) == 2
