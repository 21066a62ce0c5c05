"""Does every experiment file load, build and say what it must?"""

from pathlib import Path

import pytest

from kasync.errors import UserError
from kasync.experiments import catalogue, problems, reproduce
from kasync.experiments.build import rule_of
from kasync.experiments.demo import FILE as DEMO
from kasync.experiments.resolve import NO_RULE

PACKAGE = Path(problems.__file__).parent
PROBLEMS = sorted(PACKAGE.rglob("problems/*.toml"))
EXPERIMENTS = sorted(path for path in PACKAGE.rglob("*.toml") if path not in PROBLEMS)
NEEDED = {"motivation", "ablations", "comparison", "staleness", "noniid", "zeno", "appendix_d"}


def test_every_table_and_figure_has_its_file():
    assert set(catalogue.names()) >= NEEDED
    assert DEMO in EXPERIMENTS
    figures = {figure for name in catalogue.names() for figure in catalogue.load(name).figures}
    assert figures >= {
        "Table 2",
        "Table 3",
        *(f"Figure {number}" for number in (2, 5, 6, 7, 8, 9, 10, 11)),
        "Appendix D",
    }


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_a_problem_loads(path):
    assert problems.read(path).rules


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_becomes_cells_whose_rules_can_be_built(path):
    one = catalogue.read(path)
    assert one.command.startswith("kasync")
    for scale in one.tasks:
        cells = one.cells(scale, seeds=[0], staleness=("true", "published-code"))
        assert {cell.task for cell in cells} == {task.name for task in one.tasks_at(scale)}
        for cell in cells:
            if cell.settings.rule.kind != NO_RULE:
                assert rule_of(cell.settings, lambda params: params).lr > 0


def test_the_papers_tables_are_complete():
    two = catalogue.load("staleness").tasks_at("full")
    assert [task.paper["wkafl"]["accuracy"] for task in two] == [0.9734, 0.9756, 0.9728, 0.4433, 0.4368, 0.3970]
    three = catalogue.load("noniid").tasks_at("full")
    assert all(set(task.paper) == {"wkafl", "twafl", "gsgm", "sasgd"} for task in three)
    assert sum("stability" in numbers for task in three for numbers in task.paper.values()) == 24


def test_the_authors_sasgd_is_not_divided_by_k():
    cells = catalogue.load("staleness").cells("full", seeds=[0])
    rates = {c.task: c.settings.rule.settings["lr"] for c in cells if c.rule == "sasgd"}
    assert rates["mnist-3000-10"] == pytest.approx(10 * 0.005)
    assert rates["mnist-3000-20"] == pytest.approx(20 * 0.005)


def test_tables_two_and_three_share_the_cells_they_have_in_common():
    both = reproduce.plan(["staleness", "noniid"], scale="full", seeds=1)
    assert len(both.cells) == 48
    assert both.runs == 40


def test_the_limit_without_staleness_is_listed_once_for_both_semantics():
    cells = catalogue.load("tuned").cells("quick", seeds=[0], staleness=("true", "published-code"))
    assert [cell.staleness for cell in cells if cell.rule == "fresh"] == ["none"]
    assert [cell.staleness for cell in cells if cell.rule == "wkafl"] == ["true", "published-code"]


def test_what_stands_in_for_the_papers_data_says_so():
    assert problems.problem("mnist").stands_for == "EMNIST MNIST"
    assert "in the place of" in problems.problem("mnist").note
    assert problems.problem("writers").stands_for == "EMNIST ByClass"
    assert "subset" in problems.problem("celeba").note


BEGINNING = 'title = "t"\nshows = "s"\ncommand = "kasync"\nrules = ["wkafl"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('tilte = "t"', "did you mean 'title'"),
        ('title = "t"', "lacks shows and command and rules"),
        (BEGINNING + '[[quick]]\nname = "a"\nproblem = "digit"', "did you mean 'digits'"),
        (BEGINNING + '[[quick]]\nname = "a"\nproblen = "digits"', "did you mean 'problem'"),
        (BEGINNING + '[[quick]]\nname = "a"\nproblem = "digits"\nrun = { clinets = 3 }', "did you mean 'clients'"),
        (BEGINNING + "[seeds]\nquik = 3", "did you mean 'quick'"),
        (BEGINNING + 'kind = "timeline"', "did you mean 'timelines'"),
        (BEGINNING + "[variants.a]\nlr = 3", "has no rule"),
    ],
)
def test_a_misspelt_key_is_an_error_that_names_the_nearest(tmp_path, text, sentence):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as refusal:
        catalogue.read(path)
    assert sentence in str(refusal.value)


def test_a_rule_without_settings_on_a_problem_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BEGINNING.replace("wkafl", "krum") + '[[quick]]\nname = "a"\nproblem = "digits"')
    with pytest.raises(UserError, match="no settings for the rule 'krum'"):
        catalogue.read(path).cells("quick")
