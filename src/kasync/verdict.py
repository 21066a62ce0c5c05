"""Verdicts: what a comparison of rules over paired seeds establishes, in words.

`finals` are label -> seed -> the number that is compared; None where a run gave none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from kasync import statistics
from kasync.statistics import FEW, LEVEL, Estimate, estimate

Finals = Mapping[str, Mapping[int, float | None]]


@dataclass(frozen=True)
class Difference:
    """One rule minus another, paired by seed; `holm` is p corrected for all that were compared."""

    rule: str
    minus: str
    estimate: Estimate | None
    p: float | None
    holm: float | None = None

    @property
    def established(self) -> bool:
        """Whether the difference is significant, all comparisons taken together."""
        return self.holm is not None and self.holm < 1.0 - LEVEL

    @property
    def turned(self) -> Difference:
        """The second minus the first."""
        found = self.estimate
        gap = None if found is None else Estimate(-found.mean, found.half, found.count)
        return Difference(self.minus, self.rule, gap, self.p, self.holm)


def compared(finals: Finals, baseline: str | None = None) -> list[Difference]:
    """Every rule with the baseline, or without one every pair; p-values corrected for their number (Holm).

    Every pair, since who is best was found in the same numbers: the best with the others alone would be too few.
    """
    pairs = (
        [(rule, baseline) for rule in finals if rule != baseline]
        if baseline is not None
        else list(combinations(finals, 2))
    )
    gaps = [statistics.differences(finals[one], finals[other]) for one, other in pairs]
    raw = [statistics.p_value(gap) for gap in gaps]
    corrected = statistics.holm(raw)
    return [
        Difference(one, other, estimate(gap), p, holm)
        for (one, other), gap, p, holm in zip(pairs, gaps, raw, corrected, strict=True)
    ]


def between(differences: Sequence[Difference], rule: str, other: str) -> Difference | None:
    """The first minus the second, where they were compared."""
    for each in differences:
        if (each.rule, each.minus) == (rule, other):
            return each
        if (each.minus, each.rule) == (rule, other):
            return each.turned
    return None


def ranked(finals: Finals, lower: bool = False) -> list[tuple[str, Estimate]]:
    """Rules with numbers, the best mean first."""
    found = [(rule, each) for rule, by_seed in finals.items() if (each := estimate(by_seed.values())) is not None]
    return sorted(found, key=lambda pair: pair[1].mean, reverse=not lower)


def verdict(
    finals: Finals,
    what: str = "final accuracy",
    *,
    lower: bool = False,
    baseline: str | None = None,
    varies: Sequence[str] = (),
    planned: int | None = None,
    failed: Mapping[str, Sequence[str]] | None = None,
    diverged: Mapping[str, int] | None = None,
) -> str:
    """Who is ahead and by how much, what the intervals are intervals of, and what is missing.

    `varies` says what differs between seeds; `planned` how many there were to be; `failed` why, by rule.
    """
    best = ranked(finals, lower)
    if not best:
        why = next((each for reasons in (failed or {}).values() for each in reasons), "none was made")
        return f"No run finished: {why}"
    gaps = compared(finals, baseline)
    opening = (
        _against(gaps, baseline, what, lower) if baseline and len(finals) > 1 else _standing(best, gaps, what, lower)
    )
    sentences = [opening, _basis(best, gaps, varies), *_missing(finals, planned, failed or {}, diverged or {})]
    return " ".join(sentence for sentence in sentences if sentence)


def _standing(best: Sequence[tuple[str, Estimate]], gaps: Sequence[Difference], what: str, lower: bool) -> str:
    (leader, top), others = best[0], best[1:]
    if not others:
        return f"{leader} ends with a {what} of {_value(top)}; there is nothing to compare it with."
    opening = f"{leader} has the {'lowest' if lower else 'highest'} {what}, {_value(top)}"
    if all(each.p is None for each in gaps):
        second = f"{others[0][0]} with {_value(others[0][1])}"
        return f"{opening}, before {second}; with one seed in common this establishes no difference."
    pairs = [(other, between(gaps, leader, other)) for other, _ in others]
    ahead = [(other, gap) for other, gap in pairs if gap is not None and gap.established]
    open_ = [(other, gap) for other, gap in pairs if gap is None or not gap.established]
    if not open_:
        name, nearest = min(ahead, key=lambda pair: abs(pair[1].estimate.mean if pair[1].estimate else 0.0))
        if len(ahead) == 1:
            return f"{opening}, and differs significantly from {name} ({_gap(nearest)})."
        return f"{opening}, and differs significantly from every other rule; the nearest is {name} ({_gap(nearest)})."
    first, closest = open_[0]
    doubt = f"does not differ significantly from {_names([name for name, _ in open_])}"
    example = f" ({'' if len(open_) == 1 else f'{first}: '}{_gap(closest)})"
    rest = f"; it does from {_names([name for name, _ in ahead])}" if ahead else ""
    return f"{opening}, but {doubt}{example}{rest}."


def _against(gaps: Sequence[Difference], baseline: str, what: str, lower: bool) -> str:
    """Each rule beside the baseline."""

    def better(each: Difference) -> bool:
        return each.estimate is not None and (each.estimate.mean < 0) == lower

    groups = (
        ("significantly better", [each for each in gaps if each.established and better(each)]),
        ("significantly worse", [each for each in gaps if each.established and not better(each)]),
        ("no significant difference", [each for each in gaps if not each.established]),
    )
    told = [f"{word}: {', '.join(f'{each.rule} ({_gap(each)})' for each in rules)}" for word, rules in groups if rules]
    return f"Against {baseline} in {what}: {'; '.join(told)}."


def _basis(best: Sequence[tuple[str, Estimate]], gaps: Sequence[Difference], varies: Sequence[str]) -> str:
    """What varies, how differences were formed, and what for the p-values were corrected."""
    count = max(each.count for _, each in best)
    if count < 2:
        return ""
    known = [each for each in gaps if each.p is not None]
    seeds = f"{count} seeds{f', which vary {_names(varies)}' if varies else ''}"
    paired = "; differences are paired by seed" if known else ""
    corrected = f", p-values corrected for {len(known)} comparisons (Holm)" if len(known) > 1 else ""
    few = "" if count >= FEW or not known else f"; {count} seeds find only large differences"
    return f"± is the half width of a 95% interval (Student's t, {seeds}){paired}{corrected}{few}."


def _missing(
    finals: Finals, planned: int | None, failed: Mapping[str, Sequence[str]], diverged: Mapping[str, int]
) -> list[str]:
    """Runs that failed, diverged or are not made yet are never left out in silence."""
    sentences = []
    for rule, by_seed in finals.items():
        seeds = planned or len(by_seed)
        if failed.get(rule):
            why = failed[rule][0].rstrip(".")
            lost = f"{len(failed[rule])} of {seeds} runs of {rule} failed"
            sentences.append(f"{lost} and are left out, which may flatter it: {why}.")
        if diverged.get(rule):
            sentences.append(f"{diverged[rule]} of {seeds} runs of {rule} diverged.")
    return sentences


def _value(each: Estimate) -> str:
    return f"{each.mean:.4g}" if each.half is None else f"{each.mean:.4g} ± {each.half:.2g}"


def _gap(each: Difference | None) -> str:
    if each is None or each.estimate is None:
        return "no seed in common"
    p = each.holm
    words = "" if p is None else ", p < 0.001" if p < 0.001 else f", p = {p:.2g}"
    spread = "" if each.estimate.half is None else f" ± {each.estimate.half:.2g}"
    return f"{each.estimate.mean:+.3g}{spread}{words}"


def _names(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
