"""What a comparison found: a table with paired differences, a verdict in words, curves, frames, a page, a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kasync import files, notebook, statistics
from kasync import verdict as verdicts
from kasync.errors import UserError, optional, unknown
from kasync.experiments.experiment import Contender, Experiment, Task
from kasync.experiments.store import Run
from kasync.report import results as reading
from kasync.report.figures import BAND, RANGE, draw_band, legend, looks, panels
from kasync.report.numbers import AXES, band
from kasync.statistics import FEW, estimate
from kasync.verdict import Difference

if TYPE_CHECKING:
    from pandas import DataFrame

FORMAT, VERSION = "kasync comparison", 1
AXIS_WORDS = {"step": "server step", "time": "virtual time", "updates": "client updates"}
SAVED = ("rules", "metric", "lower_is_better", "baseline", "varies", "about", "tuned")  # as they are
LOWER = ("loss", "error", "perplexity", "mse", "mae")  # a measure that ends so is better when it is lower


@dataclass(eq=False)
class Comparison:
    """Rules on the same data, arrivals, start and batches, seed by seed.

    table         mean final value with its 95% interval, last, best, and the difference to the reference
    differences   every pair that was compared, with intervals and p-values after Holm's correction
    verdict       what can be said, in words
    """

    rules: Sequence[str]
    seeds: Sequence[int]
    runs: Mapping[str, Mapping[int, Run]]  # label -> seed -> run; one that failed is empty
    metric: str = "accuracy"
    lower_is_better: bool | None = None
    baseline: str | None = None
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # label -> seed -> why
    varies: Sequence[str] = ("batches",)  # with the seed
    about: Mapping[str, Any] = field(default_factory=dict)  # in words: model, data, arrivals, work, rules' settings
    tuned: Sequence[Mapping[str, Any]] = ()  # what was tried for each rule
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.baseline is not None and self.baseline not in self.rules:
            raise unknown("rule in baseline", self.baseline, self.rules)
        if self.lower_is_better is None:
            self.lower_is_better = self.metric.endswith(LOWER)

    # ---- numbers

    def finals(self, rule: str, metric: str | None = None) -> dict[int, float | None]:
        """By seed: the mean of the last evaluations (ten, but never more than half of them)."""
        return {seed: _of(run, metric or self.metric, statistics.final) for seed, run in self.runs[rule].items()}

    @property
    def _finals(self) -> dict[str, dict[int, float | None]]:
        return {rule: self.finals(rule) for rule in self.rules}

    @property
    def _ranked(self) -> list[str]:
        """The rules with numbers, the best first."""
        return [rule for rule, _ in verdicts.ranked(self._finals, bool(self.lower_is_better))]

    @property
    def reference(self) -> str | None:
        """The rule that the table's differences are taken to: the baseline, or else the best."""
        return self.baseline or next(iter(self._ranked), None)

    def compared(self) -> list[Difference]:
        """Every rule with the baseline, or without one every pair; p-values corrected for their number."""
        return verdicts.compared(self._finals, self.baseline)

    # ---- tables

    def rows(self) -> list[dict[str, Any]]:
        """The table as plain values, a row for each rule, the best first and those without numbers last."""
        reference, ranked, gaps, rows = self.reference, self._ranked, self.compared(), []
        ends = {"final": statistics.final, "last": lambda curve: curve[-1]}
        ends["best"] = min if self.lower_is_better else max
        for rule in [*ranked, *(rule for rule in self.rules if rule not in ranked)]:
            runs = self.runs[rule].values()
            found = {name: estimate(_of(run, self.metric, what) for run in runs) for name, what in ends.items()}
            gap = None if reference is None else verdicts.between(gaps, rule, reference)
            lead, stale = gap and gap.estimate, estimate(run.summary.get("average_staleness") for run in runs)
            final = found["final"]
            rows.append(
                {
                    "rule": rule,
                    "final": final and final.mean,
                    "±": final and final.half,
                    **{name: each and each.mean for name, each in found.items() if name != "final"},
                    f"vs {reference}": lead and lead.mean,
                    "± diff": lead and lead.half,
                    "p (Holm)": gap and gap.holm,
                    "staleness": stale and stale.mean,
                    "seeds": final.count if final else 0,
                    "failed": len(self.failed.get(rule, {})),
                    "diverged": self._diverged(rule),
                }
            )
        return rows

    @property
    def table(self) -> DataFrame:
        """A row for each rule, the best first."""
        pandas = _pandas()
        frame = pandas.DataFrame(self.rows()).set_index("rule")
        quiet = [name for name in ("failed", "diverged") if not frame[name].any()]
        empty = [name for name in frame.columns if frame[name].isna().all()]
        return frame.drop(columns=[*quiet, *empty])

    @property
    def differences(self) -> DataFrame:
        """Every pair that was compared: difference, 95% interval, p of the paired t-test, and p after Holm."""
        rows = []
        for each in self.compared():
            found = each.estimate
            row = {"rule": each.rule, "minus": each.minus, "difference": found and found.mean}
            row |= {"low": found and found.low, "high": found and found.high, "p": each.p, "p (Holm)": each.holm}
            rows.append(row | {"seeds": found.count if found else 0})
        return _pandas().DataFrame(rows)

    def to_frame(self) -> DataFrame:
        """Every evaluation of every run, long: rule, seed, step, time, updates and all that was measured."""
        pandas = _pandas()
        frames = [
            pandas.DataFrame({"rule": rule, "seed": seed, **run.rows})
            for rule in self.rules
            for seed, run in self.runs[rule].items()
            if run.rows
        ]
        empty = pandas.DataFrame(columns=["rule", "seed", "step"])
        return pandas.concat(frames, ignore_index=True) if frames else empty

    # ---- words

    @property
    def verdict(self) -> str:
        """Who is ahead, by how much, and how sure that is."""
        lost = {rule: list(by_seed.values()) for rule, by_seed in self.failed.items()}
        return verdicts.verdict(
            self._finals,
            f"final {self.metric.replace('_', ' ')}",
            lower=bool(self.lower_is_better),
            baseline=self.baseline,
            varies=self.varies,
            planned=len(self.seeds),
            failed=lost,
            diverged={rule: self._diverged(rule) for rule in self.rules},
        )

    def _diverged(self, rule: str) -> int:
        return sum(bool(run.summary.get("diverged")) for run in self.runs[rule].values())

    # ---- pictures

    def plot(self, against: str = "step", metric: str | None = None) -> Any:
        """Mean curves with bands over seeds, against "step", "time" (virtual) or "updates" of clients; a figure."""
        if against not in AXES:
            raise unknown("axis", against, AXES)
        metric = metric or self.metric
        known = {name for runs in self.runs.values() for run in runs.values() for name in run.rows}
        if metric not in known:
            raise unknown("metric", metric, known)
        figure, axes = panels(1, 1, width=6.0, height=3.4)
        (panel,) = axes.flat
        look = looks(self._contenders())
        for rule in self.rules:
            curves = [(run.rows[against], run.rows[metric]) for run in self.runs[rule].values() if metric in run.rows]
            draw_band(panel, band(curves), look[rule], rule)
        panel.set_xlabel(AXIS_WORDS[against])
        panel.set_ylabel(metric.replace("_", " "))
        if len(self.seeds) > 1:
            words = BAND if len(self.seeds) >= FEW else RANGE
            panel.fill_between([], [], [], color="#555555", alpha=0.25, linewidth=0, label=words)
        legend(figure, axes)
        return notebook.shown(figure)

    def __repr__(self) -> str:
        made = sum(run.finished for runs in self.runs.values() for run in runs.values())
        every = len(self.rules) * len(self.seeds)
        return f"Comparison({', '.join(self.rules)}; {made} of {every} runs)\n{self.verdict}"

    def _repr_html_(self) -> str:
        """Verdict, table and picture, for a notebook."""
        numbers = self.table.to_html(float_format=lambda value: f"{value:.4g}", na_rep="", border=0)
        try:
            picture = notebook.image(self.plot(), f"{self.metric} against steps")
        except UserError as problem:  # without matplotlib, or nothing to draw
            picture = f"<p>{escape(str(problem))}</p>"
        return f"<p>{escape(self.verdict)}</p>\n{numbers}\n{picture}"

    # ---- files

    def report(self, path: str | Path | None = None) -> Path:
        """Write one self-contained HTML page that needs no network; where it is."""
        from kasync.report.page import html, payload

        place = Path(path) if path is not None else (self.folder or Path()) / f"{self.name}.html"
        files.make_folder(place.parent)
        files.write(place, html(payload(reading.Results(Path(self.name), [self.experiment()]))))
        return place

    @property
    def name(self) -> str:
        return str(self.about.get("name", "comparison"))

    def save(self, path: str | Path) -> Path:
        """Write all of it into one JSON file; `Comparison.load` reads it."""
        place = Path(path)
        runs = [
            {"rule": rule, "seed": seed, **{name: getattr(run, name) for name in ("key", "settings", "summary")}}
            | {"rows": {name: values.tolist() for name, values in run.rows.items()}}
            for rule in self.rules
            for seed, run in self.runs[rule].items()
        ]
        plain = {"format": FORMAT, "version": VERSION, **{name: getattr(self, name) for name in SAVED}}
        plain |= {"seeds": list(self.seeds), "failed": self.failed, "runs": runs}
        files.make_folder(place.parent)
        files.write_json(place, plain)
        return place

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """What `save` wrote."""
        place = Path(path)
        if not place.exists():
            raise UserError(f"{place} does not exist: give a file that Comparison.save wrote.")
        table = files.read_json(place)
        if not isinstance(table, dict) or (table.get("format"), table.get("version")) != (FORMAT, VERSION):
            raise UserError(f"{place} is no comparison of this version: give a file that Comparison.save wrote.")
        runs: dict[str, dict[int, Run]] = {rule: {} for rule in table["rules"]}
        for row in table["runs"]:
            rows = {name: np.array(values, np.float64) for name, values in row["rows"].items()}
            run = Run(row["key"], row["settings"], {}, rows, {}, row["summary"])
            runs[row["rule"]][row["seed"]] = run
        failed = {rule: {int(seed): why for seed, why in each.items()} for rule, each in table["failed"].items()}
        return cls(seeds=table["seeds"], runs=runs, failed=failed, **{name: table[name] for name in SAVED})

    # ---- for the report

    def _contenders(self) -> list[Contender]:
        return [Contender(rule, rule, rule) for rule in self.rules]

    def experiment(self) -> reading.Findings:
        """As the report reads it: one task, a line for each rule."""
        title = str(self.about.get("title", "comparison"))
        task = Task(self.name, title)
        found = {run.settings.get("staleness", "true") for runs in self.runs.values() for run in runs.values()}
        way = min(found - {None}, default="true")
        rules = self._contenders()
        lines = [reading.Line(task, rule, way, self.runs[rule.label]) for rule in rules]
        return reading.Findings(self.name, Experiment(self.name, title, rules, [task], shows=self.verdict), lines)


def _of(run: Run, metric: str, what: Any) -> float | None:
    """A number of a finished run's curve; None where there is no curve, or where the run was lost in infinities."""
    if not run.finished or metric not in run.rows or not len(run.rows[metric]):
        return None
    value = float(what(run.rows[metric]))
    return value if np.isfinite(value) else None


def _pandas() -> Any:
    return optional("pandas", "tables need pandas: pip install 'kasync[compare]'.")
