"""Axes become every combination of their values; a rule at several rates becomes several contenders."""

import json
from dataclasses import replace

import pytest

from kasync.errors import UserError
from kasync.experiments import experiment as catalogue
from kasync.experiments.experiment import Chosen, Tuned

CROSSED = """
title = "mine"
shows = "every combination"
command = "kasync reproduce mine.toml"
rules = ["kasync_sgd", "sasgd", "fedasync"]
rates = [0.1, 1, 10]

[variants.fedasync]
rule = "kasync_sgd"
title = "another name"

[axes.sizes]
small = { title = "20 clients", run = { clients = 20, k = 4 } }
large = { title = "40 clients", x = 10, run = { clients = 40 } }

[axes.labels]
1 = { run = { partition = { per_client = 1 } } }
2 = { title = "2 labels", run = { partition = { per_client = 2 } } }

[[quick]]
name = "tiny"
title = "Tiny"
problem = "digits"
run = { steps = 10, k = 5 }
axes = ["sizes", "labels"]

[[quick]]
name = "plain"
problem = "digits"
"""

CONTENDERS, FORMS = ["kasync_sgd", "sasgd", "fedasync"], ("sasgd", "sasgd-even")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CROSSED)
    return path


def test_every_combination_is_a_task(path):
    tasks = catalogue.read(path).tasks
    assert [task.name for task in tasks] == ["tiny-small-1", "tiny-small-2", "tiny-large-1", "tiny-large-2", "plain"]
    assert [task.title for task in tasks][1:3] == ["Tiny, 20 clients, 2 labels", "Tiny, 40 clients, 1"]
    assert [task.x for task in tasks] == [None, None, 10, 10, None]
    assert tasks[0].run == {"steps": 10, "clients": 20, "k": 4, "partition": {"per_client": 1}}
    assert tasks[3].run == {"steps": 10, "clients": 40, "k": 5, "partition": {"per_client": 2}}


def test_a_rule_at_several_rates_is_several_contenders(path):
    cells = catalogue.read(path).cells(seeds=[0])
    rates = {cell.rule.label: cell.settings.rule.settings["lr"] for cell in cells if cell.task.name == "plain"}
    assert list(rates) == [
        f"{rule}@{factor}" for rule in ("kasync_sgd", "sasgd", "fedasync") for factor in (0.1, 1, 10)
    ]
    assert [rates[f"kasync_sgd@{factor}"] for factor in (0.1, 1, 10)] == pytest.approx([0.01, 0.1, 1.0])
    assert rates["sasgd@10"] == pytest.approx(10.0)  # 0.1 for each of ten arrivals, times ten


def test_the_factors_apply_to_the_tuned_rate_of_the_rule_itself(path):
    one = catalogue.read(path)
    tuned = Tuned("tuned.toml", [Chosen("plain", "digits", rule, {"lr": 0.5}, 0.9) for rule in ("sasgd", "kasync_sgd")])
    cells = one.only(["plain"], ["sasgd"]).cells(seeds=[0], tuned=tuned)
    assert [cell.settings.rule.settings["lr"] for cell in cells] == pytest.approx([0.05, 0.5, 5.0])


def test_naming_a_rule_means_all_its_rates_and_the_record_says_whose_they_are(path):
    one = catalogue.read(path)
    assert [rule.label for rule in one.only(rules=["sasgd"]).rules] == ["sasgd@0.1", "sasgd@1", "sasgd@10"]
    assert [rule.label for rule in one.only(rules=["sasgd@1", "wkafl"]).rules] == ["sasgd@1", "wkafl"]
    assert {row["of"] for row in one.record()["rules"]} == {"kasync_sgd", "sasgd", "fedasync"}
    assert "another name, rate × 10" in [rule.title for rule in one.rules]


TWO_FORMS = (
    CROSSED.replace('"fedasync"]', '"fedasync", "sasgd-even"]').replace("rates = [0.1, 1, 10]\n", "")
    + """
[variants.sasgd-even]
rule = "sasgd"
instead_of = "sasgd"
title = "SASGD, even steps"
run = { optimizer = "muon" }
"""
)


