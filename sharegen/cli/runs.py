"""`sharegen runs`: which journals there are, and how far each is."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sharegen.cli.json_output import JsonOption, print_json
from sharegen.cli.parameters import parse_path
from sharegen.common.printable import printable, visible

if TYPE_CHECKING:
    from sharegen.job.listing import Listed


def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of journals, or journals; runs/ by default.",
            metavar="[FOLDER]...",
            parser=parse_path,
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List journals: recipe, model, how many samples are drawn of how many, the last write.

    \b
    Examples:
      sharegen runs
      sharegen runs runs/ /shared/runs
    """
    from sharegen.job.listing import journals_in

    found = list(journals_in(folders or [Path("runs")]))
    if json:
        print_json({"runs": [listed.to_json() for listed in found]})
    elif not sys.stdout.isatty():
        for listed in found:
            print(printable("\t".join(_cells(listed))))
    elif found:
        table = Table(box=None)
        table.add_column(
            "journal", no_wrap=True, min_width=max(len(str(listed.path)) for listed in found)
        )
        for name in ("recipe", "data", "model", "samples", "last write"):
            table.add_column(name, overflow="fold")
        for listed in found:
            table.add_row(*map(visible, _cells(listed)))
        Console(highlight=False).print(table)


def _cells(listed: Listed) -> list[str]:
    samples = f"{listed.samples:,}"
    if listed.asked is not None:  # of a run with fewer rows or samples than an earlier one
        more = listed.samples > listed.asked
        samples += f", {listed.asked:,} asked" if more else f" of {listed.asked:,}"
    written = datetime.strftime(listed.written.astimezone(), "%Y-%m-%d %H:%M")
    state = listed.fault or ("running" if listed.is_running else written)
    names = [name or "" for name in (listed.recipe, listed.dataset, listed.model)]
    return [str(listed.path), *names, samples, state]
