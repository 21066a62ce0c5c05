"""A grid is made once, completely, and with the same numbers by every engine."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kasync import report
from kasync.comparison import Tune, tuning
from kasync.errors import UserError
from kasync.experiments import experiment as catalogue
from kasync.experiments import grid
from kasync.experiments.display import Display, Lines
from kasync.experiments.experiment import Tuned
from kasync.experiments.runner import described
from kasync.experiments.store import Store

MINE = """
title = "mine"
shows = "that a grid works"
command = "kasync reproduce mine.toml"
rules = ["wkafl", "gsgm", "fresh"]
seeds = { quick = 2 }

[[quick]]
name = "tiny"
problem = "digits"
run = { dataset = "synthetic", model = "logistic", clients = 20, k = 4, steps = 30, partition = { kind = "iid" } }
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return str(path)


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two.toml"
    _, task = MINE.split("[[quick]]")
    path.write_text(MINE + "[[quick]]" + task.replace("tiny", "small"))
    return str(path)


class Counting(Display):
    """Remembers which runs were made."""

    def __init__(self):
        self.made = []

    def done(self, name, summary):
        self.made.append(name)


def contents(out):
    """Everything the runs of a results folder say, but for how long they took."""
    found = {}
    for folder in sorted((out / "runs").iterdir()):
        with np.load(folder / "steps.npz", allow_pickle=False) as arrays:
            steps = {name: arrays[name].tobytes() for name in arrays}
        summary = json.loads((folder / "summary.json").read_text())
        for name in ("seconds", "steps_per_second", "memory"):
            summary.pop(name)
        found[folder.name] = ((folder / "metrics.csv").read_text(), steps, summary)
    return found


def test_a_grid_is_recorded_and_made_and_then_skipped(mine, tmp_path):
    planned = grid.plan([mine])
    first, second = Counting(), Counting()
    outcome = grid.carry_out(planned, tmp_path / "out", display=first)
    assert (outcome.made, outcome.skipped, outcome.failed) == (6, 0, ())
    assert grid.carry_out(planned, tmp_path / "out", display=second).skipped == 6
    assert (len(first.made), second.made) == (6, [])
    store = Store(tmp_path / "out")
    assert [cell["experiment"] for cell in store.cells()] == ["mine-quick"] * 6
    assert all(store.finished(cell["key"]) for cell in store.cells())


def test_other_seeds_and_semantics_add_cells_and_remove_none(mine, tmp_path):
    for seeds, staleness in ((1, "true"), (2, "true"), (1, "both")):
        planned = grid.plan([mine], seeds=seeds, staleness=staleness)
        for one, cells in planned.experiments:
            Store(tmp_path).record(one.key, one.record(), [cell.record() for cell in cells])
    cells = Store(tmp_path).cells()
    places = [(cell["rule"], cell["staleness"], cell["seed"]) for cell in cells]
    assert len(places) == len(set(places)) == 3 * 2 + 2


def test_a_run_that_fails_does_not_stop_the_others(mine, tmp_path):
    planned = grid.plan([mine], seeds=1)
    broken = planned.cells[0].settings.name
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / broken).write_text("a file where a folder should be")
    outcome = grid.carry_out(planned, tmp_path)
    assert outcome.made == 2
    assert [name for name, _ in outcome.failed] == [broken]
    assert "cannot be written" in outcome.failed[0][1]


def test_a_fault_in_one_run_is_kept_beside_it_and_the_grid_goes_on(mine, tmp_path, monkeypatch):
    planned = grid.plan([mine], seeds=1)
    real, broken = grid.run, planned.cells[1].settings.name

    def sometimes(settings, folder, watch, **more):
        if folder.name == broken:
            folder.mkdir()
            raise RuntimeError("CUDA out of memory\nand more")
        return real(settings, folder, watch, **more)

    monkeypatch.setattr(grid, "run", sometimes)
    outcome = grid.carry_out(planned, tmp_path)
    assert (outcome.made, outcome.failed[0][0]) == (2, broken)
    assert outcome.failed[0][1].startswith("RuntimeError: CUDA out of memory (see")
    assert "Traceback" in (tmp_path / "runs" / broken / "error.txt").read_text()
    monkeypatch.setattr(grid, "run", real)
    assert grid.carry_out(planned, tmp_path).made == 1
    assert not (tmp_path / "runs" / broken / "error.txt").exists()


