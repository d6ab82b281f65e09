"""What the time from the command to the first sample was taken by."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from sharegen.results.journal.run_file import RunFile

_NAMED = 3  # parts, in the summary's line


def start_in_words(run: RunFile) -> str | None:
    """The whole and its largest parts, in a line; None where a run recorded none."""
    parts = run.timings.get("start")
    if not parts:
        return None
    largest = sorted(parts, key=parts.get, reverse=True)[:_NAMED]
    named = ", ".join(f"{part} {parts[part]:,.1f}" for part in parts if part in largest)
    compiled = _compiled(run)
    said = f"{named}; {compiled}" if compiled else named
    return f"{sum(parts.values()):,.1f} s to the first sample ({said})"


def _compiled(run: RunFile) -> str | None:
    """What was done with the model's layers, where there was a choice: on a GPU."""
    machine = run.extent.get("machine")
    compiles = machine.get("compile") if isinstance(machine, dict) else None
    if run.stats.get("device") != "cuda" or compiles is None:
        return None
    return "layers compiled" if compiles else "layers not compiled"


def print_start(console: Console, run: RunFile) -> None:
    """Every part of the last start, in a table."""
    parts = run.timings.get("start") or {}
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    for part, seconds in parts.items():
        table.add_row(f"[dim]{part}[/]", f"{seconds:,.2f} s")
    compiled = _compiled(run)
    if compiled is not None:
        table.add_row("[dim]on the GPU[/]", compiled)
    table.add_row("[bold]start[/]", f"[bold]{sum(parts.values()):,.2f} s[/]")
    console.print(table)
