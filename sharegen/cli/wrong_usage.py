"""What is wrong with a command line, in one line and the same words whatever Typer's version."""

from __future__ import annotations

import re
from typing import Any

from sharegen.common.wrong_value import in_words

_NO_NUMBER = re.compile(r"'.*' is not a valid (int|float)(?:eger)?(?: range)?\.", re.DOTALL)
_OUTSIDE = re.compile(r"(\S+) is not in the range (?:(\S+)<=)?x(?:([<>])=(\S+))?\.")
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((\S+).*\)", re.DOTALL)


def explain(error: Any) -> str:
    """An error of the parser in words; without a subcommand, which there are."""
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "sharegen"
    if type(error).__name__ == "NoArgsIsHelpError":
        return f"{command} needs a command: {', '.join(error.ctx.command.commands)}"
    from pydantic import ValidationError

    cause = error.__cause__
    if isinstance(cause, ValidationError):  # since Typer 0.29
        error.message = in_words(cause.errors(include_url=False)[0])
    else:
        error.message = of_click(error.message)
    return f"{error.format_message().strip()} (see '{command} --help')"


def of_click(message: str) -> str:
    """Click's words for a wrong number or an argument too many as ours; others as they are."""
    extra = _EXTRA.fullmatch(message)
    if extra is not None:
        files = ": where a pattern finds several files, name one" if "." in extra[1] else ""
        return f"{extra[1]} is an argument too many{files}"
    number = _NO_NUMBER.fullmatch(message)
    if number is not None:
        return "it must be a whole number" if number[1] == "int" else "it must be a number"
    outside = _OUTSIDE.fullmatch(message)
    if outside is None:
        return message
    value, least, side, bound = outside.groups()
    if side == ">":
        least = bound
    if least is not None and float(value) < float(least):
        return f"it must be at least {least}"
    return f"it must be at most {bound}"
