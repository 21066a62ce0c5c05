"""On what terms does the server work with its clients?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kasync import checks
from kasync.errors import unknown

BRINGS = ("models", "gradients")
SHORTAGE = ("adapt", "wait")


@dataclass(frozen=True)
class Terms:
    """The settings of a federation.

    k              usable deliveries that make a step
    brings         "models": trained arrays, used as start minus trained; "gradients": used as they are
    shortage       when fewer than k clients are able to work: "adapt" makes steps of fewer, "wait" waits for more
    least          clients that must be there before the first work is handed out; k by default
    timeout        seconds after which a piece of work is given up
    rest           seconds a client rests after a failure; doubled with every further one, up to longest_rest
    patience       failures in a row after which a client no longer counts as able, until it delivers again
    offences       unusable deliveries after which a client is set aside for good; None for never
    max_norm       a delivery longer than this is refused
    max_staleness  a delivery staler than this is not used; 0 is K-sync
    """

    k: int
    brings: str = "models"
    shortage: str = "adapt"
    least: int | None = None
    timeout: float = 3600.0
    rest: float = 1.0
    longest_rest: float = 300.0
    patience: int = 2
    offences: int | None = 3
    max_norm: float = math.inf
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        checks.count("k", self.k)
        checks.count("patience", self.patience)
        checks.limit("timeout", self.timeout)
        checks.limit("max_norm", self.max_norm)
        checks.at_least("rest", self.rest, 0.0)
        checks.at_least("longest_rest", self.longest_rest, self.rest)
        for name, least in (("least", 1), ("offences", 1), ("max_staleness", 0)):
            value = getattr(self, name)
            if value is not None:
                checks.count(name, value, least)
        if self.brings not in BRINGS:
            raise unknown("setting of brings", self.brings, BRINGS)
        if self.shortage not in SHORTAGE:
            raise unknown("setting of shortage", self.shortage, SHORTAGE)
