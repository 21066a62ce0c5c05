"""kasync live: the page of a federation that is running, from the folder that its `record=` names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def live(
    folder: Annotated[Path, typer.Argument(help="The folder that record= of KAsync or RayFederation names.")],
    port: Annotated[int, typer.Option(help="Of the page that is served; 0 takes any.")] = 8766,
    html: Annotated[bool, typer.Option("--html", help="Write the page into the folder instead of serving it.")] = False,
) -> None:
    """Follow a running federation: accuracy, staleness, who is heard, what each client moves, and why not.

    Example: `kasync live runs/hospital`
    """
    from kasync.live import page

    if html:
        print(page.write(folder))
    else:
        page.serve(folder, port)
