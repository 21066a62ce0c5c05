"""Hooks of the documentation site: formulas, the references of commands and modules, lists of parameters, versions."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

FENCED = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)  # code, in which a dollar is a dollar
FORMULA = re.compile(r"(?<![\\$\w])\$([^$\n]+)\$(?![\w$])")
WORD = re.compile(r"formula0x([0-9a-f]+)x0")  # a formula until the page is HTML: Markdown takes MathML for a block
ALONE = re.compile(rf"<p>\s*{WORD.pattern}\s*</p>")
COMMANDS = "<!-- commands -->"  # where docs/cli.md wants the reference
MODULES = "<!-- modules -->"  # where docs/architecture.md wants the list of modules
PACKAGE = Path(__file__).parents[1] / "src" / "kasync"
EXAMPLE = re.compile(r"^Example: `(.+)`$", re.MULTILINE)
SETTING = re.compile(r"([A-Za-z_]\w*(?:, \w+)*) {2,}(\S.*)")  # `name   what it is`, as the docstrings lay it out


def on_config(config: Any) -> Any:
    """A selector of versions where mike deploys them; it would ask for a file that a local build does not have."""
    if os.environ.get("MIKE_DOCS_VERSION"):
        config.extra["version"] = {"provider": "mike"}
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its references filled in and a word in the place of each formula, its code untouched."""
    pieces = FENCED.split(markdown)
    filled = "".join(piece if place % 2 else FORMULA.sub(_word, piece) for place, piece in enumerate(pieces))
    for marker, made in ((COMMANDS, commands), (MODULES, modules)):
        filled = filled.replace(marker, made()) if marker in filled else filled
    return filled


def on_page_content(html: str, **_: Any) -> str:
    """The page with the formulas in the places of their words; what is alone in its paragraph is displayed."""
    html = ALONE.sub(lambda found: f'<p class="formula">{_mathml(found, "block")}</p>', html)
    return WORD.sub(_mathml, html)


def _word(found: re.Match[str]) -> str:
    return f"formula0x{found[1].encode().hex()}x0"


def _mathml(found: re.Match[str], display: str = "inline") -> str:
    formula = bytes.fromhex(found[1]).decode()
    made = convert(formula, display=display)
    if unknown := re.findall(r"\\\w+", made):
        raise ValueError(f"${formula}$: latex2mathml does not know {', '.join(unknown)}")
    return made.replace('<mo stretchy="false">&#x0007C;', '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;')


def modules() -> str:
    """Markdown table of every module with the first line of its docstring."""
    rows = ["| module | what is in it |", "|---|---|"]
    for file in sorted(PACKAGE.rglob("*.py")):
        told = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        rows.append(f"| `{file.relative_to(PACKAGE).as_posix()}` | {told} |")
    return "\n".join(rows)


def commands() -> str:
    """Markdown of every command of `kasync`: what it does, how it is called, its arguments and options."""
    import typer

    from kasync.cli.app import app

    return "\n\n".join(_sections(typer.main.get_command(app), "kasync"))


def _sections(command: Any, name: str) -> Iterator[str]:
    import click

    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    words = [each.make_metavar(click.Context(command)) for each in shown if each.param_type_name == "argument"]
    subcommands = getattr(command, "commands", {})
    yield f"{'#' * (1 + len(name.split()))} {name}" if " " in name else ""
    yield EXAMPLE.sub(r"```console\n\1\n```", command.help or "")
    yield f"Usage: `{' '.join([name, *(['COMMAND'] if subcommands else []), *words, '[OPTIONS]'])}`"
    rows = [f"| {_flags(each)} | {_cell(each.help)} | {_default(each)} |" for each in shown if each.name != "help"]
    if rows:
        yield "\n".join(["| option | meaning | default |", "|---|---|---|", *rows])
    for each, subcommand in subcommands.items():
        yield from _sections(subcommand, f"{name} {each}")


def _flags(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    flags = " ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    return flags if parameter.is_flag else f"{flags} {parameter.type.name}"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _default(parameter: Any) -> str:
    value = parameter.default
    return "" if value is None or value is False or callable(value) or repr(value) in ("()", "[]") else f"`{value}`"


class ParameterLists(griffe.Extension):
    """Docstrings whose settings are laid out in columns get a list of them on the API page."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """Paragraphs of lines `name   what it is`, each with indented continuations, as Markdown lists."""
    return "\n\n".join(_list(paragraph) or paragraph for paragraph in text.split("\n\n"))


def _list(paragraph: str) -> str | None:
    items: list[str] = []
    for line in paragraph.splitlines():
        found = SETTING.fullmatch(line)
        if found:
            items.append(f"- `{found[1]}`: {found[2]}")
        elif items and line.startswith("  "):
            items[-1] += " " + line.strip()
        else:
            return None
    return "\n".join(items)