def test_control_c_stops_the_grid_and_the_same_call_goes_on(mine, tmp_path, monkeypatch):
    planned = grid.plan([mine], seeds=1)
    real, count = grid.run, iter(range(10))

    def interrupted(settings, folder, watch, **more):
        if next(count) == 1:
            raise KeyboardInterrupt
        return real(settings, folder, watch, **more)

    monkeypatch.setattr(grid, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        grid.carry_out(planned, tmp_path)
    monkeypatch.setattr(grid, "run", real)
    outcome = grid.carry_out(planned, tmp_path)
    assert (outcome.made, outcome.skipped) == (2, 1)


def test_lines_tell_of_every_run(mine, tmp_path, capsys):
    grid.carry_out(grid.plan([mine], seeds=1), tmp_path, display=Lines())
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "3 runs, 0 of them finished already"
    assert told[-1].startswith("[3/3]")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"seeds": 0}, "seeds = 0"),
        ({"scale": "ful"}, "unknown scale"),
        ({"staleness": "tru"}, "did you mean 'true'"),
        ({"rules": ["wkalf"]}, "no settings for the rule 'wkalf'"),
        ({"tuned": "nowhere.toml"}, "does not exist"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(mine, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        grid.plan([mine], **settings)


def test_an_unknown_engine_is_refused(mine, tmp_path):
    with pytest.raises(UserError, match="did you mean 'local'"):
        grid.carry_out(grid.plan([mine]), tmp_path, engine="locale")


@pytest.mark.slow
def test_a_grid_on_ray_equals_the_local_one_cell_by_cell(mine, tmp_path):
    pytest.importorskip("ray")
    planned = grid.plan([mine])
    grid.carry_out(planned, tmp_path / "local")
    outcome = grid.carry_out(planned, tmp_path / "ray", engine="ray")
    assert outcome.failed == ()
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")


def test_tuning_gives_every_rule_the_same_tries_and_the_best_is_used(mine, tmp_path):
    display = Counting()
    path = tuning.tune(mine, tmp_path, budget=3, display=display)
    assert len(display.made) == 3 * 3
    chosen = Tuned.read(path).chosen
    assert {row.rule for row in chosen} == {"wkafl", "gsgm", "fresh"}
    tried = [row for row in _tried(path) if row["rule"] == "wkafl"]
    best = max(row["accuracy"] for row in tried)
    rate = next(row.settings["lr"] for row in chosen if row.rule == "wkafl")
    assert best in [row["accuracy"] for row in tried if row["settings"]["lr"] == rate]
    cells = grid.plan([mine], tuned=str(path)).cells
    assert {cell.settings.rule.settings["lr"] for cell in cells if cell.rule.label == "wkafl"} == {rate}
    assert all(cell.settings.validation == 0 for cell in cells)


def test_tuning_again_runs_nothing_again(mine, tmp_path):
    first = tuning.tune(mine, tmp_path, budget=2, rules=["fresh"]).read_text()
    display = Counting()
    assert tuning.tune(mine, tmp_path, budget=2, rules=["fresh"], display=display).read_text() == first
    assert display.made == []


def test_only_some_tasks_are_run_and_recorded_and_later_ones_join_them(two, tmp_path):
    for tasks, there in ((["tiny"], ["tiny"]), (["s*"], ["tiny", "small"])):
        planned = grid.plan([two], seeds=1, rules=["fresh"], tasks=tasks)
        assert {cell.task.name for cell in planned.cells} == {there[-1]}
        grid.carry_out(planned, tmp_path)
        store = Store(tmp_path)
        assert [task["name"] for task in store.experiments()["two-quick"]["tasks"]] == there
        assert [cell["task"] for cell in store.cells()] == there
    with pytest.raises(UserError, match="did you mean 'small'"):
        grid.plan([two], tasks=["smal"])


def test_tuning_one_task_after_the_other_gives_one_file(two, tmp_path):
    for tasks in (["tiny"], ["small"], ["tiny"]):
        path = tuning.tune(two, tmp_path, budget=2, rules=["fresh"], tasks=tasks)
    assert sorted(row.task for row in Tuned.read(path).chosen) == ["small", "tiny"]
    assert len(_tried(path)) == 2 * 2
    other = tuning.tune(two, tmp_path, budget=1, rules=["fresh"], tasks=["tiny"])  # another search: nothing stays
    assert [row.task for row in Tuned.read(other).chosen] == ["tiny"]


def test_a_best_rate_at_the_end_of_its_grid_is_followed_as_far_as_asked(mine, tmp_path):
    def rates(path):
        return sorted({row["settings"]["lr"] for row in _tried(path)})

    small = {"overrides": {"steps": 10}, "rules": ["fresh"]}  # ten steps: the larger the rate the better
    short = tuning.tune(mine, tmp_path, budget=2, **small)
    assert Tuned.read(short).chosen[0].at_edge
    grid = rates(short)
    assert Tuned.read(short).chosen[0].settings["lr"] == grid[-1]
    further = tuning.tune(mine, tmp_path, budget=2, further=1, **small)
    assert rates(further) == pytest.approx([*grid, grid[-1] * tuning.STEP])
    with pytest.raises(UserError, match="further = -1"):
        tuning.tune(mine, tmp_path, further=-1)


def test_two_forms_of_a_rule_are_tuned_apart_and_compete_as_one(mine, tmp_path):
    text = Path(mine).read_text().replace('"gsgm"', '"even"')
    even = '[variants.even]\nrule = "fresh"\ninstead_of = "fresh"\nrun = { optimizer = "muon" }\n'
    Path(mine).write_text(text.replace("[[quick]]", f"{even}\n[[quick]]", 1))
    path = tuning.tune(mine, tmp_path, budget=2, further=1, seeds=2, overrides={"steps": 10})
    tries = [(row["rule"], row["seed"]) for row in _tried(path)]
    first = {rule: tries.count((rule, tuning.FIRST_SEED)) for rule in ("wkafl", "fresh", "even")}
    assert first == {"wkafl": 6, "fresh": 3, "even": 3}  # who competes alone gets as many as the two together
    assert [tries.count((rule, tuning.FIRST_SEED + 1)) for rule in first] == [6, 3, 3]  # and as many finalists
    scores = {row.rule: row.accuracy for row in Tuned.read(path).chosen}
    better = scores["even"] > scores["fresh"]
    planned = grid.plan([mine], tuned=str(path), overrides={"steps": 10})
    assert {cell.rule.label for cell in planned.cells} == {"wkafl", "fresh"}
    forms = {cell.settings.optimizer for cell in planned.cells if cell.rule.label == "fresh"}
    assert forms == {"muon" if better else "none"}
    grid.carry_out(planned, tmp_path)
    written = report.write(tmp_path, figures=False, html=False).tables.read_text()
    assert ("as even on 1 of 1 tasks" in written) == better
    assert "even steps" not in written
    assert "| even |" not in written


def test_neighbouring_rates_are_as_far_apart_as_asked(mine, tmp_path):
    path = tuning.tune(mine, tmp_path, budget=3, spacing=2.0, rules=["fresh"], overrides={"steps": 10})
    low, middle, high = sorted({row["settings"]["lr"] for row in _tried(path)})
    assert (middle / low, high / middle) == pytest.approx((2.0, 2.0))
    for wrong in (1.0, 0.5, 1e9):
        with pytest.raises(UserError, match=f"spacing = {wrong}"):
            tuning.tune(mine, tmp_path, spacing=wrong)


def test_the_main_knob_is_tried_at_the_best_rate(mine, tmp_path):
    path = tuning.tune(mine, tmp_path, budget=1, rules=["gsgm"], knob=True)
    assert sorted({row["settings"]["momentum"] for row in _tried(path)}) == [0.0, 0.1, 0.5, 0.9]


def test_every_rule_gets_the_same_number_of_tries_with_a_knob_or_without_and_the_best_meet_all_seeds(mine, tmp_path):
    path = tuning.tune(mine, tmp_path, budget=3, further=2, knob=True, seeds=3, overrides={"steps": 10})
    by_rule = {}
    for row in _tried(path):
        by_rule.setdefault(row["rule"], []).append((tuple(row["settings"].items()), row["seed"]))
    assert set(by_rule) == {"wkafl", "gsgm", "fresh"}
    for tries in by_rule.values():
        assert len(set(tries)) == len(tries) == 3 + 2 + 4 + 3 * 2
        seeds = Counter(settings for settings, _ in tries)
        assert sorted(seeds.values()) == [1] * 6 + [3] * 3
        assert {seed for _, seed in tries} == {100, 101, 102}
    for row in Tuned.read(path).chosen:
        mine_ = [each for each in _tried(path) if each["rule"] == row.rule and each["settings"] == row.settings]
        assert len(mine_) == 3  # whoever was tried with one seed only is not chosen, however lucky
        assert row.accuracy == pytest.approx(np.mean([each["accuracy"] for each in mine_]))
    assert len({len(row["settings"]) for row in _tried(path) if row["rule"] == "wkafl"}) == 1


def test_a_best_rate_inside_its_grid_is_tried_nearer_to_its_neighbours(mine):
    (search, *_) = Tune(9, spacing=10.0).searches(list(tuning.of_cells(catalogue.load(mine).cells()).values())[2:])
    assert search.contender.label == "fresh"

    def another(accuracies):
        search.scores = {(("lr", lr),): {100: accuracy} for lr, accuracy in accuracies.items()}
        ((settings, _), *_) = search.propose()
        return settings["lr"]

    assert another({1.0: 0.1, 10.0: 0.9, 100.0: 0.2}) == pytest.approx(1000**0.5)
    assert another({1.0: 0.1, 10.0: 0.9, 20.0: 0.2}) == pytest.approx(10**0.5)
    assert another({1.0: 0.9, 10.0: 0.1}) == pytest.approx(0.1)
    assert another({1.0: 0.1, 10.0: 0.9}) == pytest.approx(100.0)


def test_tuning_never_sees_the_test_set_nor_the_experiments_seeds(mine):
    base = catalogue.load(mine).cells(range(tuning.FIRST_SEED, tuning.FIRST_SEED + 1), overrides={"validation": 0.1})
    used = {cell.seed for cell in catalogue.load(mine).cells()}
    assert {cell.seed for cell in base}.isdisjoint(used)


def test_the_grid_of_rates_is_even_on_a_logarithmic_scale():
    rates = np.array(tuning.rate_grid(5))
    assert rates[2] == 1
    assert np.ptp(np.diff(np.log(rates))) == pytest.approx(0, abs=1e-12)


def test_a_rule_that_was_not_tuned_is_named(mine, tmp_path):
    path = tuning.tune(mine, tmp_path, budget=1, rules=["fresh"])
    with pytest.raises(UserError, match="nothing for the rule 'wkafl'"):
        grid.plan([mine], tuned=str(path))


def test_a_published_code_run_differs_from_a_true_one(mine, tmp_path):
    planned = grid.plan([mine], seeds=1, staleness="both", rules=["wkafl"])
    grid.carry_out(planned, tmp_path)
    true, published = (contents(tmp_path)[cell.settings.name][0] for cell in planned.cells)
    assert true != published
    assert replace(planned.cells[0].settings, staleness="published-code") == planned.cells[1].settings


def _tried(path):
    import tomllib

    return tomllib.loads(path.read_text())["tried"]


def cells_of(mine, **changes):
    """The cells of the experiment with these settings, whatever devices there are here."""
    return [replace(cell, settings=replace(cell.settings, **changes)) for cell in grid.plan([mine]).cells]


@pytest.mark.parametrize("change", [{"precision": "tf32"}, {"device": "cuda"}])
def test_a_grid_of_several_precisions_or_kinds_of_device_is_refused(mine, tmp_path, change):
    cells = cells_of(mine)
    other = cells_of(mine, **change)
    with pytest.raises(UserError, match="these runs would mix"):
        grid.make([cell.settings for cell in [*cells[:3], *other[3:]]], tmp_path)
    one, store = catalogue.load(mine), Store(tmp_path)
    store.record(one.key, one.record(), [cell.record() for cell in cells[:3]])
    before = (tmp_path / "cells.parquet").read_bytes()
    with pytest.raises(UserError, match="mine-quick would mix"):
        store.record(one.key, one.record(), [cell.record() for cell in other[3:]])
    assert (tmp_path / "cells.parquet").read_bytes() == before
    store.record(one.key, one.record(), [cell.record() for cell in cells])


@pytest.mark.parametrize(("precision", "lanes"), [("float32", 2), ("tf32", 1)])
def test_runs_that_round_share_a_gpu_with_no_other_thread(mine, tmp_path, monkeypatch, precision, lanes):
    runs = {
        cell.settings.name: described(cell.settings) for cell in cells_of(mine, device="cuda:0", precision=precision)
    }
    made, threads = [], []
    monkeypatch.setattr(grid, "_make_stack", lambda stack, out, display, stop, spread: made.extend(stack))

    def pool(lanes, initializer):
        threads.append(lanes)
        return ThreadPoolExecutor(lanes)

    monkeypatch.setattr(grid, "ThreadPoolExecutor", pool)
    assert grid.make_local(runs, tmp_path, Display(), 8, {}) == []
    assert sorted(made) == sorted(runs)
    assert threads == ([lanes] if lanes > 1 else [])
