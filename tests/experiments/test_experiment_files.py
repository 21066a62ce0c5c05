"""Every experiment file loads, builds and names what it must."""

from pathlib import Path

import pytest

from kasync import rules
from kasync.errors import UserError
from kasync.experiments import experiment as catalogue
from kasync.experiments import grid
from kasync.experiments.build import rule_of
from kasync.experiments.experiment import DEMO
from kasync.experiments.settings import NO_RULE

PACKAGE = Path(catalogue.__file__).parent
PROBLEMS = sorted(PACKAGE.rglob("problems/*.toml"))
FACTS = PACKAGE / "authors.toml"
EXPERIMENTS = sorted(set(PACKAGE.rglob("*.toml")) - {*PROBLEMS, FACTS, *PACKAGE.rglob("shared/*.toml")})
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
    assert catalogue.problem(path.stem).rules


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_becomes_cells_whose_rules_can_be_built(path):
    scales = catalogue.SCALES if path != DEMO else ("quick",)
    for one in (catalogue.read(path, scale) for scale in scales):
        assert one.command.startswith("kasync")
        cells = one.cells(seeds=[0], staleness=("true", "published-code"))
        assert {cell.task.name for cell in cells} == {task.name for task in one.tasks}
        for cell in cells:
            if cell.settings.rule.kind != NO_RULE:
                assert rule_of(cell.settings, lambda params: params).lr > 0


def test_the_papers_tables_are_complete():
    two = catalogue.load("staleness", "full").tasks
    assert [task.paper["wkafl"]["accuracy"] for task in two] == [0.9734, 0.9756, 0.9728, 0.4433, 0.4368, 0.3970]
    three = catalogue.load("noniid", "full").tasks
    assert all(set(task.paper) == {"wkafl", "twafl", "gsgm", "sasgd"} for task in three)
    assert sum("stability" in numbers for task in three for numbers in task.paper.values()) == 24


def test_tables_two_and_three_share_the_cells_they_have_in_common():
    both = grid.plan(["staleness", "noniid"], scale="full", seeds=1)
    assert len(both.cells) == 60
    assert len(both.settings) == 50


def test_the_limit_without_staleness_is_listed_once_for_both_semantics():
    cells = catalogue.load("tuned", "quick").cells(seeds=[0], staleness=("true", "published-code"))
    assert [cell.staleness for cell in cells if cell.rule.label == "fresh"] == ["none"]
    assert [cell.staleness for cell in cells if cell.rule.label == "wkafl"] == ["true", "published-code"]


def test_every_rule_competes_with_itself_at_seven_rates_on_the_fleet_that_all_share():
    swept = catalogue.load("rates", "full").rules
    assert {each.of for each in swept} == set(rules.RULES), "enter the rule into papers/rates.toml"
    assert all(sum(each.of == name for each in swept) == 7 for name in rules.RULES)


def test_what_stands_in_for_the_papers_data_says_so():
    assert catalogue.problem("mnist").stands_for == "EMNIST MNIST"
    assert "in the place of" in catalogue.problem("mnist").note
    assert catalogue.problem("femnist").stands_for == "EMNIST ByClass"
    assert "part of" in catalogue.problem("femnist").note
    assert "subset" in catalogue.problem("celeba").note


BEGINNING = 'title = "t"\nshows = "s"\ncommand = "kasync"\nrules = ["wkafl"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('tilte = "t"', "did you mean 'title'"),
        ('title = "t"', "has no shows and command and rules"),
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
        catalogue.read(path).cells()
