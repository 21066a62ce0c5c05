"""The field's own tables: problems in the file, equal uploads, over-selection, perplexity and what a target costs."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kasync.cli import papers
from kasync.errors import UserError
from kasync.experiments import experiment as catalogue
from kasync.experiments import grid
from kasync.experiments.build import data_of, model_of, timeline_of, work_of
from kasync.experiments.experiment import Tuned
from kasync.report import read, tables
from kasync.report.results import judged

EXAMPLE = Path(__file__).parents[2] / "examples" / "new_rule.py"
TABLES = ("fedbuff", "fadas", "ca2fl", "ace", "leaf", "diloco", "asynchrony")
COMPARED = {"fedbuff", "fadas", "ca2fl", "ace", "leaf"}  # with WKAFL, K-async SGD, Recall and the synchronous rule

SMALL = """
title = "t"
shows = "s"
command = "kasync"
rules = ["fedbuff", "sync"]
baseline = "sync"
costs = ["updates", "time"]
targets = [0.3]

[variants.sync]
rule = "kasync_sgd"
title = "synchronous"
run = { over_selection = 1.5 }

[problems.own]
title = "made"
[problems.own.run]
dataset = "synthetic"
data = { clients = 12 }
scale = "none"
clients = 12
k = 2
uploads = 60
evaluate = 5
partition = { kind = "natural" }
work = { kind = "local", batch_size = 5, steps = 2, lr = 0.05 }
arrivals = { kind = "clock", durations = "exponential", concurrency = 6 }
[problems.own.rules]
fedbuff = { lr = 1.0 }
kasync_sgd = { lr = 1.0 }

[[quick]]
name = "made"
title = "12 clients"
problem = "own"
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("scale", catalogue.SCALES)
def test_every_rule_of_a_table_makes_equally_many_uploads(name, scale):
    one = catalogue.load(name, scale)
    for task in one.tasks:
        cells = one.only([task.name]).cells(seeds=[0])
        uploads = [cell.settings.steps * cell.settings.k for cell in cells]
        assert max(uploads) - min(uploads) < max(cell.settings.k for cell in cells)
        fleets = {str(cell.settings.arrivals.settings["durations"]) for cell in cells}
        assert len(fleets) == 1


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_a_table_has_the_rules_that_all_tables_have(name):
    assert {"wkafl", "kasync_sgd", "recall", "sync"} <= {rule.label for rule in catalogue.load(name).rules}


@pytest.mark.parametrize("name", TABLES)
def test_the_small_scale_of_a_table_needs_no_download_and_can_be_built(name):
    one = catalogue.load(name)
    for task in one.tasks:
        cell = one.only([task.name]).cells(seeds=[0])[0]
        held = data_of(cell.settings)
        assert held.clients >= cell.settings.clients
        assert model_of(cell.settings, held) is not None
        assert work_of(cell.settings).batch_size > 0


