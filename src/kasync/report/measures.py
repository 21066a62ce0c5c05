"""Which numbers are compared? Each with its name, how it is read from a run, and how many digits are worth printing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kasync.report.intervals import Estimate, estimate, paired
from kasync.report.results import Experiment, Line
from kasync.report.runs import Run

RATIO = 2.0  # mu of N_ave in tables; numbers.csv has them all


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    name: str
    title: str
    of: Callable[[Run], float | None]
    digits: int = 4

    def by_seed(self, line: Line) -> dict[int, float | None]:
        """Of the finished runs of a line."""
        return {seed: self.of(run) for seed, run in line.runs.items() if run.finished}

    def estimate(self, line: Line) -> Estimate | None:
        return estimate(list(self.by_seed(line).values()))

    def difference(self, line: Line, other: Line) -> Estimate | None:
        """This line minus the other, paired by seed."""
        return paired(self.by_seed(line), self.by_seed(other))


def _of_summary(name: str, run: Run) -> float | None:
    return run.summary.get(name)


def _predominant(name: str, run: Run) -> float | None:
    return run.summary.get("predominant", {}).get(name)


def _reached(accuracy: float, name: str, run: Run) -> float | None:
    first = run.reached(accuracy)
    return None if first is None else first[name]


def _aggregated(run: Run) -> float | None:
    return run.aggregated(RATIO)


ACCURACY = Measure("final_accuracy", "final accuracy", partial(_of_summary, "final_accuracy"))
STABILITY = Measure("stability", "stability", partial(_of_summary, "stability"))
PRINTED = {"final_accuracy": "accuracy", "stability": "stability"}  # what the paper's numbers are called


def targets(experiment: Experiment) -> list[Measure]:
    """Steps and virtual time to each accuracy the experiment names."""
    found = []
    for accuracy in experiment.targets:
        for name, unit in (("step", "steps"), ("time", "virtual time")):
            found.append(
                Measure(f"{name}_to_{accuracy:g}", f"{unit} to {accuracy:g}", partial(_reached, accuracy, name), 0)
            )
    return found


def steps_to(accuracy: float) -> Measure:
    """Steps to this accuracy."""
    return Measure(f"step_to_{accuracy:g}", f"steps to {accuracy:g}", partial(_reached, accuracy, "step"), 0)


def behaviour() -> list[Measure]:
    """How stale, how many, how long."""
    return [
        Measure("average_staleness", "τ_ave", partial(_of_summary, "average_staleness"), 2),
        Measure("aggregated", f"N_ave (μ = {RATIO:g})", _aggregated, 2),
        Measure("predominant", "predominant gradients", partial(_predominant, "mean"), 2),
        Measure("at_most_five", "steps with at most five", partial(_predominant, "at_most_five"), 3),
        Measure("stage_two_step", "stage two from step", partial(_of_summary, "stage_two_step"), 0),
        Measure("dropped", "dropped", partial(_of_summary, "dropped"), 0),
    ]


def of_timelines() -> list[Measure]:
    """Appendix D, counted from 1."""
    return [
        Measure("bound", "least by Appendix D", partial(_of_summary, "bound"), 2),
        Measure("least_held", "least mean held", partial(_of_summary, "least_held"), 2),
        Measure("held", "mean held", partial(_of_summary, "held"), 2),
        Measure("delivered", "mean delivered", partial(_of_summary, "delivered"), 2),
    ]


def all_of(experiment: Experiment) -> list[Measure]:
    """Every number of an experiment."""
    if experiment.kind == "timelines":
        return of_timelines()
    more = [
        Measure("best_accuracy", "best accuracy", partial(_of_summary, "best_accuracy")),
        Measure("last_accuracy", "last accuracy", partial(_of_summary, "last_accuracy")),
        Measure("last_test_loss", "last test loss", partial(_of_summary, "last_test_loss")),
    ]
    return [ACCURACY, STABILITY, *more, *targets(experiment), *behaviour()]
