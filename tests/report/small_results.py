"""Real results of a few seconds: what the runner makes of small experiments on the embedded digits."""

from pathlib import Path
from typing import Any

from kasync.experiments import grid
from kasync.experiments.experiment import Contender, Experiment, Problem, Task

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
    return Problem("digits", "Digits", table, RULES, "EMNIST MNIST", "5,000 embedded digits in place of EMNIST MNIST.")


def staleness(steps: int = 36) -> Experiment:
    """In the shape of Table 2: two values of P/K, two rules and the limit without staleness."""
    tasks = [
        Task(
            f"digits-{clients}",
            f"P/K = {clients}/5",
            "Digits",
            clients / 5,
            problem=digits(steps),
            run={"clients": clients, "k": 5},
            paper=PAPER,
        )
        for clients in (25, 50)
    ]
    return Experiment(
        "staleness",
        "Accuracy by staleness",
        [Contender(label, label) for label in ("wkafl", "twafl", "fresh")],
        tasks,
        shows="How rules bear staleness.",
        command="kasync reproduce staleness",
        figures=("Table 2", "Figure 7"),
        targets=(0.5, 0.7),
        x_title="P/K",
    )


def motivation(steps: int = 36) -> Experiment:
    """In the shape of Figure 2."""
    tasks = [Task(f"digits-k{k}", f"K = {k}", problem=digits(steps), run={"clients": 40, "k": k}) for k in (5, 10)]
    rules = [Contender(f"beta-{beta}", "wkafl", f"sharpness {beta}", {"sharpness": beta}) for beta in (1.0, 50.0)]
    return Experiment(
        "motivation",
        "Motivation",
        rules,
        tasks,
        shows="Few gradients decide.",
        command="kasync reproduce motivation",
        figures=("Figure 2",),
    )


def appendix(steps: int = 60) -> Experiment:
    """In the shape of Appendix D: timelines alone."""
    task = Task("p100", "P/K = 100/10", x=10.0, problem=digits(steps), run={"clients": 100, "k": 10})
    return Experiment(
        "appendix-d",
        "Staleness",
        [Contender("uniform", "none", "uniform arrivals")],
        [task],
        shows="Mean staleness.",
        command="kasync reproduce appendix-d",
        figures=("Appendix D",),
        kind="timelines",
    )


def make(out: Path, experiment: Experiment, seeds: int = 2, semantics: tuple[str, ...] = ("true",)) -> Path:
    """The experiment's runs under out, as `kasync reproduce` makes them."""
    outcome = grid.carry_out(grid.Plan([(experiment, experiment.cells(range(seeds), semantics))]), out)
    assert not outcome.failed, outcome.failed
    return out