def test_of_two_that_compete_as_one_the_better_tuned_enters_under_the_one_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TWO_FORMS)
    one = replace(catalogue.read(path).only(["plain", "tiny-small-1"]), tuned="tuned.toml")
    assert [cell.rule.label for cell in one.only(["plain"]).cells([0])] == [*CONTENDERS, "sasgd-even"]  # to be tuned
    scores = {"plain": (0.8, 0.9), "tiny-small-1": (0.9, 0.9)}
    rows = [(task, rule, best) for task, both in scores.items() for rule, best in zip(FORMS, both, strict=True)]
    rows += [(task, rule, 0.1) for task in scores for rule in ("kasync_sgd", "fedasync")]
    lr = {"sasgd": 0.5, "sasgd-even": 0.25}
    chosen = [Chosen(task, "digits", rule, {"lr": lr.get(rule, 1.0)}, best) for task, rule, best in rows]
    cells = one.cells([0], tuned=Tuned("tuned.toml", chosen))
    assert [cell.rule.label for cell in cells] == CONTENDERS * 2
    entered = {cell.task.name: cell for cell in cells if cell.rule.label == "sasgd"}
    plain, tiny = (entered[name].settings for name in scores)
    assert (plain.optimizer, plain.rule.settings["lr"]) == ("muon", 0.25)
    assert (tiny.optimizer, tiny.rule.settings["lr"]) == ("none", 0.5)  # of equal ones the rule as it is
    assert entered["plain"].record()["entry"] == "sasgd-even"
    assert "entry" not in entered["tiny-small-1"].record()
    assert [row["label"] for row in one.record()["rules"]] == CONTENDERS


def test_what_stands_in_for_nobody_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TWO_FORMS.replace('instead_of = "sasgd"', 'instead_of = "sasg"'))
    with pytest.raises(UserError, match=r"'sasg'.*sasgd"):
        catalogue.read(path)


def test_axes_and_factors_are_columns_of_the_cells_and_come_back_from_the_record(path):
    one = catalogue.read(path)
    row = one.cells(seeds=[0])[2].record()
    assert (row["axis.sizes"], row["axis.labels"], row["of"], row["factor"]) == ("small", "1", "kasync_sgd", 10.0)
    again = catalogue.Experiment.of(json.loads(json.dumps(one.record())))
    assert [(rule.label, rule.title, rule.of, rule.factor) for rule in again.rules] == [
        (rule.label, rule.title, rule.of, rule.factor) for rule in one.rules
    ]
    assert [(task.title, task.axes, task.names) for task in again.tasks] == [
        (task.title, task.axes, task.names) for task in one.tasks
    ]


def test_a_task_may_take_only_some_values_of_an_axis_and_axes_may_come_from_another_file(path):
    head, _, tasks = CROSSED.partition("[[quick]]")
    (path.parent / "axes.toml").write_text(head.partition("[axes.sizes]")[1] + head.partition("[axes.sizes]")[2])
    beginning = head.partition("[axes.sizes]")[0]
    some = ("[[quick]]" + tasks).replace('axes = ["sizes", "labels"]', 'axes = { sizes = ["large"], labels = "*" }')
    path.write_text('include = "axes.toml"\n' + beginning + some)
    assert [task.name for task in catalogue.read(path).tasks] == ["tiny-large-1", "tiny-large-2", "plain"]
    path.write_text(path.read_text().replace('["large"]', '["larg"]'))
    with pytest.raises(UserError, match="did you mean 'large'"):
        catalogue.read(path)


def test_no_title_repeats_its_group():
    for name in catalogue.names():
        for scale in catalogue.SCALES:
            for task in catalogue.load(name, scale).tasks:
                assert not task.group or not task.short.startswith(task.group), (name, task.title)


def test_only_some_tasks_by_name_or_pattern(path):
    one = catalogue.read(path)
    assert [task.name for task in one.only(["tiny-*-2", "plain"]).tasks] == [
        "tiny-small-2",
        "tiny-large-2",
        "plain",
    ]
    assert one.only() == one
    with pytest.raises(UserError, match="unknown task of mine 'tiny-smal-1': did you mean 'tiny-small-1'"):
        one.only(["plain", "tiny-smal-1"])


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('"sizes", "labels"', '"size"', "unknown axis in mine.toml 'size': did you mean 'sizes'"),
        ('title = "2 labels", run', 'titel = "2", run', "did you mean 'title'"),
        ("1 = { run = { partition = { per_client = 1 } } }", "1 = 3", "has 1 = 3: write"),
        ("[0.1, 1, 10]", "[0.1, 0]", "give factors above 0"),
        ("[0.1, 1, 10]", "3", "give factors above 0"),
        ("clients = 20, k", "clinets = 20, k", "did you mean 'clients'"),
    ],
)
def test_a_mistake_is_named(path, before, after, sentence):
    path.write_text(CROSSED.replace(before, after))
    with pytest.raises(UserError) as refusal:
        catalogue.read(path)
    assert sentence in str(refusal.value)
