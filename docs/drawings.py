"""Draws the SVG pictures of the pages: the three pieces, K-async beside a synchronous server, and the map of packages.

    python docs/drawings.py [FOLDER]

Both halves of the second are timelines of kasync with the same durations; the third is made from the imports in src.
"""

import ast
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kasync import timelines
from kasync.timelines import Timeline, durations

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"]  # Okabe and Ito's
INK, GREY, PAPER = "#1b1f24", "#5b6570", "#ffffff"
SECONDS = {0: [2.0], 1: [2.6], 2: [3.4], 3: [4.7], 4: [6.3], 5: [8.7]}  # client -> seconds for each piece of work
END = 19.0  # virtual seconds that are drawn


def text(x: float, y: float, words: str, size: int = 14, colour: str = INK, anchor: str = "start", **style: str) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place}{more}>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, fill: str, **style: str) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{more}/>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path d="M{x:g} {y:g} L{to_x:g} {to_y:g}" stroke="{GREY}" stroke-width="1.6" marker-end="url(#tip)"/>'


def drawing(width: int, height: int, title: str, shapes: list[str]) -> str:
    """One SVG with a title for those who cannot see it, on paper of its own so that a dark page does not matter."""
    size = f'viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif">'
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += f'<path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker>'
    paper = box(0, 0, width, height, PAPER, rx="8")
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<defs>{tip}</defs>", paper, *shapes, "</svg>", ""])


PIECES = [  # name, what it says, what it does not know
    (
        "timeline",
        ["who delivers at which step,", "from which model version,", "at what virtual time"],
        "no torch, no gradients",
    ),
    (
        "work",
        ["what a client brings:", "a gradient, or the difference", "after some local steps"],
        "no clock, no server",
    ),
    (
        "rule",
        ["what the server does", "with k deliveries:", "(server, arrivals) -> server"],
        "no clients, no clock, no model",
    ),
]
ENGINES = [
    ("simulator", "replays a timeline made ahead", "kasync.simulate"),
    ("Flower", "a timeline that really happens", "kasync.live.flower"),
    ("Ray", "warm clients on your own machines", "kasync.live.ray"),
]


def three_pieces() -> str:
    shapes = []
    for place, ((name, says, unknown), (engine, does, module)) in enumerate(zip(PIECES, ENGINES, strict=True)):
        x, middle = 30 + 285 * place, 155 + 285 * place
        shapes += [
            box(x, 24, 250, 138, "#f3f6fa", stroke=COLOURS[place], stroke_width="2.5", rx="10"),
            text(middle, 52, name, 19, anchor="middle", font_weight="700"),
            *(text(middle, 78 + 19 * line, words, anchor="middle") for line, words in enumerate(says)),
            text(middle, 149, f"knows {unknown}", 12, GREY, "middle", font_style="italic"),
            arrow(middle, 162, middle, 196),
            box(x, 240, 250, 80, "#fffaf0", stroke=GREY, stroke_width="1.2", rx="10"),
            text(middle, 264, engine, 16, anchor="middle", font_weight="700"),
            text(middle, 285, does, 13, anchor="middle"),
            text(middle, 306, module, 12, GREY, "middle", font_family="monospace"),
        ]
    shapes += [
        box(30, 198, 820, 30, "#e9eef4", rx="8"),
        text(440, 218, "any engine puts the three together and yields one record per step", 14, anchor="middle"),
    ]
    return drawing(880, 340, "A timeline, work and a rule do not know each other; an engine puts them together", shapes)


@dataclass(frozen=True)
class Panel:
    """A timeline with its clients as rows, virtual time from left to right."""

    timeline: Timeline
    top: float
    title: str

    def x(self, second: float) -> float:
        return 92 + 752 * second / END

    def shapes(self) -> list[str]:
        drawn = [text(16, self.top - 12, self.title, 15, font_weight="700")]
        rows = [self.top + 14 + 27 * client for client in range(len(SECONDS))]
        drawn += [text(16, y + 14, f"client {client}", 13, GREY) for client, y in enumerate(rows)]
        updates = [float(second) for second in self.timeline.times if second < END]
        for version, second in enumerate(updates, start=1):
            drawn.append(
                f'<path d="M{self.x(second):g} {self.top:g} V{rows[-1] + 24:g}" stroke="{INK}" stroke-dasharray="3 3"/>'
            )
            drawn.append(text(self.x(second), rows[-1] + 39, f"v{version}", 12, INK, "middle"))
        for client, y in enumerate(rows):
            drawn += self.work(client, y, updates)
        return drawn

    def work(self, client: int, y: float, updates: list[float]) -> list[str]:
        """The pieces of work of one client: solid while it computes, pale while its upload waits for others."""
        shapes, begun = [], [0.0, *updates]
        pieces = [(v, s) for v, s, who in self.deliveries() if who == client]
        held = next((s + 1 for v, s in reversed(pieces)), 0)  # the version it works on when the drawing ends
        for version, step in [*pieces, (held, None)]:
            start = begun[version] if version < len(begun) else END
            done = min(start + SECONDS[client][0], END)
            colour = COLOURS[version % len(COLOURS)]
            label = PAPER if colour == COLOURS[0] else INK  # readable on each of the colours
            if start >= END:
                continue
            shapes.append(box(self.x(start), y, self.x(done) - self.x(start) - 1.5, 20, colour, rx="3"))
            if self.x(done) - self.x(start) > 34:
                shapes.append(text(self.x(start) + 5, y + 15, f"v{version}", 12, label, font_weight="700"))
            until = END if step is None else min(float(self.timeline.times[step]), END)
            if until > done:
                shapes.append(box(self.x(done), y + 7, self.x(until) - self.x(done) - 1.5, 6, colour, opacity="0.35"))
            if step is not None and self.timeline.times[step] < END:
                late = step - version
                shapes.append(text(self.x(done) - 7, y + 15, str(late), 12, label, "end", font_weight="700"))
        return shapes

    def deliveries(self) -> list[tuple[int, int, int]]:
        """(version, step, client) of every delivery, in order."""
        line = self.timeline
        return [
            (int(line.versions[s, i]), s, int(line.clients[s, i])) for s in range(line.steps) for i in range(line.k)
        ]


