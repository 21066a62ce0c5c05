"""Real results of a few seconds: what the runner makes of small experiments on the embedded digits."""

from pathlib import Path
from typing import Any

from kasync.experiments import grid
from kasync.experiments.experiment import Experiment, Task, Variant
from kasync.experiments.problems import Problem

RULES = {
    "wkafl": {"lr": 0.05, "max_norm": 10.0, "loss_threshold": 1.0},
    "twafl": {"lr": 0.05},
    "fresh": {"lr": 0.05},
}
PAPER = {"wkafl": {"accuracy": 0.9734, "stability": 0.006}, "twafl": {"accuracy": 0.962, "stability": 0.0107}}


def digits(steps: int, **run: Any) -> Problem:
    """Logistic regression on the embedded digits."""
    table = {"dataset": "digits", "model": "logistic", "steps": steps, "evaluate_every": max(1, steps // 12), **run}
    table |= {"partition": {"kind": "labels", "per_client": 1}, "work": {"kind": "gradient", "batch_size": 8}}
    return Problem("digits", "Digits", "EMNIST MNIST", "5,000 embedded digits in place of EMNIST MNIST.", table, RULES)


def staleness(steps: int = 36) -> Experiment:
    """In the shape of Table 2: two values of P/K, two rules and the limit without staleness."""
    tasks = [
        Task(
            f"digits-{clients}",
            f"Digits, P/K = {clients}/5",
            digits(steps),
            {"clients": clients, "k": 5},
            "Digits",
            clients / 5,
            paper=PAPER,
        )
        for clients in (25, 50)
    ]
    return Experiment(
        "staleness",
        "Accuracy by staleness",
        "How rules bear staleness.",
        "kasync reproduce staleness",
        ("wkafl", "twafl", "fresh"),
        {"quick": tasks},
        figures=("Table 2", "Figure 7"),
        targets=(0.5, 0.7),
    )


def motivation(steps: int = 36) -> Experiment:
    """In the shape of Figure 2."""
    tasks = [Task(f"digits-k{k}", f"K = {k}", digits(steps), {"clients": 40, "k": k}) for k in (5, 10)]
    variants = {f"beta-{beta}": Variant("wkafl", f"sharpness {beta}", {"sharpness": beta}) for beta in (1.0, 50.0)}
    return Experiment(
        "motivation",
        "Motivation",
        "Few gradients decide.",
        "kasync reproduce motivation",
        tuple(variants),
        {"quick": tasks},
        figures=("Figure 2",),
        variants=variants,
    )


def appendix(steps: int = 60) -> Experiment:
    """In the shape of Appendix D: timelines alone."""
    task = Task("p100", "P/K = 100/10", digits(steps), {"clients": 100, "k": 10}, None, 10.0)
    variants = {"uniform": Variant("none", "uniform arrivals")}
    return Experiment(
        "appendix-d",
        "Staleness",
        "Mean staleness.",
        "kasync reproduce appendix-d",
        ("uniform",),
        {"quick": [task]},
        figures=("Appendix D",),
        kind="timelines",
        variants=variants,
    )


def make(out: Path, experiment: Experiment, seeds: int = 2, semantics: tuple[str, ...] = ("true",)) -> Path:
    """The experiment's runs under out, as `kasync reproduce` makes them."""
    cells = experiment.cells("quick", range(seeds), semantics)
    grid.record(out, experiment.entry("quick"), cells)
    outcome = grid.make(cells, out)
    assert not outcome.failed, outcome.failed
    return out