def test_over_selection_starts_the_concurrency_and_keeps_a_part_of_it(small):
    cell = catalogue.read(small).only(rules=["sync"]).cells(seeds=[0])[0]
    assert (cell.settings.k, cell.settings.steps, cell.settings.evaluate_every) == (4, 15, 3)
    timeline = timeline_of(cell.settings)
    assert timeline.staleness.max() == 0
    fleet = timeline_of(catalogue.read(small).only(rules=["fedbuff"]).cells(seeds=[0])[0].settings)
    assert fleet.staleness.max() > 0


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("over_selection = 1.5", "over_selection = 0.5", "over_selection = 0.5"),
        ("concurrency = 6", "mode = 'async'", "with concurrency in arrivals"),
        ("uploads = 60", "uploads = 1", "at least k = 2"),
        ("evaluate = 5", "evaluate = 0", "evaluate = 0"),
        ('costs = ["updates", "time"]', 'costs = ["hours"]', "cost in small.toml"),
        ('baseline = "sync"', 'baseline = "synk"', "baseline in small.toml"),
        ('costs = ["updates", "time"]', 'metric = "perplexitty"', "metric in small.toml"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(small, before, after, words):
    small.write_text(SMALL.replace(before, after))
    with pytest.raises(UserError, match=words):
        catalogue.read(small).cells(seeds=[0])


def test_settings_of_a_model_reach_it_and_a_misspelt_one_is_an_error(small):
    small.write_text(SMALL.replace('scale = "none"', 'scale = "none"\nmodel = "mlp"\nmodel_settings = { hidden = 7 }'))
    settings = catalogue.read(small).cells(seeds=[0])[0].settings
    assert model_of(settings, data_of(settings))[1].out_features == 7
    wrong = replace(settings, model_settings={"hiden": 7})
    with pytest.raises(UserError, match="did you mean 'hidden'"):
        model_of(wrong, data_of(settings))


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    (folder / "small.toml").write_text(SMALL)
    one, out = catalogue.read(folder / "small.toml"), folder / "results"
    outcome = grid.carry_out(grid.Plan([(one, one.cells(seeds=[0, 1]))]), out)
    assert not outcome.failed
    return out


def test_the_table_says_what_a_target_costs_and_how_much_sooner_it_is_met(board):
    (found,) = read(board).experiments
    (section,) = [text for text in tables.sections(found) if "synchronous over this rule" in text]
    assert "client uploads to 0.3" in section
    fedbuff, sync = found.lines
    ratios = [sync.runs[seed].reached(0.3)["time"] / fedbuff.runs[seed].reached(0.3)["time"] for seed in (0, 1)]
    target = "virtual time to 0.3"
    assert tables.sooner(found, fedbuff)[target].mean == pytest.approx(np.mean(ratios))
    assert tables.sooner(found, sync)[target].mean == 1.0


def test_a_perplexity_is_met_where_the_loss_is_small_enough(board):
    run = read(board).experiments[0].lines[0].runs[0]
    losses = run.rows["test_loss"]
    middle = float(np.sort(losses)[len(losses) // 2])
    first = run.reached(math.exp(middle) + 1e-9, "perplexity")
    assert first["step"] == run.rows["step"][np.flatnonzero(losses <= middle)[0]]
    assert run.reached(math.exp(losses.min()) - 1e-3, "perplexity") == {}


def test_the_leaderboard_orders_rules_and_names_their_ties(board):
    page = tables.leaderboard(read(board), "results")
    (found,) = read(board).experiments
    by_mean = sorted(found.lines, key=lambda line: -judged(found).estimate(line).mean)
    places = [page.index(f"| {place} | {line.rule.title} |") for place, line in enumerate(by_mean, 1)]
    assert places == sorted(places)
    tied = "| 2 |" in page[places[0] :].split("\n", 1)[0]
    (_, others), _ = tables.ties(found, found.tasks[0])
    assert tied == (others == [2])


def test_a_rule_of_ones_own_is_tuned_and_takes_its_place_on_the_leaderboard(board, tmp_path):
    out = tmp_path / "board"
    shutil.copytree(board, out)
    page = tmp_path / "page.md"
    papers.add(
        rules=[f"{EXAMPLE}:fair"],
        experiments=[str(board.parent / "small.toml")],
        tries=2,
        further=0,
        jobs=1,
        root="",
        device="cpu",
        out=out,
        page=page,
        quiet=True,
    )
    (found,) = read(out).experiments
    added = next(line for line in found.lines if line.rule.label.endswith(":fair"))
    assert sorted(added.runs) == [0, 1]  # the seeds of the board
    assert all(run.finished for run in added.runs.values())
    tried = Tuned.read(out / "tuning" / "tuned" / "small-quick.toml").chosen
    assert [row.settings for row in tried] == [{"lr": added.runs[0].settings["rule"]["lr"]}]
    arrivals = {str(line.runs[0].settings["arrivals"]) for line in found.lines if line.rule.label != "sync"}
    assert len(arrivals) == 1
    assert page.read_text() == tables.leaderboard(read(out), str(out))
    assert "| fair |" in page.read_text()


def test_a_rule_cannot_be_added_where_there_is_no_leaderboard(tmp_path):
    with pytest.raises(UserError, match="has no leaderboard"):
        papers.add(rules=["wkafl"], device=None, root=None, out=tmp_path)
