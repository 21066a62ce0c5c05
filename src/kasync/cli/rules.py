"""kasync rules: what the server can do with K deliveries."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson

Name = Annotated[str | None, typer.Argument(help="One rule, with everything about it.")]


def rules(name: Name = None, as_json: AsJson = False) -> None:
    """List the rules: formula, paper, settings and their defaults.

    Example: `kasync rules wkafl`
    """
    from kasync import rules as known
    from kasync.errors import unknown

    if name is not None and name not in known.RULES:
        raise unknown("rule", name, known.RULES)
    rows = [described(each, make) for each, make in known.RULES.items() if name in (None, each)]
    if as_json:
        show.value(rows)
    elif name is None:
        show.rows([{**row, "settings": ", ".join(_setting(*pair) for pair in row["settings"].items())} for row in rows])
    else:
        (row,) = rows
        settings = "\n".join(f"  {_setting(*pair)}" for pair in row["settings"].items())
        print(f"{row['name']}\n\n  {row['formula']}\n\n{row['paper']}\n")
        print(f"settings (a name without a value must be given)\n{settings}")


def described(name: str, make: Any) -> dict[str, Any]:
    """From the rule's docstring and signature."""
    formula, _, rest = (inspect.getdoc(make) or "").partition("\n")
    settings = {
        each.name: None if each.default is inspect.Parameter.empty else each.default
        for each in inspect.signature(make).parameters.values()
    }
    plain = {
        n: value if isinstance(value, bool | int | float | str | None) else repr(value) for n, value in settings.items()
    }
    return {"name": name, "formula": formula, "paper": " ".join(rest.split()), "settings": plain}


def _setting(name: str, default: Any) -> str:
    return name if default is None else f"{name}={default}"
