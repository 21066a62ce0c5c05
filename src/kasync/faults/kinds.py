"""The kinds of faults, each a frozen value: what goes wrong, with which clients, how often."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, ClassVar

from kasync.errors import UserError, unknown

LONGEST = 10**9  # steps: longer than any run, and short enough to be added up


@dataclass(frozen=True)
class Fault:
    """A share of the clients, drawn by the seed, and the chance that a piece of their work is hit.

    `clients` names them instead of a share; `chance` may then be one number for each of them.
    """

    kind: ClassVar[str] = ""
    number: ClassVar[int] = 0  # its own draws, so that adding another fault does not move this one's

    share: float = 0.0
    chance: float | Sequence[float] = 1.0
    clients: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self._fraction("share", self.share)
        many = isinstance(self.chance, Iterable) and not isinstance(self.chance, str)
        chances = tuple(self.chance) if many else (self.chance,)  # type: ignore[arg-type]
        for chance in chances:
            self._fraction("chance", chance)
        if self.clients is not None:
            object.__setattr__(self, "clients", self._named())
        if many:
            object.__setattr__(self, "chance", chances)
            if self.clients is None or len(chances) != len(self.clients):
                raise UserError(
                    f"chance of {self.kind} has {len(chances)} numbers: name as many in clients, or give one number."
                )
        if (self.clients is None) == (self.share == 0):
            raise UserError(
                f"{self.kind} has share = {self.share} and clients = {self.clients}: give a share above 0, or clients."
            )

    def _named(self) -> tuple[int, ...]:
        """The clients of the list, all different."""
        given: Any = self.clients
        listed = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
        whole = all(isinstance(each, Integral) and not isinstance(each, bool) and int(each) >= 0 for each in listed)
        if not listed or not whole or len(set(listed)) < len(listed):
            raise UserError(f"clients of {self.kind} is {given!r}: list different client numbers from 0 on.")
        return tuple(int(each) for each in listed)

    def _fraction(self, name: str, value: object) -> None:
        if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= 1:
            raise UserError(f"{name} of {self.kind} is {value!r}: give a number from 0 to 1.")

    def _whole(self, name: str, value: object) -> None:
        if not isinstance(value, Integral) or isinstance(value, bool) or not 1 <= int(value) <= LONGEST:
            raise UserError(f"{name} of {self.kind} is {value!r}: give a whole number of steps, 1 to {LONGEST:,}.")


@dataclass(frozen=True)
class ArrivalFault(Fault):
    """Changes who delivers when: it belongs to the timeline."""


@dataclass(frozen=True)
class Leave(ArrivalFault):
    """The client leaves in the middle of a piece of work, for good."""

    kind, number = "leave", 1
    chance: float | Sequence[float] = 0.1


@dataclass(frozen=True)
class LeaveAndReturn(ArrivalFault):
    """The client leaves in the middle of a piece of work and takes the newest model `away` steps later."""

    kind, number = "return", 2
    chance: float | Sequence[float] = 0.5
    away: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("away", self.away)


@dataclass(frozen=True)
class Late(ArrivalFault):
    """Something comes `delay` steps later than it would."""

    delay: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("delay", self.delay)


@dataclass(frozen=True)
class Stall(Late):
    """The client takes `delay` steps longer for a piece of work, and delivers it that much staler."""

    kind, number = "stall", 3
    delay: int = 20


@dataclass(frozen=True)
class DeliverTwice(Late):
    """The answer to an upload is lost: the client sends it again `delay` steps later, and the server uses both."""

    kind, number = "twice", 4


@dataclass(frozen=True)
class DeliveryFault(Fault):
    """Changes what arrives: row * times + plus + noise |row| z, z a normal vector of length about 1."""

    always: ClassVar[tuple[float, float, float]] = (1.0, 0.0, 0.0)

    @property
    def terms(self) -> tuple[float, float, float]:
        """times, plus and noise."""
        return self.always


@dataclass(frozen=True)
class SendNaN(DeliveryFault):
    """Every number of the delivery is NaN."""

    kind, number = "nan", 5
    always = (0.0, math.nan, 0.0)


@dataclass(frozen=True)
class SendInfinity(DeliveryFault):
    """Every number of the delivery is infinite."""

    kind, number = "inf", 6
    always = (0.0, math.inf, 0.0)


@dataclass(frozen=True)
class SendZero(DeliveryFault):
    """Every number of the delivery is 0."""

    kind, number = "zero", 8
    always = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Scaled(DeliveryFault):
    """A fault that comes in sizes."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.factor, Real) or isinstance(self.factor, bool) or not 0 < float(self.factor) < math.inf:
            raise UserError(f"factor of {self.kind} is {self.factor!r}: give a finite number above 0.")


@dataclass(frozen=True)
class SendHuge(Scaled):
    """The delivery is `factor` times as long as it should be."""

    kind, number = "huge", 7
    factor: float = 1e6

    @property
    def terms(self) -> tuple[float, float, float]:
        return float(self.factor), 0.0, 0.0


@dataclass(frozen=True)
class FlipSign(Scaled):
    """The delivery points the other way, `factor` times as long."""

    kind, number = "flip_sign", 9

    @property
    def terms(self) -> tuple[float, float, float]:
        return -float(self.factor), 0.0, 0.0


@dataclass(frozen=True)
class AddNoise(Scaled):
    """Normal noise is added, about `factor` times as long as the delivery itself."""

    kind, number = "noise", 10
    factor: float = 10.0

    @property
    def terms(self) -> tuple[float, float, float]:
        return 1.0, 0.0, float(self.factor)


@dataclass(frozen=True)
class FlipLabels(Fault):
    """The client computes honestly on wrong labels: of c classes, class y counts as c - 1 - y."""

    kind, number = "flip_labels", 11


KINDS: dict[str, type[Fault]] = {
    kind.kind: kind
    for kind in (
        Leave,
        LeaveAndReturn,
        Stall,
        DeliverTwice,
        SendNaN,
        SendInfinity,
        SendHuge,
        SendZero,
        FlipSign,
        AddNoise,
        FlipLabels,
    )
}


def build(kind: str, **settings: Any) -> Fault:
    """The fault of this name; a setting it does not have is an error that names the nearest one."""
    if kind not in KINDS:
        raise unknown("kind of fault", kind, KINDS)
    known = [each.name for each in fields(KINDS[kind])]
    for name in settings:
        if name not in known:
            raise unknown(f"setting of fault {kind!r}", name, known)
    return KINDS[kind](**settings)


def listed(faults: Fault | Iterable[Fault] | None) -> tuple[Fault, ...]:
    """One fault, several or none, as a tuple; two of a kind are refused, since they would draw the same numbers."""
    several: Any = () if faults is None else faults if isinstance(faults, Iterable) else (faults,)
    found = tuple(several)
    for each in found:
        if not isinstance(each, Fault):
            raise UserError(f"faults holds {each!r}: give some such as faults.FlipSign(0.1).")
    twice = [each.kind for each in found if [other.kind for other in found].count(each.kind) > 1]
    if twice:
        raise UserError(f"faults names {twice[0]} more than once: give each kind once, with a chance for each client.")
    return found
