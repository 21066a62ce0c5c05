"""How does a rule look wherever it is drawn? Its own colour, dash and marker, which the colour-blind can tell apart.

Colours of Okabe and Ito (Color Universal Design, 2008); their yellow cannot be read on white, grey takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kasync.report.results import Contender

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#767676")
DARK = ("#3D9BE9", "#FF7F2A", "#1FC79A", "#E79BC5", "#F0B429", "#A5DDFF", "#F5F5F5", "#9A9A9A")  # the same on black
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross", "star")
PLACES = ("wkafl", "twafl", "sasgd", "gsgm", "kasync_sgd", "fedbuff", "fresh", "ca2fl")  # always look the same


@dataclass(frozen=True)
class Look:
    """Colour on white and on black, dash and marker, in the words of plotly."""

    colour: str
    dark: str
    dash: str
    marker: str


def looks(rules: Sequence[Contender]) -> dict[str, Look]:
    """By label: the well-known rules look the same in every experiment, others take the places left."""
    labels = [rule.label for rule in rules]
    taken = {label: PLACES.index(label) for label in labels if label in PLACES}
    free = (place for place in range(len(PLACES) + len(labels)) if place not in taken.values())
    return {label: look(taken[label] if label in taken else next(free)) for label in labels}


def look(place: int) -> Look:
    """The place-th look; after eight the colours come again with another dash and marker."""
    turn = place // len(COLOURS)
    return Look(
        COLOURS[place % len(COLOURS)],
        DARK[place % len(DARK)],
        DASHES[(place + turn) % len(DASHES)],
        MARKERS[(place + 3 * turn) % len(MARKERS)],
    )
