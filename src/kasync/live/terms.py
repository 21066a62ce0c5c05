"""Settings of a live federation, checked when they are given."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from kasync import checks
from kasync.errors import UserError, unknown

if TYPE_CHECKING:
    from kasync.live.roster import Client

BRINGS = ("models", "gradients")
WEIGH = ("equal", "examples")
BUFFERS = ("average", "keep")
SHORTAGE = ("adapt", "wait")
TABLES = ("grow", "fixed")
RESTART = ("update", "arrival")
SELECT = ("uniform", "in_turn", "least_heard")
Select = Callable[[Sequence["Client"]], Sequence["Client"]]  # the idle clients -> the same in the order of preference


@dataclass(frozen=True)
class Terms:
    """The settings of a federation.

    k              usable deliveries that make a step
    brings         "models": trained arrays, used as start minus trained; "gradients": used as they are
    weigh          "examples": a delivery counts by its examples times the rule's own weight, as in FedAvg; "equal"
    buffers        what is no parameter (BatchNorm statistics, counters): "average" of the values delivered, weighted
                   as the rule weighted the deliveries; "keep" the initial ones
    shortage       when fewer than k clients are able to work: "adapt" makes steps of fewer, "wait" waits for more
    min_k          the fewest deliveries of such a step; half of k by default, k for rules that need k
    grace          seconds that a shortage must last before a step is made of fewer
    give_up        seconds of shortage after which the run ends with what it has; infinity waits for ever
    least          clients that must be there before the first work is handed out; k by default
    timeout        seconds after which a piece of work is given up whatever happens
    deadline       the same as a promise to the run: later deliveries are not used; None: see slack
    slack          without a deadline, work is given up after so many times what the client usually takes (others,
                   before it delivered), never before `grace`; doubled for a client that was given up
    rest           seconds a client rests after a failure; doubled with every further one, up to longest_rest
    patience       failures in a row after which a client no longer counts as able, until it delivers again
    offences       unusable deliveries after which a client is set aside for good; None for never
    max_norm       a delivery longer than this is refused
    max_staleness  a delivery staler than this is not used; 0 is K-sync
    tables         a rule that remembers something of each of N clients: "grow" when more are there at a time than have
                   a place; "fixed": who is beyond that waits for somebody to leave
    concurrency    clients at work at a time; None for everybody
    restart        "update": who delivered is replaced when the delivery was used; "arrival": at once
    versions       where models are kept that clients still work on: "memory", or a folder for all but the newest
    select         who is next when concurrency leaves a choice: "uniform", "in_turn", "least_heard", or a function of
                   the idle clients that returns them in the order of preference
    """

    k: int
    brings: str = "models"
    weigh: str = "equal"
    buffers: str = "average"
    shortage: str = "adapt"
    min_k: int | None = None
    grace: float = 60.0
    give_up: float = math.inf
    least: int | None = None
    timeout: float = 3600.0
    deadline: float | None = None
    slack: float = 10.0
    rest: float = 1.0
    longest_rest: float = 300.0
    patience: int = 2
    offences: int | None = 3
    max_norm: float = math.inf
    max_staleness: int | None = None
    tables: str = "grow"
    concurrency: int | None = None
    restart: str = "update"
    versions: str | PathLike[str] = "memory"
    select: str | Select = "uniform"

    def __post_init__(self) -> None:
        checks.count("k", self.k)
        checks.count("patience", self.patience)
        for name in ("timeout", "max_norm", "give_up", "slack"):
            checks.limit(name, getattr(self, name))
        if self.deadline is not None:
            checks.limit("deadline", self.deadline)
        checks.at_least("grace", self.grace, 0.0)
        checks.at_least("rest", self.rest, 0.0)
        checks.at_least("longest_rest", self.longest_rest, self.rest)
        for name, least in (("least", 1), ("offences", 1), ("max_staleness", 0), ("min_k", 1), ("concurrency", 1)):
            value = getattr(self, name)
            if value is not None:
                checks.count(name, value, least)
        for name, known in (
            ("brings", BRINGS),
            ("weigh", WEIGH),
            ("buffers", BUFFERS),
            ("shortage", SHORTAGE),
            ("tables", TABLES),
            ("restart", RESTART),
        ):
            if getattr(self, name) not in known:
                raise unknown(f"setting of {name}", getattr(self, name), known)
        if self.versions != "memory" and not os.access(self.versions, os.W_OK | os.X_OK):
            raise UserError(f"versions = {str(self.versions)!r} is no folder to write into: name one, or 'memory'.")
        if not callable(self.select) and self.select not in SELECT:
            raise unknown("setting of select", str(self.select), SELECT)
        if self.min_k is not None and self.min_k > self.k:
            raise UserError(f"min_k = {self.min_k} is more than k = {self.k}: a short step has at most k deliveries.")
        if self.concurrency is not None and self.concurrency < self.k and self.restart == "update":
            raise UserError(
                f"concurrency = {self.concurrency} is less than k = {self.k}: with restart='update' k deliveries never "
                f"come together; raise concurrency, lower k or take restart='arrival'."
            )
