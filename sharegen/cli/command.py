"""How a command shows its help: options by panel, in plain lines that fit any terminal."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_ARGUMENTS, _OTHER = "Arguments", "Options"

_KINDS = {
    "int": "N", "float": "X", "str": "TEXT", "Path": "FILE",
    "INTEGER": "N", "FLOAT": "X", "PATH": "FILE",  # before Typer 0.29
}  # fmt: skip
"""Typer's name of a type -> what stands for a value whose option says nothing better."""

_KIND = re.compile(r"<(?:list\[)?(\w+)[^>]*>|\b(INTEGER|FLOAT|PATH)\b(?: RANGE)?")


class Command(TyperCommand):
    """A command whose help has a section for each `rich_help_panel`, in the order of the first.

    An option whose metavar stands in brackets may go without a value: it has an empty one then.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        params = (param for param in self.get_params(ctx) if (param.metavar or "").startswith("["))
        names = {name for param in params for name in param.opts}
        following = [*args[1:], "--"] if args else []
        args = [
            f"{arg}=" if arg in names and after.startswith("-") else arg
            for arg, after in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, args)

    def shown_params(self, ctx: Any) -> list[Any]:
        """The parameters as the help tells of them."""
        return list(self.get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.shown_params(ctx):
            line = param.get_help_record(ctx)
            if line is not None:
                sections.setdefault(_panel(param), []).append(_plain(param, *line))
        other = sections.pop(_OTHER, None)
        for name, lines in (*sections.items(), *([(_OTHER, other)] if other else [])):
            with formatter.section(name):
                formatter.write_dl(lines)


def _panel(param: Any) -> str:
    if param.param_type_name == "argument":
        return _ARGUMENTS
    return getattr(param, "rich_help_panel", None) or _OTHER


def _plain(param: Any, names: str, text: str) -> tuple[str, str]:
    """Names with one kind of placeholder, and a default in one pair of brackets."""
    if param.param_type_name == "argument":
        names = param.metavar or param.name.upper()
    names = _KIND.sub(lambda kind: _KINDS.get(kind[1] or kind[2], "VALUE"), names)
    text = text.replace("\\[", "[")  # Typer 0.19 escapes brackets for rich, which has no part here
    return names, re.sub(r"\[default: \((.*?)\)([;\]])", r"[default: \1\2", text)
