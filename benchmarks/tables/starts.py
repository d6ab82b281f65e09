"""The starts of commands, a column each, by part."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measurement import Start
from benchmarks.tables.markdown import number, table
from sharegen.common.start_clock import PARTS


def starts_table(starts: Sequence[Start]) -> str:
    header = ("seconds", *(f"{start.model}, {_when(start)}" for start in starts))
    lines = [[part, *(number(start.parts.get(part), 1) for start in starts)] for part in PARTS]
    lines.append(["**to the first sample**", *(f"**{start.seconds:.1f}**" for start in starts)])
    lines.append(["the whole command", *(number(start.command_seconds, 1) for start in starts)])
    if any(start.compiled is not None for start in starts):
        lines.append(["layers compiled", *(_WORDS[start.compiled] for start in starts)])
    return table(header, [line for line in lines if any(line[1:])])


_WORDS = {True: "yes", False: "no", None: ""}


def _when(start: Start) -> str:
    return "first start" if start.when == "first" else f"later (median of {start.starts})"