def k_async() -> str:
    taken = durations.trace(SECONDS)
    everybody = len(SECONDS)
    several = timelines.clock(everybody, 2, 20, taken, mode="async")
    everyone = timelines.clock(everybody, everybody, 5, taken, mode="full")
    late = Panel(
        several, 46, "K-async, k = 2: an update as soon as two have delivered; only those two get the new model"
    )
    whole = Panel(everyone, 296, "Synchronous: every update waits for the slowest")
    notes = [
        text(
            16,
            522,
            "Colour and left number: the model version a client works on. Right number: staleness of what it delivers.",
            13,
            GREY,
        ),
        text(
            16,
            541,
            "Pale: the upload waits, for a second delivery or for the slowest client. Dashed: an update.",
            13,
            GREY,
        ),
    ]
    return drawing(
        880,
        556,
        "Six clients of different speed under a K-async and under a synchronous server",
        [*late.shapes(), *whole.shapes(), *notes],
    )


PACKAGE = Path(__file__).parents[1] / "src" / "kasync"
CORE = {"core", "step", "span", "arrivals", "discounts", "schedules", "optimizers"}  # one box: a server step
BOXES = {  # what is drawn: where, in columns and rows, and what it is for
    "cli": (500, 0, "the program kasync"),
    "comparison": (500, 1, "kasync.compare"),
    "report": (500, 2, "pages and figures"),
    "experiments": (500, 3, "files, runs, store"),
    "live": (84, 5, "Flower and Ray"),
    "rules": (250, 5, "published rules"),
    "simulator": (500, 5, "kasync.simulate"),
    "models": (665, 5, "networks"),
    "theory": (820, 4, "bounds, choice of k"),
    "parts": (250, 6, "formulas"),
    "work": (560, 6, "what clients bring"),
    "faults": (740, 6, "what goes wrong"),
    "timelines": (84, 7, "who delivers when"),
    "core": (360, 7, "a server step"),
    "data": (600, 7, "data sets, partitions"),
}


def box_of(module: str) -> str | None:
    """The box that a module directly under kasync is drawn in; None for the small ones that everybody may use."""
    return "core" if module in CORE else module if module in BOXES else None


def imports() -> dict[str, set[str]]:
    """box -> boxes that its modules import, anywhere in them."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        here = box_of(file.relative_to(PACKAGE).parts[0].removesuffix(".py"))
        if here is None:
            continue
        used = found.setdefault(here, set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "kasync":
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [str(node.module)[7:].split(".")[0]] if str(node.module).startswith("kasync.") else []
            else:
                continue
            used |= {other for name in names if (other := box_of(name)) and other != here}
    return found


def reached(uses: dict[str, set[str]], name: str, above: tuple[str, ...] = ()) -> set[str]:
    """All boxes that a box imports, directly or through others; a circle is an error."""
    assert name not in above, f"a circle of imports: {' -> '.join((*above, name))}"
    return {far for other in uses[name] for far in ({other} | reached(uses, other, (*above, name)))}


def architecture() -> str:
    """Packages with their arrows of import, those left out that a longer way implies."""
    uses, height = imports(), 42 + 84 * 8
    shapes = []
    for name, others in uses.items():
        x, row, says = BOXES[name]
        for other in sorted(others):
            if any(other in reached(uses, between) for between in others):
                continue
            to_x, to_row, _ = BOXES[other]
            assert to_row > row, f"{name} imports {other}, which BOXES does not place below it"
            start, end = 24 + 84 * row, 22 + 84 * to_row
            if to_row > row + 1 and abs(to_x - x) > 200:  # around the boxes between, from the side
                side = x - 68 if to_x < x else x + 68
                bend = f"M{side:g} {start + 22:g} C{to_x:g} {start + 22:g} {to_x:g} {start + 60:g} {to_x:g} {end:g}"
            else:
                bend = f"M{x:g} {start + 44:g} C{x:g} {start + 72:g} {to_x:g} {end - 34:g} {to_x:g} {end:g}"
            shapes.append(f'<path d="{bend}" fill="none" stroke="{GREY}" stroke-width="1.2" marker-end="url(#tip)"/>')
        shapes.append(box(x - 68, 24 + 84 * row, 136, 44, "#f3f6fa", stroke=COLOURS[0], stroke_width="1.4", rx="8"))
        shapes.append(text(x, 43 + 84 * row, name, 15, anchor="middle", font_weight="700"))
        shapes.append(text(x, 60 + 84 * row, says, 12, GREY, "middle"))
    words = "An arrow points at what is imported; one that a longer way implies is left out."
    shapes.append(text(16, height - 14, words, 13, GREY))
    return drawing(900, height, "The packages of kasync and their imports, from the command line down", shapes)


DRAWINGS = {"pieces.svg": three_pieces, "k-async.svg": k_async, "architecture.svg": architecture}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, draw in DRAWINGS.items():
        (folder / name).write_text(draw())
        print(folder / name)
