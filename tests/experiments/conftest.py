"""Small runs that every test of experiments can make: synthetic data, logistic regression, a few clients."""

from dataclasses import replace

import pytest

from kasync.experiments.settings import Choice, RunSettings


@pytest.fixture
def small() -> RunSettings:
    return RunSettings(
        dataset="synthetic",
        clients=20,
        k=4,
        steps=40,
        evaluate_every=4,
        partition=Choice("iid"),
        rule=Choice("wkafl", {"lr": 0.05}),
        work=Choice("gradient", {"batch_size": 4}),
    )


@pytest.fixture
def with_rule(small):
    """A small run of a rule with these settings."""

    def made(kind: str, **settings: object) -> RunSettings:
        return replace(small, rule=Choice(kind, {"lr": 0.05, **settings}))

    return made
