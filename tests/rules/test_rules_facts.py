"""The facts beside each rule: complete, true of the rule, and the same way in for a rule of the user's."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from deliveries import LENGTH, deliver, generator
from rule_cases import CASES, every_rule, make, started

from kasync import ServerState, rules
from kasync.errors import UserError

TOLD = ("staleness", "losses", "batch_sizes", "clients", "starts")


@pytest.mark.parametrize("name", rules.RULES)
def test_a_rule_has_a_title_a_formula_and_a_paper_with_a_year(name):
    facts = rules.facts(name)
    assert facts.title
    assert facts.formula.startswith("w <- w")
    assert "(20" in facts.paper
    assert facts.rate in facts.settings


def test_titles_and_looks_are_each_rules_own():
    every = [rules.facts(name) for name in rules.RULES]
    assert len({facts.title for facts in every}) == len(every)
    places = [facts.place for facts in every if facts.place is not None]
    assert len(set(places)) == len(places)


def test_what_tables_hold_is_known_without_making_them():
    assert rules.ca2fl(0.1, clients=10**15).table_rows == 10**15 + 1


@pytest.mark.parametrize("name", rules.RULES)
def test_signatures_are_those_that_were_written(name):
    make = rules.RULES[name]
    assert not hasattr(make, "__wrapped__")
    assert {"optimizer", "schedule"} <= inspect.signature(make).parameters.keys()
    assert inspect.signature(make).return_annotation in ("Rule", rules.Rule)


@pytest.mark.parametrize("name", [name for name in rules.RULES if rules.facts(name).knob])
def test_every_value_of_a_knobs_grid_is_possible(name):
    facts = rules.facts(name)
    settings = next(settings for rule, settings, _ in CASES.values() if rule == name)
    for value in facts.grid:
        rules.build(name, **settings | {facts.knob: value})


@pytest.mark.parametrize("told", TOLD)
@every_rule
def test_a_rule_reads_of_a_delivery_what_its_facts_say_and_nothing_else(case, told):
    if told in rules.facts(CASES[case][0]).needs:
        pytest.skip("its facts say so")
    rule, random = make(case), generator(1)
    usual, other = started(rule), started(rule)
    for _ in range(3):
        arrivals = deliver(random)
        changed = {
            "staleness": arrivals.staleness + 40,
            "losses": arrivals.losses * 0.0,
            "batch_sizes": arrivals.batch_sizes.flip(0) + torch.arange(4),
            "clients": (arrivals.clients + 5) % 12,
            "starts": arrivals.starts + 1.0,
        }[told]
        usual, _ = rule(usual, arrivals)
        other, _ = rule(other, replace(arrivals, **{told: changed}))
    assert torch.equal(usual.params, other.params)


@pytest.mark.parametrize("told", TOLD)
def test_what_the_facts_say_is_needed_some_case_of_the_rule_depends_on(told):
    for name in rules.RULES:
        if told not in rules.facts(name).needs:
            continue
        moved = []
        for case in (case for case, (rule, _, _) in CASES.items() if rule == name):
            rule, arrivals = make(case), deliver(generator(2), 6)
            changed = {
                "staleness": arrivals.staleness * 3 + torch.arange(6) * 2,
                "losses": arrivals.losses * 0.1,
                "batch_sizes": arrivals.batch_sizes.flip(0) + torch.arange(6),
                "clients": arrivals.clients.flip(0),
                "starts": arrivals.starts + torch.arange(6.0)[:, None],
            }[told]
            ends = []
            for given in (arrivals, replace(arrivals, **{told: changed})):
                server = started(rule)
                for number in range(12):
                    server, _ = rule(server, given if number == 0 else deliver(generator(number + 5), 6))
                ends.append(server.params)
            moved.append(not torch.equal(*ends))
        assert any(moved), name


def test_what_follows_from_a_run_is_told_by_the_facts():
    assert rules.facts("ca2fl").settings_of_run(1000, 20) == {"clients": 1000}
    assert rules.facts("delay_adaptive").settings_of_run(1000, 20) == {"concurrency": 50.0}
    assert rules.facts("gsgm").settings_of_run(1000, 20) == {"momentum": 0.1, "clients": 1000}
    assert rules.facts("wkafl").settings_of_run(1000, 20) == {}


def test_a_rule_that_needs_more_than_what_arrives_is_not_stacked():
    assert not any(rules.facts(name).stackable for name in ("fedasync", "zeno", "fltrust", "aflguard"))
    assert all(rules.facts(name).stackable for name in ("wkafl", "recall", "ringleader", "fadas"))


MINE = '''
from kasync import Rule, rules
def plain(mixing: float, other: int = 3) -> Rule:
    """w <- w - mixing mean g_i"""
    return Rule("plain", mixing, ())
@rules.register("Mine", needs=("losses",), knob="favour", grid=(0.5, 1.0))
def mine_alone(lr: float, favour: float = 1.0) -> Rule:
    """w <- w - lr favour mean g_i

    Somebody (2026).
    """
    return Rule("mine_alone", lr * favour, ())
def wrong(lr: float):
    return lr
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "rules_of_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield "rules_of_mine"
    sys.path[:] = before
    rules.RULES.pop("mine_alone", None)
    sys.modules.pop("rules_of_mine", None)


def test_a_rule_of_the_users_is_found_by_module_and_function(mine):
    rule = rules.build(f"{mine}:plain", mixing=0.5, optimizer=torch.optim.Adam, schedule=None)
    assert (rule.lr, rule.optimizer) == (0.5, torch.optim.Adam)
    facts = rules.facts(f"{mine}:plain")
    assert (facts.title, facts.rate, facts.stackable) == ("plain", "mixing", False)
    server, _ = rule(ServerState.initial(torch.zeros(LENGTH)), deliver(generator(1), dtype=torch.float32))
    assert int(server.step) == 1


def test_a_registered_rule_of_the_users_has_facts_like_ours(mine):
    facts = rules.facts(f"{mine}:mine_alone")
    assert facts is rules.facts("mine_alone")  # importing its module has entered it
    assert (facts.title, facts.knob, facts.paper, facts.stackable) == ("Mine", "favour", "Somebody (2026).", True)
    assert rules.build("mine_alone", lr=0.1, favour=3.0).lr == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("rules_of_mine:plian", {}, "unknown name in rules_of_mine 'plian': did you mean 'plain'"),
        (
            "rules_of_mine:plain",
            {"mixin": 1.0},
            "unknown setting of rules_of_mine:plain 'mixin': did you mean",
        ),
        ("rules_of_mine:plain", {}, "rules_of_mine:plain needs mixing"),
        ("rules_of_mine:wrong", {"lr": 0.1}, "made a float: a rule's function must return a kasync.Rule"),
        ("nowhere_at_all:plain", {}, "nowhere_at_all cannot be imported"),
        ("rules_of_mine:", {}, "write module:name"),
        ("rules_of_mine:rules", {}, "is a module: name a function that makes one"),
    ],
)
def test_a_name_that_leads_nowhere_is_an_error_that_helps(mine, name, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        rules.build(name, **settings)


def test_facts_of_settings_that_do_not_exist_are_refused():
    with pytest.raises(UserError, match="unknown setting of bad 'rates'"):

        @rules.register("Bad", rate="rates")
        def bad(rate: float) -> rules.Rule: ...


def test_a_name_is_entered_once():
    def wkafl(lr: float) -> rules.Rule: ...

    with pytest.raises(ValueError, match=r"a rule 'wkafl' exists in kasync.rules"):
        rules.register("Another")(wkafl)


@pytest.mark.slow
def test_mypy_sees_the_settings_of_a_rule(tmp_path):
    pytest.importorskip("mypy")
    file = tmp_path / "seen.py"
    file.write_text("from kasync import rules\nrules.wkafl(0.1, momentun=0.2)\nreveal_type(rules.fedbuff(1.0))\n")
    ran = subprocess.run([sys.executable, "-m", "mypy", str(file)], capture_output=True, text=True, cwd=tmp_path)
    assert 'Unexpected keyword argument "momentun" for "wkafl"' in ran.stdout
    assert "kasync.core.Rule" in ran.stdout
