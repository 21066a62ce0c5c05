"""An impossible setting is refused in one sentence with its name and value."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from deliveries import own_gradient
from rule_cases import CASES

from kasync import Part, Rule, discounts, rules, schedules

NOT_NEGATIVE = (-0.1, math.nan, math.inf, "a", None)
POSITIVE = (0, *NOT_NEGATIVE)
LIMIT = (0, -1.0, math.nan, "a", None)
COUNT = (0, -1, 2.5, "a", None, True)
WRONG = {  # setting: values no rule may take
    "lr": NOT_NEGATIVE,
    "momentum": NOT_NEGATIVE,
    "max_norm": LIMIT,
    "sharpness": (math.nan, math.inf, "a", None),
    "threshold": (-1.01, 1.5, math.nan, "a", None),
    "ratio": LIMIT,
    "loss_threshold": (math.nan, math.inf, "a", None),
    "lr_decay": NOT_NEGATIVE,
    "remember": ("estimates", None, 3),
    "clients": COUNT,
    "server_gradient": (None, 3.0, "v"),
    "scale": POSITIVE,
    "penalty": NOT_NEGATIVE,
    "slack": NOT_NEGATIVE,
    "refresh_every": COUNT,
    "mixing": (-0.1, 1.1, math.nan, "a", None),
    "power": NOT_NEGATIVE,
    "patience": NOT_NEGATIVE,
    "max_staleness": LIMIT,
    "concurrency": POSITIVE,
    "byzantine": (-1, 0.5, "a", None, True),
    "iterations": COUNT,
    "smoothing": POSITIVE,
    "radius": (-1.0, math.nan, "a", None),
    "half_distance": LIMIT,
    "reach": LIMIT,
    "measured": (1, "yes", None),
    "memory_precision": ("double", None, 3),
    "betas": ((1.0, 0.9), (0.9, -0.1), (0.9,), 0.9),
    "eps": (0.0, -1e-8, math.nan),
    "normalize": ("yes", None, 2),
    "scaled": ("yes", None, 2),
    "trust": (-0.1, 1.1, math.nan, "a", None),
    "queue": COUNT,
    "softness": POSITIVE,
    "bound": POSITIVE,
    "age": NOT_NEGATIVE,
    "agreement": NOT_NEGATIVE,
    "decay": (-0.1, 1.1, math.nan, "a"),
    "compensation": NOT_NEGATIVE,
    "every": COUNT,
    "share": (-0.1, 1.1, math.nan, "a", None),
    "ahead": ("yes", None, 2),
    "keep": (-0.1, 1.1, math.nan, "a", None),
    "turn": NOT_NEGATIVE,
    "shrink": (-0.1, 1.1, math.nan, "a", None),
    "stiffness": NOT_NEGATIVE,
    "weight": POSITIVE,
    "discount": ("polynomial", 0.5, None),
}
ACE = {"max_staleness": (-1, 2.5, "a", True)}  # whole steps, or None for no limit
GOOD = {name: settings for name, settings, _ in CASES.values()}
WRONG_SETTINGS = [
    (rule, setting, value)
    for rule, make in rules.RULES.items()
    for setting in inspect.signature(make).parameters
    if setting not in ("optimizer", "schedule")
    for value in (ACE if rule == "ace" else {}).get(setting, WRONG[setting])
]


@pytest.mark.parametrize(("rule", "setting", "value"), WRONG_SETTINGS)
def test_an_impossible_setting_is_refused_by_name_and_value(rule, setting, value):
    with pytest.raises(ValueError, match=setting) as caught:
        rules.RULES[rule](**GOOD[rule] | {setting: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: discounts.Polynomial(-1.0), "power"),
        (lambda: discounts.Hinge(slope=-1.0), "slope"),
        (lambda: discounts.Hinge(grace=-1.0), "grace"),
        (lambda: discounts.Inverse(0.0), "patience"),
        (lambda: schedules.Linear(0), "steps"),
        (lambda: schedules.Cosine(10, final=-1.0), "final"),
        (lambda: schedules.Steps(0), "every"),
        (lambda: schedules.Steps(3, factor=0.0), "factor"),
        (lambda: schedules.named("cosine", 0), "steps"),
    ],
)
def test_impossible_discounts_and_schedules_are_refused_too(make, setting):
    with pytest.raises(ValueError, match=setting):
        make()


def test_no_limit_is_written_as_infinity():
    rules.wkafl(0.1, max_norm=math.inf, ratio=math.inf)
    rules.ringmaster(0.1, max_staleness=math.inf)
    rules.centered_clip(0.1, radius=math.inf)


def test_numbers_from_numpy_are_numbers():
    rules.wkafl(np.float32(0.1), max_norm=np.float64(3.0))
    rules.ca2fl(np.float64(0.1), clients=np.int64(7))


def test_a_rule_is_built_from_its_name_and_settings():
    assert rules.build("wkafl", lr=0.1, momentum=0.2) == rules.wkafl(0.1, momentum=0.2)
    assert rules.build("fltrust", lr=0.1, server_gradient=own_gradient).name == "fltrust"


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("wkalf", {"lr": 0.1}, "unknown rule 'wkalf': did you mean 'wkafl'"),
        ("wkafl", {"lr": 0.1, "momentun": 0.2}, "unknown setting of wkafl 'momentun': did you mean 'momentum'"),
        ("gsgm", {"lr": 0.1}, "gsgm needs momentum, clients"),
    ],
)
def test_a_misspelt_or_missing_setting_is_an_error_that_helps(name, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        rules.build(name, **settings)


def test_a_part_without_a_formula_says_so():
    import torch

    from kasync import Arrivals, ServerState

    with pytest.raises(TypeError, match="Part has no formula"):
        Rule("empty", 0.1, (Part(),))(ServerState.initial(torch.zeros(2)), Arrivals(torch.ones(1, 2), [0]))


def test_every_rule_shows_its_settings():
    assert "AddMomentum(momentum=0.1, remember='estimate')" in repr(rules.wkafl(0.1))
    assert all(make.__doc__ and "(20" in make.__doc__ for make in rules.RULES.values())  # formula, and paper with year
